//! Arrivals: a request gets a slot and is passed to the scheduler, or is refused.

use super::{World, each};
use crate::observer::Observer;
use crate::route::Arrival;
use ripieno_base::RequestSlot;
use ripieno_sched::Request;

impl World<'_> {
    /// Handles an arrival.
    pub(super) fn arrive(&mut self, arrival: &Arrival, observers: &mut [&mut dyn Observer]) {
        if arrival.model.index() >= self.models.len() {
            return self.arrive_whole(arrival, observers);
        }
        self.last_arrival = self.now;
        self.accept(arrival, observers);
    }

    /// Accepts a request and passes it to the scheduler, if there is room for it and its model is
    /// loaded.
    pub(super) fn accept(&mut self, arrival: &Arrival, observers: &mut [&mut dyn Observer]) -> Option<RequestSlot> {
        self.arrived += 1;
        let loaded = self.loaded[arrival.model.index()];
        let graph = arrival.graph.map(|graph| &self.graphs[graph as usize]);
        let fits = graph.is_none_or(|graph| self.unfolded.as_ref().is_some_and(|unfolded| unfolded.has_room(graph)));
        let (of, free) = (&self.models[arrival.model.index()], self.free.len());
        let present = || self.devices.iter().filter(|device| device.present).count();
        let queue = self.queues.as_ref().is_none_or(|queues| queues.has_room(arrival.model, of, free, present));
        let Some(slot) = self.free.pop_if(|_| loaded && fits && queue) else {
            each(observers, |observer| observer.refused(self.now, self.arrived, arrival.model));
            return None;
        };
        let Arrival { arrived, model, rows, deadline, extent, class, .. } = *arrival;
        let (_, request) = self.live[slot.index()]
            .insert((self.arrived, Request { slot, model, arrived, deadline, rows, extent, class }));
        if let Some(expiries) = &mut self.expiries {
            expiries.set(self.now, request);
        }
        if let Some(queues) = &mut self.queues {
            queues.enter(model);
        }
        if let Some(carried) = &mut self.carried {
            carried.accept(slot, arrival);
        }
        if self.unfolded.is_some() {
            each(observers, |observer| observer.unfolds(slot, arrival.output, graph));
        }
        each(observers, |observer| observer.accepted(self.arrived, request));
        self.events += 1;
        if let Some(unfolded) = &mut self.unfolded {
            unfolded.output[slot.index()] = arrival.output;
            if let Some(graph) = graph {
                unfolded.hold(slot, graph);
                self.scheduler.on_graph(slot, graph);
            }
        }
        match &self.learning {
            None => self.scheduler.on_request(self.now, request),
            Some(learning) => {
                let learnt = self.scheduler.learns_occupancy() || self.scheduler.takes_real_deadlines();
                let deadline = if learnt { deadline } else { deadline - learning.ahead(model) };
                self.scheduler.on_request(self.now, &Request { deadline, ..*request });
            }
        }
        Some(slot)
    }
}
