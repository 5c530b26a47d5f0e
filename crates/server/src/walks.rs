//! How the models of a repository walk, seen before a server for them is built.
//!
//! One scheduler runs all models, and which one it can be depends on how they walk. So this looks into every `model.toml` for
//! that one key; whatever else is wrong with the file shows when its model is loaded.

use crate::repository::scan::scan;
use ripieno_model::Walk;
use std::path::Path;

/// The models at `repository` and how each walks; those that do not say so walk as a whole. Nothing if it cannot be read.
pub fn walks(repository: &Path) -> Vec<(String, Walk)> {
    let candidates = scan(repository).unwrap_or_default();
    let walk = |config: &Path| {
        let table: toml::Table = std::fs::read_to_string(config).ok()?.parse().ok()?;
        let word = |key: &str| table.get(key)?.as_str();
        // Which of the walks in cells the model gets is known once it is cut.
        let cut_into_cells = word("granularity") == Some("cells");
        if cut_into_cells { Some(Walk::Repeat) } else { Walk::named(word("walk")?) }
    };
    let known = candidates.into_iter().filter_map(|candidate| {
        let found = candidate.found.ok()?;
        let walk = found.config.as_deref().and_then(walk).unwrap_or(Walk::Whole);
        Some((candidate.name, walk))
    });
    known.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn the_walk_is_read_and_everything_else_left_to_the_loader() {
        let root = std::env::temp_dir().join(format!("ripieno-walks-{}", std::process::id()));
        for (name, text) in [("a", "walk = \"tree\"\nslo_m = 3"), ("b", "slo_ms = 5"), ("c", "walk = [")] {
            fs::create_dir_all(root.join(name)).unwrap();
            fs::write(root.join(name).join("model.toml"), text).unwrap();
        }
        let found = walks(&root);
        let expected = [("a", Walk::Tree), ("b", Walk::Whole), ("c", Walk::Whole)];
        assert_eq!(found, expected.map(|(name, walk)| (name.to_owned(), walk)));
        fs::remove_dir_all(&root).unwrap();
        assert!(walks(&root).is_empty());
    }
}
