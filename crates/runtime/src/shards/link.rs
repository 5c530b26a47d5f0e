//! A shard's sending side to the matchmaker.

use super::{MatchmakerInbox, OfferWriter};
use ripieno_sched::ToMatchmaker;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The connection of one shard to the matchmaker.
pub(crate) struct MatchmakerLink {
    inbox: Arc<MatchmakerInbox>,
    writer: OfferWriter,
    /// Messages that found the ring full, and all later ones.
    backlog: VecDeque<ToMatchmaker>,
}

impl MatchmakerLink {
    pub(crate) fn new(inbox: Arc<MatchmakerInbox>) -> MatchmakerLink {
        let writer = OfferWriter::new(Arc::clone(&inbox.table));
        MatchmakerLink { inbox, writer, backlog: VecDeque::new() }
    }

    /// Sends the messages of a settle, in order.
    pub(crate) fn send(&mut self, mail: impl Iterator<Item = ToMatchmaker>) {
        self.backlog.extend(mail);
        self.flush();
    }

    /// Sends pending messages; returns whether none is left. Until then the shard may not settle
    /// again. Once the matchmaker has stopped, messages are dropped.
    pub(crate) fn flush(&mut self) -> bool {
        if self.inbox.stopped.load(Ordering::Relaxed) {
            self.backlog.clear();
        }
        while let Some(mail) = self.backlog.pop_front() {
            let refused = match mail {
                ToMatchmaker::Offer(offer) => {
                    self.writer.write(&offer);
                    None
                }
                event => self.inbox.events.push(event).err(),
            };
            if let Some(event) = refused {
                self.backlog.push_front(event);
                break;
            }
        }
        self.writer.publish();
        self.backlog.is_empty()
    }
}
