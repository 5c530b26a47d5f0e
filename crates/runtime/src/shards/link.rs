//! A shard's way to tell its matchmaker.

use super::{Desk, OfferWriter};
use ripieno_sched::ToMatchmaker;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// One a shard.
pub(crate) struct Link {
    desk: Arc<Desk>,
    writer: OfferWriter,
    /// What the ring had no room for, and all that was said after that.
    waits: VecDeque<ToMatchmaker>,
}

impl Link {
    pub(crate) fn new(desk: Arc<Desk>) -> Link {
        let writer = OfferWriter::new(Arc::clone(&desk.table));
        Link { desk, writer, waits: VecDeque::new() }
    }

    /// Tells what a settle had to say, in order.
    pub(crate) fn tell(&mut self, mail: impl Iterator<Item = ToMatchmaker>) {
        self.waits.extend(mail);
        self.has_told();
    }

    /// Tries again; whether nothing waits any more. Until then nothing further may be said. To nobody all is said.
    pub(crate) fn has_told(&mut self) -> bool {
        if self.desk.stopped.load(Ordering::Relaxed) {
            self.waits.clear();
        }
        while let Some(mail) = self.waits.pop_front() {
            let refused = match mail {
                ToMatchmaker::Offer(offer) => {
                    self.writer.write(&offer);
                    None
                }
                event => self.desk.events.push(event).err(),
            };
            if let Some(event) = refused {
                self.waits.push_front(event);
                break;
            }
        }
        self.writer.publish();
        self.waits.is_empty()
    }
}
