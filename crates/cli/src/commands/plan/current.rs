//! The current partition: the JSON output of an earlier `ripieno plan`, or the same written by
//! hand.

use anyhow::{Context, bail};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

/// The file. Only the models of each sub-cluster are read; the rest of an earlier plan is for an
/// earlier load.
#[derive(Deserialize)]
struct File {
    sub_clusters: Vec<CurrentSubCluster>,
}

#[derive(Deserialize)]
struct CurrentSubCluster {
    models: Vec<String>,
}

/// A partition by names.
#[derive(Debug, Default)]
pub(super) struct Current {
    /// Number of sub-clusters.
    pub(super) sub_clusters: usize,
    /// Sub-cluster of each model.
    pub(super) places: BTreeMap<String, usize>,
}

impl Current {
    pub(super) fn read(path: &Path) -> anyhow::Result<Current> {
        let file = path.display();
        let text =
            std::fs::read_to_string(path).with_context(|| format!("current partition {file}: cannot be read"))?;
        Current::parse(&text).with_context(|| format!("current partition {file}"))
    }

    fn parse(text: &str) -> anyhow::Result<Current> {
        let form = "it must be what `ripieno plan --format json` prints, or {\"sub_clusters\": [{\"models\": [\"a\", \"b\"]}]}";
        let file: File = serde_json::from_str(text).context(form)?;
        let mut places = BTreeMap::new();
        for (place, sub_cluster) in file.sub_clusters.iter().enumerate() {
            for model in &sub_cluster.models {
                if let Some(other) = places.insert(model.clone(), place) {
                    bail!("model {model:?} is in sub-clusters {other} and {place}; name it once");
                }
            }
        }
        Ok(Current { sub_clusters: file.sub_clusters.len(), places })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_at_their_places() {
        let current = Current::parse(
            r#"{"policy": "deferred", "sub_clusters": [{"models": ["a"]}, {"models": ["b", "c"], "rate": 1}]}"#,
        );
        let current = current.unwrap();
        assert_eq!(current.sub_clusters, 2);
        assert_eq!(current.places.into_iter().collect::<Vec<_>>(), [("a".into(), 0), ("b".into(), 1), ("c".into(), 1)]);
    }

    #[test]
    fn a_model_in_two_places_and_another_form_are_refused() {
        let twice = Current::parse(r#"{"sub_clusters": [{"models": ["a"]}, {"models": ["a"]}]}"#).unwrap_err();
        assert_eq!(twice.to_string(), "model \"a\" is in sub-clusters 0 and 1; name it once");
        assert!(Current::parse("[]").unwrap_err().to_string().contains("ripieno plan --format json"));
    }
}
