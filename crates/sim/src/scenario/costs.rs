//! The cost of a batch: the latency keys of a whole model or of a block.

use super::ParseResult;
use ripieno_base::Nanos;
use ripieno_model::{Latency, LengthProfiles, Profile};
use serde::Deserialize;
use std::collections::BTreeSet;

/// The keys about the cost of a batch.
#[derive(Clone, Copy, Default)]
pub(super) struct Costs<'a> {
    pub(super) alpha_ms: Option<f64>,
    pub(super) beta_ms: Option<f64>,
    pub(super) latency_ms: Option<&'a [f64]>,
    pub(super) latency_points: Option<&'a [(usize, f64)]>,
    pub(super) alone_ms: Option<f64>,
    pub(super) preferred_batch: Option<usize>,
    pub(super) preferred_tokens: Option<u32>,
    pub(super) by_length: &'a [ByLength],
    pub(super) launch_ms: f64,
    pub(super) max_batch: Option<usize>,
}

/// The cost of batches that are padded to one length.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ByLength {
    length: u32,
    alpha_ms: Option<f64>,
    beta_ms: Option<f64>,
    latency_ms: Option<Vec<f64>>,
    latency_points: Option<Vec<(usize, f64)>>,
}

/// The cost of a batch.
pub(super) struct BatchCost {
    /// Profile of the longest requests.
    pub(super) profile: Profile,
    pub(super) lengths: Option<LengthProfiles>,
}

