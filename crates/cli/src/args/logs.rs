//! The log: one line per event, whatever text the event quotes.
//!
//! Much logged text is untrusted: names of models, headers, errors about files. A newline in it
//! would begin a line that looks like one of ours, and an escape code could rewrite the terminal.
//! Control characters are escaped here, where every line passes, and not where lines are composed,
//! which would be forgotten somewhere.

use clap::ValueEnum;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::fmt::{self, Write};
use std::io::IsTerminal;
use std::panic::PanicHookInfo;
use tracing::field::{Field, Visit};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::Writer;

/// Format of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// A line for people.
    #[default]
    Text,
    /// A JSON object per line: timestamp, level, target, message and further fields.
    Json,
}

/// Filter of most commands.
pub(crate) const LEVEL: &str = "info";

/// Starts logging to stderr, filtered by `RIPIENO_LOG`, else by `level`; in colours on a terminal
/// only.
pub(crate) fn start(format: LogFormat, level: &str) {
    let asked = std::env::var(VARIABLE).unwrap_or_default();
    let fault = fault_of(&asked);
    let filter = if asked.is_empty() || fault.is_some() { EnvFilter::new(level) } else { EnvFilter::new(&asked) };
    let colours = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(colours);
    match format {
        LogFormat::Text => log.fmt_fields(OneLine).init(),
        // JSON escapes control characters itself.
        LogFormat::Json => {
            log.json().flatten_event(true).with_current_span(true).with_span_list(false).init();
            std::panic::set_hook(Box::new(log_panic));
        }
    }
    if let Some(fault) = fault {
        tracing::warn!("{VARIABLE}={asked:?}: {fault}; the level is {level}");
    }
}

/// The variable that filters the log.
const VARIABLE: &str = "RIPIENO_LOG";

/// Returns what is wrong with a filter. A word that is no level would silence the log, because it
/// counts as the name of a part of a program.
fn fault_of(filter: &str) -> Option<String> {
    let is_known = |word: &str| {
        let is_level = ["error", "warn", "info", "debug", "trace", "off"].contains(&word.to_lowercase().as_str());
        is_level || word.is_empty() || word.contains(['=', '[']) || word.starts_with("ripieno")
    };
    if let Some(word) = filter.split(',').map(str::trim).find(|word| !is_known(word)) {
        return Some(format!("{word} is no level; write error, warn, info, debug, trace or off, or PART=LEVEL"));
    }
    EnvFilter::try_new(filter).err().map(|error| error.to_string())
}

/// Writes a panic as one line of the log, for readers that expect JSON on each line.
fn log_panic(panic: &PanicHookInfo<'_>) {
    let thread = std::thread::current();
    let at = panic.location().map(ToString::to_string).unwrap_or_default();
    let backtrace = Backtrace::capture();
    let backtrace = (backtrace.status() == BacktraceStatus::Captured).then(|| backtrace.to_string());
    let says = panic.payload_as_str().unwrap_or("no message");
    tracing::error!(thread = thread.name().unwrap_or_default(), at, backtrace, "a thread panicked: {says}");
}

/// Writes fields as `name=value`, and the message without control characters.
struct OneLine;

impl<'writer> FormatFields<'writer> for OneLine {
    fn format_fields<R: RecordFields>(&self, mut writer: Writer<'writer>, fields: R) -> fmt::Result {
        let mut fields_written = Fields { to: Escaped(&mut writer), any: false, outcome: Ok(()) };
        fields.record(&mut fields_written);
        fields_written.outcome
    }
}

struct Fields<'a> {
    to: Escaped<'a>,
    any: bool,
    outcome: fmt::Result,
}

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let space = if std::mem::replace(&mut self.any, true) { " " } else { "" };
        let written = match field.name() {
            "message" => write!(self.to, "{space}{value:?}"),
            name => write!(self.to, "{space}{name}={value:?}"),
        };
        self.outcome = self.outcome.and(written);
    }
}

/// Forwards text with its control characters escaped.
struct Escaped<'a>(&'a mut dyn Write);

impl Write for Escaped<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut rest = text;
        while let Some((at, control)) = rest.char_indices().find(|(_, next)| is_unsafe(*next)) {
            self.0.write_str(&rest[..at])?;
            write!(self.0, "{}", control.escape_default())?;
            rest = &rest[at + control.len_utf8()..];
        }
        self.0.write_str(rest)
    }
}

/// Returns true for control characters and those that break lines or change the text direction.
fn is_unsafe(next: char) -> bool {
    next.is_control() || matches!(next, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;
    use std::sync::{Arc, Mutex};
    use tracing_subscriber::fmt::MakeWriter;

    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl<'a> MakeWriter<'a> for Shared {
        type Writer = Shared;

        fn make_writer(&'a self) -> Shared {
            self.clone()
        }
    }

    #[test]
    fn a_filter_that_would_silence_the_log_is_a_fault() {
        for filter in ["", "info", "DEBUG", "warn,ripieno_server=debug", "ripieno_cluster", "off", "hyper=trace,info"] {
            assert_eq!(fault_of(filter), None, "{filter}");
        }
        for filter in ["verbose", "debg", "info,server", "ripieno=loud", "1"] {
            assert!(fault_of(filter).is_some(), "{filter}");
        }
    }

    #[test]
    fn what_a_stranger_sends_stays_on_its_line() {
        let log = Shared::default();
        let subscriber = tracing_subscriber::fmt().with_writer(log.clone()).with_ansi(true).without_time();
        tracing::subscriber::with_default(subscriber.fmt_fields(OneLine).finish(), || {
            let name = "a\n2026-01-01T00:00:00Z  INFO model b is gone\r\x1b[2J\u{202e}\u{2028}é";
            tracing::warn!(name, code = 3, "model {name} is not served");
        });
        let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
        let escaped = r"a\n2026-01-01T00:00:00Z  INFO model b is gone\r\u{1b}[2J\u{202e}\u{2028}é";
        assert!(log.contains(&format!("model {escaped} is not served")), "{log}");
        assert!(log.contains("code=3") && log.contains("name=\"a\\n"), "{log}");
        assert_eq!(log.matches(is_unsafe).filter(|found| *found != "\u{1b}").count(), 1, "{log:?}");
        assert!(log.ends_with('\n') && !log.contains("\u{1b}[2J"));
    }
}
