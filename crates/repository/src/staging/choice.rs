//! Stored choices of stages, beside the profiles that they are based on.

use super::Staging;
use crate::cache::{ProfileKey, cache_folders, write_whole};
use crate::plan::LoadPlan;
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::Path;

#[derive(Serialize, Deserialize)]
struct StagingRecord {
    key: ProfileKey,
    staging: Staging,
}

/// Returns the stored choice for this key, if it is valid.
pub(super) fn read(plan: &LoadPlan, key: &ProfileKey) -> Option<Staging> {
    let paths = cache_folders(&plan.folder).into_iter().map(|folder| folder.join(key.file_name("stages")));
    paths.filter(|path| path.is_file()).find_map(|path| {
        let staging = read_file(&path, key);
        if let Err(cause) = &staging {
            tracing::warn!("{}: ignored and tried anew: {cause}", path.display());
        }
        staging.ok()
    })
}

fn read_file(path: &Path, key: &ProfileKey) -> Result<Staging, String> {
    let bytes = fs::read(path).map_err(|error| error.to_string())?;
    let record: StagingRecord = serde_json::from_slice(&bytes).map_err(|error| format!("it is corrupt: {error}"))?;
    if record.key != *key {
        return Err("it belongs to another model, device or batch size".to_owned());
    }
    let staging = record.staging;
    let ends = |at: usize| staging.trials.get(at).map(|trial| &trial.ends);
    match ends(staging.chosen) {
        Some(ends) if ends.is_sorted() && ends.last().is_none_or(|&last| last < staging.layers) => Ok(staging),
        _ => Err("it is corrupt: it names no way that can be".to_owned()),
    }
}

/// Stores a choice in the first writable folder.
pub(super) fn save(plan: &LoadPlan, key: &ProfileKey, staging: &Staging) {
    let record = StagingRecord { key: key.clone(), staging: staging.clone() };
    let Ok(json) = serde_json::to_vec_pretty(&record) else { return };
    let write = |folder: std::path::PathBuf| write_whole(&folder.join(key.file_name("stages")), &json);
    if !cache_folders(&plan.folder).into_iter().any(|folder| write(folder).is_ok()) {
        tracing::warn!("model {}: the choice of stages cannot be kept and will be tried again", plan.name);
    }
}
