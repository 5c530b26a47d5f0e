//! A backend's fence, and what it holds.
//!
//! Whatever a primary orders has a stamp, and an order is obeyed only if its stamp is greater than every one obeyed before:
//! so orders of a reign that is over, orders that come twice and orders that were overtaken are refused by one comparison.

use super::answers::{Answers, by_frontend};
use super::ids::{Epoch, Process, RequestId, Role, Stamp};
use super::message::{Answer, Body, Held, MOST_RECORDS, Message, Outcome, Wanted};
use super::timing::Timing;
use ripieno_base::Time;
use std::collections::VecDeque;

/// How much a backend keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackendLimits {
    /// Batches that run at a time.
    pub running: usize,
    /// Batches that wait behind them.
    pub waiting: usize,
    /// Answers that nobody has confirmed.
    pub answers: usize,
}

/// What a backend has its driver and its host do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BackendAction {
    /// Driver: say this to every scheduler that is known by address.
    Greet(Message),
    /// Driver: say this; it may be lost.
    Send {
        /// To whom.
        to: Process,
        /// What.
        message: Message,
    },
    /// Host: run this batch, and say when it has ended.
    Begin {
        /// Its name.
        batch: Stamp,
        /// Its members.
        members: Vec<Wanted>,
    },
}

#[derive(Clone, Debug)]
struct Batch {
    stamp: Stamp,
    members: Vec<Wanted>,
}

/// The state machine.
#[derive(Clone, Debug)]
pub struct Backend {
    timing: Timing,
    limits: BackendLimits,
    /// The last order obeyed.
    last: Stamp,
    /// Who gave it.
    primary: Option<Process>,
    running: Vec<Batch>,
    waiting: VecDeque<Batch>,
    answers: Answers,
    next_hello: Time,
}

impl Backend {
    /// A backend that obeys nobody of an earlier reign than this: the store's, read after the start, since what an earlier
    /// life of the backend has seen is forgotten.
    pub fn new(now: Time, epoch: Epoch, timing: Timing, limits: BackendLimits) -> Backend {
        let answers = Answers::new(limits.answers, timing.repeat);
        let last = Stamp { epoch, number: 0 };
        let (running, waiting) = (Vec::new(), VecDeque::new());
        Backend { timing, limits, last, primary: None, running, waiting, answers, next_hello: now }
    }

    /// The last order obeyed.
    pub fn last(&self) -> Stamp {
        self.last
    }

    /// [`Backend::on_timer`] is wanted then.
    pub fn next_wakeup(&self) -> Time {
        self.next_hello
    }

    /// Somebody says something. Whether it was an order that is obeyed.
    pub fn on_message(&mut self, from: Process, message: &Message, out: &mut Vec<BackendAction>) -> bool {
        match &message.body {
            Body::Claim { number } => {
                let obeyed = self.obey(from, Stamp { epoch: message.epoch, number: *number }, out);
                if obeyed {
                    self.send(from, self.report(), out);
                }
                obeyed
            }
            Body::Start { number, members } => {
                let stamp = Stamp { epoch: message.epoch, number: *number };
                let obeyed = self.obey(from, stamp, out);
                if obeyed && self.waiting.len() < self.limits.waiting + self.limits.running - self.running.len() {
                    self.waiting.push_back(Batch { stamp, members: members.clone() });
                    self.begin(out);
                }
                obeyed
            }
            Body::Taken(requests) => {
                self.answers.on_taken(requests);
                false
            }
            Body::Heartbeat if message.epoch < self.last.epoch => {
                self.send(from, Body::Fenced, out);
                false
            }
            _ => false,
        }
    }

    /// A batch that was begun has ended, and this is what comes of its requests.
    pub fn on_ended(&mut self, now: Time, batch: Stamp, outcome: Outcome, out: &mut Vec<BackendAction>) {
        let at = self.running.iter().position(|running| running.stamp == batch).expect("what ends was begun");
        let ended = self.running.swap_remove(at);
        let answer = |wanted: &Wanted| Answer { request: wanted.request, outcome };
        let answers: Vec<_> = ended.members.iter().map(answer).collect();
        answers.iter().for_each(|&answer| self.answers.insert(now, answer, batch));
        self.deliver(&answers, out);
        if let Some(primary) = self.primary {
            self.send(primary, Body::Ended { batch }, out);
        }
        self.begin(out);
    }

    /// It is later now.
    pub fn on_timer(&mut self, now: Time, out: &mut Vec<BackendAction>) {
        if now < self.next_hello {
            return;
        }
        self.next_hello = now + self.timing.hello;
        out.push(BackendAction::Greet(Message { epoch: self.last.epoch, body: Body::Hello(Role::Backend) }));
        let due = self.answers.due(now);
        self.deliver(&due, out);
    }

    /// The fence.
    fn obey(&mut self, from: Process, stamp: Stamp, out: &mut Vec<BackendAction>) -> bool {
        if stamp.epoch < self.last.epoch {
            self.send(from, Body::Fenced, out);
            return false;
        }
        if stamp <= self.last {
            return false;
        }
        if stamp.epoch > self.last.epoch {
            // Whoever reigns now will order anew what has not begun.
            self.waiting.clear();
        }
        self.last = stamp;
        self.primary = Some(from);
        true
    }

    fn begin(&mut self, out: &mut Vec<BackendAction>) {
        while self.running.len() < self.limits.running {
            let Some(batch) = self.waiting.pop_front() else { return };
            out.push(BackendAction::Begin { batch: batch.stamp, members: batch.members.clone() });
            self.running.push(batch);
        }
    }

