//! Model checking: every interleaving of small configurations, breadth first, with a separate model
//! of the contents of each buffer.
//!
//! At each border a batch may continue, leave as a whole, be split (its parts in one pair or in
//! two), or, if it is the latest, wait for newcomers. The latest batch can also be stretched while
//! it works: newcomers begin immediately, and it waits for them at its next border. Either may
//! leave before they meet. Every step makes progress, so a state without a next step that is not
//! the end is the only way for a batch to get stuck. Breaking each rule in turn shows that the
//! search detects faults.

use super::*;
use std::collections::BTreeSet;
use std::hash::{Hash, Hasher};

/// The configuration to search.
#[derive(Clone, Copy)]
struct Config {
    stages: usize,
    pairs: usize,
    batches: u8,
    broken: Broken,
}

/// The rule to break.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Broken {
    Nothing,
    /// The rule of Figure 10.
    LegitimiseAtCompletion,
    OverwriteUnread,
    StretchAnyBatch,
    StretchSplitProducts,
}

/// An item of a batch, in a pair, possibly to be merged with the one in another pair.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Work {
    batch: u8,
    queries: u8,
    pair: BufferPair,
    merged: Option<BufferPair>,
    /// True if the item came from a split.
    sealed: bool,
    /// The batch that waits for it, if the item is of newcomers.
    catches_up: Option<Waits>,
    /// True if the item waits for newcomers once it has ended its stage.
    held: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Waits {
    batch: u8,
    stage: usize,
    queries: u8,
    pair: BufferPair,
}

/// The true content of a buffer.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Content {
    batches: Vec<u8>,
    readers: u8,
    written: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct State {
    machine: StageExecutors,
    queues: Vec<Vec<Work>>,
    checking: Vec<(usize, Work)>,
    working: Vec<(usize, Work)>,
    begun: u8,
    contents: Vec<Content>,
}

/// The continuation of a batch from a border.
#[derive(Clone, Copy)]
enum Then {
    GoOn,
    Leave,
    SplitTo(BufferPair),
    WaitFor(BufferPair),
}

#[derive(Debug, Default)]
struct Seen {
    states: usize,
    most_working: usize,
    /// Whether newcomers were merged, or an executor had to wait for the pair of its item, while
    /// others worked.
    merged_beside: bool,
    checked_in_vain: bool,
}

impl State {
    fn new(config: Config) -> State {
        let mut machine = StageExecutors::new(config.stages, config.pairs);
        machine.broken = config.broken;
        State {
            machine,
            queues: vec![Vec::new(); config.stages],
            checking: Vec::new(),
            working: Vec::new(),
            begun: 0,
            contents: vec![Content::default(); (config.stages + 1) * config.pairs],
        }
    }

    fn is_over(&self, config: Config) -> bool {
        let idle = self.checking.is_empty() && self.working.is_empty() && self.queues.iter().all(Vec::is_empty);
        idle && self.begun == config.batches
    }

    fn content(&mut self, boundary: usize, pair: BufferPair) -> &mut Content {
        &mut self.contents[boundary * self.machine.pairs + usize::from(pair)]
    }

    /// Returns every state that may follow.
    fn nexts(&self, config: Config) -> Result<Vec<State>, String> {
        let mut nexts = Vec::new();
        for pair in 0..config.pairs as BufferPair {
            if self.begun < config.batches && self.machine.takes(0, pair) {
                let mut next = self.clone();
                next.arrive(pair, None);
                nexts.push(next);
            }
        }
        for stage in 0..config.stages {
            let mut next = self.clone();
            if !next.queues[stage].is_empty() && next.machine.pull(stage, next.queues[stage][0].pair) {
                let work = next.queues[stage].remove(0);
                next.checking.push((stage, work));
                next.checking.sort();
                nexts.push(next);
            }
        }
        for at in 0..self.checking.len() {
            nexts.extend(self.clone().start(at)?);
        }
        for at in 0..self.working.len() {
            for then in self.choices(config, at) {
                nexts.push(self.clone().end(at, then)?);
            }
            for pair in self.newcomers(config, at) {
                let mut next = self.clone();
                next.stretch(at, pair);
                nexts.push(next);
            }
        }
        Ok(nexts)
    }

    /// Stretches a batch that works.
    fn stretch(&mut self, at: usize, pair: BufferPair) {
        let (stage, work) = &mut self.working[at];
        work.held = true;
        let waits = Waits { batch: work.batch, stage: *stage + 1, queries: work.queries, pair: work.pair };
        self.working.sort();
        self.arrive(pair, Some(waits));
    }

