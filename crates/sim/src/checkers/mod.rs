//! The promises of the scheduler contract, one file each. A checker panics at the instant at which
//! a promise is broken.
//!
//! They check every simulation of this library: tests, and the reproductions. The commands over a
//! scenario use them only with `--check`, since they take a tenth of a run's time.

mod cancels;
mod conservation;
mod devices;
mod padding;
mod shapes;
mod unfolding;
mod wakeups;
mod walks;

pub use cancels::Cancels;
pub use conservation::Conservation;
pub use devices::DeviceChecker;
pub use padding::PaddingChecker;
pub use shapes::ShapeChecker;
pub use unfolding::UnfoldingChecker;
pub use wakeups::Wakeups;
pub use walks::Walks;

use crate::observer::{End, Observer, Run};
use ripieno_base::{DeviceId, ModelId, RequestSlot, Time};
use ripieno_model::Graph;
use ripieno_sched::{Request, Setup};

/// All checkers.
#[derive(Debug)]
pub struct Checkers(Conservation, DeviceChecker, Wakeups, Walks, Cancels, UnfoldingChecker, PaddingChecker);

impl Checkers {
    /// Creates the checkers for a run with this setup.
    pub fn new(setup: &Setup) -> Checkers {
        Checkers(
            Conservation::new(setup),
            DeviceChecker::new(setup),
            Wakeups,
            Walks::new(setup),
            Cancels::new(setup),
            UnfoldingChecker::new(setup),
            PaddingChecker::new(setup),
        )
    }

    /// Checks after the run that nothing is left.
    pub fn finish(&self) {
        self.0.finish();
        self.1.finish();
    }

    /// Returns the same checkers for a policy that never runs a step beyond the end of a sequence
    /// whose length is known.
    pub fn without_padding(mut self) -> Checkers {
        self.5.forbid_padding();
        self
    }
}

/// Calls every checker. The calls are spelled out instead of looped over, so that an event which a
/// checker ignores costs nothing.
macro_rules! each {
    ($checkers:ident.$event:ident($($argument:expr),*)) => {{
        $checkers.0.$event($($argument),*);
        $checkers.1.$event($($argument),*);
        $checkers.2.$event($($argument),*);
        $checkers.3.$event($($argument),*);
        $checkers.4.$event($($argument),*);
        $checkers.5.$event($($argument),*);
        $checkers.6.$event($($argument),*);
    }};
}

impl Observer for Checkers {
    fn unfolds(&mut self, slot: RequestSlot, output: u32, graph: Option<&Graph>) {
        each!(self.unfolds(slot, output, graph));
    }

    fn accepted(&mut self, id: u64, request: &Request) {
        each!(self.accepted(id, request));
    }

    fn refused(&mut self, now: Time, id: u64, model: ModelId) {
        each!(self.refused(now, id, model));
    }

    fn started(&mut self, now: Time, run: &Run<'_>) {
        each!(self.started(now, run));
    }

    fn done(&mut self, now: Time, run: &Run<'_>) {
        each!(self.done(now, run));
    }

    fn cancelled(&mut self, now: Time, run: &Run<'_>) {
        each!(self.cancelled(now, run));
    }

    fn left(&mut self, device: DeviceId) {
        each!(self.left(device));
    }

    fn ended(&mut self, now: Time, id: u64, request: &Request, end: End) {
        each!(self.ended(now, id, request, end));
    }

    fn settled(&mut self, now: Time, next_wakeup: Time) {
        each!(self.settled(now, next_wakeup));
    }
}
