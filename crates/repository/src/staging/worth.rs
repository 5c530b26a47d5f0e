//! What a way to cut is worth, from what its stages cost: nothing is run here.
//!
//! A batch that changes only at stage borders costs its members what more and better borders make smaller: one that is too large
//! for what comes next runs on as one. So a way to cut is as good as the mean time of a batch's members is short, and half of
//! its time for a newcomer who finds it running; the batch is the smallest that saturates every part of the model, and halved
//! where that pays by the rule that the scheduler uses (Policy II of DVABatch). Before the first stage it is halved whatever
//! the way: that takes no border, only smaller batches. That newcomers may join at a border does not count: with as many as
//! come meanwhile it seldom pays. What the borders themselves cost is in the stages' times.

use ripieno_base::Nanos;
use ripieno_model::Profile;

/// The most groups that layers are put into.
pub(super) const MOST_GROUPS: usize = 8;
/// A group with a smaller share of the time than one in so many is not worth a border.
const LEAST_SHARE: i64 = 20;

/// When the rows of a batch end, summed, and when the last does.
type Ends = (Nanos, Nanos);

/// What a request waits on average, in and before a batch of `rows`; `splits` says whether batches are halved at borders.
pub(super) fn expected(stages: &[Profile], rows: usize, splits: bool) -> Nanos {
    let (sum, end) = begin(stages, rows, splits);
    Nanos(sum.0 / rows.max(1) as i64 + end.0 / 2)
}

fn begin(stages: &[Profile], rows: usize, splits: bool) -> Ends {
    let halves = halved(stages, rows, |rows| begin(stages, rows, splits));
    halves.unwrap_or_else(|| run(stages, rows, splits))
}

fn run(stages: &[Profile], rows: usize, splits: bool) -> Ends {
    let Some((first, rest)) = stages.split_first() else { return (Nanos::ZERO, Nanos::ZERO) };
    let here = first.latency(rows);
    let (sum, end) = go_on(rest, rows, splits);
    (sum + Nanos(here.0 * rows as i64), here + end)
}

fn go_on(rest: &[Profile], rows: usize, splits: bool) -> Ends {
    let halves = if splits { halved(rest, rows, |rows| go_on(rest, rows, splits)) } else { None };
    halves.unwrap_or_else(|| run(rest, rows, splits))
}

/// Both halves of a batch one after the other, if that pays.
fn halved(stages: &[Profile], rows: usize, half: impl Fn(usize) -> Ends) -> Option<Ends> {
    if rows < 2 || !pays(stages, rows) {
        return None;
    }
    let (one, other) = (rows.div_ceil(2), rows / 2);
    let ((sum, end), (later_sum, later_end)) = (half(one), half(other));
    Some((sum + later_sum + Nanos(end.0 * other as i64), end + later_end))
}

/// Whether two halves take no longer than the whole for what is left.
fn pays(rest: &[Profile], rows: usize) -> bool {
    let left = |rows: usize| rest.iter().map(|stage| stage.latency(rows)).sum::<Nanos>();
    !rest.is_empty() && left(rows) >= Nanos(2 * left(rows.div_ceil(2)).0)
}

/// Where the batch size that saturates the device changes along the layers: how many layers there are up to each change.
///
/// Neighbours are joined, the most alike first, until no group is hardly any work, there are at most eight, and each differs
/// from the next by a factor of two at least.
pub(super) fn groups(layers: &[Profile]) -> Vec<usize> {
    let total: Nanos = layers.iter().map(at_largest).sum();
    let mut groups: Vec<Group> =
        layers.iter().enumerate().map(|(at, layer)| Group::of(at + 1, layer.clone())).collect();
    while let Some(at) = next_to_join(&groups, Nanos(total.0 / LEAST_SHARE)) {
        let after = groups.remove(at + 1);
        groups[at] = Group::of(after.end, Profile::sum([&groups[at].profile, &after.profile].into_iter()));
    }
    groups.iter().map(|group| group.end).take(groups.len().saturating_sub(1)).collect()
}

/// Neighbouring layers.
struct Group {
    /// The layers up to its end.
    end: usize,
    profile: Profile,
    preferred: usize,
}

impl Group {
    fn of(end: usize, profile: Profile) -> Group {
        Group { end, preferred: profile.preferred(), profile }
    }
}

fn at_largest(profile: &Profile) -> Nanos {
    profile.latency(profile.max_batch())
}

/// Which group is to be joined with the one behind it, if any is.
fn next_to_join(groups: &[Group], least: Nanos) -> Option<usize> {
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
    nearest(&mut pairs.clone()).filter(|&at| !differ(at) || groups.len() > MOST_GROUPS)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Costs `alone` up to `preferred` rows, and in proportion beyond.
    fn stage(alone: i64, preferred: usize) -> Profile {
        let at = |rows: usize| Nanos(alone * 1000 * rows.max(preferred) as i64 / preferred as i64);
        Profile::from_table(&(1..=16).map(at).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn a_batch_is_halved_depth_first_where_that_pays() {
        // Figure 3, case II of DVABatch in quarters: A takes 4 for four rows or one, B to D take 1 a row.
        let stages = [stage(4, 4), stage(1, 1), stage(1, 1), stage(1, 1)];
        let (sum, end) = run(&stages, 4, true);
        assert_eq!((sum, end), (Nanos(46_000), Nanos(16_000)), "7, 10, 13 and 16");
        assert_eq!(expected(&stages, 4, true), Nanos(11_500 + 8000));
        assert_eq!(expected(&stages, 4, false), Nanos(16_000 + 8000), "a scheduler that halves no batch");
        let whole = Profile::sum(stages.iter());
        assert_eq!(expected(&[whole], 4, true), Nanos(16_000 + 8000));
    }

    #[test]
    fn without_diversity_borders_give_nothing() {
        let even = [stage(4, 16), stage(4, 16)];
        assert_eq!(expected(&even, 16, true), Nanos(8000 + 4000));
        assert_eq!(expected(&[stage(8, 16)], 16, true), Nanos(8000 + 4000));
        // Where batches gain nothing small ones are better, but for that a model need not be cut.
        let (single, cut) = ([stage(8, 1)], [stage(4, 1), stage(4, 1)]);
        assert_eq!((expected(&single, 4, true), expected(&cut, 4, true)), (Nanos(36_000), Nanos(36_000)));
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
        assert!(groups(&many).len() < MOST_GROUPS);
    }
}
