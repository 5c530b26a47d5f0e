//! Steps of ensembles: they arrive when the steps they need have ended, and are cancelled when
//! their request has failed.

use super::{World, each};
use crate::ensembles::{Ensembles, SimulatedEnsemble, Whole};
use crate::observer::{End, Observer};
use crate::route::Arrival;
use ripieno_base::RequestSlot;
use ripieno_sched::Control;

impl<'a> World<'a> {
    /// Adds ensembles, which are numbered after the models.
    pub fn with_ensembles(mut self, ensembles: &'a [SimulatedEnsemble]) -> World<'a> {
        self.ensembles = (!ensembles.is_empty()).then(|| Ensembles::new(ensembles, self.live.len()));
        self
    }

    /// Accepts a request to an ensemble.
    pub(super) fn arrive_whole(&mut self, arrival: &Arrival, observers: &mut [&mut dyn Observer]) {
        let Some(ensembles) = &mut self.ensembles else { return };
        self.last_arrival = self.now;
        let ensemble = arrival.model.index() - self.models.len();
        let whole = Whole { ensemble, arrived: arrival.arrived, deadline: arrival.deadline };
        each(observers, |observer| observer.whole_arrived(&whole));
        ensembles.begin(whole);
    }

    /// Begins steps that are ready, and cancels steps of failed requests.
    pub(super) fn move_ensembles(&mut self, observers: &mut [&mut dyn Observer]) {
        let Some(mut ensembles) = self.ensembles.take() else { return };
        while let Some(slot) = ensembles.next_orphan() {
            self.events += 1;
            self.scheduler.on_control(self.now, Control::Cancelled(slot));
        }
        while let Some((id, step, model, deadline)) =
            ensembles.next_step(self.now, |model| self.models[model.index()].slo)
        {
            let arrival = Arrival::new(self.now, model, deadline);
            each(observers, |observer| observer.is_step(self.arrived + 1));
            match self.accept(&arrival, observers) {
                Some(slot) => ensembles.hold(slot, id, step),
                None => {
                    let failed = ensembles.fail(id);
                    failed
                        .iter()
                        .for_each(|whole| each(observers, |observer| observer.whole_ended(self.now, whole, false)));
                }
            }
        }
        self.ensembles = Some(ensembles);
    }

    /// Ends a request, which may have been the last step of one to an ensemble.
    pub(super) fn end_step(&mut self, slot: RequestSlot, end: End, observers: &mut [&mut dyn Observer]) {
        let over = self.ensembles.as_mut().and_then(|ensembles| ensembles.end(slot, end == End::Finished));
        if let Some((whole, well)) = over {
            each(observers, |observer| observer.whole_ended(self.now, &whole, well));
        }
    }
}
