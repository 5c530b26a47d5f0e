//! Analytic cost of a slicing, from the costs of its stages; nothing runs here.
//!
//! A batch that can change only at stage boundaries delays its members where it is too large for
//! the next stage; more and better placed boundaries reduce that. The cost of a slicing is the mean
//! latency of a batch's members plus half of the batch's duration, the expected wait of a request
//! that arrives during it. The batch is the smallest that saturates every part of the model, and is
//! halved where the scheduler's rule says so (Policy II of DVABatch). Before the first stage it is
//! halved regardless of the slicing, which needs smaller batches but no boundary. Joining a running
//! batch at a boundary is not counted, since few requests arrive in the meantime and it seldom pays
//! off. The stages' times include the cost of the boundaries.

use ripieno_base::Nanos;
use ripieno_model::Profile;

/// Maximum number of layer groups.
pub(super) const MAX_GROUPS: usize = 8;
/// A group with less than 1/20 of the total time gets no boundary.
const MIN_SHARE_DIVISOR: i64 = 20;

/// Sum of the completion times of a batch's rows, and the last completion time.
type BatchEnds = (Nanos, Nanos);

/// Returns the mean latency of a request, queueing and a batch of `rows` included; `splits` enables
/// halving at boundaries.
pub(super) fn expected_latency(stages: &[Profile], rows: usize, splits: bool) -> Nanos {
    let (sum, end) = start_batch(stages, rows, splits);
    Nanos(sum.0 / rows.max(1) as i64 + end.0 / 2)
}

fn start_batch(stages: &[Profile], rows: usize, splits: bool) -> BatchEnds {
    let halves = halved(stages, rows, |rows| start_batch(stages, rows, splits));
    halves.unwrap_or_else(|| run_stage(stages, rows, splits))
}

fn run_stage(stages: &[Profile], rows: usize, splits: bool) -> BatchEnds {
    let Some((first, rest)) = stages.split_first() else { return (Nanos::ZERO, Nanos::ZERO) };
    let here = first.latency(rows);
    let (sum, end) = continue_batch(rest, rows, splits);
    (sum + Nanos(here.0 * rows as i64), here + end)
}

fn continue_batch(rest: &[Profile], rows: usize, splits: bool) -> BatchEnds {
    let halves = if splits { halved(rest, rows, |rows| continue_batch(rest, rows, splits)) } else { None };
    halves.unwrap_or_else(|| run_stage(rest, rows, splits))
}

/// Returns the result of running both halves one after the other, if halving pays off.
fn halved(stages: &[Profile], rows: usize, half: impl Fn(usize) -> BatchEnds) -> Option<BatchEnds> {
    if rows < 2 || !halving_pays(stages, rows) {
        return None;
    }
    let (one, other) = (rows.div_ceil(2), rows / 2);
    let ((sum, end), (later_sum, later_end)) = (half(one), half(other));
    Some((sum + later_sum + Nanos(end.0 * other as i64), end + later_end))
}

/// Returns true if two halves take no longer than the whole batch for the remaining stages.
fn halving_pays(rest: &[Profile], rows: usize) -> bool {
    let left = |rows: usize| rest.iter().map(|stage| stage.latency(rows)).sum::<Nanos>();
    !rest.is_empty() && left(rows) >= Nanos(2 * left(rows.div_ceil(2)).0)
}

/// Returns the boundaries at which the saturating batch size changes, as numbers of layers before
/// each.
///
/// Merges neighbours, the most similar first, until no group is negligible, there are at most
/// eight, and adjacent groups differ by a factor of at least two.
pub(super) fn groups(layers: &[Profile]) -> Vec<usize> {
    let total: Nanos = layers.iter().map(at_largest).sum();
    let mut groups: Vec<LayerGroup> =
        layers.iter().enumerate().map(|(at, layer)| LayerGroup::of(at + 1, layer.clone())).collect();
    while let Some(at) = next_to_join(&groups, Nanos(total.0 / MIN_SHARE_DIVISOR)) {
        let after = groups.remove(at + 1);
        groups[at] = LayerGroup::of(after.end, Profile::sum([&groups[at].profile, &after.profile].into_iter()));
    }
    groups.iter().map(|group| group.end).take(groups.len().saturating_sub(1)).collect()
}

