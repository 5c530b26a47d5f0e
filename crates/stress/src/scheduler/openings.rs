//! Times from which each model's batch could have started, and the decision latency from there.
//!
//! The scheduler may defer a batch until its window opens. This wait is policy and does not count.
//! Decision latency is the time from the opening to the dispatch of the `Start`, through both
//! threads and both mailboxes, waiting for a device included. A window opens at the time published
//! in the offer. If an arrival opens the window immediately, the opening is the arrival's due time,
//! not the time of its processing. If several requests arrive in one turn, the first one counts.
//! Requests that join the batch later do not change the opening. So the decision latency is at
//! least the wait of every request.

use ripieno_base::{ModelId, Nanos, Time};

/// Openings of all models, indexed by model id.
pub(super) struct Openings {
    models: Box<[Opening]>,
}

#[derive(Clone, Copy)]
struct Opening {
    /// Opening of the requested batch's window, past or future.
    at: Time,
    /// Due time of the first request since the last offer.
    arrival: Time,
}

const NONE: Opening = Opening { at: Time::NEVER, arrival: Time::NEVER };

impl Openings {
    pub(super) fn new(models: usize) -> Openings {
        Openings { models: vec![NONE; models].into() }
    }

    /// Records that the shard has received a request that was due at `due`.
    pub(super) fn arrived(&mut self, model: ModelId, due: Time) {
        let opening = &mut self.models[model.index()];
        opening.arrival = opening.arrival.min(due);
    }

    /// Records that the model requests a batch that may start at `opens`; `None` if it requests no
    /// batch.
    pub(super) fn offered(&mut self, now: Time, model: ModelId, opens: Option<Time>) {
        let opening = &mut self.models[model.index()];
        let arrival = std::mem::replace(&mut opening.arrival, Time::NEVER);
        match opens {
            None => opening.at = Time::NEVER,
            Some(opens) if opens > now => opening.at = opens,
            // The window is open already, and its opening stays.
            Some(_) if opening.at <= now => {}
            Some(_) => opening.at = arrival.min(now),
        }
    }

    /// Returns the decision latency of a batch of the model that was dispatched at `at`. Returns
    /// `None` if no offer had announced an open window.
    pub(super) fn started(&mut self, model: ModelId, at: Time) -> Option<Nanos> {
        let opened = std::mem::replace(&mut self.models[model.index()].at, Time::NEVER);
        (opened <= at).then(|| at - opened)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODEL: ModelId = ModelId(1);

    #[test]
    fn a_planned_window_counts_from_its_plan() {
        let mut openings = Openings::new(2);
        openings.arrived(MODEL, Time(100));
        openings.offered(Time(110), MODEL, Some(Time(900)));
        // A second request moves the planned opening forward. The third request finds the window
        // open.
        openings.arrived(MODEL, Time(300));
        openings.offered(Time(310), MODEL, Some(Time(800)));
        openings.arrived(MODEL, Time(803));
        openings.offered(Time(805), MODEL, Some(Time(805)));
        assert_eq!(openings.started(MODEL, Time(812)), Some(Nanos(12)));
        assert_eq!(openings.started(MODEL, Time(813)), None);
    }

    #[test]
    fn a_window_that_an_arrival_opens_counts_from_when_it_was_due() {
        let mut openings = Openings::new(2);
        openings.arrived(MODEL, Time(100));
        openings.arrived(MODEL, Time(120));
        openings.offered(Time(150), MODEL, Some(Time(150)));
        openings.offered(Time(160), MODEL, Some(Time(160)));
        assert_eq!(openings.started(MODEL, Time(170)), Some(Nanos(70)));
        // Remaining requests may start from the time of the offer. Then the offer is withdrawn.
        openings.offered(Time(170), MODEL, Some(Time(170)));
        openings.offered(Time(180), MODEL, None);
        assert_eq!(openings.started(MODEL, Time(190)), None);
    }
}
