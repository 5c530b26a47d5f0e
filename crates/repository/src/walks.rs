//! Walks of a repository's models, read before a server is built.
//!
//! One scheduler runs all models, and their walks determine the policies that can run them. This
//! module reads every `model.toml` for that alone; loading a model reports the other errors of its
//! file.

use crate::scan::scan;
use crate::text;
use ripieno_model::Walk;
use std::path::Path;

/// Properties of a model that determine the policies that can run it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelWalk {
    /// Model name.
    pub model: String,
    /// Walk; whole by default.
    pub walk: Walk,
    /// Whether requests are padded to the longest of a batch.
    pub pads: bool,
}

/// Returns the models at `repository` and their walks; empty if it cannot be read.
pub fn walks(repository: &Path) -> Vec<ModelWalk> {
    let candidates = scan(repository).unwrap_or_default();
    let known = candidates.into_iter().filter_map(|candidate| {
        let found = candidate.found.ok().filter(|found| !found.is_ensemble)?;
        let table = found.config.as_deref().and_then(read).unwrap_or_default();
        Some(ModelWalk {
            model: candidate.name,
            walk: walk(&table).unwrap_or(Walk::Whole),
            pads: pads(&table) || text::pads(&found),
        })
    });
    known.collect()
}

fn read(config: &Path) -> Option<toml::Table> {
    std::fs::read_to_string(config).ok()?.parse().ok()
}

fn walk(table: &toml::Table) -> Option<Walk> {
    let word = |key: &str| table.get(key)?.as_str();
    // The exact walk of a model in cells is known only after slicing.
    let cut_into_cells = word("granularity") == Some("cells");
    if cut_into_cells { Some(Walk::Repeat) } else { Walk::named(word("walk")?) }
}

fn pads(table: &toml::Table) -> bool {
    let inputs = table.get("input").and_then(toml::Value::as_array);
    inputs.into_iter().flatten().any(|input| input.get("length_dim").is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::TempRepository;

    #[test]
    fn the_walk_is_read_and_everything_else_left_to_the_loader() {
        let folder = TempRepository::new();
        let padded = "[[input]]\nname = \"x\"\nlength_dim = 1";
        let texts = [("a", "walk = \"tree\"\nslo_m = 3"), ("b", "slo_ms = 5"), ("c", "walk = ["), ("d", padded)];
        for (name, text) in texts {
            folder.write(&format!("{name}/model.toml"), text);
        }
        let found = walks(folder.path());
        let walker = |(model, walk, pads): (&str, Walk, bool)| ModelWalk { model: model.to_owned(), walk, pads };
        let expected = [("a", Walk::Tree), ("b", Walk::Whole), ("c", Walk::Whole), ("d", Walk::Whole)];
        assert_eq!(found, expected.map(|(model, walk)| walker((model, walk, model == "d"))));
        assert!(walks(&folder.path().join("gone")).is_empty());
    }
}
