//! Tables for people, with few lines and three significant digits.

use std::fmt;
use std::str::FromStr;

use comfy_table::{CellAlignment, LineStyle, TableStyle};

/// Output format of a command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// A table for people.
    #[default]
    Table,
    /// One JSON object for programs.
    Json,
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Format, String> {
        match text {
            "table" => Ok(Format::Table),
            "json" => Ok(Format::Json),
            _ => Err(format!("format {text:?} is unknown; use table or json")),
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Format::Table => "table",
            Format::Json => "json",
        })
    }
}

/// A table; its first column is aligned to the left, the others, mostly numbers, to the right.
#[derive(Clone, Debug)]
pub struct Table {
    inner: comfy_table::Table,
}

impl Table {
    /// Returns a table with these headers; units belong here, not in the cells.
    pub fn new<S: Into<String>>(headers: impl IntoIterator<Item = S>) -> Table {
        let mut inner = comfy_table::Table::new();
        let line = LineStyle::none().fill('─').junction('─');
        inner.load_style(TableStyle::new().header_separator(line));
        inner.force_no_tty();
        inner.set_header(headers.into_iter().map(Into::into).collect::<Vec<String>>());
        for column in inner.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        Table { inner }
    }

    /// Adds a row.
    pub fn row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) -> &mut Table {
        self.inner.add_row(cells.into_iter().map(Into::into).collect::<Vec<String>>());
        self
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.inner.trim_fmt())
    }
}

/// Formats a number with at least three significant digits and separators of thousands.
pub fn number(value: f64) -> String {
    if !value.is_finite() {
        return "–".to_owned();
    }
    let magnitude = value.abs();
    let decimals = match magnitude {
        0.0 => 0,
        m if m >= 99.95 => 0,
        m if m >= 9.995 => 1,
        m if m >= 0.9995 => 2,
        m if m >= 0.0001 => (2.0 - m.log10().floor()) as usize,
        _ => return "0".to_owned(),
    };
    group_thousands(&format!("{value:.decimals$}"))
}

/// Formats a fraction as a percentage, without the percent sign, which belongs in the header.
pub fn percent(fraction: f64) -> String {
    if fraction.abs() < 0.000_05 { "0".to_owned() } else { format!("{:.2}", fraction * 100.0) }
}

fn group_thousands(digits: &str) -> String {
    let (whole, rest) = digits.find('.').map_or((digits, ""), |point| digits.split_at(point));
    let (sign, whole) = whole.strip_prefix('-').map_or(("", whole), |whole| ("-", whole));
    let mut grouped = String::from(sign);
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped + rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    #[test]
    fn numbers_have_three_significant_digits() {
        let cells = [0.0, 0.012_345, 0.999_6, 1.0, 9.999, 12.34, 99.96, 123.4, 5839.4, 1_234_567.0, -1234.5, 1e-9];
        expect!["0 0.0123 1.00 1.00 10.0 12.3 100 123 5,839 1,234,567 -1,234 0"]
            .assert_eq(&cells.map(number).join(" "));
        assert_eq!((number(f64::NAN), percent(0.0123), percent(0.0)), ("–".into(), "1.23".into(), "0".into()));
    }

    #[test]
    fn tables_are_plain() {
        let mut table = Table::new(["policy", "goodput/s", "p99 ms"]);
        table.row(["deferred", "5,264", "24.9"]).row(["eager", "901", "25.0"]);
        expect![[r#"
             policy     goodput/s   p99 ms
            ───────────────────────────────
             deferred       5,264     24.9
             eager            901     25.0"#]]
        .assert_eq(&table.to_string());
    }

    #[test]
    fn formats_are_parsed_by_name() {
        assert_eq!(("json".parse(), "table".parse()), (Ok(Format::Json), Ok(Format::Table)));
        assert!("xml".parse::<Format>().unwrap_err().contains("table or json"));
    }
}
