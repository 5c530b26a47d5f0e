//! A frontend of the simulation: each request gets exactly one answer, the first that arrives, or
//! its own at the deadline.

use crate::message::{Answer, Body, Message, Outcome, Wanted};
use crate::world::{HELLO, REPEAT};
use ripieno_base::{ModelId, Time};
use ripieno_cluster::handover::{Epoch, Following, HeartbeatSender, ProcessId, RequestId, Role};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Debug)]
pub(crate) enum FrontendAction {
    Greet(Message),
    Send { to: ProcessId, message: Message },
    Deliver(Answer),
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    deadline: Time,
    model: ModelId,
    /// Time of the last submission; `None` if never.
    asked: Option<Time>,
}

#[derive(Debug)]
pub(crate) struct Frontend {
    me: ProcessId,
    following: Following,
    last: u64,
    waiting: BTreeMap<u64, Waiting>,
    deadlines: BTreeSet<(Time, u64)>,
    next_hello: Time,
}

impl Frontend {
    pub(crate) fn new(now: Time, me: ProcessId) -> Frontend {
        let (waiting, deadlines) = (BTreeMap::new(), BTreeSet::new());
        Frontend { me, following: Following::default(), last: 0, waiting, deadlines, next_hello: now }
    }

    pub(crate) fn next_wakeup(&self) -> Time {
        self.deadlines.first().map_or(self.next_hello, |&(deadline, _)| deadline.min(self.next_hello))
    }

    /// Submits a request with a deadline. It will receive one answer.
    pub(crate) fn submit(&mut self, now: Time, deadline: Time, out: &mut Vec<FrontendAction>) -> RequestId {
        self.last += 1;
        self.waiting.insert(self.last, Waiting { deadline, model: ModelId(0), asked: None });
        self.deadlines.insert((deadline, self.last));
        self.ask(now, &[self.last], out);
        self.id(self.last)
    }

    pub(crate) fn on_message(&mut self, now: Time, from: ProcessId, message: &Message, out: &mut Vec<FrontendAction>) {
        match &message.body {
            Body::Heartbeat(_) => match self.following.on_heartbeat(from, message.epoch) {
                HeartbeatSender::NewPrimary => {
                    let all: Vec<_> = self.waiting.keys().copied().collect();
                    self.ask(now, &all, out);
                }
                HeartbeatSender::SamePrimary => {}
                HeartbeatSender::Stale(_) => self.send(from, Body::Fenced, out),
            },
            Body::Answers(answers) => self.on_answers(from, message.epoch, answers, out),
            _ => {}
        }
    }

    pub(crate) fn on_timer(&mut self, now: Time, out: &mut Vec<FrontendAction>) {
        while let Some(&(_, number)) = self.deadlines.first().filter(|(deadline, _)| *deadline <= now) {
            self.end(Answer { request: self.id(number), outcome: Outcome::Retry }, out);
        }
        if now < self.next_hello {
            return;
        }
        self.next_hello = now + HELLO;
        let hello = Message { epoch: self.following.epoch(), body: Body::Hello(Role::Frontend) };
        out.push(FrontendAction::Greet(hello));
        let unasked = |it: &Waiting| it.asked.is_none_or(|asked| asked + REPEAT <= now);
        let again: Vec<_> = self.waiting.iter().filter(|(_, it)| unasked(it)).map(|(&number, _)| number).collect();
        self.ask(now, &again, out);
    }

    fn on_answers(&mut self, from: ProcessId, epoch: Epoch, answers: &[Answer], out: &mut Vec<FrontendAction>) {
        for &answer in answers {
            // An earlier primary gave it up; it has been submitted to the present one.
            let outdated = answer.outcome == Outcome::Retry && epoch < self.following.epoch();
            if answer.request.frontend == self.me && !outdated {
                self.end(answer, out);
            }
        }
        self.send(from, Body::Taken(answers.iter().map(|answer| answer.request).collect()), out);
    }

    /// Delivers the first answer; nothing is left for a second one.
    fn end(&mut self, answer: Answer, out: &mut Vec<FrontendAction>) {
        let number = answer.request.number;
        if let Some(ended) = self.waiting.remove(&number) {
            self.deadlines.remove(&(ended.deadline, number));
            out.push(FrontendAction::Deliver(answer));
        }
    }

    fn ask(&mut self, now: Time, numbers: &[u64], out: &mut Vec<FrontendAction>) {
        let Some(primary) = self.following.primary().filter(|_| !numbers.is_empty()) else { return };
        let wanted = numbers.iter().map(|number| {
            let request = RequestId { frontend: self.me, number: *number };
            let it = self.waiting.get_mut(number).expect("only what waits is asked for");
            it.asked = Some(now);
            Wanted { request, left: it.deadline - now, model: it.model }
        });
        let wanted = wanted.collect();
        self.send(primary, Body::Ask(wanted), out);
    }

    fn id(&self, number: u64) -> RequestId {
        RequestId { frontend: self.me, number }
    }

    fn send(&self, to: ProcessId, body: Body, out: &mut Vec<FrontendAction>) {
        out.push(FrontendAction::Send { to, message: Message { epoch: self.following.epoch(), body } });
    }
}
