//! A plan where operators and schedulers keep it: in a file or in etcd, as JSON.

use anyhow::{Context, bail};
use ripieno_cluster::handover::store::EtcdText;
use ripieno_cluster::{PlacementPlan, PlannedSubCluster};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

/// Key of the plan in etcd, below the cluster's prefix.
pub(crate) const PLAN_KEY: &str = "plan";

/// Interval at which a scheduler looks for another plan.
pub(crate) const PLAN_POLL: Duration = Duration::from_secs(1);

/// A place for a plan, as an option names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PlanPlace {
    /// A file.
    File(PathBuf),
    /// The nodes of an etcd; an empty list names the etcd of `--epoch`.
    Etcd(Vec<String>),
    /// The scheduler makes the plan.
    Auto,
}

/// A place for a plan, opened.
#[derive(Debug)]
pub(crate) enum PlanStore {
    /// A file.
    File(PathBuf),
    /// A key in etcd.
    Etcd(Box<EtcdText>),
}

/// The JSON form. What `ripieno plan --format json` prints is read, too: other keys are skipped.
#[derive(Deserialize, Serialize)]
struct PlanFile {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    memory_mb_per_device: Option<u64>,
    sub_clusters: Vec<SubClusterText>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    memory_mb: BTreeMap<String, u64>,
}

#[derive(Deserialize, Serialize)]
struct SubClusterText {
    models: Vec<String>,
    #[serde(default)]
    devices: DeviceText,
}

/// A number of devices, or the answers of `ripieno plan --format json`.
#[derive(Deserialize, Serialize)]
#[serde(untagged)]
enum DeviceText {
    Number(u32),
    Answers { simulated: Option<u32>, estimate: u32 },
}

impl Default for DeviceText {
    fn default() -> DeviceText {
        DeviceText::Number(1)
    }
}

/// Parses the place of a plan: FILE, etcd, etcd:URL,... or auto.
pub(crate) fn plan_place(text: &str) -> Result<PlanPlace, String> {
    match text.split_once(':') {
        _ if text == "etcd" => Ok(PlanPlace::Etcd(Vec::new())),
        _ if text == "auto" => Ok(PlanPlace::Auto),
        _ if ["", "etcd:", "file:"].contains(&text) => {
            Err(format!("{text:?} is no place of a plan; write a FILE, or etcd:http://HOST:2379,..."))
        }
        Some(("etcd", nodes)) => Ok(PlanPlace::Etcd(nodes.split(',').map(str::to_owned).collect())),
        Some(("file", path)) => Ok(PlanPlace::File(path.into())),
        _ => Ok(PlanPlace::File(text.into())),
    }
}

impl PlanStore {
    /// Reads the plan, which must be there.
    pub(crate) fn read(&self) -> anyhow::Result<PlacementPlan> {
        let read = || match self {
            PlanStore::File(path) => fs::read_to_string(path).context("it cannot be read"),
            PlanStore::Etcd(etcd) => match etcd.read()? {
                Some(text) => Ok(text),
                None => bail!("etcd has none under the prefix; write one: ripieno plan SCENARIO --write etcd:URL,..."),
            },
        };
        read().and_then(|text| parse(&text)).with_context(|| format!("the plan {}", self.name()))
    }

    /// Replaces the plan, so that a reader sees the old one or the new one.
    pub(crate) fn write(&self, plan: &PlacementPlan) -> anyhow::Result<()> {
        let text = text(plan)?;
        match self {
            PlanStore::Etcd(etcd) => etcd.write(&text)?,
            PlanStore::File(path) => {
                let next = path.with_added_extension("next");
                let written = fs::write(&next, text).and_then(|()| fs::rename(&next, path));
                written.with_context(|| format!("the plan {} cannot be written", self.name()))?;
            }
        }
        Ok(())
    }

    /// Returns the name for messages.
    pub(crate) fn name(&self) -> String {
        match self {
            PlanStore::File(path) => path.display().to_string(),
            PlanStore::Etcd(_) => "in etcd".to_owned(),
        }
    }
}

