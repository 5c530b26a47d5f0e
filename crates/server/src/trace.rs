//! W3C trace context: the client's `traceparent` is attached to log events of the call and returned
//! with the response.
//!
//! The server creates no spans of its own, so it passes the value on unchanged.

use hyper::header::{HeaderName, HeaderValue};
use hyper::{HeaderMap, Response};
use tracing::Span;

static HEADER: HeaderName = HeaderName::from_static("traceparent");

/// Trace context of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TraceContext(HeaderValue);

/// Returns the trace context of a valid header; an invalid one counts as absent.
pub(crate) fn from_headers(headers: &HeaderMap) -> Option<TraceContext> {
    let value = headers.get(&HEADER)?;
    is_valid(value.as_bytes()).then(|| TraceContext(value.clone()))
}

/// Returns true for version, trace, parent and flags in lower-case hexadecimal; later versions may
/// add more after a dash.
fn is_valid(text: &[u8]) -> bool {
    let hex = |part: &[u8]| part.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let is_zero = |part: &[u8]| part.iter().all(|byte| *byte == b'0');
    let Some((text, more)) = text.split_at_checked(55) else { return false };
    let (version, trace, parent, flags) = (&text[..2], &text[3..35], &text[36..52], &text[53..]);
    let dashes = [2, 35, 52].iter().all(|&at| text[at] == b'-');
    let ends = more.is_empty() || (version != b"00" && more.starts_with(b"-"));
    let digits = [version, trace, parent, flags].into_iter().all(hex);
    dashes && ends && digits && version != b"ff" && !is_zero(trace) && !is_zero(parent)
}

impl TraceContext {
    /// Returns the span for log events of the call.
    pub(crate) fn span(&self) -> Span {
        tracing::error_span!("call", traceparent = self.0.to_str().unwrap_or_default())
    }

    /// The header's value.
    #[cfg(feature = "otlp")]
    pub(crate) fn text(&self) -> &str {
        self.0.to_str().unwrap_or_default()
    }

    pub(crate) fn add_to_answer<B>(self, answer: &mut Response<B>) {
        answer.headers_mut().insert(&HEADER, self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_standard_allows_is_handed_on() {
        let valid = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        assert!(is_valid(valid.as_bytes()));
        assert!(is_valid(format!("cc{}-more", &valid[2..]).as_bytes()));
        let odd = [
            "",
            "00",
            &valid[..54],
            &format!("{valid}-more"),
            &valid.to_uppercase(),
            &valid.replace('b', "g"),
            &valid.replacen('-', "_", 1),
            &format!("ff{}", &valid[2..]),
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
        ];
        for text in odd {
            assert!(!is_valid(text.as_bytes()), "{text}");
        }
    }
}