    /// Returns the pairs in which newcomers may catch up with a batch that works.
    fn newcomers(&self, config: Config, at: usize) -> Vec<BufferPair> {
        let (stage, work) = &self.working[at];
        let latest = work.batch + 1 == self.begun || config.broken == Broken::StretchAnyBatch;
        let open = !work.sealed || config.broken == Broken::StretchSplitProducts;
        let meets = *stage + 1 < config.stages && work.catches_up.is_none() && !work.held;
        if !(latest && open && meets && self.begun < config.batches && work.queries < 4) {
            return Vec::new();
        }
        let others = (0..config.pairs as BufferPair).filter(|&pair| pair != work.pair);
        others.filter(|&pair| self.machine.takes(0, pair)).collect()
    }

    /// Returns all items that have not ended.
    fn items(&mut self) -> impl Iterator<Item = &mut Work> {
        let bound = self.checking.iter_mut().chain(&mut self.working).map(|(_, work)| work);
        self.queues.iter_mut().flatten().chain(bound)
    }

    /// Lets the other batch of a stretch continue without one that has left.
    fn release(&mut self, work: &Work) {
        if let Some(waits) = work.catches_up {
            if let Some(works) = self.items().find(|other| other.held && other.pair == waits.pair) {
                works.held = false;
            } else {
                let Waits { batch, stage, queries, pair } = waits;
                self.queues[stage].push(Work { batch, queries, pair, catches_up: None, ..work.clone() });
            }
        } else if work.held {
            let waits = |other: &Work| other.catches_up.is_some_and(|waits| waits.pair == work.pair);
            self.items().find(|other| waits(other)).expect("newcomers are on their way").catches_up = None;
        }
        self.checking.sort();
        self.working.sort();
    }

    fn arrive(&mut self, pair: BufferPair, catches_up: Option<Waits>) {
        let batch = self.begun;
        self.machine.put(0, pair);
        self.content(0, pair).batches.push(batch);
        self.queues[0].push(Work { batch, queries: 2, pair, merged: None, sealed: false, catches_up, held: false });
        self.begun += 1;
    }

    /// Begins an item that an executor has pulled, if the machine allows it; returns an error if it
    /// should not have.
    fn start(mut self, at: usize) -> Result<Option<State>, String> {
        let (stage, work) = self.checking[at].clone();
        if !self.machine.check(stage, work.pair, work.merged) {
            return Ok(None);
        }
        for pair in [Some(work.pair), work.merged].into_iter().flatten() {
            let input = self.content(stage, pair);
            let whole = !input.written && !input.batches.is_empty();
            input.readers += 1;
            if !whole {
                return Err(format!("stage {stage} reads {pair} while it is written, or finds nothing there"));
            }
        }
        let output = self.content(stage + 1, work.pair);
        if output.written || output.readers > 0 || !output.batches.is_empty() {
            return Err(format!("stage {stage} overwrites what is wanted in {output:?}"));
        }
        output.written = true;
        self.checking.remove(at);
        self.working.push((stage, work));
        self.working.sort();
        Ok(Some(self))
    }

    fn choices(&self, config: Config, at: usize) -> Vec<Then> {
        let (stage, work) = &self.working[at];
        let mut choices = vec![Then::GoOn];
        if stage + 1 == config.stages {
            return choices;
        }
        choices.push(Then::Leave);
        if work.catches_up.is_some() || work.held {
            return choices;
        }
        let others = (0..config.pairs as BufferPair).filter(|&pair| pair != work.pair);
        if work.queries > 1 {
            choices.push(Then::SplitTo(work.pair));
            let free = others.filter(|&pair| self.machine.takes(stage + 1, pair));
            choices.extend(free.map(Then::SplitTo));
        }
        choices.extend(self.newcomers(config, at).into_iter().map(Then::WaitFor));
        choices
    }

