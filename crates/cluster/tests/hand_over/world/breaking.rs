//! The effects of faults on the world.

use super::{BACKENDS, Event, Machine, Node, PLACES, SCHEDULERS, STORE, World};
use crate::faults::{Fault, is_frontend};
use crate::network::Place;
use ripieno_base::Nanos;
use ripieno_cluster::handover::ProcessId;
use ripieno_workload::below;

impl World {
    pub(super) fn on_fault(&mut self, fault: Fault) {
        match fault {
            Fault::Crash { place, seen, back } => self.crash(place, seen, back),
            Fault::Hang { place, back } => self.hang(place, back),
            Fault::CrashPrimary { seen, back } => {
                self.primaries().into_iter().for_each(|place| self.crash(place, seen, back))
            }
            Fault::HangPrimary { back } => self.primaries().into_iter().for_each(|place| self.hang(place, back)),
            Fault::IsolatePrimary { back } => {
                let places =
                    self.primaries().into_iter().flat_map(|place| (0..=STORE).map(move |other| (place, other)));
                for (place, other) in places.filter(|(place, other)| place != other) {
                    let backend = (SCHEDULERS..SCHEDULERS + BACKENDS).contains(&other);
                    let back = if backend { back } else { back * 2 };
                    self.cut(place, other, back);
                    self.cut(other, place, back);
                }
            }
            Fault::CutOffPrimary { frontends, back } => {
                let others = if frontends { SCHEDULERS + BACKENDS..PLACES } else { SCHEDULERS..SCHEDULERS + BACKENDS };
                for (place, other) in
                    self.primaries().into_iter().flat_map(|place| others.clone().map(move |other| (place, other)))
                {
                    self.cut(place, other, back);
                    self.cut(other, place, back);
                }
            }
            Fault::Break { one, other } => {
                let (first, second) = (self.nodes[one].process, self.nodes[other].process);
                self.lose(one, other, second);
                self.lose(other, one, first);
            }
            Fault::Cut { from, to, back } => self.cut(from, to, back),
            Fault::Isolate { place, back } => {
                for other in (0..=STORE).filter(|&other| other != place) {
                    self.cut(place, other, back);
                    self.cut(other, place, back);
                }
            }
            Fault::StoreDown { back } => {
                self.store.down = true;
                self.post(self.until(back), Event::StoreUp);
            }
            Fault::Stick { place } => self.nodes[place].sticks = true,
        }
    }

    fn cut(&mut self, from: Place, to: Place, back: Nanos) {
        self.network.cut(from, to);
        self.post(self.until(back), Event::Mend { from, to });
    }

    fn primaries(&self) -> Vec<Place> {
        let is_primary =
            |node: &Node| matches!(&node.machine, Machine::Scheduler(it, ..) if it.primary_epoch().is_some());
        (0..SCHEDULERS).filter(|&place| is_primary(&self.nodes[place])).collect()
    }

    fn crash(&mut self, place: Place, seen: bool, back: Nanos) {
        if matches!(self.nodes[place].machine, Machine::Down) {
            return;
        }
        let gone = self.nodes[place].process;
        self.places.remove(&gone);
        self.nodes[place].machine = Machine::Down;
        self.nodes[place].backlog = None;
        if is_frontend(place) {
            self.checkers.answers.died(gone);
        }
        for other in (0..PLACES).filter(|&other| seen && other != place) {
            self.lose(other, place, gone);
        }
        self.post(self.until(back), Event::Restart(place));
    }

    /// Tells one end that its connection to the other broke, unless nothing arrives there.
    fn lose(&mut self, place: Place, from: Place, who: ProcessId) {
        if !self.network.is_cut(from, place) {
            let at = self.now + Nanos::from_micros(20 + below(&mut self.random, 200) as i64);
            self.post(at, Event::Lost { to: self.nodes[place].process, who });
        }
    }

    fn hang(&mut self, place: Place, back: Nanos) {
        let node = &mut self.nodes[place];
        if !matches!(node.machine, Machine::Down) && node.backlog.is_none() {
            node.backlog = Some(Vec::new());
            self.post(self.until(back), Event::Resume(place));
        }
    }

    /// Resumes a machine: it handles the events that waited, in order, and the clock last.
    pub(super) fn resume(&mut self, place: Place) {
        let Some(backlog) = self.nodes[place].backlog.take() else { return };
        self.nodes[place].resumed = self.now;
        backlog.into_iter().for_each(|event| self.handle(event));
        let to = self.nodes[place].process;
        self.handle(Event::Wake { to });
    }
}