fn parse(text: &str) -> anyhow::Result<PlacementPlan> {
    let form = "it must be what `ripieno plan SCENARIO --write FILE` writes, for example \
                {\"sub_clusters\": [{\"models\": [\"a\", \"b\"], \"devices\": 2}]}";
    let PlanFile { memory_mb_per_device, sub_clusters, memory_mb } = serde_json::from_str(text).context(form)?;
    let part = |part: SubClusterText| PlannedSubCluster {
        models: part.models.into_iter().collect(),
        devices: match part.devices {
            DeviceText::Number(devices) => devices,
            DeviceText::Answers { simulated, estimate } => simulated.unwrap_or(estimate),
        },
    };
    let sub_clusters = sub_clusters.into_iter().map(part).collect();
    let plan = PlacementPlan { sub_clusters, device_memory_mb: memory_mb_per_device, memory_mb };
    plan.check().map_err(anyhow::Error::msg)?;
    Ok(plan)
}

fn text(plan: &PlacementPlan) -> anyhow::Result<String> {
    let part = |part: &PlannedSubCluster| SubClusterText {
        models: part.models.iter().cloned().collect(),
        devices: DeviceText::Number(part.devices),
    };
    let file = PlanFile {
        memory_mb_per_device: plan.device_memory_mb,
        sub_clusters: plan.sub_clusters.iter().map(part).collect(),
        memory_mb: plan.memory_mb.clone(),
    };
    Ok(serde_json::to_string_pretty(&file)? + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_survives_in_a_file_and_an_absent_one_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let store = PlanStore::File(folder.path().join("plan.json"));
        let absent = format!("{:#}", store.read().unwrap_err());
        assert!(absent.contains("plan.json") && absent.contains("cannot be read"), "{absent}");
        let models = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        let sub_clusters = vec![
            PlannedSubCluster { models: models(&["a", "b"]), devices: 3 },
            PlannedSubCluster { models: models(&["c"]), devices: 1 },
        ];
        let memory_mb = [("a".to_owned(), 7)].into();
        let plan = PlacementPlan { sub_clusters, device_memory_mb: Some(10), memory_mb };
        store.write(&plan).unwrap();
        assert_eq!(store.read().unwrap(), plan);
    }

    #[test]
    fn plans_written_by_hand_and_those_of_the_planner_are_read() {
        let by_hand = parse(r#"{"sub_clusters": [{"models": ["a"]}, {"models": ["b"], "devices": 4}]}"#).unwrap();
        assert_eq!(by_hand.sub_clusters.iter().map(|part| part.devices).collect::<Vec<_>>(), [1, 4]);
        let printed = r#"{"policy": "unified", "sub_clusters": [{"models": ["a"], "rate_rps": 1.5,
            "devices": {"bound": 3, "estimate": 4, "simulated": null, "runs": 0}}]}"#;
        assert_eq!(parse(printed).unwrap().sub_clusters[0].devices, 4);
        assert!(format!("{:#}", parse("[]").unwrap_err()).contains("\"sub_clusters\": [{"));
        let twice = parse(r#"{"sub_clusters": [{"models": ["a"]}, {"models": ["a"]}]}"#).unwrap_err();
        assert!(twice.to_string().contains("name it once"));
    }

    #[test]
    fn a_place_is_a_file_or_an_etcd() {
        assert_eq!(plan_place("plan.json"), Ok(PlanPlace::File("plan.json".into())));
        assert_eq!(plan_place("file:/etc/plan"), Ok(PlanPlace::File("/etc/plan".into())));
        assert_eq!(plan_place("etcd"), Ok(PlanPlace::Etcd(Vec::new())));
        assert_eq!(plan_place("auto"), Ok(PlanPlace::Auto));
        let nodes = ["http://a:2379", "http://b:2379"].map(str::to_owned).to_vec();
        assert_eq!(plan_place("etcd:http://a:2379,http://b:2379"), Ok(PlanPlace::Etcd(nodes)));
        for bad in ["", "etcd:"] {
            assert!(plan_place(bad).unwrap_err().contains("etcd:http://HOST"), "{bad}");
        }
    }
}
