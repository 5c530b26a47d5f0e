//! Messages as bytes: a header of four words, and records of four words, all little-endian.
//!
//! The first word of the header says the version of the layout, the kind, and the sender's epoch; the second the number of
//! records and a small argument; then a number, and who sends. So a message is whole in itself, may share a connection with
//! others, and is read without knowing what came before. What strangers write is an error and never more memory than a list
//! of the longest kind.

use super::ids::{Epoch, Process, RequestId, Role, Stamp};
use super::message::{Answer, Body, Held, MOST_RECORDS, Message, Outcome, Wanted};
use ripieno_base::{ModelId, Nanos};
use std::fmt;

/// Changes with the layout.
const VERSION: u16 = 1;
const WORD: usize = 8;
/// Of the header, and of a record.
const LENGTH: usize = 4 * WORD;

type Words = [u64; 4];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
enum Kind {
    Hello = 1,
    Heartbeat,
    Fenced,
    Claim,
    Report,
    Start,
    Ended,
    Ask,
    Answers,
    Taken,
}

const KINDS: [Kind; 10] = [
    Kind::Hello,
    Kind::Heartbeat,
    Kind::Fenced,
    Kind::Claim,
    Kind::Report,
    Kind::Start,
    Kind::Ended,
    Kind::Ask,
    Kind::Answers,
    Kind::Taken,
];

const ROLES: [Role; 3] = [Role::Scheduler, Role::Backend, Role::Frontend];
const OUTCOMES: [Outcome; 2] = [Outcome::Ran, Outcome::Retry];

/// Bytes that are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Garbled(pub u64);

impl fmt::Display for Garbled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a message of the hand-over that begins with {:#x}; those of version {VERSION} are read here", self.0)
    }
}

impl std::error::Error for Garbled {}

impl Message {
    /// Appends the message, as one of `from`.
    pub fn encode(&self, from: Process, out: &mut Vec<u8>) {
        let (kind, small, number) = self.body.head();
        let records = self.body.records();
        let count = u32::try_from(records.len()).expect("lists in messages are short");
        let first = u64::from(VERSION) << 48 | (kind as u64) << 32 | u64::from(self.epoch.0);
        let header = [first, u64::from(count) << 32 | u64::from(small), number, from.0];
        let words = std::iter::once(header).chain(records).flatten();
        words.for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
    }

    /// The message with which the bytes begin, who sent it, and its length; none if its end has not come yet.
    pub fn decode(bytes: &[u8]) -> Result<Option<(Process, Message, usize)>, Garbled> {
        let Some(header) = words(bytes, 0) else { return Ok(None) };
        let garbled = Garbled(header[0]);
        let kind = KINDS.into_iter().find(|&kind| header[0] >> 32 == u64::from(VERSION) << 16 | kind as u64);
        let kind = kind.ok_or(garbled)?;
        let count = (header[1] >> 32) as usize;
        if count > MOST_RECORDS || count > 0 && !kind.has_records() {
            return Err(garbled);
        }
        let length = LENGTH * (1 + count);
        if bytes.len() < length {
            return Ok(None);
        }
        let records = (0..count).filter_map(|at| words(bytes, at + 1));
        let body = body(kind, header[1] as u32, header[2], records).ok_or(garbled)?;
        Ok(Some((Process(header[3]), Message { epoch: Epoch(header[0] as u32), body }, length)))
    }
}

impl Kind {
    fn has_records(self) -> bool {
        matches!(self, Kind::Report | Kind::Start | Kind::Ask | Kind::Answers | Kind::Taken)
    }
}

