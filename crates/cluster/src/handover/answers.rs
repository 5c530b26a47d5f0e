//! Answers that a backend has sent, until their frontend says that they came, and a little longer: a frontend may have asked
//! a new primary for one that was on the way, and that primary must hear that it has run.

use super::ids::{Process, RequestId, Stamp};
use super::message::{Answer, MOST_RECORDS, Outcome};
use ripieno_base::{Nanos, Time};
use std::collections::{BTreeMap, VecDeque};

#[derive(Clone, Copy, Debug)]
struct Sent {
    outcome: Outcome,
    batch: Stamp,
    taken: bool,
}

/// They are sent again each `repeat`, so often at most: a frontend that has not taken an answer by then is gone.
const MOST_REPEATS: u8 = 10;

#[derive(Clone, Debug)]
pub(super) struct Answers {
    most: usize,
    repeat: Nanos,
    open: BTreeMap<RequestId, Sent>,
    /// When which is sent again, and how often it was, in order. One that was taken is forgotten then.
    again: VecDeque<(Time, RequestId, u8)>,
}

impl Answers {
    pub(super) fn new(most: usize, repeat: Nanos) -> Answers {
        Answers { most, repeat, open: BTreeMap::new(), again: VecDeque::new() }
    }

    /// Remembers an answer that is sent now. The oldest makes room.
    pub(super) fn insert(&mut self, now: Time, answer: Answer, batch: Stamp) {
        while self.again.len() >= self.most {
            let oldest = self.again.pop_front();
            oldest.map(|(_, request, _)| self.open.remove(&request));
        }
        self.open.insert(answer.request, Sent { outcome: answer.outcome, batch, taken: false });
        self.again.push_back((now + self.repeat, answer.request, 0));
    }

    pub(super) fn on_taken(&mut self, requests: &[RequestId]) {
        for request in requests {
            if let Some(sent) = self.open.get_mut(request) {
                sent.taken = true;
            }
        }
    }

    /// Those that nobody confirmed in time, to be sent again.
    pub(super) fn due(&mut self, now: Time) -> Vec<Answer> {
        let mut due = Vec::new();
        while let Some(&(at, request, repeats)) = self.again.front().filter(|(at, ..)| *at <= now) {
            self.again.pop_front();
            match self.open.get(&request) {
                Some(sent) if !sent.taken && repeats < MOST_REPEATS => {
                    due.push(Answer { request, outcome: sent.outcome });
                    self.again.push_back((at.max(now) + self.repeat, request, repeats + 1));
                }
                _ => {
                    self.open.remove(&request);
                }
            }
        }
        due
    }

    /// What has run, and the batches.
    pub(super) fn open(&self) -> impl Iterator<Item = (RequestId, Stamp)> {
        self.open.iter().map(|(&request, sent)| (request, sent.batch))
    }
}

/// Answers by their frontend, in lists that fit into messages.
pub(super) fn by_frontend(answers: &[Answer]) -> Vec<(Process, Vec<Answer>)> {
    let mut lists: BTreeMap<Process, Vec<Answer>> = BTreeMap::new();
    answers.iter().for_each(|&answer| lists.entry(answer.request.frontend).or_default().push(answer));
    let parts = lists.into_iter().flat_map(|(to, list)| {
        let parts: Vec<_> = list.chunks(MOST_RECORDS).map(|part| (to, part.to_vec())).collect();
        parts
    });
    parts.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(number: u64) -> Answer {
        Answer { request: RequestId { frontend: Process(number % 2), number }, outcome: Outcome::Ran }
    }

    fn answers() -> Answers {
        let mut answers = Answers::new(2, Nanos(10));
        (1..=3).for_each(|number| answers.insert(Time(number), answer(number as u64), Stamp::default()));
        answers
    }

    #[test]
    fn answers_are_repeated_until_they_are_taken_and_the_oldest_makes_room() {
        let mut answers = answers();
        assert_eq!(answers.due(Time(11)), []);
        assert_eq!(answers.due(Time(13)), [answer(2), answer(3)]);
        answers.on_taken(&[answer(2).request]);
        assert_eq!(answers.open().count(), 2, "it has run still");
        assert_eq!((answers.due(Time(23)), answers.open().count()), (vec![answer(3)], 1));
    }

    #[test]
    fn nobody_is_told_for_ever() {
        let mut answers = answers();
        let told: usize = (0..100).map(|round| answers.due(Time(round * 10)).len()).sum();
        assert_eq!((told, answers.open().count()), (2 * usize::from(MOST_REPEATS), 0));
    }

    #[test]
    fn each_frontend_gets_its_own() {
        let lists = by_frontend(&[answer(1), answer(2), answer(3)]);
        assert_eq!(lists, [(Process(0), vec![answer(2)]), (Process(1), vec![answer(1), answer(3)])]);
    }
}