    /// What waits counts as running: it will.
    fn report(&self) -> Body {
        let member = |batch: Stamp| move |wanted: &Wanted| Held { request: wanted.request, batch, done: false };
        let batches = self.running.iter().chain(&self.waiting);
        let running = batches.flat_map(|batch| batch.members.iter().map(member(batch.stamp)));
        let done = self.answers.open().map(|(request, batch): (RequestId, Stamp)| Held { request, batch, done: true });
        Body::Report { number: self.last.number, held: running.chain(done).take(MOST_RECORDS).collect() }
    }

    fn deliver(&self, answers: &[Answer], out: &mut Vec<BackendAction>) {
        by_frontend(answers).into_iter().for_each(|(to, list)| self.send(to, Body::Answers(list), out));
    }

    fn send(&self, to: Process, body: Body, out: &mut Vec<BackendAction>) {
        out.push(BackendAction::Send { to, message: Message { epoch: self.last.epoch, body } });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ripieno_base::{ModelId, Nanos};

    const OLD: Process = Process(1);
    const NEW: Process = Process(2);
    const FRONTEND: Process = Process(3);

    fn backend() -> Backend {
        let limits = BackendLimits { running: 1, waiting: 1, answers: 10 };
        Backend::new(Time::ORIGIN, Epoch(3), Timing::SHARED_HOSTS, limits)
    }

    fn wanted(number: u64) -> Wanted {
        let request = RequestId { frontend: FRONTEND, number };
        Wanted { request, left: Nanos(9), model: ModelId(0), repeated: false }
    }

    fn start(epoch: u32, number: u64, request: u64) -> Message {
        Message { epoch: Epoch(epoch), body: Body::Start { number, members: vec![wanted(request)] } }
    }

    fn claim(epoch: u32, number: u64) -> Message {
        Message { epoch: Epoch(epoch), body: Body::Claim { number } }
    }

    fn tell(backend: &mut Backend, from: Process, message: &Message) -> (bool, Vec<BackendAction>) {
        let mut out = Vec::new();
        (backend.on_message(from, message, &mut out), out)
    }

    fn stamp(epoch: u32, number: u64) -> Stamp {
        Stamp { epoch: Epoch(epoch), number }
    }

    fn fenced(to: Process, epoch: u32) -> BackendAction {
        BackendAction::Send { to, message: Message { epoch: Epoch(epoch), body: Body::Fenced } }
    }

    #[test]
    fn only_orders_that_are_greater_than_all_before_are_obeyed() {
        let mut backend = backend();
        assert_eq!(tell(&mut backend, OLD, &claim(2, 9)), (false, vec![fenced(OLD, 3)]), "before its start");
        assert!(tell(&mut backend, OLD, &claim(4, 1)).0);
        assert!(tell(&mut backend, OLD, &start(4, 3, 1)).0);
        for repeated in [start(4, 3, 1), start(4, 2, 2), claim(4, 1)] {
            assert_eq!(tell(&mut backend, OLD, &repeated), (false, vec![]));
        }
        assert!(tell(&mut backend, NEW, &claim(5, 1)).0);
        assert_eq!(tell(&mut backend, OLD, &start(4, 4, 2)), (false, vec![fenced(OLD, 5)]));
        assert_eq!(backend.last(), stamp(5, 1));
    }

    #[test]
    fn a_new_primary_is_told_what_runs_and_what_is_done_and_the_rest_is_dropped() {
        let mut backend = backend();
        (1..=3).for_each(|number| drop(tell(&mut backend, OLD, &start(4, number, number))));
        let mut out = Vec::new();
        backend.on_ended(Time(2), stamp(4, 1), Outcome::Ran, &mut out);
        assert!(out.contains(&BackendAction::Begin { batch: stamp(4, 2), members: vec![wanted(2)] }));
        tell(&mut backend, OLD, &start(4, 4, 4));
        let (_, out) = tell(&mut backend, NEW, &claim(5, 7));
        let held = |number: u64, done| Held { request: wanted(number).request, batch: stamp(4, number), done };
        let body = Body::Report { number: 7, held: vec![held(2, false), held(1, true)] };
        assert_eq!(out, [BackendAction::Send { to: NEW, message: Message { epoch: Epoch(5), body } }]);
        let mut out = Vec::new();
        backend.on_ended(Time(3), stamp(4, 2), Outcome::Ran, &mut out);
        assert!(!out.iter().any(|action| matches!(action, BackendAction::Begin { .. })), "the fourth is not begun");
        let ended = Message { epoch: Epoch(5), body: Body::Ended { batch: stamp(4, 2) } };
        assert!(out.contains(&BackendAction::Send { to: NEW, message: ended }));
    }

    #[test]
    fn an_answer_is_repeated_until_it_is_taken() {
        let mut backend = backend();
        tell(&mut backend, OLD, &start(4, 1, 1));
        let mut out = Vec::new();
        backend.on_ended(Time(2), stamp(4, 1), Outcome::Ran, &mut out);
        let first = out[0].clone();
        assert!(matches!(&first, BackendAction::Send { to, .. } if *to == FRONTEND));
        let later = Time(2) + Timing::SHARED_HOSTS.repeat;
        out.clear();
        backend.on_timer(later, &mut out);
        assert_eq!(out[1..], [first]);
        let taken = Message { epoch: Epoch(4), body: Body::Taken(vec![wanted(1).request]) };
        tell(&mut backend, FRONTEND, &taken);
        out.clear();
        backend.on_timer(later + Timing::SHARED_HOSTS.repeat, &mut out);
        assert_eq!(out.len(), 1, "a hello, and no answer");
    }
}
