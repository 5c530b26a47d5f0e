//! One policy a file, under its published name. The catalogue lists them.

pub(crate) mod serial;
pub(crate) mod symphony;
pub(crate) mod timeout;

use crate::catalogue::{BuildError, Knob, Knobs};
use crate::shard::DeviceChoice;
use ripieno_model::{DropRule, Model};
use std::collections::BTreeMap;

const DROP: Knob = Knob {
    name: "drop",
    default: "hopeless",
    help: "what becomes of a request that cannot be punctual: \"hopeless\" = rejected at once, \"expired\" = rejected at \
           its deadline, \"never\" = answered late; a model's own drop rule wins",
};

const DEVICE: Knob = Knob {
    name: "device",
    default: "smallest-id",
    help: "which free device is taken: \"smallest-id\" keeps the last devices idle so that they can be released, \
           \"earliest-free\" spreads the load",
};

const MAX_BATCH: Knob =
    Knob { name: "max_batch", default: "the model's", help: "the most rows in a batch; a wider request runs alone" };

fn drop_rule(knobs: &Knobs<'_>, default: DropRule) -> Result<DropRule, BuildError> {
    let rules = [("hopeless", DropRule::Hopeless), ("expired", DropRule::Expired), ("never", DropRule::Never)];
    knobs.choice("drop", &rules, default)
}

fn device_choice(knobs: &Knobs<'_>) -> Result<DeviceChoice, BuildError> {
    let choices = [("smallest-id", DeviceChoice::SmallestId), ("earliest-free", DeviceChoice::EarliestFree)];
    knobs.choice("device", &choices, DeviceChoice::SmallestId)
}

/// A knob that may differ by model: one value for the models that have their own, one for the others.
struct PerModel<T> {
    own: BTreeMap<String, T>,
    others: T,
}

impl<T: Copy> PerModel<T> {
    fn read(models: &[Model], read: impl Fn(Option<&str>) -> Result<T, BuildError>) -> Result<PerModel<T>, BuildError> {
        let own = models.iter().map(|model| Ok((model.name.clone(), read(Some(&model.name))?)));
        Ok(PerModel { own: own.collect::<Result<_, _>>()?, others: read(None)? })
    }

    fn of(&self, model: &Model) -> T {
        self.own.get(&model.name).copied().unwrap_or(self.others)
    }
}
