//! Since when each model's batch could have started: what decision latency is counted from.
//!
//! A deferred batch waits on purpose, until its window opens; that is policy, not latency. What counts is the time from
//! the opening to the moment at which the `Start` is handed out, through both threads and both mailboxes. A window opens
//! at the moment that the offer published; or at once, because of an arrival, and then at the moment at which that request
//! was due, not when somebody got round to it. Where several arrived in the same turn, the first counts, and a batch
//! counts with its opening, however late its last member joined: what is reported is never less than what any request
//! waited. Waiting for a device is included.

use ripieno_base::{ModelId, Nanos, Time};

/// One entry a model.
pub(super) struct Openings {
    models: Box<[Opening]>,
}

#[derive(Clone, Copy)]
struct Opening {
    /// When the window of the batch that is asked for opened or will open.
    at: Time,
    /// When the first request was due that arrived since the last offer.
    arrival: Time,
}

const NONE: Opening = Opening { at: Time::NEVER, arrival: Time::NEVER };

impl Openings {
    pub(super) fn new(models: usize) -> Openings {
        Openings { models: vec![NONE; models].into() }
    }

    /// A request that was due at `due` has been told to the shard.
    pub(super) fn arrived(&mut self, model: ModelId, due: Time) {
        let opening = &mut self.models[model.index()];
        opening.arrival = opening.arrival.min(due);
    }

    /// The model asks for a batch that may start from `opens` on; none if it asks for nothing.
    pub(super) fn offered(&mut self, now: Time, model: ModelId, opens: Option<Time>) {
        let opening = &mut self.models[model.index()];
        let arrival = std::mem::replace(&mut opening.arrival, Time::NEVER);
        match opens {
            None => opening.at = Time::NEVER,
            Some(opens) if opens > now => opening.at = opens,
            // Open already, and now still.
            Some(_) if opening.at <= now => {}
            Some(_) => opening.at = arrival.min(now),
        }
    }

    /// A batch of the model was handed out at `at`: how long that took. None if the window was not known to be open,
    /// as for overdue requests.
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
        // Another request moves the plan ahead; the one after that finds the window open.
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
        // What is left over may start from the moment of the offer on; then it is withdrawn.
        openings.offered(Time(170), MODEL, Some(Time(170)));
        openings.offered(Time(180), MODEL, None);
        assert_eq!(openings.started(MODEL, Time(190)), None);
    }
}
