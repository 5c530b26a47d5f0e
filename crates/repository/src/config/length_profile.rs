//! `length_profile`: a histogram of output lengths, from which a decoder's steps are predicted.

use super::keys::Keys;
use ripieno_base::Histogram;
use std::path::Path;

/// Default share of outputs that the prediction covers, as in LazyBatching.
const DEFAULT_COVERAGE: f64 = 0.9;

/// Histogram file and coverage of the length prediction.
#[derive(Clone, Debug, PartialEq)]
pub struct LengthProfile {
    /// Name of a file beside `model.toml` with lines "length,count", as `ripieno profile --corpus`
    /// writes it.
    pub file: String,
    /// Share of outputs that are no longer than the prediction.
    pub coverage: f64,
}

impl LengthProfile {
    /// Reads the keys of a walk that has a decoder; refuses them elsewhere.
    pub(super) fn read(keys: &Keys<'_>, has_decoder: bool) -> Result<Option<LengthProfile>, String> {
        let given = ["length_profile", "coverage"].into_iter().find(|key| keys.has(key));
        if let Some(key) = given.filter(|_| !has_decoder) {
            return Err(keys.wrong(key, "belongs to walk = \"encode-decode\"; remove it"));
        }
        let file = keys.text("length_profile", "lengths.csv")?;
        let coverage = keys.number("coverage", 0.0, 1.0)?;
        match (file, coverage) {
            (None, Some(_)) => Err(keys.wrong("coverage", "needs length_profile = \"lengths.csv\" beside it")),
            (file, coverage) => {
                Ok(file.map(|file| LengthProfile { file, coverage: coverage.unwrap_or(DEFAULT_COVERAGE) }))
            }
        }
    }

    /// Returns the number of steps that covers the share. Errors name the configuration file
    /// `config`.
    pub(crate) fn steps(&self, folder: &Path, config: &str) -> Result<u32, String> {
        let path = folder.join(&self.file);
        let refuse = |problem: String| {
            format!(
                "{config}: length_profile = \"{}\": {}: {problem}; ripieno profile --corpus FILE -o {0} writes such a file",
                self.file,
                path.display()
            )
        };
        let text = std::fs::read_to_string(&path).map_err(|error| refuse(format!("cannot be read: {error}")))?;
        let histogram = Histogram::parse(&text).map_err(|error| refuse(error.to_string()))?;
        Ok(histogram.covering(self.coverage))
    }
}