impl Costs<'_> {
    pub(super) fn given(&self) -> bool {
        let numbers = [self.alpha_ms, self.beta_ms, self.alone_ms].iter().any(Option::is_some);
        numbers || self.latency_ms.is_some() || self.latency_points.is_some() || !self.by_length.is_empty()
    }

    /// Parses the cost of batches of requests up to `longest`.
    pub(super) fn parse(&self, slo: Nanos, longest: Option<u32>) -> ParseResult<BatchCost> {
        let cost = match (self.by_length, self.preferred_tokens) {
            ([], None) => return Ok(BatchCost { profile: self.launched(&self.profile(slo)?)?, lengths: None }),
            ([], Some(tokens)) => self.saturating(tokens)?,
            (by_length, None) => self.measured(by_length, slo)?,
            (_, Some(_)) => return Err("both by_length and preferred_tokens are given; remove one".to_owned()),
        };
        let known = cost.last().map_or(1, |&(length, _)| length);
        let table = cost.into_iter().map(|(length, profile)| Ok((length, self.launched(&profile)?)));
        let lengths =
            LengthProfiles::new(table.collect::<ParseResult<_>>()?).map_err(|error| format!("by_length: {error}"))?;
        let longest = longest.unwrap_or(known);
        let table: Vec<_> = (1..=lengths.table()[0].1.max_batch()).map(|rows| lengths.latency(rows, longest)).collect();
        let profile = Profile::from_table(&table).map_err(|error| error.to_string())?;
        Ok(BatchCost { profile, lengths: Some(lengths) })
    }

    fn launched(&self, profile: &Profile) -> ParseResult<Profile> {
        let launch = milliseconds("launch_ms", self.launch_ms)?;
        let table: Vec<_> = profile.table().iter().map(|&latency| latency + launch).collect();
        Profile::from_table(&table).map_err(|error| error.to_string())
    }

    /// Parses the keys that `model.toml` has, too.
    fn latency(&self) -> ParseResult<Option<Latency>> {
        let numbers = [("alpha_ms", self.alpha_ms), ("beta_ms", self.beta_ms)];
        numbers.into_iter().try_for_each(|(key, ms)| ms.map_or(Ok(()), |ms| milliseconds(key, ms).map(drop)))?;
        for (at, &ms) in self.latency_ms.unwrap_or_default().iter().enumerate() {
            milliseconds(&format!("latency_ms[{at}]"), ms)?;
        }
        Latency::from_keys(self.latency_ms, self.alpha_ms, self.beta_ms).map_err(|error| error.to_string())
    }

    /// Returns ℓ(b).
    fn profile(&self, slo: Nanos) -> ParseResult<Profile> {
        let (keys, profile) = match (self.latency()?, self.latency_points, self.alone_ms) {
            (Some(latency @ Latency::Table(_)), None, None) => ("latency_ms", latency.profile(Profile::MAX_BATCH)),
            (Some(latency @ Latency::Line { alpha_ms, beta_ms }), None, None) => {
                // Batches with a latency above the SLO could never be punctual.
                let useful = ((slo.as_millis_f64() - beta_ms) / alpha_ms).clamp(1.0, 1024.0) as usize;
                ("alpha_ms and beta_ms", latency.profile(self.max_batch.unwrap_or(useful)))
            }
            (None, Some(points), None) => {
                let ascending = points.windows(2).all(|pair| pair[0].0 < pair[1].0);
                if !ascending || points.first().is_none_or(|&(batch, _)| batch == 0) {
                    return Err(
                        "latency_points = [[batch, ms], …] must be in order of their batches, from 1 on".to_owned()
                    );
                }
                let point = |&(batch, ms): &(usize, f64)| Ok((batch, milliseconds("latency_points", ms)?));
                ("latency_points", Profile::interpolate(&points.iter().map(point).collect::<ParseResult<Vec<_>>>()?))
            }
            (None, None, Some(alone)) => {
                let preferred = self.preferred_batch.ok_or("alone_ms needs preferred_batch or preferred_tokens")?;
                return self.saturated(alone, preferred as f64);
            }
            _ => return Err("give either alpha_ms and beta_ms, or latency_ms = [l(1), l(2), …]".to_owned()),
        };
        profile.map_err(|error| format!("{keys}: {error}"))
    }

    /// Returns a profile that is constant until `preferred` rows saturate the device, and
    /// proportional beyond.
    fn saturated(&self, alone_ms: f64, preferred: f64) -> ParseResult<Profile> {
        milliseconds("alone_ms", alone_ms)?;
        let most = self.max_batch.ok_or("alone_ms needs max_batch")?;
        if preferred <= 0.0 {
            return Err("preferred_batch and preferred_tokens must be at least 1".to_owned());
        }
        let at = |rows: usize| Nanos::from_millis_f64(alone_ms * (rows as f64 / preferred).max(1.0));
        Profile::from_table(&(1..=most.min(Profile::MAX_BATCH)).map(at).collect::<Vec<_>>())
            .map_err(|error| format!("alone_ms: {error}"))
    }

    /// Returns the same for the number of sequence elements instead of rows. The profile bends
    /// where a batch reaches the preferred number, so only those lengths are needed.
    fn saturating(&self, tokens: u32) -> ParseResult<Vec<(u32, Profile)>> {
        let (Some(alone), None) = (self.alone_ms, self.preferred_batch) else {
            return Err("preferred_tokens needs alone_ms, and no preferred_batch".to_owned());
        };
        let most = self.max_batch.ok_or("alone_ms needs max_batch")?;
        let bends = (1..=most as u32).flat_map(|rows| [tokens / rows, tokens.div_ceil(rows)]);
        let lengths: BTreeSet<u32> = bends.filter(|&length| length > 0).chain([1, tokens.max(1)]).collect();
        let at = |length: u32| Ok((length, self.saturated(alone, f64::from(tokens) / f64::from(length))?));
        lengths.into_iter().map(at).collect()
    }

    fn measured(&self, by_length: &[ByLength], slo: Nanos) -> ParseResult<Vec<(u32, Profile)>> {
        if (Costs { by_length: &[], ..*self }).given() {
            return Err("with by_length, give latencies in each of its entries, not beside it".to_owned());
        }
        let entry = |table: &ByLength| {
            let ByLength { length, alpha_ms, beta_ms, .. } = *table;
            let costs = Costs {
                alpha_ms,
                beta_ms,
                latency_ms: table.latency_ms.as_deref(),
                latency_points: table.latency_points.as_deref(),
                max_batch: self.max_batch,
                ..Costs::default()
            };
            let profile = costs.profile(slo).map_err(|problem| format!("by_length, length = {length}: {problem}"))?;
            Ok((length, self.max_batch.map_or(profile.clone(), |most| profile.truncated(most))))
        };
        by_length.iter().map(entry).collect()
    }
}

/// Upper bound on latencies, eleven days.
const LONGEST_MS: f64 = 1e9;

pub(super) fn milliseconds(key: &str, value: f64) -> ParseResult<Nanos> {
    match (0.0..=LONGEST_MS).contains(&value) {
        true => Ok(Nanos::from_millis_f64(value)),
        false => Err(format!("{key} = {value}; it must be a number of milliseconds from 0 to {LONGEST_MS}")),
    }
}
