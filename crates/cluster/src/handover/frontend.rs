//! A frontend's requests without an answer. Each gets exactly one: the first that comes, or at its deadline our own.

use super::ids::{Epoch, Process, RequestId, Role};
use super::message::{Answer, Body, MOST_RECORDS, Message, Outcome, Wanted};
use super::timing::Timing;
use ripieno_base::{ModelId, Time};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// What a frontend has its driver and its host do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FrontendAction {
    /// Driver: say this to every scheduler that is known by address.
    Greet(Message),
    /// Driver: say this; it may be lost.
    Send {
        /// To whom.
        to: Process,
        /// What.
        message: Message,
    },
    /// Host: answer the client.
    Deliver(Answer),
}

/// All places for requests are taken; the client may try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("too many requests wait at this frontend")
    }
}

impl std::error::Error for Full {}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    deadline: Time,
    model: ModelId,
    /// When it was last asked for; none if never.
    asked: Option<Time>,
}

/// The state machine.
#[derive(Clone, Debug)]
pub struct Frontend {
    me: Process,
    timing: Timing,
    most: usize,
    epoch: Epoch,
    primary: Option<Process>,
    last: u64,
    waiting: BTreeMap<u64, Waiting>,
    deadlines: BTreeSet<(Time, u64)>,
    next_hello: Time,
}

impl Frontend {
    /// A frontend that knows no primary yet, and keeps so many requests at most.
    pub fn new(now: Time, me: Process, timing: Timing, most: usize) -> Frontend {
        let (waiting, deadlines) = (BTreeMap::new(), BTreeSet::new());
        let epoch = Epoch::default();
        Frontend { me, timing, most, epoch, primary: None, last: 0, waiting, deadlines, next_hello: now }
    }

    /// The latest reign that it has heard of.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// [`Frontend::on_timer`] is wanted then.
    pub fn next_wakeup(&self) -> Time {
        self.deadlines.first().map_or(self.next_hello, |&(deadline, _)| deadline.min(self.next_hello))
    }

    /// A client wants this by then. It will be delivered an answer, once.
    pub fn submit(
        &mut self,
        now: Time,
        model: ModelId,
        deadline: Time,
        out: &mut Vec<FrontendAction>,
    ) -> Result<RequestId, Full> {
        if self.waiting.len() >= self.most {
            return Err(Full);
        }
        self.last += 1;
        self.waiting.insert(self.last, Waiting { deadline, model, asked: None });
        self.deadlines.insert((deadline, self.last));
        self.ask(now, &[self.last], out);
        Ok(self.id(self.last))
    }

    /// Somebody says something.
    pub fn on_message(&mut self, now: Time, from: Process, message: &Message, out: &mut Vec<FrontendAction>) {
        match &message.body {
            Body::Heartbeat if message.epoch < self.epoch => self.send(from, Body::Fenced, out),
            Body::Heartbeat if message.epoch > self.epoch => {
                (self.epoch, self.primary) = (message.epoch, Some(from));
                let all: Vec<_> = self.waiting.keys().copied().collect();
                self.ask(now, &all, out);
            }
            Body::Answers(answers) => self.on_answers(from, message.epoch, answers, out),
            _ => {}
        }
    }

    /// It is later now.
    pub fn on_timer(&mut self, now: Time, out: &mut Vec<FrontendAction>) {
        while let Some(&(_, number)) = self.deadlines.first().filter(|(deadline, _)| *deadline <= now) {
            self.end(Answer { request: self.id(number), outcome: Outcome::Retry }, out);
        }
        if now < self.next_hello {
            return;
        }
        self.next_hello = now + self.timing.hello;
        out.push(FrontendAction::Greet(Message { epoch: self.epoch, body: Body::Hello(Role::Frontend) }));
        let repeat = self.timing.repeat;
        let unheard = |it: &Waiting| it.asked.is_none_or(|asked| asked + repeat <= now);
        let again: Vec<_> = self.waiting.iter().filter(|(_, it)| unheard(it)).map(|(&number, _)| number).collect();
        self.ask(now, &again, out);
    }

