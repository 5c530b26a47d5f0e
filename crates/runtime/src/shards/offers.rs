//! The table into which shards write the latest offer of each model: a seqlock per entry, and a set
//! of changed entries.
//!
//! A newer offer replaces an unread older one, so the table never fills up, and a matchmaker that
//! falls behind reads less instead of more. A set of changed models, one bit each under a bit for
//! every 64 of them, avoids a scan of all models: reading costs as much as there are changes.
//!
//! No thread waits for another. An offer fills one cache line of atomic words with a version that
//! is odd while the offer is being written. A reader that sees an odd version, or two different
//! ones, skips the entry: the writer marks the model as changed after it has written, so the reader
//! will see it again. The marks are set once per turn, not once per offer: they are the only words
//! that both sides write, and therefore the point of contention of a busy shard.

use ripieno_base::ModelId;
use ripieno_sched::Offer;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// The latest offer of each model. One writer per model, one reader.
pub(crate) struct OfferTable {
    slots: Box<[OfferCell]>,
    /// Changed models, one bit each.
    changed: Box<[AtomicU64]>,
    /// Words of `changed` that are not zero, one bit each.
    words: Box<[AtomicU64]>,
}

/// An offer on a cache line of its own.
#[derive(Default)]
#[repr(align(64))]
struct OfferCell {
    /// Odd while the words are being written.
    version: AtomicU64,
    words: [AtomicU64; Offer::WORDS],
}

/// A shard's writing end of the table.
pub(crate) struct OfferWriter {
    table: Arc<OfferTable>,
    /// Models written since the last [`OfferWriter::publish`], one bit each; `posted_words` lists
    /// the words that are not zero.
    posted: Box<[u64]>,
    posted_words: Vec<usize>,
}

