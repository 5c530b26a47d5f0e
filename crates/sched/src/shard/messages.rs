//! What model shards and the matchmaker tell each other.
//!
//! An offer is state: only the latest counts, so a mailbox may keep just one a model. Grants and releases are events
//! and must not be lost. A device is a token that cannot be cloned: it moves with the grant and comes back with the
//! release, so a device slot is never used twice; its number, too, goes along, so that what is said twice counts once.
//! Staleness is told by number: an offer says how many grants its shard had seen, and the matchmaker ignores one that
//! does not know of the latest; no flag, no round trip, no lock. How a device stands is state again, said by each
//! shard.

use ripieno_base::{DeviceId, ModelId, Nanos, Time};

/// A message to the matchmaker.
#[derive(Debug, PartialEq, Eq)]
pub enum ToMatchmaker {
    /// What a model asks for now.
    Offer(Offer),
    /// When a device will be done.
    Sent(Sent),
    /// A device comes back.
    Release(Release),
    /// How a device stands.
    Standing(Standing),
    /// A model can be served.
    Loaded(Loaded),
    /// What a shard still holds of an earlier matchmaker.
    Holding(Holding),
}

/// A device that a shard was granted by an earlier matchmaker and still has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holding {
    pub(crate) model: ModelId,
    pub(crate) device: DeviceId,
    pub(crate) number: GrantNumber,
}

/// The number of a grant: no two have the same, those of one matchmaker grow, and all of a later one are above all of
/// an earlier one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct GrantNumber(pub(crate) u64);

impl GrantNumber {
    /// Grants of one epoch: more than any makes.
    const EACH: u64 = 1 << 40;

    /// Below the first one of an epoch.
    pub(crate) fn before(epoch: u32) -> GrantNumber {
        GrantNumber(u64::from(epoch) * GrantNumber::EACH)
    }

    pub(crate) fn next(self) -> GrantNumber {
        GrantNumber(self.0 + 1)
    }

    pub(crate) fn epoch(self) -> u32 {
        (self.0 / GrantNumber::EACH) as u32
    }
}

/// How a device stands with a shard: the matchmaker grants it while it stands with all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The number of the shard.
    pub(crate) shard: u16,
    pub(crate) device: DeviceId,
    /// Its latency relative to the profiles, in percent; none while it takes no batches.
    pub(crate) percent: Option<u32>,
}

/// A model can be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loaded {
    pub(crate) model: ModelId,
    /// The most batches of it that run at once.
    pub(crate) instances: usize,
}

/// What a model asks for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The model.
    pub model: ModelId,
    /// How many grants for the model the shard had seen.
    pub(crate) seen: u64,
    pub(crate) candidates: Candidates,
}

impl Offer {
    /// How many words hold an offer, its model aside.
    pub const WORDS: usize = 6;

    /// When the batch it asks for may start; none if it asks for no punctual one.
    pub fn opens(&self) -> Option<Time> {
        self.candidates.punctual.map(|window| window.exec)
    }

    /// The offer as integers: a mailbox whose slots are atomic words needs no lock, and no unsafe code either.
    pub fn to_words(&self) -> [u64; Offer::WORDS] {
        let window = self.candidates.punctual.unwrap_or(NO_WINDOW);
        let overdue_since = self.candidates.overdue_since.unwrap_or(Time::NEVER);
        let signed =
            [window.exec.0, window.latest.0, window.rank.0, window.lead.0, overdue_since.0].map(i64::cast_unsigned);
        [self.seen, signed[0], signed[1], signed[2], signed[3], signed[4]]
    }

    /// The offer of `model` from its words.
    pub fn from_words(model: ModelId, words: [u64; Offer::WORDS]) -> Offer {
        let [_, exec, latest, rank, lead, overdue_since] = words.map(u64::cast_signed);
        let window = Window { exec: Time(exec), latest: Time(latest), rank: Time(rank), lead: Nanos(lead) };
        let candidates = Candidates {
            punctual: (window != NO_WINDOW).then_some(window),
            overdue_since: (Time(overdue_since) != Time::NEVER).then_some(Time(overdue_since)),
        };
        Offer { model, seen: words[0], candidates }
    }
}

/// Stands for no window: no batch is on its way for a negative time.
const NO_WINDOW: Window = Window { exec: Time::NEVER, latest: Time::NEVER, rank: Time::NEVER, lead: Nanos(i64::MIN) };

/// A model's best batch now, and the window in which it may start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Candidates {
    /// The punctual batch, if one can be formed.
    pub(crate) punctual: Option<Window>,
    /// Since when the first of the overdue requests waits, if there is one.
    pub(crate) overdue_since: Option<Time>,
}

/// When a candidate may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    /// Not before this moment.
    pub(crate) exec: Time,
    /// In time if started by this moment.
    pub(crate) latest: Time,
    /// Among candidates that may start, the smallest goes first.
    pub(crate) rank: Time,
    /// How long the batch is on its way: it may be sent to a busy device that will be free by then.
    pub(crate) lead: Nanos,
}

impl Window {
    /// The window in which to ask, so as to have the device in this one.
    pub(crate) fn sooner(self, by: Nanos) -> Window {
        Window { exec: self.exec - by, latest: self.latest - by, ..self }
    }
}

/// A batch was sent to a device: lets the matchmaker foresee when it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    pub(crate) device: DeviceId,
    pub(crate) number: GrantNumber,
    pub(crate) at: Time,
    pub(crate) lead: Nanos,
    pub(crate) cost: Nanos,
}

/// The right to send one task to a device. Not to be cloned.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct DeviceToken {
    pub(crate) device: DeviceId,
    pub(crate) number: GrantNumber,
}

/// A device for a model.
#[derive(Debug, PartialEq, Eq)]
pub struct Grant {
    /// The model.
    pub model: ModelId,
    pub(crate) token: DeviceToken,
    /// The device's latency relative to the profile, in percent.
    pub(crate) percent: u32,
    /// Devices that are free beside it.
    pub(crate) idle: usize,
    pub(crate) class: Class,
}

impl Grant {
    pub(crate) fn device(&self) -> DeviceId {
        self.token.device
    }
}

/// What a grant is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// The model's candidate.
    Punctual,
    /// Overdue requests, in a batch that ends by this moment.
    Overdue {
        /// The moment.
        until: Time,
    },
}

/// A device comes back.
#[derive(Debug, PartialEq, Eq)]
pub struct Release {
    pub(crate) model: ModelId,
    pub(crate) token: DeviceToken,
    /// For what it had been granted, if it was not used: the model had nothing that fits.
    pub(crate) unused: Option<Class>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offers_survive_as_words() {
        let window = Window { exec: Time(-3), latest: Time::NEVER, rank: Time(5), lead: Nanos(0) };
        for punctual in [None, Some(window)] {
            for overdue_since in [None, Some(Time(-7))] {
                let offer =
                    Offer { model: ModelId(9), seen: u64::MAX, candidates: Candidates { punctual, overdue_since } };
                assert_eq!(Offer::from_words(ModelId(9), offer.to_words()), offer);
                assert_eq!(offer.opens(), punctual.map(|window| window.exec));
            }
        }
    }
}
