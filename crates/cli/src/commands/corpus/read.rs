//! Reads lengths from files: numbers, columns, and text. Errors name the file, the line and a
//! remedy.

use anyhow::{Context, anyhow, bail, ensure};
use ripieno_base::Histogram;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

/// The contents of a file.
#[derive(Debug)]
pub(super) struct Sides {
    pub(super) file: String,
    pub(super) empty_lines: u64,
    /// One side, or source and target.
    pub(super) sides: Vec<Side>,
}

/// The lengths of one side of a corpus.
#[derive(Debug)]
pub(super) struct Side {
    pub(super) name: String,
    pub(super) lengths: Histogram,
}

/// Counts by length.
#[derive(Default)]
struct LengthCounts(std::collections::BTreeMap<u32, u64>);

impl LengthCounts {
    fn add(&mut self, length: u32, count: u64) {
        *self.0.entry(length).or_default() += count;
    }

    fn side(self, name: &str, file: &str) -> anyhow::Result<Side> {
        let lengths = Histogram::new(self.0.into_iter().collect()).map_err(|error| anyhow!("{file}: {error}"))?;
        Ok(Side { name: name.to_owned(), lengths })
    }
}

/// Reads a text: a sentence per line; with tabs, a source and a target.
pub(super) fn corpus(path: &Path) -> anyhow::Result<Sides> {
    let file = path.display().to_string();
    let (mut source, mut target) = (LengthCounts::default(), LengthCounts::default());
    let (mut empty_lines, mut pairs) = (0, None);
    for line in lines(path, "--corpus")? {
        let (at, line) = line?;
        if line.trim().is_empty() {
            empty_lines += 1;
            continue;
        }
        let (first, second) = match line.split_once('\t') {
            Some((first, second)) => (first, Some(second)),
            None => (line.as_str(), None),
        };
        if *pairs.get_or_insert(second.is_some()) != second.is_some() {
            let expected = if second.is_some() { "without" } else { "with" };
            bail!("{file}:{at}: the lines before are {expected} a tab between source and target; write all alike");
        }
        let words = |text: &str| u32::try_from(text.split_whitespace().count()).unwrap_or(u32::MAX);
        for (side, text) in [(&mut source, Some(first)), (&mut target, second)] {
            let Some(length) = text.map(words) else { continue };
            ensure!(
                (1..=Histogram::LONGEST).contains(&length),
                "{file}:{at}: {length} words on one side; each side holds 1 to {}",
                Histogram::LONGEST
            );
            side.add(length, 1);
        }
    }
    let sides = match pairs {
        Some(true) => vec![source.side("source", &file)?, target.side("target", &file)?],
        _ => vec![source.side("words", &file)?],
    };
    Ok(Sides { file, empty_lines, sides })
}

/// Reads numbers: one per line, a column of a table, or lengths with their counts.
pub(super) fn lengths(path: &Path, column: Option<&str>) -> anyhow::Result<Sides> {
    let file = path.display().to_string();
    let (mut counted, mut empty_lines, mut layout) = (LengthCounts::default(), 0, None);
    for line in lines(path, "--lengths")? {
        let (at, line) = line?;
        if line.trim().is_empty() {
            empty_lines += 1;
            continue;
        }
        let Layout { place, fields, count } = match &layout {
            Some(layout) => layout,
            None => {
                let (found, is_header) = Layout::of(&line, column).with_context(|| format!("{file}:{at}"))?;
                let found = layout.insert(found);
                if is_header {
                    continue;
                }
                found
            }
        };
        let values: Vec<&str> = line.split(',').map(str::trim).collect();
        ensure!(values.len() == *fields, "{file}:{at}: {} columns, where the first line has {fields}", values.len());
        let length = values[*place].parse().ok().filter(|length| (1..=Histogram::LONGEST).contains(length));
        let most = Histogram::LONGEST;
        let length = length.with_context(|| {
            format!("{file}:{at}: {:?} is no length; write a whole number from 1 to {most}", values[*place])
        })?;
        let times = match count {
            Some(place) => values[*place].parse().ok().with_context(|| {
                format!("{file}:{at}: {:?} is no count; write a whole number from 0", values[*place])
            })?,
            None => 1,
        };
        counted.add(length, times);
    }
    let side = counted.side(column.unwrap_or("lengths"), &file)?;
    Ok(Sides { file, empty_lines, sides: vec![side] })
}

/// The columns of a line.
#[derive(Debug)]
struct Layout {
    /// The column of the lengths.
    place: usize,
    fields: usize,
    /// The column of the counts, if there is one.
    count: Option<usize>,
}

