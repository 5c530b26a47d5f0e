//! Validation of recordings: a damaged or handwritten file must not lead the simulator into states
//! that no server allows.

use ripieno_base::{Nanos, Time};
use ripieno_model::{Extent, LengthProfiles, Model, Profile};
use ripieno_sched::{Limits, Setup};

/// Upper bound on times: a century.
const LONGEST: Nanos = Nanos(100 * 365 * 86_400 * 1_000_000_000);
/// Upper bounds on the limits of a server.
const MOST_REQUESTS: usize = 1 << 24;
const MOST_DEVICES: usize = 1 << 16;
const MOST_LANES: usize = 16;
const MOST_NODES: usize = 1 << 26;
/// Upper bound on the length of a sequence.
const LONGEST_EXTENT: u32 = 1 << 24;

/// Checks the limits in the first line.
pub(super) fn limits(setup: &Setup) -> Result<(), String> {
    let limits = &setup.limits;
    let bounds = [
        ("requests", limits.requests, MOST_REQUESTS),
        ("devices", limits.devices, MOST_DEVICES),
        ("devices", setup.devices, limits.devices),
        ("lanes", limits.lanes, MOST_LANES),
        ("depth", limits.depth, Limits::MOST_DEPTH),
        ("batch", limits.batch, Profile::MAX_BATCH),
    ];
    match bounds.iter().find(|(_, given, most)| !(1..=*most).contains(given)) {
        Some((key, given, most)) => Err(format!("{key} = {given}; a server has 1 to {most}")),
        None if limits.nodes > MOST_NODES => {
            Err(format!("nodes = {}; a server has at most {MOST_NODES}", limits.nodes))
        }
        None => Ok(()),
    }
}

/// Checks that a time can follow another.
pub(super) fn instant(before: Time, now: Time) -> Result<(), String> {
    match now < before || now < Time::ORIGIN || now > Time::ORIGIN + LONGEST {
        true => Err(format!("{now:?} cannot follow {before:?}")),
        false => Ok(()),
    }
}

pub(super) fn extent(extent: Extent) -> Result<(), String> {
    let Extent { length, limit } = extent;
    match (1..=LONGEST_EXTENT).contains(&length) && limit <= LONGEST_EXTENT {
        true => Ok(()),
        false => {
            Err(format!("a request of length {length} with at most {limit} steps; there are 1 to {LONGEST_EXTENT}"))
        }
    }
}

pub(super) fn profile(profile: &Profile) -> Result<(), String> {
    let same = Profile::from_table(profile.table()).map_err(|error| error.to_string())?;
    match same == *profile {
        true => Ok(()),
        false => Err("a latency profile that falls".to_owned()),
    }
}

pub(super) fn model(model: &Model) -> Result<(), String> {
    let fail = |what: &str| Err(format!("model {:?} {what}", model.name));
    if model.blocks.is_empty() || model.max_batch == 0 || model.instances == 0 || model.slo <= Nanos::ZERO {
        return fail("has no block, no batch, no instance or no time");
    }
    for block in &model.blocks {
        profile(&block.profile)
            .map_err(|problem| format!("model {:?}, block {:?}: {problem}", model.name, block.name))?;
        if !model.walk.is_unfolded() && block.max_batch() < model.max_batch {
            return fail("has a profile that ends before its largest batch");
        }
        let Some(lengths) = &block.lengths else { continue };
        lengths.table().iter().try_for_each(|(_, each)| profile(each))?;
        if LengthProfiles::new(lengths.table().to_vec()).as_ref() != Ok(lengths) {
            return fail("has latencies by length that do not grow with it");
        }
    }
    Ok(())
}
