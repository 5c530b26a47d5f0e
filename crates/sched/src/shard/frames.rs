//! Messages as frames of eight words, one cache line, for transport between processes.
//!
//! The first word holds the version of the layout, the kind of message, and the epoch of the
//! matchmaker that sends or receives it. Frames of another version are an error. Frames of another
//! epoch are valid but ignored: an earlier matchmaker no longer decides, and a later one has not
//! received the shard's state yet ([`ModelShard::resume`](super::ModelShard::resume)). Ids in
//! frames are numbers, times are nanoseconds of the scheduler.

use super::messages::{DeviceToken, GrantNumber};
use super::{Grant, GrantClass, Holding, Loaded, Offer, Release, Sent, Standing, ToMatchmaker};
use ripieno_base::{DeviceId, ModelId, Nanos, Time};
use std::fmt;

/// A message in words.
pub type Frame = [u64; 8];

/// The number of a matchmaker among those that succeed each other.
pub type MatchmakerEpoch = u32;

/// Version of the layout.
const VERSION: u16 = 1;

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
enum FrameKind {
    Offer = 1,
    Sent,
    Release,
    Standing,
    Loaded,
    Holding,
    Grant,
}

const KINDS: [FrameKind; 7] = [
    FrameKind::Offer,
    FrameKind::Sent,
    FrameKind::Release,
    FrameKind::Standing,
    FrameKind::Loaded,
    FrameKind::Holding,
    FrameKind::Grant,
];

/// The first word of a frame that holds no message, or one for the opposite direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameError(pub u64);

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a frame that begins with {:#x}; frames of version {VERSION} are read here", self.0)
    }
}

impl std::error::Error for FrameError {}

fn frame<const N: usize>(kind: FrameKind, epoch: MatchmakerEpoch, words: [u64; N]) -> Frame {
    let mut frame = [0; 8];
    frame[0] = u64::from(VERSION) << 48 | (kind as u64) << 32 | u64::from(epoch);
    frame[1..=N].copy_from_slice(&words);
    frame
}

fn header(frame: &Frame) -> Result<(FrameKind, MatchmakerEpoch), FrameError> {
    let kind = KINDS.into_iter().find(|&kind| frame[0] >> 32 == u64::from(VERSION) << 16 | kind as u64);
    Ok((kind.ok_or(FrameError(frame[0]))?, frame[0] as MatchmakerEpoch))
}

impl ToMatchmaker {
    /// Returns the message as a frame.
    pub fn to_frame(&self, epoch: MatchmakerEpoch) -> Frame {
        let id = |model: ModelId| u64::from(model.0);
        match *self {
            ToMatchmaker::Offer(offer) => {
                let [seen, exec, latest, rank, lead, overdue] = offer.to_words();
                frame(FrameKind::Offer, epoch, [id(offer.model), seen, exec, latest, rank, lead, overdue])
            }
            ToMatchmaker::Sent(Sent { device, number, at, lead, cost }) => {
                let [at, lead, cost] = [at.0, lead.0, cost.0].map(i64::cast_unsigned);
                frame(FrameKind::Sent, epoch, [u64::from(device.0), number.0, at, lead, cost])
            }
            ToMatchmaker::Release(Release { model, token: DeviceToken { device, number }, unused }) => {
                let unused = unused.map_or([0; 2], |class| [1, class.to_word()]);
                frame(FrameKind::Release, epoch, [id(model), u64::from(device.0), number.0, unused[0], unused[1]])
            }
            ToMatchmaker::Standing(Standing { shard, device, percent }) => {
                let percent = percent.map_or([0; 2], |percent| [1, u64::from(percent)]);
                frame(FrameKind::Standing, epoch, [u64::from(shard), u64::from(device.0), percent[0], percent[1]])
            }
            ToMatchmaker::Loaded(Loaded { model, instances }) => {
                frame(FrameKind::Loaded, epoch, [id(model), instances as u64])
            }
            ToMatchmaker::Holding(Holding { model, device, number }) => {
                frame(FrameKind::Holding, epoch, [id(model), u64::from(device.0), number.0])
            }
        }
    }

    /// Returns the message of a frame, and the epoch of the matchmaker that it is for.
    pub fn from_frame(frame: &Frame) -> Result<(MatchmakerEpoch, ToMatchmaker), FrameError> {
        let (kind, epoch) = header(frame)?;
        let [_, first, second, third, fourth, fifth, ..] = *frame;
        let (model, device, number) = (ModelId(first as u16), DeviceId(second as u16), GrantNumber(third));
        let mail = match kind {
            FrameKind::Offer => {
                let words = std::array::from_fn(|at| frame[at + 2]);
                ToMatchmaker::Offer(Offer::from_words(model, words))
            }
            FrameKind::Sent => {
                let [at, lead, cost] = [third, fourth, fifth].map(u64::cast_signed);
                let (device, number) = (DeviceId(first as u16), GrantNumber(second));
                ToMatchmaker::Sent(Sent { device, number, at: Time(at), lead: Nanos(lead), cost: Nanos(cost) })
            }
            FrameKind::Release => {
                let unused = (fourth != 0).then(|| GrantClass::from_word(fifth));
                ToMatchmaker::Release(Release { model, token: DeviceToken { device, number }, unused })
            }
            FrameKind::Standing => {
                let percent = (third != 0).then_some(fourth as u32);
                ToMatchmaker::Standing(Standing { shard: first as u16, device, percent })
            }
            FrameKind::Loaded => ToMatchmaker::Loaded(Loaded { model, instances: second as usize }),
            FrameKind::Holding => ToMatchmaker::Holding(Holding { model, device, number }),
            FrameKind::Grant => return Err(FrameError(frame[0])),
        };
        Ok((epoch, mail))
    }
}