impl OfferTable {
    pub(crate) fn new(models: usize) -> OfferTable {
        let words = models.div_ceil(64);
        OfferTable {
            slots: (0..models).map(|_| OfferCell::default()).collect(),
            changed: (0..words).map(|_| AtomicU64::new(0)).collect(),
            words: (0..words.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Whether offers have changed since the last read.
    pub(crate) fn has_news(&self) -> bool {
        self.words.iter().any(|word| word.load(Ordering::Acquire) != 0)
    }

    /// Reads the offers that changed since the last read, in the order of the models. Returns their
    /// number.
    pub(crate) fn read(&self, mut each: impl FnMut(Offer)) -> usize {
        let mut seen = 0;
        for_each_bit(&self.words, |word| {
            for_each_bit(&self.changed[word..=word], |bit| {
                let model = word * 64 + bit;
                if let Some(words) = self.slots[model].read() {
                    each(Offer::from_words(ModelId(model as u16), words));
                    seen += 1;
                }
            });
        });
        seen
    }
}

/// Clears the bits of these words and calls `each` with every one.
fn for_each_bit(words: &[AtomicU64], mut each: impl FnMut(usize)) {
    for (at, word) in words.iter().enumerate() {
        // A load is cheaper than a swap: other cores keep the cache line.
        let mut bits = if word.load(Ordering::Relaxed) == 0 { 0 } else { word.swap(0, Ordering::AcqRel) };
        while bits != 0 {
            each(at * 64 + bits.trailing_zeros() as usize);
            bits &= bits - 1;
        }
    }
}

impl OfferCell {
    /// Writes the offer; called by the one writer only.
    fn write(&self, words: [u64; Offer::WORDS]) {
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version + 1, Ordering::Relaxed);
        // Makes the odd version visible before any of the words.
        fence(Ordering::Release);
        for (slot, word) in self.words.iter().zip(words) {
            slot.store(word, Ordering::Relaxed);
        }
        self.version.store(version + 2, Ordering::Release);
    }

    /// Reads the offer; `None` if it is being written.
    fn read(&self) -> Option<[u64; Offer::WORDS]> {
        let version = self.version.load(Ordering::Acquire);
        let words = std::array::from_fn(|at| self.words[at].load(Ordering::Relaxed));
        // Orders the reads of the words before the second read of the version.
        fence(Ordering::Acquire);
        (version.is_multiple_of(2) && version == self.version.load(Ordering::Relaxed)).then_some(words)
    }
}

impl OfferWriter {
    pub(crate) fn new(table: Arc<OfferTable>) -> OfferWriter {
        let words = table.changed.len();
        OfferWriter { table, posted: vec![0; words].into(), posted_words: Vec::with_capacity(words) }
    }

    /// Writes an offer. It may be read from this moment, and will be after the next
    /// [`OfferWriter::publish`].
    pub(crate) fn write(&mut self, offer: &Offer) {
        let (word, bit) = (offer.model.index() / 64, offer.model.index() % 64);
        self.table.slots[offer.model.index()].write(offer.to_words());
        if self.posted[word] == 0 {
            self.posted_words.push(word);
        }
        self.posted[word] |= 1 << bit;
    }

    /// Marks the written models as changed. The marks follow the offers, so a reader that sees a
    /// mark sees this offer or a later one. The mark of a word follows the bits in it: the writer
    /// that finds the word empty sets it.
    pub(crate) fn publish(&mut self) {
        for word in self.posted_words.drain(..) {
            let bits = std::mem::take(&mut self.posted[word]);
            if self.table.changed[word].fetch_or(bits, Ordering::AcqRel) == 0 {
                self.table.words[word / 64].fetch_or(1 << (word % 64), Ordering::AcqRel);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::thread;

    /// An offer whose words all hold the same value.
    fn offer(model: usize, say: u64) -> Offer {
        Offer::from_words(ModelId(model as u16), [say; Offer::WORDS])
    }

    #[test]
    fn the_latest_offer_of_each_changed_model_is_read_once() {
        let table = Arc::new(OfferTable::new(5_000));
        let mut writer = OfferWriter::new(table.clone());
        let read = || {
            let mut seen = Vec::new();
            table.read(|offer| seen.push((offer.model.index(), offer.to_words()[0])));
            seen
        };
        assert_eq!(read(), []);
        for (model, say) in [(4_999, 1), (3, 2), (64, 3), (3, 4)] {
            writer.write(&offer(model, say));
        }
        assert_eq!(read(), [], "not published");
        writer.publish();
        assert_eq!(read(), [(3, 4), (64, 3), (4_999, 1)]);
        writer.publish();
        assert_eq!(read(), []);
        writer.write(&offer(64, 5));
        writer.publish();
        assert_eq!(read(), [(64, 5)]);
    }

    /// Two shards write while the matchmaker reads: no offer is torn, none goes back, and the last
    /// ones arrive.
    #[test]
    fn offers_are_read_whole_and_none_is_lost() {
        const MODELS: usize = 130;
        const ROUNDS: u64 = 20_000;
        let table = Arc::new(OfferTable::new(MODELS));
        let mut latest = BTreeMap::new();
        let mut look = || {
            table.read(|offer| {
                let words = offer.to_words();
                assert_eq!(words, [words[0]; Offer::WORDS]);
                let before = latest.insert(offer.model.index(), words[0]);
                assert!(before.is_none_or(|before| before <= words[0]), "{offer:?}");
            });
        };
        thread::scope(|scope| {
            let write = |shard: usize| {
                let mut writer = OfferWriter::new(table.clone());
                for say in 1..=ROUNDS {
                    writer.write(&offer((2 * say as usize * 31 + shard) % MODELS, say));
                    if say % 3 == 0 || say == ROUNDS {
                        writer.publish();
                    }
                }
            };
            let shards = [scope.spawn(move || write(0)), scope.spawn(move || write(1))];
            while shards.iter().any(|shard| !shard.is_finished()) {
                look();
            }
        });
        look();
        assert_eq!(latest.len(), MODELS);
        let last = |model: usize| (1..=ROUNDS).rev().find(|say| (2 * *say as usize * 31) % MODELS == model - model % 2);
        assert!(latest.iter().all(|(&model, &say)| Some(say) == last(model)), "{latest:?}");
    }
}
