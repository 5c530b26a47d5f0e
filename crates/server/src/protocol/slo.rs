//! The latency target that an inference gateway passes in a header.

use crate::problem::Problem;
use hyper::HeaderMap;
use hyper::header::HeaderName;
use std::time::Duration;

/// Header of llm-d, and its older name.
static HEADERS: [HeaderName; 2] =
    [HeaderName::from_static("x-llm-d-slo-ttft-ms"), HeaderName::from_static("x-slo-ttft-ms")];
/// Upper bound on the header's value.
const MAX_MS: f64 = 1e12;

/// Returns the time until the first response, if a header gives it in milliseconds.
pub(crate) fn from_headers(headers: &HeaderMap) -> Result<Option<Duration>, Problem> {
    let Some((name, value)) = HEADERS.iter().find_map(|name| Some((name, headers.get(name)?))) else {
        return Ok(None);
    };
    let millis = value.to_str().ok().and_then(|text| text.trim().parse::<f64>().ok());
    match millis.filter(|millis| *millis > 0.0 && *millis <= MAX_MS) {
        Some(millis) => Ok(Some(Duration::from_secs_f64(millis / 1e3))),
        None => Err(Problem::invalid(format!(
            "the header {name} is {value:?}; it must be a number of milliseconds above 0"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::HeaderValue;

    #[test]
    fn a_number_of_milliseconds_or_an_error() {
        let with = |name: &'static str, value: &'static str| {
            from_headers(&HeaderMap::from_iter([(name.parse().unwrap(), HeaderValue::from_static(value))]))
        };
        assert_eq!(from_headers(&HeaderMap::new()), Ok(None));
        assert_eq!(with("x-llm-d-slo-ttft-ms", " 800 "), Ok(Some(Duration::from_millis(800))));
        assert_eq!(with("x-slo-ttft-ms", "0.5"), Ok(Some(Duration::from_micros(500))));
        for odd in ["", "soon", "0", "-1", "nan", "inf", "1e300"] {
            assert!(with("x-llm-d-slo-ttft-ms", odd).unwrap_err().message.contains("x-llm-d-slo-ttft-ms"), "{odd}");
        }
    }
}
