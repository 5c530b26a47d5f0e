//! Answers that a backend of the simulation has sent and that their frontend has not confirmed. The
//! real connections do not need this: a message either arrives, or the end of its connection is
//! seen.

use crate::message::Answer;
use ripieno_base::{Nanos, Time};
use ripieno_cluster::handover::{ProcessId, RequestId};
use std::collections::{BTreeMap, VecDeque};

/// Upper bound on repetitions, one every `repeat`: a frontend that has not confirmed an answer by
/// then is gone.
const MOST_REPEATS: u8 = 10;

#[derive(Clone, Debug)]
pub(crate) struct Answers {
    most: usize,
    repeat: Nanos,
    open: BTreeMap<RequestId, Answer>,
    /// Time of the next repetition and number of repetitions so far, in order.
    again: VecDeque<(Time, RequestId, u8)>,
}

impl Answers {
    pub(crate) fn new(most: usize, repeat: Nanos) -> Answers {
        Answers { most, repeat, open: BTreeMap::new(), again: VecDeque::new() }
    }

    /// Stores an answer that is sent now, in place of the oldest if it is full.
    pub(crate) fn insert(&mut self, now: Time, answer: Answer) {
        while self.again.len() >= self.most {
            let oldest = self.again.pop_front();
            oldest.map(|(_, request, _)| self.open.remove(&request));
        }
        self.open.insert(answer.request, answer);
        self.again.push_back((now + self.repeat, answer.request, 0));
    }

    pub(crate) fn on_taken(&mut self, requests: &[RequestId]) {
        self.open.retain(|request, _| !requests.contains(request));
    }

    /// Returns the answers that are not confirmed in time, to be sent again.
    pub(crate) fn due(&mut self, now: Time) -> Vec<Answer> {
        let mut due = Vec::new();
        while let Some(&(at, request, repeats)) = self.again.front().filter(|(at, ..)| *at <= now) {
            self.again.pop_front();
            match self.open.get(&request) {
                Some(&answer) if repeats < MOST_REPEATS => {
                    due.push(answer);
                    self.again.push_back((at.max(now) + self.repeat, request, repeats + 1));
                }
                _ => {
                    self.open.remove(&request);
                }
            }
        }
        due
    }
}

/// Groups answers by frontend.
pub(crate) fn by_frontend(answers: &[Answer]) -> BTreeMap<ProcessId, Vec<Answer>> {
    let mut lists: BTreeMap<ProcessId, Vec<Answer>> = BTreeMap::new();
    answers.iter().for_each(|&answer| lists.entry(answer.request.frontend).or_default().push(answer));
    lists
}