impl Body {
    /// Its kind, its small argument, and its number.
    fn head(&self) -> (Kind, u32, u64) {
        match self {
            Body::Hello(role) => (Kind::Hello, *role as u32, 0),
            Body::Heartbeat => (Kind::Heartbeat, 0, 0),
            Body::Fenced => (Kind::Fenced, 0, 0),
            Body::Claim { number } => (Kind::Claim, 0, *number),
            Body::Report { number, .. } => (Kind::Report, 0, *number),
            Body::Start { number, .. } => (Kind::Start, 0, *number),
            Body::Ended { batch } => (Kind::Ended, batch.epoch.0, batch.number),
            Body::Ask(_) => (Kind::Ask, 0, 0),
            Body::Answers(_) => (Kind::Answers, 0, 0),
            Body::Taken(_) => (Kind::Taken, 0, 0),
        }
    }

    fn records(&self) -> Vec<Words> {
        match self {
            Body::Start { members, .. } | Body::Ask(members) => members.iter().map(wanted_words).collect(),
            Body::Report { held, .. } => held.iter().map(held_words).collect(),
            Body::Answers(answers) => answers.iter().map(|it| record(it.request, it.outcome as u64, 0)).collect(),
            Body::Taken(requests) => requests.iter().map(|&request| record(request, 0, 0)).collect(),
            _ => Vec::new(),
        }
    }
}

fn body(kind: Kind, small: u32, number: u64, records: impl Iterator<Item = Words>) -> Option<Body> {
    Some(match kind {
        Kind::Hello => Body::Hello(*ROLES.get(small as usize)?),
        Kind::Heartbeat => Body::Heartbeat,
        Kind::Fenced => Body::Fenced,
        Kind::Claim => Body::Claim { number },
        Kind::Report => Body::Report { number, held: records.map(held).collect::<Option<_>>()? },
        Kind::Start => Body::Start { number, members: records.map(wanted).collect::<Option<_>>()? },
        Kind::Ended => Body::Ended { batch: Stamp { epoch: Epoch(small), number } },
        Kind::Ask => Body::Ask(records.map(wanted).collect::<Option<_>>()?),
        Kind::Answers => Body::Answers(records.map(answer).collect::<Option<_>>()?),
        Kind::Taken => Body::Taken(records.map(|words| request(&words)).collect()),
    })
}

fn record(request: RequestId, third: u64, fourth: u64) -> Words {
    [request.frontend.0, request.number, third, fourth]
}

fn request(words: &Words) -> RequestId {
    RequestId { frontend: Process(words[0]), number: words[1] }
}

fn wanted_words(wanted: &Wanted) -> Words {
    let last = u64::from(wanted.repeated) << 16 | u64::from(wanted.model.0);
    record(wanted.request, wanted.left.0.cast_unsigned(), last)
}

fn wanted(words: Words) -> Option<Wanted> {
    let (left, model) = (Nanos(words[2].cast_signed()), ModelId(words[3] as u16));
    Some(Wanted { request: request(&words), left, model, repeated: flag(words[3] >> 16)? })
}

fn held_words(held: &Held) -> Words {
    record(held.request, held.batch.number, u64::from(held.done) << 32 | u64::from(held.batch.epoch.0))
}

fn held(words: Words) -> Option<Held> {
    let batch = Stamp { epoch: Epoch(words[3] as u32), number: words[2] };
    Some(Held { request: request(&words), batch, done: flag(words[3] >> 32)? })
}

fn answer(words: Words) -> Option<Answer> {
    let outcome = *OUTCOMES.get(usize::try_from(words[2]).ok()?)?;
    Some(Answer { request: request(&words), outcome })
}

