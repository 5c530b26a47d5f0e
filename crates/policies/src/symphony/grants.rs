//! Messages between model shards and the matchmaker.
//!
//! # State
//!
//! An offer is state: only the latest counts, so a mailbox may keep just one per model. The
//! standing of a device is state, too, one per shard.
//!
//! # Events
//!
//! Grants and releases are events and must not be lost. A device is a token that cannot be cloned:
//! it moves with the grant and comes back with the release, so a device slot is never used twice.
//!
//! # Stale offers
//!
//! They are recognised by number, without a flag, a round trip or a lock. An offer contains the
//! number of grants that its shard had seen, and the matchmaker ignores an offer that misses the
//! latest grant.

use ripieno_base::{DeviceId, ModelId, Nanos, Time};

/// A message to the matchmaker.
#[derive(Debug, PartialEq, Eq)]
pub enum ToMatchmaker {
    /// Candidates of a model.
    Offer(Offer),
    /// A batch that was sent to a device.
    Sent(Sent),
    /// The return of a device.
    Release(Release),
    /// The standing of a device.
    Standing(Standing),
    /// A model can be served.
    Loaded(Loaded),
}

/// The unique number of a grant. Later grants have larger numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct GrantNumber(pub u64);

impl GrantNumber {
    /// Returns the number of the next grant.
    pub fn next(self) -> GrantNumber {
        GrantNumber(self.0 + 1)
    }
}

/// The standing of a device with one shard. The matchmaker grants a device while all shards report
/// it as present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The number of the shard.
    pub shard: u16,
    /// The device.
    pub device: DeviceId,
    /// Latency of the device relative to the profiles, in percent; `None` while it accepts no
    /// batches.
    pub percent: Option<u32>,
}

/// A model that can be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// The model.
    pub model: ModelId,
    /// Largest number of its batches that run concurrently.
    pub instances: usize,
}

/// Candidates of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The model.
    pub model: ModelId,
    /// Number of the model's grants that the shard had seen.
    pub seen: u64,
    /// The batches that the model can form.
    pub candidates: Candidates,
}

impl Offer {
    /// Number of words of an offer without its model.
    pub const WORDS: usize = 6;

    /// Returns the time from which the punctual batch may start; `None` if there is no punctual
    /// batch.
    pub fn opens(&self) -> Option<Time> {
        self.candidates.punctual.map(|window| window.exec)
    }

    /// Returns the offer as integers: a mailbox of atomic words needs neither a lock nor unsafe
    /// code.
    pub fn to_words(&self) -> [u64; Offer::WORDS] {
        let window = self.candidates.punctual.unwrap_or(NO_WINDOW);
        let overdue_since = self.candidates.overdue_since.unwrap_or(Time::NEVER);
        let signed =
            [window.exec.0, window.latest.0, window.rank.0, window.lead.0, overdue_since.0].map(i64::cast_unsigned);
        [self.seen, signed[0], signed[1], signed[2], signed[3], signed[4]]
    }

    /// Returns the offer of `model` from its words.
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

/// Encodes an absent window: no lead is negative.
const NO_WINDOW: Window = Window { exec: Time::NEVER, latest: Time::NEVER, rank: Time::NEVER, lead: Nanos(i64::MIN) };

/// The best batch of a model, and the window in which it may start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Candidates {
    /// The punctual batch, if one can be formed.
    pub punctual: Option<Window>,
    /// Arrival of the first overdue request, if there is one.
    pub overdue_since: Option<Time>,
}

/// The window in which a candidate may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Earliest start.
    pub exec: Time,
    /// Latest start that is in time.
    pub latest: Time,
    /// Among candidates that may start, the smallest rank goes first.
    pub rank: Time,
    /// Time that the batch needs to reach its device: it may be sent to a busy device that will be
    /// free by then.
    pub lead: Nanos,
}

impl Window {
    /// Returns the window in which a device must be requested, so that its grant arrives within
    /// this window. The request takes `by`.
    pub fn sooner(self, by: Nanos) -> Window {
        Window { exec: self.exec - by, latest: self.latest - by, ..self }
    }
}

/// A batch that was sent to a device, from which the matchmaker predicts its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// The device.
    pub device: DeviceId,
    /// Number of the grant.
    pub number: GrantNumber,
    /// The time of sending.
    pub at: Time,
    /// Time that the batch needs to reach the device.
    pub lead: Nanos,
    /// Profiled duration of the batch.
    pub cost: Nanos,
}

/// The right to send one task to a device. Not cloneable.
#[derive(Debug, PartialEq, Eq)]
pub struct DeviceToken {
    /// The device.
    pub device: DeviceId,
    /// Number of the grant.
    pub number: GrantNumber,
}

/// A device granted to a model.
#[derive(Debug, PartialEq, Eq)]
pub struct Grant {
    /// The model.
    pub model: ModelId,
    /// The right to use the device once.
    pub token: DeviceToken,
    /// The device's latency relative to the profile, in percent.
    pub percent: u32,
    /// The purpose of the grant.
    pub class: GrantClass,
}

/// A grant as integers, for recordings. The first and the last word are reserved.
pub type GrantWords = [u64; 8];

impl Grant {
    /// Returns the granted device.
    pub fn device(&self) -> DeviceId {
        self.token.device
    }

    /// Returns the grant as integers.
    pub fn to_words(&self) -> GrantWords {
        let Grant { model, token: DeviceToken { device, number }, percent, class } = self;
        let until = match class {
            GrantClass::Punctual => PUNCTUAL,
            GrantClass::Overdue { until } => until.0,
        };
        let [model, device] = [model.0, device.0].map(u64::from);
        [0, model, device, number.0, u64::from(*percent), until.cast_unsigned(), 0, 0]
    }

    /// Returns the grant of these words. Its token is a copy: it is for a replay, which has no
    /// matchmaker.
    pub fn from_words(words: &GrantWords) -> Grant {
        let [_, model, device, number, percent, until, ..] = *words;
        let token = DeviceToken { device: DeviceId(device as u16), number: GrantNumber(number) };
        let class = match until.cast_signed() {
            PUNCTUAL => GrantClass::Punctual,
            until => GrantClass::Overdue { until: Time(until) },
        };
        Grant { model: ModelId(model as u16), token, percent: percent as u32, class }
    }
}

/// Stands for punctual batches where words hold the end of an overdue batch: no batch ends at this
/// time.
const PUNCTUAL: i64 = i64::MIN;

/// The purpose of a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrantClass {
    /// The model's candidate.
    Punctual,
    /// Overdue requests, in a batch that ends by this time.
    Overdue {
        /// The latest end.
        until: Time,
    },
}

/// The return of a device.
#[derive(Debug, PartialEq, Eq)]
pub struct Release {
    /// The model.
    pub model: ModelId,
    /// The right to use the device once.
    pub token: DeviceToken,
    /// Class of the grant, if it was not used because no batch of the model fitted.
    pub unused: Option<GrantClass>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grants_survive_as_words() {
        for class in
            [GrantClass::Punctual, GrantClass::Overdue { until: Time::NEVER }, GrantClass::Overdue { until: Time(-1) }]
        {
            let token = DeviceToken { device: DeviceId(9), number: GrantNumber(5) };
            let grant = Grant { model: ModelId(300), token, percent: 250, class };
            assert_eq!(Grant::from_words(&grant.to_words()), grant);
        }
    }

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