impl Grant {
    /// Returns the grant as a frame. Its number contains the epoch of its matchmaker.
    pub fn to_frame(&self) -> Frame {
        let Grant { model, token: DeviceToken { device, number }, percent, class } = self;
        let words = [u64::from(model.0), u64::from(device.0), number.0, u64::from(*percent), class.to_word(), 0];
        frame(FrameKind::Grant, number.epoch(), words)
    }

    /// Returns the grant of a frame. Reading a frame twice yields the same token twice; its shard
    /// uses each number once.
    pub fn from_frame(frame: &Frame) -> Result<Grant, FrameError> {
        let (FrameKind::Grant, _) = header(frame)? else { return Err(FrameError(frame[0])) };
        let [_, model, device, number, percent, class, ..] = *frame;
        let token = DeviceToken { device: DeviceId(device as u16), number: GrantNumber(number) };
        let class = GrantClass::from_word(class);
        Ok(Grant { model: ModelId(model as u16), token, percent: percent as u32, class })
    }
}

/// Encodes the class of punctual batches: no overdue batch ends at this time.
const PUNCTUAL: i64 = i64::MIN;

impl GrantClass {
    fn to_word(self) -> u64 {
        match self {
            GrantClass::Punctual => PUNCTUAL.cast_unsigned(),
            GrantClass::Overdue { until } => until.0.cast_unsigned(),
        }
    }

    fn from_word(word: u64) -> GrantClass {
        match word.cast_signed() {
            PUNCTUAL => GrantClass::Punctual,
            until => GrantClass::Overdue { until: Time(until) },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Window;
    use super::*;
    use crate::shard::Candidates;

    const NUMBER: GrantNumber = GrantNumber(u64::MAX);

    fn messages() -> Vec<ToMatchmaker> {
        let (model, device) = (ModelId(300), DeviceId(u16::MAX));
        let window = Window { exec: Time(-3), latest: Time::NEVER, rank: Time(5), lead: Nanos(9) };
        let candidates = Candidates { punctual: Some(window), overdue_since: Some(Time(-7)) };
        let mut all = vec![
            ToMatchmaker::Offer(Offer { model, seen: u64::MAX, candidates }),
            ToMatchmaker::Offer(Offer { model, seen: 0, candidates: Candidates::default() }),
            ToMatchmaker::Sent(Sent { device, number: NUMBER, at: Time(-1), lead: Nanos(2), cost: Nanos::MAX }),
            ToMatchmaker::Loaded(Loaded { model, instances: usize::MAX }),
            ToMatchmaker::Holding(Holding { model, device, number: NUMBER }),
        ];
        for unused in [None, Some(GrantClass::Punctual), Some(GrantClass::Overdue { until: Time(0) })] {
            let token = DeviceToken { device, number: NUMBER };
            all.push(ToMatchmaker::Release(Release { model, token, unused }));
        }
        let standing = |percent| ToMatchmaker::Standing(Standing { shard: 63, device, percent });
        all.extend([None, Some(0), Some(u32::MAX)].map(standing));
        all
    }

    #[test]
    fn messages_survive_as_frames() {
        for mail in messages() {
            assert_eq!(ToMatchmaker::from_frame(&mail.to_frame(7)), Ok((7, mail)));
        }
        for class in
            [GrantClass::Punctual, GrantClass::Overdue { until: Time::NEVER }, GrantClass::Overdue { until: Time(-1) }]
        {
            let token = DeviceToken { device: DeviceId(9), number: GrantNumber::before(5).next() };
            let grant = Grant { model: ModelId(300), token, percent: 250, class };
            assert_eq!(Grant::from_frame(&grant.to_frame()), Ok(grant));
        }
    }

    #[test]
    fn invalid_frames_and_wrong_directions_are_errors() {
        let mail = messages().remove(0).to_frame(7);
        assert_eq!(Grant::from_frame(&mail), Err(FrameError(mail[0])));
        for header in [0, u64::MAX, mail[0] + (1 << 48), mail[0] + (99 << 32)] {
            let mut frame = mail;
            frame[0] = header;
            assert_eq!(ToMatchmaker::from_frame(&frame), Err(FrameError(header)));
        }
    }
}
