//! Durations in messages.

use std::time::Duration;

/// Digits of a duration in a message.
const DIGITS: u32 = 3;

/// Rounds up to three digits, for people: 2.13253238 s become 2.14 s.
pub(crate) fn rounded(span: Duration) -> Duration {
    let nanos = span.as_nanos();
    let unit = 10_u128.pow(nanos.checked_ilog10().unwrap_or(0).saturating_sub(DIGITS - 1));
    let rounded = nanos.div_ceil(unit) * unit;
    u64::try_from(rounded).map_or(span, Duration::from_nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_three_digits() {
        let shown = |nanos| format!("{:?}", rounded(Duration::from_nanos(nanos)));
        assert_eq!(shown(2_132_532_380), "2.14s");
        assert_eq!(shown(1_839_879), "1.84ms");
        assert_eq!(shown(178_000_000), "178ms");
        assert_eq!((shown(0), shown(7), shown(999_999_999)), ("0ns".into(), "7ns".into(), "1s".into()));
        assert_eq!(rounded(Duration::MAX), Duration::MAX);
    }
}