/// A group of consecutive layers.
struct LayerGroup {
    /// Number of layers up to the group's end.
    end: usize,
    profile: Profile,
    preferred: usize,
}

impl LayerGroup {
    fn of(end: usize, profile: Profile) -> LayerGroup {
        LayerGroup { end, preferred: profile.preferred(), profile }
    }
}

fn at_largest(profile: &Profile) -> Nanos {
    profile.latency(profile.max_batch())
}

/// Returns the index of the group to merge with the next one, if any.
fn next_to_join(groups: &[LayerGroup], least: Nanos) -> Option<usize> {
    let apart = |at: usize| {
        let (a, b) = (groups[at].preferred, groups[at + 1].preferred);
        (a.max(b) * 1000) / a.min(b).max(1)
    };
    let pairs = 0..groups.len().saturating_sub(1);
    let small = |at: &usize| at_largest(&groups[*at].profile).min(at_largest(&groups[at + 1].profile)) < least;
    let nearest = |pairs: &mut dyn Iterator<Item = usize>| pairs.min_by_key(|&at| (apart(at), at));
    if let Some(at) = nearest(&mut pairs.clone().filter(small)) {
        return Some(at);
    }
    let differ = |at: usize| Profile::prefer_differently(groups[at..at + 2].iter().map(|group| group.preferred));
    nearest(&mut pairs.clone()).filter(|&at| !differ(at) || groups.len() > MAX_GROUPS)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a profile that costs `alone` up to `preferred` rows, and grows proportionally
    /// beyond.
    fn stage(alone: i64, preferred: usize) -> Profile {
        let at = |rows: usize| Nanos(alone * 1000 * rows.max(preferred) as i64 / preferred as i64);
        Profile::from_table(&(1..=16).map(at).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn a_batch_is_halved_depth_first_where_that_pays() {
        // Figure 3, case II of DVABatch in quarters: A takes 4 for up to four rows, B to D take 1
        // per row.
        let stages = [stage(4, 4), stage(1, 1), stage(1, 1), stage(1, 1)];
        let (sum, end) = run_stage(&stages, 4, true);
        assert_eq!((sum, end), (Nanos(46_000), Nanos(16_000)), "7, 10, 13 and 16");
        assert_eq!(expected_latency(&stages, 4, true), Nanos(11_500 + 8000));
        assert_eq!(expected_latency(&stages, 4, false), Nanos(16_000 + 8000), "a scheduler that halves no batch");
        let whole = Profile::sum(stages.iter());
        assert_eq!(expected_latency(&[whole], 4, true), Nanos(16_000 + 8000));
    }

    #[test]
    fn without_diversity_borders_give_nothing() {
        let even = [stage(4, 16), stage(4, 16)];
        assert_eq!(expected_latency(&even, 16, true), Nanos(8000 + 4000));
        assert_eq!(expected_latency(&[stage(8, 16)], 16, true), Nanos(8000 + 4000));
        // Where batching gains nothing, small batches are better, but they need no slicing.
        let (single, cut) = ([stage(8, 1)], [stage(4, 1), stage(4, 1)]);
        assert_eq!(
            (expected_latency(&single, 4, true), expected_latency(&cut, 4, true)),
            (Nanos(36_000), Nanos(36_000))
        );
    }

    #[test]
    fn groups_end_where_the_preferred_size_changes() {
        let [large, small] = [16, 2].map(|preferred| stage(3, preferred));
        assert_eq!(groups(&[large.clone(), large.clone(), small.clone(), small.clone()]), [2]);
        assert_eq!(groups(&[large.clone(), large.clone()]), [0; 0]);
        assert_eq!(groups(&[large.clone(), small.clone(), large.clone()]), [1, 2]);
        assert_eq!(groups(&[]), [0; 0]);
    }

    #[test]
    fn a_group_of_hardly_any_work_joins_the_neighbour_most_like_it() {
        let tiny = Profile::from_table(&[Nanos(1); 16]).unwrap();
        let layers = [stage(3, 2), tiny, stage(3, 16), stage(3, 16)];
        assert_eq!(groups(&layers), [1], "a layer that costs the same at any size prefers large batches");
        let many: Vec<Profile> = (0..24).map(|at| stage(3, if at % 2 == 0 { 1 } else { 16 })).collect();
        assert!(groups(&many).len() < MAX_GROUPS);
    }
}
