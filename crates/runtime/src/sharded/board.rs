//! The board on which shards leave the latest offer of each model.
//!
//! A newer offer replaces an older one that was not read, so the board never fills up, and a matchmaker that falls behind
//! reads less instead of more. A set of changed models, one bit each, spares it the look at every model: reading costs as
//! much as there is news.

use crossbeam_utils::atomic::AtomicCell;
use ripieno_base::ModelId;
use ripieno_sched::Offer;
use std::sync::atomic::{AtomicU64, Ordering};

/// The latest offer of each model. One writer a model, one reader.
pub(super) struct Board {
    offers: Box<[AtomicCell<Option<Offer>>]>,
    changed: Box<[AtomicU64]>,
}

impl Board {
    pub(super) fn new(models: usize) -> Board {
        Board {
            offers: (0..models).map(|_| AtomicCell::new(None)).collect(),
            changed: (0..models.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    pub(super) fn post(&self, offer: Offer) {
        let model = offer.model.index();
        self.offers[model].store(Some(offer));
        // The bit follows the offer: a reader that sees it sees this offer or a later one.
        self.changed[model / 64].fetch_or(1 << (model % 64), Ordering::AcqRel);
    }

    /// Reads the offers that changed since they were last read, in the order of the models.
    pub(super) fn read(&self, mut each: impl FnMut(Offer)) {
        for (word, changed) in self.changed.iter().enumerate() {
            if changed.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let mut bits = changed.swap(0, Ordering::AcqRel);
            while bits != 0 {
                let model = ModelId((word * 64) as u16 + bits.trailing_zeros() as u16);
                bits &= bits - 1;
                if let Some(offer) = self.offers[model.index()].load() {
                    each(offer);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ripieno_base::{Nanos, RequestSlot, Time};
    use ripieno_model::{Extent, Model, Profile};
    use ripieno_sched::{Limits, Options, Outbox, Request, Setup, ToMatchmaker, build_halves};

    /// Real offers, from a shard.
    fn offers(models: usize) -> Vec<Offer> {
        let limits = Limits { requests: models, models, devices: 1, depth: 1, batch: 4, nodes: 0 };
        let model = |at: usize| Model::whole(&at.to_string(), Profile::linear(1.0, 1.0, 4).unwrap(), Nanos(20_000_000));
        let setup = Setup { models: (0..models).map(model).collect(), devices: 1, limits };
        let mut halves = build_halves("deferred", &setup, &Options::new(), 1).unwrap();
        for at in 0..models {
            let (slot, model) = (RequestSlot(at as u32), ModelId(at as u16));
            let request =
                Request { slot, model, arrived: Time(0), deadline: Time(20_000_000), rows: 1, extent: Extent::ONE };
            halves.shards[0].on_request(Time(0), &request);
        }
        let mut mail = Vec::new();
        halves.shards[0].settle(Time(0), &mut Outbox::new(&limits), &mut mail);
        let offer = |mail| match mail {
            ToMatchmaker::Offer(offer) => offer,
            other => panic!("{other:?}"),
        };
        mail.into_iter().map(offer).collect()
    }

    #[test]
    fn the_latest_offer_of_each_changed_model_is_read_once() {
        let (board, offers) = (Board::new(130), offers(130));
        let of = |model: usize| *offers.iter().find(|offer| offer.model.index() == model).unwrap();
        let read = || {
            let mut seen = Vec::new();
            board.read(|offer| seen.push(offer.model.index()));
            seen
        };
        assert_eq!(read(), [0; 0]);
        for model in [129, 3, 64, 3] {
            board.post(of(model));
        }
        assert_eq!(read(), [3, 64, 129]);
        assert_eq!(read(), [0; 0]);
        board.post(of(64));
        assert_eq!(read(), [64]);
    }
}