    fn end(mut self, at: usize, then: Then) -> Result<State, String> {
        let (stage, work) = self.working.remove(at);
        for pair in [Some(work.pair), work.merged].into_iter().flatten() {
            let input = self.content(stage, pair);
            input.readers -= 1;
            input.batches.remove(0);
        }
        let goes_on = stage + 1 < self.machine.stages && !matches!(then, Then::Leave);
        let after = self.content(stage + 1, work.pair);
        after.written = false;
        if goes_on {
            after.batches.push(work.batch);
        }
        self.machine.complete(stage, work.pair, goes_on);
        if !goes_on {
            self.release(&work);
            return Ok(self);
        }
        if work.held {
            return Ok(self);
        }
        let mut work = Work { merged: None, ..work };
        match then {
            Then::Leave | Then::GoOn => {}
            Then::SplitTo(pair) => {
                (work.queries, work.sealed) = (work.queries / 2, true);
                self.machine.put(stage + 1, pair);
                self.content(stage + 1, pair).batches.push(work.batch);
                self.queues[stage + 1].push(work.clone());
                self.queues[stage + 1].push(Work { pair, ..work });
                return Ok(self);
            }
            Then::WaitFor(pair) => {
                let waits = Waits { batch: work.batch, stage: stage + 1, queries: work.queries, pair: work.pair };
                self.arrive(pair, Some(waits));
                return Ok(self);
            }
        }
        if let Some(waits) = work.catches_up.filter(|waits| waits.stage == stage + 1) {
            let queries = work.queries + waits.queries;
            work = Work { queries, pair: waits.pair, merged: Some(work.pair), catches_up: None, ..work };
        }
        self.queues[stage + 1].push(work);
        Ok(self)
    }
}

/// A hash of 64 bits; collisions are negligible for these numbers of states.
struct Digest(u64);

impl Hasher for Digest {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(u64::from(byte)));
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0 ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
    }

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }

    fn write_isize(&mut self, word: isize) {
        self.write_u64(word as u64);
    }
}

fn digest(state: &State) -> u64 {
    let mut hasher = Digest(1);
    state.hash(&mut hasher);
    hasher.finish()
}

/// Searches every reachable state; returns the first fault, if any.
fn search(config: Config) -> Result<Seen, String> {
    let mut seen = Seen::default();
    let start = State::new(config);
    let mut known = BTreeSet::from([digest(&start)]);
    let mut border = vec![start];
    while let Some(state) = border.pop() {
        seen.most_working = seen.most_working.max(state.working.len());
        seen.merged_beside |= state.working.len() > 1 && state.working.iter().any(|(_, work)| work.merged.is_some());
        let waits = |(stage, work): &(usize, Work)| !state.machine.is_ready(*stage, work.pair, work.merged);
        seen.checked_in_vain |= !state.working.is_empty() && state.checking.iter().any(waits);
        if config.pairs == 1 && state.working.len() > 1 {
            return Err(format!("two stages work with one pair: {:?}", state.working));
        }
        let nexts = state.nexts(config)?;
        if nexts.is_empty() && !state.is_over(config) {
            return Err(format!("no batch can continue: {state:?}"));
        }
        border.extend(nexts.into_iter().filter(|next| known.insert(digest(next))));
    }
    seen.states = known.len();
    Ok(seen)
}

fn config(stages: usize, pairs: usize, batches: u8) -> Config {
    Config { stages, pairs, batches, broken: Broken::Nothing }
}

#[test]
fn with_one_pair_stages_work_one_after_the_other() {
    for (stages, batches) in [(1, 4), (2, 4), (3, 4), (4, 4)] {
        let seen = search(config(stages, 1, batches)).unwrap();
        assert_eq!(seen.most_working, 1, "{stages} stages: {seen:?}");
    }
}

#[test]
fn with_more_pairs_stages_work_side_by_side_and_nothing_is_lost() {
    let cases = [(2, 2, 4), (2, 3, 3), (3, 2, 3), (3, 3, 3), (4, 2, 2)];
    let mut all = Seen::default();
    for (stages, pairs, batches) in cases {
        let seen = search(config(stages, pairs, batches)).unwrap();
        assert!(seen.most_working >= 2, "{stages} stages, {pairs} pairs: {seen:?}");
        all.merged_beside |= seen.merged_beside;
        all.checked_in_vain |= seen.checked_in_vain;
    }
    assert!(all.merged_beside && all.checked_in_vain, "{all:?}");
}

#[test]
fn the_search_finds_the_fault_of_each_broken_rule() {
    let broken = |broken: Broken, case: Config| search(Config { broken, ..case }).unwrap_err();
    let parallel = broken(Broken::LegitimiseAtCompletion, config(3, 1, 2));
    assert!(parallel.starts_with("two stages work with one pair"), "{parallel}");
    let overwritten = broken(Broken::OverwriteUnread, config(3, 2, 2));
    assert!(overwritten.contains("overwrites what is wanted"), "{overwritten}");
    for rule in [Broken::StretchAnyBatch, Broken::StretchSplitProducts] {
        let stuck = broken(rule, config(3, 2, 3));
        assert!(stuck.starts_with("no batch can continue"), "{stuck}");
    }
}
