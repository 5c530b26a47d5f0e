//! The views and their addresses.

use ripieno_base::{Nanos, Time};
use std::borrow::Cow;

/// Spans of the timeline.
pub(super) const SPANS: [(&str, Nanos); 6] = [
    ("0.1", Nanos::from_millis(100)),
    ("0.5", Nanos::from_millis(500)),
    ("1", Nanos::from_millis(1_000)),
    ("2", Nanos::from_millis(2_000)),
    ("5", Nanos::from_millis(5_000)),
    ("10", Nanos::from_millis(10_000)),
];

/// The span without another wish, as an index into [`SPANS`].
const USUAL_SPAN: usize = 3;

/// The content of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum View {
    Now,
    /// The timeline, with one of [`SPANS`].
    Devices(usize),
    /// A batch by its decision's time and device.
    Task(Time, u16),
    /// A model by name and version.
    Model(String, String),
    /// Late requests: groups, or the requests of those that pass the filter.
    Requests(RequestFilter),
    /// A request by the time of its arrival.
    Request(Time),
    /// A request by its client's id.
    Search(String),
}

/// Properties that all listed requests have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RequestFilter {
    /// Name of the cause in JSON, such as "overload"; `None` for any, as below.
    pub(super) cause: Option<String>,
    /// Name of the model.
    pub(super) model: Option<String>,
    /// Name of the outcome, such as "late".
    pub(super) end: Option<String>,
}

impl RequestFilter {
    /// Returns true if it lets everything pass.
    pub(super) fn is_open(&self) -> bool {
        *self == RequestFilter::default()
    }

    fn query(&self) -> String {
        let parts = [("cause", &self.cause), ("model", &self.model), ("end", &self.end)];
        let mut query = form_urlencoded::Serializer::new(String::new());
        for (name, value) in parts {
            if let Some(value) = value {
                query.append_pair(name, value);
            }
        }
        query.finish()
    }
}

impl View {
    /// Returns the view at a path below /ui.
    pub(super) fn parse(path: &str, query: &str) -> Option<View> {
        let value = |key: &str| {
            let mut pairs = form_urlencoded::parse(query.as_bytes());
            pairs.find(|(name, _)| name == key).map(|(_, value)| value)
        };
        let time = |value: Option<Cow<'_, str>>| value?.parse().ok().map(Time);
        match path {
            "" => Some(View::Now),
            "/devices" => {
                let wanted = value("span");
                let span = SPANS.iter().position(|(name, _)| Some(*name) == wanted.as_deref());
                Some(View::Devices(span.unwrap_or(USUAL_SPAN)))
            }
            "/task" => Some(View::Task(time(value("at"))?, value("device")?.parse().ok()?)),
            "/model" => {
                Some(View::Model(value("name")?.into_owned(), value("version").unwrap_or_default().into_owned()))
            }
            "/requests" => match value("id").filter(|id| !id.trim().is_empty()) {
                Some(id) => Some(View::Search(id.trim().to_owned())),
                None => {
                    let text = |key: &str| value(key).filter(|value| !value.is_empty()).map(Cow::into_owned);
                    let (cause, model, end) = (text("cause"), text("model"), text("end"));
                    Some(View::Requests(RequestFilter { cause, model, end }))
                }
            },
            "/request" => Some(View::Request(time(value("at"))?)),
            _ => None,
        }
    }

    /// Returns the address.
    pub(super) fn path(&self) -> String {
        let encode = |text: &str| form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>();
        match self {
            View::Now => "/ui".to_owned(),
            View::Devices(span) => format!("/ui/devices?span={}", SPANS[*span].0),
            View::Task(at, device) => format!("/ui/task?at={}&device={device}", at.0),
            View::Model(name, version) => format!("/ui/model?name={}&version={}", encode(name), encode(version)),
            View::Requests(filter) if filter.is_open() => "/ui/requests".to_owned(),
            View::Requests(filter) => format!("/ui/requests?{}", filter.query()),
            View::Request(at) => format!("/ui/request?at={}", at.0),
            View::Search(id) => format!("/ui/requests?id={}", encode(id)),
        }
    }

    /// Returns the address of the stream of its changing part; `None` if it does not change.
    pub(super) fn live_path(&self) -> Option<String> {
        let changes = matches!(self, View::Now | View::Devices(_) | View::Model(..) | View::Requests(_));
        changes.then(|| self.path().replacen("/ui", "/ui/live", 1))
    }

    pub(super) fn title(&self) -> String {
        match self {
            View::Now => "Now".to_owned(),
            View::Devices(_) => "Devices".to_owned(),
            View::Task(..) => "A batch".to_owned(),
            View::Model(name, _) => name.clone(),
            View::Requests(_) | View::Search(_) => "Requests".to_owned(),
            View::Request(_) => "A request".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_lead_to_their_views() {
        let views = [
            View::Now,
            View::Devices(0),
            View::Task(Time(12), 3),
            View::Model("a b&c".to_owned(), "2".to_owned()),
            View::Requests(RequestFilter::default()),
            View::Requests(RequestFilter { cause: Some("overload".to_owned()), ..RequestFilter::default() }),
            View::Requests(RequestFilter {
                cause: None,
                model: Some("a b&c".to_owned()),
                end: Some("late".to_owned()),
            }),
            View::Request(Time(77)),
            View::Search("x=1&y".to_owned()),
        ];
        for view in views {
            let address = view.path();
            let (path, query) = address.split_once('?').unwrap_or((&address, ""));
            assert_eq!(View::parse(path.strip_prefix("/ui").unwrap(), query), Some(view));
        }
        assert_eq!(View::parse("/devices", "span=7"), Some(View::Devices(USUAL_SPAN)));
        assert_eq!((View::parse("/task", "at=1"), View::parse("/other", "")), (None, None));
    }
}
