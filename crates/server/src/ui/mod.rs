//! The page at `/ui` on the metrics port: is it healthy, why was a request late, what to change.
//!
//! HTML is rendered here, by maud. A stream of server-sent events brings the changing part of an
//! open view anew each second, and a small script puts it into the page. Without the script the
//! page is complete and stands still. Everything comes from this server: style, script and charts.
//!
//! The page is open to clients that may read the metrics. Browsers cannot send a bearer token, so
//! that a token is also taken as the password of HTTP's basic authentication.

mod causes;
mod devices;
mod format;
mod model;
mod now;
mod page;
mod parts;
mod render;
mod request;
mod request_groups;
mod samples;
pub(crate) mod shared;
pub(crate) mod status;
#[cfg(test)]
mod tests;
mod timeline;
mod trial;
mod verdict;
mod view;
mod watch;

use crate::access::Permission;
use crate::problem::{Problem, ProblemKind};
use crate::protocol::http;
use crate::state::ServerState;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http_body_util::{Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::header::{
    AUTHORIZATION, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, HeaderValue, LOCATION,
    REFERRER_POLICY, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
};
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use ripieno_report::html::STYLE;
use shared::MOST_STREAMS;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;
use tokio_stream::wrappers::ReceiverStream;
use tonic::body::Body;
use view::View;

/// Path of the page.
pub(crate) const PATH: &str = "/ui";
/// Interval of the updates.
const EVERY: Duration = Duration::from_secs(1);

const SCRIPT: &str = include_str!("script.js");

/// Nothing is loaded from elsewhere, no other page may frame this one, and no inline script runs.
const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self' data:; \
                      form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// Takes a sample of the counters, and judges by it; called each second.
pub(crate) fn sample(state: &ServerState) {
    if state.backend.is_primary() {
        let entries = state.registry.ready_entries().into_iter();
        let models = entries.filter_map(|entry| state.model_metrics(&entry).map(|model| (entry, model))).collect();
        state.ui.samples.lock().take(models, state.backend.devices());
    } else {
        state.ui.samples.lock().clear();
    }
    state.ui.watch.drop_unused();
    state.ui.count_devices(if state.backend.is_primary() { state.backend.serving_devices() } else { 0 });
    state.ui.count_elections(state.backend.elections().unwrap_or_default());
    let models = state.ui.samples.lock().models();
    state.ui.set_problems(verdict::problems(state, &models, &[]));
}

/// Whether a path belongs to the page.
pub(crate) fn has(path: &str) -> bool {
    path.strip_prefix(PATH).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Answers a request for the page or a part of it.
pub(crate) async fn answer(state: Arc<ServerState>, mut request: Request<Incoming>) -> Response<Body> {
    accept_basic(request.headers_mut());
    if let Err(problem) = state.access.authorize(Permission::Metrics, &request) {
        let mut answer = http::refusal(&problem).map(Body::new);
        if problem.kind == ProblemKind::Unauthenticated {
            let basic = HeaderValue::from_static("Basic realm=\"ripieno: the token is the password\"");
            answer.headers_mut().insert(WWW_AUTHENTICATE, basic);
        }
        return answer;
    }
    let answered = match *request.method() {
        Method::GET | Method::HEAD => route(&state, &request).await,
        Method::POST if request.uri().path().strip_prefix(PATH) == Some(trial::PATH) => {
            tried(&state, &mut request).await
        }
        ref other => Err(Problem::new(ProblemKind::WrongMethod, format!("{other} {PATH}: use GET"))),
    };
    let mut answer = answered.unwrap_or_else(|problem| http::refusal(&problem).map(Body::new));
    let headers = answer.headers_mut();
    let mut set = |name: HeaderName, value| headers.insert(name, HeaderValue::from_static(value));
    set(CONTENT_SECURITY_POLICY, POLICY);
    set(X_CONTENT_TYPE_OPTIONS, "nosniff");
    set(REFERRER_POLICY, "no-referrer");
    set(CACHE_CONTROL, "no-store");
    answer
}

/// Takes the password of basic authentication as a token.
fn accept_basic(headers: &mut HeaderMap) {
    let password = headers.get(AUTHORIZATION).and_then(|value| {
        let encoded = value.to_str().ok()?.strip_prefix("Basic ")?;
        let decoded = String::from_utf8(STANDARD.decode(encoded.trim()).ok()?).ok()?;
        let (_, password) = decoded.split_once(':')?;
        HeaderValue::from_str(&format!("Bearer {password}")).ok()
    });
    if let Some(bearer) = password {
        headers.insert(AUTHORIZATION, bearer);
    }
}

/// Runs the request of the form that tries a model, and returns the model's page with the answer.
async fn tried(state: &Arc<ServerState>, request: &mut Request<Incoming>) -> Result<Response<Body>, Problem> {
    let caller = state.access.authorize(Permission::Infer, request)?;
    let trial = trial::run(state, caller, request).await?;
    let html = rendered(state, move |state| page::whole(state, &trial.view(), Some(&trial))).await?;
    Ok(whole("text/html; charset=utf-8", html))
}

async fn route(state: &Arc<ServerState>, request: &Request<Incoming>) -> Result<Response<Body>, Problem> {
    if !state.config.ui {
        return Err(Problem::new(ProblemKind::NotFound, "the page is off; start the server without --ui off"));
    }
    let (path, query) = (request.uri().path(), request.uri().query().unwrap_or_default());
    match path.trim_end_matches('/').strip_prefix(PATH).unwrap_or_default() {
        "/style.css" => Ok(whole("text/css; charset=utf-8", STYLE.to_owned())),
        "/script.js" => Ok(whole("text/javascript; charset=utf-8", SCRIPT.to_owned())),
        rest => {
            let (live, rest) = match rest.strip_prefix("/live") {
                Some(rest) => (true, rest),
                None => (false, rest),
            };
            let view = View::parse(rest, query).ok_or_else(|| {
                let known = "/ui, /ui/devices, /ui/model?name=MODEL and /ui/requests";
                Problem::new(ProblemKind::NotFound, format!("'{path}' is no view; see {known}"))
            })?;
            if live {
                return stream(state, view);
            }
            let html = rendered(state, move |state| page::whole(state, &view, None)).await?;
            Ok(whole("text/html; charset=utf-8", html))
        }
    }
}

/// Leads browsers that ask for the port alone to the page.
pub(crate) fn redirect() -> Response<Body> {
    let mut answer = Response::new(Body::empty());
    *answer.status_mut() = StatusCode::TEMPORARY_REDIRECT;
    answer.headers_mut().insert(LOCATION, HeaderValue::from_static(PATH));
    answer
}

fn whole(kind: &'static str, body: String) -> Response<Body> {
    let mut answer = Response::new(Body::new(Full::new(Bytes::from(body))));
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    answer
}

/// Renders on a blocking thread.
async fn rendered(
    state: &Arc<ServerState>,
    view: impl FnOnce(&ServerState) -> maud::Markup + Send + 'static,
) -> Result<String, Problem> {
    status::from_history(state, move |state| view(state).into_string()).await
}

/// Streams the changing part of a view, until the client goes or the server ends.
fn stream(state: &Arc<ServerState>, view: View) -> Result<Response<Body>, Problem> {
    let full = || {
        let message = format!("{MOST_STREAMS} pages are open; close one, or reload by hand");
        Problem { retry_after: Some(EVERY), ..Problem::new(ProblemKind::Overloaded, message) }
    };
    let permit = state.ui.streams.clone().try_acquire_owned().map_err(|_| full())?;
    // One unsent event: a slow client gets fewer of them.
    let (sender, receiver) = mpsc::channel(1);
    let state = state.clone();
    tokio::spawn(async move {
        let _permit = permit;
        let mut ticks = tokio::time::interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = sender.closed() => return,
                () = state.until_draining() => return,
            }
            let view = view.clone();
            let Ok(html) = rendered(&state, move |state| render::live(&view, state)).await else { return };
            let mut event = String::with_capacity(html.len() + 64);
            for line in html.lines() {
                event.extend(["data: ", line, "\n"]);
            }
            event.push('\n');
            let piece = Ok::<_, Infallible>(Frame::data(Bytes::from(event)));
            tokio::select! {
                sent = sender.send(piece) => if sent.is_err() { return },
                () = state.until_draining() => return,
            }
        }
    });
    let mut answer = Response::new(Body::new(StreamBody::new(ReceiverStream::new(receiver))));
    *answer.status_mut() = StatusCode::OK;
    let kind = HeaderValue::from_static("text/event-stream; charset=utf-8");
    answer.headers_mut().insert(CONTENT_TYPE, kind);
    Ok(answer)
}
