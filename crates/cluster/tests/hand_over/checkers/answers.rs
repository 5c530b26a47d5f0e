//! Each request whose frontend lives is answered once, at its deadline at the latest. A frontend
//! that hangs past the deadline answers at the instant at which it resumes.

use crate::message::Outcome;
use ripieno_base::Time;
use ripieno_cluster::handover::{ProcessId, RequestId};
use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub(crate) struct Answers {
    /// The deadline; `None` once it is answered.
    open: BTreeMap<RequestId, Option<Time>>,
    pub(crate) ran: u64,
    pub(crate) retried: u64,
}

impl Answers {
    pub(crate) fn submitted(&mut self, request: RequestId, deadline: Time) {
        assert_eq!(self.open.insert(request, Some(deadline)), None, "{request:?} is submitted twice");
    }

    pub(crate) fn delivered(&mut self, now: Time, request: RequestId, outcome: Outcome, resumed: Time) {
        let open = self.open.get_mut(&request).unwrap_or_else(|| panic!("{request:?} was never submitted"));
        let deadline = open.take().unwrap_or_else(|| panic!("{request:?} is answered twice"));
        assert!(now <= deadline || now == resumed, "{request:?} is answered at {now:?}, due at {deadline:?}");
        match outcome {
            Outcome::Ran => self.ran += 1,
            Outcome::Retry => self.retried += 1,
        }
    }

    /// Handles the death of a frontend and its clients.
    pub(crate) fn died(&mut self, frontend: ProcessId) {
        self.open.retain(|request, _| request.frontend != frontend);
    }

    /// Checks at the end, when all deadlines have passed.
    pub(crate) fn finish(&self) {
        let unanswered = self.open.iter().find(|(_, open)| open.is_some());
        assert_eq!(unanswered, None, "it is never answered");
    }
}
