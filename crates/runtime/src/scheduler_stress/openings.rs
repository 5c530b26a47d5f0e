//! Times from which each model's batch could have started: the origin of decision latency.
//!
//! A deferred batch waits on purpose until its window opens; that is policy, not latency. The
//! latency is the time from the opening to the dispatch of the `Start`, through both threads and
//! both mailboxes. A window opens at the time that the offer published; or immediately because of
//! an arrival, and then at that request's due time, not when the thread processed it. Where several
//! arrived in the same turn, the first counts, and a batch counts with its opening, however late
//! its last member joined: the reported latency is never less than what any request waited. Waiting
//! for a device is included.

use ripieno_base::{ModelId, Nanos, Time};

/// Openings of all models, one entry each.
pub(super) struct Openings {
    models: Box<[Opening]>,
}

#[derive(Clone, Copy)]
struct Opening {
    /// Time at which the window of the requested batch opened or will open.
    at: Time,
    /// Due time of the first request that arrived since the last offer.
    arrival: Time,
}

const NONE: Opening = Opening { at: Time::NEVER, arrival: Time::NEVER };

impl Openings {
    pub(super) fn new(models: usize) -> Openings {
        Openings { models: vec![NONE; models].into() }
    }

    /// Records a request, due at `due`, that the shard has received.
    pub(super) fn arrived(&mut self, model: ModelId, due: Time) {
        let opening = &mut self.models[model.index()];
        opening.arrival = opening.arrival.min(due);
    }

    /// Records that the model requests a batch that may start from `opens` on; `None` if it
    /// requests none.
    pub(super) fn offered(&mut self, now: Time, model: ModelId, opens: Option<Time>) {
        let opening = &mut self.models[model.index()];
        let arrival = std::mem::replace(&mut opening.arrival, Time::NEVER);
        match opens {
            None => opening.at = Time::NEVER,
            Some(opens) if opens > now => opening.at = opens,
            // The window was open before and still is.
            Some(_) if opening.at <= now => {}
            Some(_) => opening.at = arrival.min(now),
        }
    }

    /// Returns the latency of a batch of the model that was dispatched at `at`. `None` if the
    /// window was not known to be open, as for overdue requests.
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
        // Another request advances the planned opening; the one after that finds the window open.
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
        // Leftover requests may start from the time of the offer; then the offer is withdrawn.
        openings.offered(Time(170), MODEL, Some(Time(170)));
        openings.offered(Time(180), MODEL, None);
        assert_eq!(openings.started(MODEL, Time(190)), None);
    }
}
