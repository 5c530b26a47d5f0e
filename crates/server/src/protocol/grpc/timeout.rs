//! The deadline of gRPC clients in the header `grpc-timeout`.

use crate::problem::Problem;
use hyper::HeaderMap;
use hyper::header::HeaderName;
use std::time::Duration;

static TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

/// Returns the client's time limit for this call.
pub(super) fn from_headers(headers: &HeaderMap) -> Result<Option<Duration>, Problem> {
    let Some(value) = headers.get(&TIMEOUT) else { return Ok(None) };
    value.to_str().ok().and_then(parse).map(Some).ok_or_else(|| {
        Problem::invalid(format!("grpc-timeout is {value:?}; it must be up to 8 digits and one of H, M, S, m, u, n"))
    })
}

fn parse(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let count: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(count * 3600),
        "M" => Duration::from_secs(count * 60),
        "S" => Duration::from_secs(count),
        "m" => Duration::from_millis(count),
        "u" => Duration::from_micros(count),
        "n" => Duration::from_nanos(count),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_read_as_the_protocol_says() {
        assert_eq!(parse("99999999H"), Some(Duration::from_secs(99_999_999 * 3600)));
        assert_eq!(parse("250m"), Some(Duration::from_millis(250)));
        assert_eq!(parse("7n"), Some(Duration::from_nanos(7)));
        for wrong in ["", "m", "12", "123456789S", "-1S", "1s", "1ä"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
