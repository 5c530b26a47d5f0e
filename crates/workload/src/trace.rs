//! Arrival times from a file.
//!
//! There are two formats: one time in milliseconds per line, or comma-separated values under a
//! header with the columns `arrival_ms` and, where the file covers several models, `model`. Other
//! columns are ignored, so a scenario's requests file works too. Lines need not be in order.

use std::path::Path;

use ripieno_base::{Nanos, Time};

/// The reason why a trace cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file cannot be read.
    #[error("trace {file}: {source}")]
    Read {
        /// The file.
        file: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// A line is malformed.
    #[error("trace {file} line {line}: arrival_ms = {value:?}; give a time in milliseconds, 0 or more")]
    Line {
        /// The file.
        file: String,
        /// The line, from 1.
        line: usize,
        /// The value found.
        value: String,
    },
    /// The header has no column of times.
    #[error("trace {file}: the header {header:?} has no column arrival_ms")]
    Header {
        /// The file.
        file: String,
        /// The header.
        header: String,
    },
    /// There is no arrival for the model.
    #[error("trace {file}: no arrival{}", model.as_ref().map(|m| format!(" for model {m:?}; check its column model")).unwrap_or_default())]
    Empty {
        /// The file.
        file: String,
        /// The requested model.
        model: Option<String>,
    },
}

/// Reads the arrivals of `file`, sorted, and only the arrivals of `model` where the file has such a
/// column.
pub fn read(file: &Path, model: Option<&str>) -> Result<Vec<Time>, TraceError> {
    let name = file.display().to_string();
    let text = std::fs::read_to_string(file).map_err(|source| TraceError::Read { file: name.clone(), source })?;
    parse(&text, &name, model)
}

/// Parses the text of a trace; `file` names it in errors.
pub fn parse(text: &str, file: &str, model: Option<&str>) -> Result<Vec<Time>, TraceError> {
    let mut lines = text.lines().enumerate().filter(|(_, line)| !is_blank(line)).peekable();
    let columns = match lines.peek() {
        Some((_, first)) if time(fields(first).next().unwrap_or_default()).is_none() => {
            let columns = Columns::from_header(first, file)?;
            lines.next();
            columns
        }
        _ => Columns { time: 0, model: None },
    };
    let mut times = Vec::new();
    for (at, line) in lines {
        let field = |column: usize| fields(line).nth(column).unwrap_or_default();
        let arrival = time(field(columns.time)).ok_or_else(|| TraceError::Line {
            file: file.to_owned(),
            line: at + 1,
            value: field(columns.time).to_owned(),
        })?;
        if columns.model.zip(model).is_none_or(|(column, wanted)| field(column) == wanted) {
            times.push(arrival);
        }
    }
    if times.is_empty() {
        let model = columns.model.and(model).map(str::to_owned);
        return Err(TraceError::Empty { file: file.to_owned(), model });
    }
    times.sort_unstable();
    Ok(times)
}

struct Columns {
    time: usize,
    model: Option<usize>,
}

impl Columns {
    fn from_header(header: &str, file: &str) -> Result<Columns, TraceError> {
        let find = |name| fields(header).position(|column| column == name);
        let time = find("arrival_ms")
            .ok_or_else(|| TraceError::Header { file: file.to_owned(), header: header.trim().to_owned() })?;
        Ok(Columns { time, model: find("model") })
    }
}

fn is_blank(line: &str) -> bool {
    let line = line.trim();
    line.is_empty() || line.starts_with('#')
}

fn fields(line: &str) -> impl Iterator<Item = &str> {
    line.split(',').map(|field| field.trim().trim_matches('"'))
}

fn time(field: &str) -> Option<Time> {
    let ms: f64 = field.parse().ok()?;
    (ms >= 0.0 && ms.is_finite()).then(|| Time::ORIGIN + Nanos::from_millis_f64(ms))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ns(text: &str, model: Option<&str>) -> Result<Vec<i64>, String> {
        parse(text, "t.csv", model).map(|times| times.iter().map(|time| time.0).collect()).map_err(|e| e.to_string())
    }

    #[test]
    fn bare_times_and_columns_are_read() {
        assert_eq!(ns("# a comment\n\n1.5\n 0\n", None), Ok(vec![0, 1_500_000]));
        let csv = "id,model,arrival_ms\r\n0,a,2\r\n1,b,1\r\n2,a,0.000001\r\n";
        assert_eq!(ns(csv, None), Ok(vec![1, 1_000_000, 2_000_000]));
        assert_eq!(ns(csv, Some("a")), Ok(vec![1, 2_000_000]));
        assert_eq!(ns("3\n4", Some("a")), Ok(vec![3_000_000, 4_000_000]));
    }

    #[test]
    fn errors_name_the_place() {
        assert!(ns("1\nx\n", None).unwrap_err().contains("line 2: arrival_ms = \"x\""));
        assert!(ns("arrival_ms\n-1\n", None).unwrap_err().contains("line 2"));
        assert!(ns("time\n1\n", None).unwrap_err().contains("no column arrival_ms"));
        assert!(ns("arrival_ms,model\n1,a\n", Some("b")).unwrap_err().contains("model \"b\""));
        assert!(ns("", None).unwrap_err().contains("no arrival"));
    }
}
