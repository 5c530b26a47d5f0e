//! A frontend of the simulation: each request gets exactly one answer, the first that comes, or at its deadline its own.

use crate::message::{Answer, Body, Message, Outcome, Wanted};
use crate::world::{HELLO, REPEAT};
use ripieno_base::{ModelId, Time};
use ripieno_cluster::handover::{Epoch, Following, Process, RequestId, Role, Sender};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Debug)]
pub(crate) enum FrontendAction {
    Greet(Message),
    Send { to: Process, message: Message },
    Deliver(Answer),
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    deadline: Time,
    model: ModelId,
    /// When it was last asked for; none if never.
    asked: Option<Time>,
}

#[derive(Debug)]
pub(crate) struct Frontend {
    me: Process,
    following: Following,
    last: u64,
    waiting: BTreeMap<u64, Waiting>,
    deadlines: BTreeSet<(Time, u64)>,
    next_hello: Time,
}

impl Frontend {
    pub(crate) fn new(now: Time, me: Process) -> Frontend {
        let (waiting, deadlines) = (BTreeMap::new(), BTreeSet::new());
        Frontend { me, following: Following::default(), last: 0, waiting, deadlines, next_hello: now }
    }

    pub(crate) fn next_wakeup(&self) -> Time {
        self.deadlines.first().map_or(self.next_hello, |&(deadline, _)| deadline.min(self.next_hello))
    }

    /// A client wants this by then. It will be delivered an answer, once.
    pub(crate) fn submit(&mut self, now: Time, deadline: Time, out: &mut Vec<FrontendAction>) -> RequestId {
        self.last += 1;
        self.waiting.insert(self.last, Waiting { deadline, model: ModelId(0), asked: None });
        self.deadlines.insert((deadline, self.last));
        self.ask(now, &[self.last], out);
        self.id(self.last)
    }

    pub(crate) fn on_message(&mut self, now: Time, from: Process, message: &Message, out: &mut Vec<FrontendAction>) {
        match &message.body {
            Body::Heartbeat => match self.following.on_heartbeat(from, message.epoch) {
                Sender::NewPrimary => {
                    let all: Vec<_> = self.waiting.keys().copied().collect();
                    self.ask(now, &all, out);
                }
                Sender::SamePrimary => {}
                Sender::Stale(_) => self.send(from, Body::Fenced, out),
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

    fn on_answers(&mut self, from: Process, epoch: Epoch, answers: &[Answer], out: &mut Vec<FrontendAction>) {
        for &answer in answers {
            // A primary of the past gave it up; the present one has been asked.
            let outdated = answer.outcome == Outcome::Retry && epoch < self.following.epoch();
            if answer.request.frontend == self.me && !outdated {
                self.end(answer, out);
            }
        }
        self.send(from, Body::Taken(answers.iter().map(|answer| answer.request).collect()), out);
    }

    /// Delivers the first answer; there is nothing left for a second one.
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

    fn send(&self, to: Process, body: Body, out: &mut Vec<FrontendAction>) {
        out.push(FrontendAction::Send { to, message: Message { epoch: self.following.epoch(), body } });
    }
}
