//! Numbers as the page writes them.

use ripieno_base::{Nanos, Time};
use std::time::SystemTime;

/// Milliseconds with two or three digits, however few: what is above 0 is not written as 0.
pub(super) fn ms(value: f64) -> String {
    let digits = match value.abs() {
        size if size >= 100.0 || size == 0.0 => 0,
        size if size >= 1.0 => 1,
        size if size >= 0.1 => 2,
        size if size >= 0.01 => 3,
        _ => 4,
    };
    format!("{value:.digits$} ms")
}

/// A length of time, from a second on in seconds.
pub(super) fn length(milliseconds: f64) -> String {
    if milliseconds < 1_000.0 { ms(milliseconds) } else { format!("{} s", milliseconds / 1_000.0) }
}

pub(super) fn span(span: Nanos) -> String {
    ms(span.as_millis_f64())
}

/// Age of an instant in seconds.
pub(super) fn ago(now: Time, at: Time) -> String {
    format!("{:.1} s ago", (now - at).as_secs_f64().max(0.0))
}

/// A share in percent; one that is not whole is never written as 100.
pub(super) fn percent(share: f64) -> String {
    let percent = share * 100.0;
    match percent {
        _ if percent >= 100.0 => "100 %".to_owned(),
        _ if percent > 99.9 => "> 99.9 %".to_owned(),
        // From here on a tenth decides whether a model counts as healthy.
        _ if !(10.0..95.0).contains(&percent) => format!("{percent:.1} %"),
        _ => format!("{percent:.0} %"),
    }
}

/// A rate a second.
pub(super) fn rate(value: f64) -> String {
    let digits = usize::from(value < 100.0);
    format!("{}/s", grouped(value, digits))
}

/// A whole number with groups of three digits.
pub(super) fn count(value: u64) -> String {
    grouped(value as f64, 0)
}

/// A number of things, in the plural unless it is one.
pub(super) fn counted(number: u64, thing: &str) -> String {
    format!("{number} {thing}{}", if number == 1 { "" } else { "s" })
}

fn grouped(value: f64, digits: usize) -> String {
    let plain = format!("{value:.digits$}");
    let (whole, rest) = plain.split_at(plain.find('.').unwrap_or(plain.len()));
    let mut grouped = String::with_capacity(plain.len() + 4);
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped + rest
}

/// Returns the time of day in UTC of an instant that is `ago` before now, to milliseconds.
pub(super) fn clock(ago: Nanos) -> String {
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    time_of_day(since_epoch.as_millis() as i64 - ago.0 / 1_000_000)
}

fn time_of_day(epoch_ms: i64) -> String {
    let (ms, s) = (epoch_ms.rem_euclid(1_000), epoch_ms.div_euclid(1_000).rem_euclid(86_400));
    format!("{:02}:{:02}:{:02}.{ms:03} UTC", s / 3_600, s / 60 % 60, s % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_never_rounded_to_whole() {
        assert_eq!((ms(0.123), ms(12.34), ms(1234.5)), ("0.12 ms".into(), "12.3 ms".into(), "1234 ms".into()));
        assert_eq!((ms(0.014), ms(0.001), ms(0.0)), ("0.014 ms".into(), "0.0010 ms".into(), "0 ms".into()));
        assert_eq!((percent(1.0), percent(0.9999), percent(0.42)), ("100 %".into(), "> 99.9 %".into(), "42 %".into()));
        assert_eq!(
            (percent(0.9897), percent(0.99), length(2_500.0)),
            ("99.0 %".into(), "99.0 %".into(), "2.5 s".into())
        );
        assert_eq!(
            (rate(1234.6), rate(7.25), count(1_234_567)),
            ("1,235/s".into(), "7.2/s".into(), "1,234,567".into())
        );
        assert_eq!(count(999), "999");
        assert_eq!(time_of_day(20_000 * 86_400_000 + 45_296_007), "12:34:56.007 UTC");
    }
}
