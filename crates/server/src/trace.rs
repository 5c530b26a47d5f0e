//! W3C trace context: a caller's `traceparent` stands in what is logged about the call, and goes back with the answer.
//!
//! The server makes no spans of its own, so it hands the caller's on as it came.

use hyper::header::{HeaderName, HeaderValue};
use hyper::{HeaderMap, Response};
use tracing::Span;

static HEADER: HeaderName = HeaderName::from_static("traceparent");

/// The trace that a call belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Trace(HeaderValue);

/// Of a header that is as the standard wants it; what is not is as good as none.
pub(crate) fn of(headers: &HeaderMap) -> Option<Trace> {
    let value = headers.get(&HEADER)?;
    is_valid(value.as_bytes()).then(|| Trace(value.clone()))
}

/// Version, trace, parent and flags, in lower-case hexadecimal digits; later versions may add more behind a dash.
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

impl Trace {
    /// What events of the call are logged in.
    pub(crate) fn span(&self) -> Span {
        tracing::error_span!("call", traceparent = self.0.to_str().unwrap_or_default())
    }

    pub(crate) fn answer<B>(self, answer: &mut Response<B>) {
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
