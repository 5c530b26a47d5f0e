//! Answers that a backend of the simulation has sent, until their frontend says that they came. Over the connections of the
//! roles this is not needed: what was sent either comes, or its end is seen.

use crate::message::Answer;
use ripieno_base::{Nanos, Time};
use ripieno_cluster::handover::{Process, RequestId};
use std::collections::{BTreeMap, VecDeque};

/// They are sent again each `repeat`, so often at most: a frontend that has not taken an answer by then is gone.
const MOST_REPEATS: u8 = 10;

#[derive(Clone, Debug)]
pub(crate) struct Answers {
    most: usize,
    repeat: Nanos,
    open: BTreeMap<RequestId, Answer>,
    /// When which is sent again, and how often it was, in order.
    again: VecDeque<(Time, RequestId, u8)>,
}

impl Answers {
    pub(crate) fn new(most: usize, repeat: Nanos) -> Answers {
        Answers { most, repeat, open: BTreeMap::new(), again: VecDeque::new() }
    }

    /// Remembers an answer that is sent now. The oldest makes room.
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

    /// Those that nobody confirmed in time, to be sent again.
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

/// Answers by their frontend.
pub(crate) fn by_frontend(answers: &[Answer]) -> BTreeMap<Process, Vec<Answer>> {
    let mut lists: BTreeMap<Process, Vec<Answer>> = BTreeMap::new();
    answers.iter().for_each(|&answer| lists.entry(answer.request.frontend).or_default().push(answer));
    lists
}
