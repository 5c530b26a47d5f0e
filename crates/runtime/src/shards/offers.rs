//! The table into which shards write the latest offer of each model. Each entry is a seqlock, and
//! bits mark the changed entries.
//!
//! A newer offer replaces an unread older one. So the table never fills up, and a slow matchmaker
//! reads fewer offers, not more. Each model has a bit in `changed`, and each word of `changed` has
//! a bit in `words`. So a reader visits only changed entries.
//!
//! No thread waits for another. An offer fills one cache line of atomic words with a version, which
//! is odd while the offer is being written. A reader skips an entry whose version is odd or changes
//! during the read. The writer marks the model as changed after the write, so the reader sees the
//! entry again. The writer marks changed models once per turn, not once per offer. Both sides write
//! the marks, so busy shards contend only for them.

use crate::sync::{AtomicU64, Ordering, fence};
use ripieno_base::ModelId;
use ripieno_policies::grants::Offer;
use std::sync::Arc;

/// The latest offer of each model. Each model has one writer, and the table has one reader.
pub(crate) struct OfferTable {
    slots: Box<[OfferCell]>,
    /// Changed models, one bit per model.
    changed: Box<[AtomicU64]>,
    /// Non-zero words of `changed`, one bit per word.
    words: Box<[AtomicU64]>,
}

/// An offer in its own cache line.
#[derive(Default)]
#[repr(align(64))]
struct OfferCell {
    /// Version of the offer; odd while the words are being written.
    version: AtomicU64,
    words: [AtomicU64; Offer::WORDS],
}

/// The writing side of the table, for one shard.
pub(crate) struct OfferWriter {
    table: Arc<OfferTable>,
    /// Models written since the last [`OfferWriter::publish`], one bit each. `posted_words` lists
    /// the non-zero words.
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

    /// Reads the offers that changed since the last read, ordered by model. Returns the number of
    /// offers read.
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

/// Clears all bits of `words` and calls `each` with the index of every bit that was set.
fn for_each_bit(words: &[AtomicU64], mut each: impl FnMut(usize)) {
    for (at, word) in words.iter().enumerate() {
        // A load leaves the cache line with the other cores, so it is cheaper than a swap.
        let mut bits = if word.load(Ordering::Relaxed) == 0 { 0 } else { word.swap(0, Ordering::AcqRel) };
        while bits != 0 {
            each(at * 64 + bits.trailing_zeros() as usize);
            bits &= bits - 1;
        }
    }
}

impl OfferCell {
    /// Writes the offer. Only one thread may call this.
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

    /// Writes an offer. The reader may see the offer immediately, and sees it at the latest after
    /// the next [`OfferWriter::publish`].
    pub(crate) fn write(&mut self, offer: &Offer) {
        let (word, bit) = (offer.model.index() / 64, offer.model.index() % 64);
        self.table.slots[offer.model.index()].write(offer.to_words());
        if self.posted[word] == 0 {
            self.posted_words.push(word);
        }
        self.posted[word] |= 1 << bit;
    }

    /// Marks the written models as changed. A mark is set after its offer is written, so a reader
    /// that sees the mark reads this offer or a later one. The bit of a word in `words` is set
    /// after the bits in the word, by the writer that found the word empty.
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

    /// Two shards write while the matchmaker reads. No offer is torn, no older offer follows a
    /// newer one, and the last offers arrive.
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