impl Layout {
    /// Returns the layout by the first line, and true if that is a header.
    fn of(first: &str, column: Option<&str>) -> anyhow::Result<(Layout, bool)> {
        let names: Vec<&str> = first.split(',').map(|name| name.trim().trim_matches('"')).collect();
        let fields = names.len();
        let is_header = names.iter().all(|name| name.parse::<f64>().is_err());
        let at = |name: &str| names.iter().position(|other| *other == name);
        let (place, count) = match (column, is_header) {
            (Some(name), true) => {
                let place = at(name)
                    .with_context(|| format!("--column {name}: there is no such column, only {}", names.join(", ")))?;
                (place, None)
            }
            (Some(name), false) => {
                bail!("--column {name}: the first line names no columns; add a header, or remove --column")
            }
            (None, _) if fields == 1 => (0, None),
            (None, true) if fields == 2 && at("length") == Some(0) && at("count") == Some(1) => (0, Some(1)),
            (None, true) => bail!("several columns; choose one with --column: {}", names.join(", ")),
            (None, false) => bail!("several columns without names; add a header, and choose one with --column"),
        };
        Ok((Layout { place, fields, count }, is_header))
    }
}

/// Returns the lines of a file with their numbers, from 1.
fn lines<'p>(
    path: &'p Path,
    option: &str,
) -> anyhow::Result<impl Iterator<Item = anyhow::Result<(usize, String)>> + use<'p>> {
    let open = File::open(path).with_context(|| format!("{option} {}: cannot be read", path.display()))?;
    let lines = BufReader::new(open).lines().zip(1..);
    Ok(lines.map(move |(line, at)| {
        let line = line.map_err(|error| anyhow!("{}:{at}: {error}; save it as UTF-8 text", path.display()))?;
        Ok((at, line))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    /// A file of its own for each test, removed at its end.
    struct Temporary(PathBuf);

    impl Temporary {
        fn new(name: &str, text: &str) -> Temporary {
            let path = std::env::temp_dir().join(format!("ripieno-corpus-{}-{name}", std::process::id()));
            std::fs::write(&path, text).unwrap();
            Temporary(path)
        }
    }

    impl Drop for Temporary {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    fn csv_of(sides: &Sides) -> Vec<String> {
        sides.sides.iter().map(|side| side.lengths.to_csv().replace('\n', ";")).collect()
    }

    #[test]
    fn words_are_counted_on_both_sides() {
        let one = Temporary::new("one", "a b c\n\n  d e  f\ng\n");
        let read = corpus(&one.0).unwrap();
        assert_eq!((csv_of(&read), read.empty_lines), (vec!["length,count;1,1;3,2;".to_owned()], 1));
        let pairs = Temporary::new("pairs", "a b\tx\nc\ty z w\n");
        let read = corpus(&pairs.0).unwrap();
        assert_eq!(csv_of(&read), ["length,count;1,1;2,1;", "length,count;1,1;3,1;"]);
        assert_eq!([&read.sides[0].name, &read.sides[1].name], ["source", "target"]);
    }

    #[test]
    fn numbers_come_in_three_forms() {
        let of =
            |name, text, column| lengths(&Temporary::new(name, text).0, column).map(|read| csv_of(&read).remove(0));
        assert_eq!(of("plain", "3\n7\n3\n", None).unwrap(), "length,count;3,2;7,1;");
        assert_eq!(of("named", "words\n3\n7\n", None).unwrap(), "length,count;3,1;7,1;");
        assert_eq!(of("column", "en,fr\n3,4\n7,8\n", Some("fr")).unwrap(), "length,count;4,1;8,1;");
        assert_eq!(of("counts", "length,count\n3,2\n7,1\n", None).unwrap(), "length,count;3,2;7,1;");
    }

    #[test]
    fn mistakes_name_the_line_and_the_fix() {
        let cases = [
            ("letters", "3\nx\n", None, ":2: \"x\" is no length; write a whole number"),
            ("zero", "0\n", None, ":1: \"0\" is no length"),
            ("two", "en,fr\n3,4\n", None, "choose one with --column: en, fr"),
            ("bare", "3,4\n", None, "add a header"),
            ("absent", "en,fr\n3,4\n", Some("de"), "no such column, only en, fr"),
            ("short", "en,fr\n3\n", Some("fr"), ":2: 1 columns, where the first line has 2"),
            ("count", "length,count\n3,many\n", None, "is no count"),
            ("empty", "", None, "no length was counted"),
        ];
        for (name, text, column, expected) in cases {
            let error = format!("{:#}", lengths(&Temporary::new(name, text).0, column).unwrap_err());
            assert!(error.contains(expected) && error.contains("ripieno-corpus"), "{name}: {error}");
        }
        let mixed = Temporary::new("mixed", "a\tb\nc\n");
        assert!(format!("{:#}", corpus(&mixed.0).unwrap_err()).contains(":2: the lines before are with a tab"));
        let half = Temporary::new("half", "a\t\n");
        assert!(format!("{:#}", corpus(&half.0).unwrap_err()).contains(":1: 0 words on one side"));
        let missing = format!("{:#}", corpus(Path::new("/nowhere/corpus")).unwrap_err());
        assert!(missing.contains("--corpus /nowhere/corpus: cannot be read"), "{missing}");
    }
}