fn flag(word: u64) -> Option<bool> {
    match word {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

/// The words of the header, or of a record after it.
fn words(bytes: &[u8], at: usize) -> Option<Words> {
    let (words, _) = bytes.get(at * LENGTH..(at + 1) * LENGTH)?.as_chunks::<WORD>();
    Some(std::array::from_fn(|word| u64::from_le_bytes(words[word])))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FROM: Process = Process(u64::MAX - 5);

    fn messages() -> Vec<Message> {
        let request = RequestId { frontend: Process(u64::MAX), number: 1 << 40 };
        let batch = Stamp { epoch: Epoch(u32::MAX), number: u64::MAX };
        let wanted = |left, repeated| Wanted { request, left: Nanos(left), model: ModelId(u16::MAX), repeated };
        let held = vec![Held { request, batch, done: false }, Held { request, batch, done: true }];
        let answers = OUTCOMES.map(|outcome| Answer { request, outcome });
        let bodies = ROLES.map(Body::Hello).into_iter().chain([
            Body::Heartbeat,
            Body::Fenced,
            Body::Claim { number: u64::MAX },
            Body::Report { number: 3, held },
            Body::Report { number: 3, held: Vec::new() },
            Body::Start { number: 4, members: vec![wanted(-1, false), wanted(i64::MAX, true)] },
            Body::Ended { batch },
            Body::Ask(vec![wanted(5, true)]),
            Body::Answers(answers.to_vec()),
            Body::Taken(vec![request]),
        ]);
        bodies.map(|body| Message { epoch: Epoch(u32::MAX - 1), body }).collect()
    }

    #[test]
    fn messages_survive_one_behind_the_other() {
        let mut bytes = Vec::new();
        messages().iter().for_each(|message| message.encode(FROM, &mut bytes));
        let mut at = 0;
        for message in messages() {
            let (from, read, length) = Message::decode(&bytes[at..]).unwrap().unwrap();
            assert_eq!((from, read), (FROM, message));
            at += length;
        }
        assert_eq!(Message::decode(&bytes[at..]), Ok(None));
    }

    #[test]
    fn what_has_not_ended_is_awaited() {
        for message in messages() {
            let mut bytes = Vec::new();
            message.encode(FROM, &mut bytes);
            (0..bytes.len()).for_each(|length| assert_eq!(Message::decode(&bytes[..length]), Ok(None)));
        }
    }

    proptest::proptest! {
        #[test]
        fn whatever_is_read_is_a_message_that_survives(
            mut bytes in proptest::collection::vec(proptest::num::u8::ANY, LENGTH * 4),
            kind in 0..12u8,
            count in 0..5u8,
            small in 0..4u8,
            plain in proptest::bool::ANY,
        ) {
            bytes[4..8].copy_from_slice(&[kind, 0, VERSION as u8, 0]);
            bytes[8..16].copy_from_slice(&[small, 0, 0, 0, count, 0, 0, 0]);
            if plain {
                // Flags and outcomes that are some.
                (1..4).for_each(|record| bytes[LENGTH * record + 16..][..16].fill(0));
            }
            if let Ok(Some((from, message, length))) = Message::decode(&bytes) {
                let mut again = Vec::new();
                message.encode(from, &mut again);
                assert_eq!(Message::decode(&again), Ok(Some((from, message, length))));
            }
        }
    }

    #[test]
    fn what_is_no_message_is_refused() {
        let mut good = Vec::new();
        Message { epoch: Epoch(1), body: Body::Taken(Vec::new()) }.encode(FROM, &mut good);
        // Version, kind, and the count of records at both ends.
        for (at, byte) in [(6, 9), (4, 99), (4, 0), (14, 1), (15, 255)] {
            let mut bytes = good.clone();
            bytes[at] = byte;
            let first = u64::from_le_bytes(bytes[..8].try_into().unwrap());
            assert_eq!(Message::decode(&bytes), Err(Garbled(first)), "byte {at} is {byte}");
        }
        for message in messages() {
            let mut bytes = Vec::new();
            message.encode(FROM, &mut bytes);
            let records = bytes.split_off(LENGTH);
            // A flag or an outcome that is none: everything set.
            bytes.extend(records.iter().map(|_| 0xff));
            let choosy = matches!(&message.body, Body::Start { .. } | Body::Ask(_) | Body::Answers(_));
            let choosy = choosy || matches!(&message.body, Body::Report { held, .. } if !held.is_empty());
            assert_eq!(Message::decode(&bytes).is_err(), choosy, "{message:?}");
        }
    }
}