    fn on_answers(&mut self, from: Process, epoch: Epoch, answers: &[Answer], out: &mut Vec<FrontendAction>) {
        for &answer in answers {
            // A primary of the past gave it up; the present one has been asked.
            let outdated = answer.outcome == Outcome::Retry && epoch < self.epoch;
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
        let Some(primary) = self.primary else { return };
        for part in numbers.chunks(MOST_RECORDS) {
            let wanted = part.iter().map(|number| {
                let request = RequestId { frontend: self.me, number: *number };
                let it = self.waiting.get_mut(number).expect("only what waits is asked for");
                let repeated = it.asked.replace(now).is_some();
                Wanted { request, left: it.deadline - now, model: it.model, repeated }
            });
            let wanted = wanted.collect();
            self.send(primary, Body::Ask(wanted), out);
        }
    }

    fn id(&self, number: u64) -> RequestId {
        RequestId { frontend: self.me, number }
    }

    fn send(&self, to: Process, body: Body, out: &mut Vec<FrontendAction>) {
        out.push(FrontendAction::Send { to, message: Message { epoch: self.epoch, body } });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: Process = Process(9);
    const OLD: Process = Process(1);
    const NEW: Process = Process(2);
    const BACKEND: Process = Process(3);

    fn heartbeat(epoch: u32) -> Message {
        Message { epoch: Epoch(epoch), body: Body::Heartbeat }
    }

    fn answers(epoch: u32, number: u64, outcome: Outcome) -> Message {
        let request = RequestId { frontend: ME, number };
        Message { epoch: Epoch(epoch), body: Body::Answers(vec![Answer { request, outcome }]) }
    }

    /// One that follows `OLD` in epoch 4, with a request that it has asked for.
    fn frontend() -> Frontend {
        let mut frontend = Frontend::new(Time::ORIGIN, ME, Timing::SHARED_HOSTS, 2);
        tell(&mut frontend, OLD, &heartbeat(4));
        let asked = submit(&mut frontend);
        assert!(matches!(&asked[..], [FrontendAction::Send { to: OLD, message }] if asks(message) == [(1, false)]));
        frontend
    }

    fn submit(frontend: &mut Frontend) -> Vec<FrontendAction> {
        let mut out = Vec::new();
        frontend.submit(Time(1), ModelId(0), Time(1_000), &mut out).unwrap();
        out
    }

    fn tell(frontend: &mut Frontend, from: Process, message: &Message) -> Vec<FrontendAction> {
        let mut out = Vec::new();
        frontend.on_message(Time(5), from, message, &mut out);
        out
    }

    fn asks(message: &Message) -> Vec<(u64, bool)> {
        let Body::Ask(wanted) = &message.body else { return Vec::new() };
        wanted.iter().map(|wanted| (wanted.request.number, wanted.repeated)).collect()
    }

    fn delivered(actions: &[FrontendAction]) -> Vec<Outcome> {
        let outcome = |action: &FrontendAction| match action {
            FrontendAction::Deliver(answer) => Some(answer.outcome),
            _ => None,
        };
        actions.iter().filter_map(outcome).collect()
    }

    #[test]
    fn what_is_unanswered_goes_to_the_new_primary_at_once_and_to_no_older_one() {
        let mut frontend = frontend();
        let out = tell(&mut frontend, NEW, &heartbeat(5));
        assert!(matches!(&out[..], [FrontendAction::Send { to: NEW, message }] if asks(message) == [(1, true)]));
        let out = tell(&mut frontend, OLD, &heartbeat(4));
        let fenced = Message { epoch: Epoch(5), body: Body::Fenced };
        assert_eq!(out, [FrontendAction::Send { to: OLD, message: fenced }]);
    }

    #[test]
    fn the_first_answer_is_delivered_and_later_ones_are_confirmed() {
        let mut frontend = frontend();
        let out = tell(&mut frontend, BACKEND, &answers(4, 1, Outcome::Ran));
        assert_eq!(delivered(&out), [Outcome::Ran]);
        let taken = Body::Taken(vec![RequestId { frontend: ME, number: 1 }]);
        let taken = FrontendAction::Send { to: BACKEND, message: Message { epoch: Epoch(4), body: taken } };
        assert_eq!(tell(&mut frontend, BACKEND, &answers(4, 1, Outcome::Ran)), [taken]);
        let mut out = Vec::new();
        frontend.on_timer(Time(1_000), &mut out);
        assert_eq!(delivered(&out), []);
    }

    #[test]
    fn the_deadline_answers_and_a_primary_of_the_past_does_not() {
        let mut frontend = frontend();
        tell(&mut frontend, NEW, &heartbeat(5));
        assert_eq!(delivered(&tell(&mut frontend, OLD, &answers(4, 1, Outcome::Retry))), []);
        let mut out = Vec::new();
        frontend.on_timer(Time(999), &mut out);
        assert_eq!((delivered(&out), frontend.next_wakeup()), (vec![], Time(1_000)));
        frontend.on_timer(Time(1_000), &mut out);
        assert_eq!(delivered(&out), [Outcome::Retry]);
        assert_eq!(delivered(&tell(&mut frontend, BACKEND, &answers(5, 1, Outcome::Ran))), []);
    }

    #[test]
    fn the_same_primary_is_asked_again_after_a_while_and_places_are_bounded() {
        let mut frontend = frontend();
        submit(&mut frontend);
        assert_eq!(frontend.submit(Time(1), ModelId(0), Time::NEVER, &mut Vec::new()), Err(Full));
        let mut frontend = Frontend::new(Time::ORIGIN, ME, Timing::SHARED_HOSTS, 2);
        let mut out = Vec::new();
        frontend.submit(Time(1), ModelId(0), Time::NEVER, &mut out).unwrap();
        assert!(out.is_empty(), "nobody is known who could be asked");
        let out = tell(&mut frontend, OLD, &heartbeat(4));
        assert!(matches!(&out[..], [FrontendAction::Send { message, .. }] if asks(message) == [(1, false)]));
        let mut out = Vec::new();
        frontend.on_timer(Time(5) + Timing::SHARED_HOSTS.repeat, &mut out);
        assert!(matches!(&out[1], FrontendAction::Send { message, .. } if asks(message) == [(1, true)]));
    }
}
