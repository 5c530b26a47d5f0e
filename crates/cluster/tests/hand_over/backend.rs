//! A backend of the simulation: the real fence and reports, and answers that are repeated until
//! they are confirmed.

use crate::answered::{Answers, by_frontend};
use crate::message::{Answer, Batch, Body, Message, Outcome, Wanted};
use crate::world::{HELLO, REPEAT};
use ripieno_base::Time;
use ripieno_cluster::handover::{ClaimOutcome, Epoch, Fence, ProcessId, Role, RunningRows, Stamp};
use std::collections::VecDeque;

/// Number of batches that it holds: one runs, one waits.
const HOLDS: usize = 2;

#[derive(Clone, Debug)]
pub(crate) enum BackendAction {
    Greet(Message),
    Send { to: ProcessId, message: Message },
    Begin { batch: Batch },
}

#[derive(Clone, Debug)]
struct Given {
    batch: Batch,
    members: Vec<Wanted>,
}

#[derive(Debug)]
pub(crate) struct Backend {
    fence: Fence,
    /// The process with the last claim.
    primary: Option<ProcessId>,
    /// Number of the last order under the last claim.
    number: u64,
    /// Revision of the last report.
    revision: u32,
    running: Option<Given>,
    waiting: VecDeque<Given>,
    answers: Answers,
    next_hello: Time,
}

impl Backend {
    pub(crate) fn new(now: Time, epoch: Epoch) -> Backend {
        Backend {
            fence: Fence::new(epoch),
            primary: None,
            number: 0,
            revision: 0,
            running: None,
            waiting: VecDeque::new(),
            answers: Answers::new(200, REPEAT),
            next_hello: now,
        }
    }

    /// Returns the last accepted claim.
    pub(crate) fn last(&self) -> Stamp {
        self.fence.last()
    }

    pub(crate) fn next_wakeup(&self) -> Time {
        self.next_hello
    }

    /// Handles a message. Returns the order, if it was an accepted one.
    pub(crate) fn on_message(
        &mut self,
        from: ProcessId,
        message: &Message,
        out: &mut Vec<BackendAction>,
    ) -> Option<Batch> {
        match &message.body {
            Body::Claim { number } => {
                let stamp = Stamp { epoch: message.epoch, number: *number };
                match self.fence.on_claim(stamp) {
                    ClaimOutcome::Accepted => {
                        // The new primary will send again what has not started.
                        self.waiting.clear();
                        (self.primary, self.number, self.revision) = (Some(from), 0, 1);
                        self.report(out);
                        return Some((stamp, 0));
                    }
                    ClaimOutcome::Stale(_) => self.send(from, Body::Fenced, out),
                    ClaimOutcome::Repeated => {}
                }
                None
            }
            Body::Start { batch, members } => {
                if batch.0.epoch < self.last().epoch {
                    self.send(from, Body::Fenced, out);
                }
                if batch.0 != self.last() || batch.1 <= self.number {
                    return None;
                }
                self.number = batch.1;
                if self.waiting.len() + usize::from(self.running.is_some()) < HOLDS {
                    self.waiting.push_back(Given { batch: *batch, members: members.clone() });
                    self.begin(out);
                }
                Some(*batch)
            }
            Body::Taken(requests) => {
                self.answers.on_taken(requests);
                None
            }
            _ => None,
        }
    }

    /// Handles the end of a running batch.
    pub(crate) fn on_ended(&mut self, now: Time, batch: Batch, out: &mut Vec<BackendAction>) {
        let ended = self.running.take().filter(|running| running.batch == batch).expect("what ends was begun");
        let answer = |wanted: &Wanted| Answer { request: wanted.request, outcome: Outcome::Ran };
        let answers: Vec<_> = ended.members.iter().map(answer).collect();
        answers.iter().for_each(|&answer| self.answers.insert(now, answer));
        self.deliver(&answers, out);
        if batch.0 == self.last() {
            self.primary.into_iter().for_each(|primary| self.send(primary, Body::Ended { batch }, out));
        } else {
            self.revision += 1;
            self.report(out);
        }
        self.begin(out);
    }

    /// Handles the passage of time.
    pub(crate) fn on_timer(&mut self, now: Time, out: &mut Vec<BackendAction>) {
        if now < self.next_hello {
            return;
        }
        self.next_hello = now + HELLO;
        out.push(BackendAction::Greet(Message { epoch: self.last().epoch, body: Body::Hello(Role::Backend) }));
        // The last report may have been lost.
        self.report(out);
        let due = self.answers.due(now);
        self.deliver(&due, out);
    }

    fn begin(&mut self, out: &mut Vec<BackendAction>) {
        if self.running.is_none() {
            self.running = self.waiting.pop_front();
            out.extend(self.running.iter().map(|given| BackendAction::Begin { batch: given.batch }));
        }
    }

    fn report(&self, out: &mut Vec<BackendAction>) {
        let Some(primary) = self.primary else { return };
        let earlier = self.running.iter().filter(|given| given.batch.0 != self.last());
        let held = |wanted: &Wanted| RunningRows { request: wanted.request, rows: 1, failed: false };
        let held = earlier.flat_map(|given| given.members.iter().map(held)).collect();
        self.send(primary, Body::Report { number: self.last().number, revision: self.revision, held }, out);
    }

    fn deliver(&self, answers: &[Answer], out: &mut Vec<BackendAction>) {
        by_frontend(answers).into_iter().for_each(|(to, list)| self.send(to, Body::Answers(list), out));
    }

    fn send(&self, to: ProcessId, body: Body, out: &mut Vec<BackendAction>) {
        out.push(BackendAction::Send { to, message: Message { epoch: self.last().epoch, body } });
    }
}
