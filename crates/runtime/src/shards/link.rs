//! The connection of a shard to the matchmaker.

use super::{MatchmakerInbox, OfferWriter};
use ripieno_policies::grants::ToMatchmaker;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Sends the messages of one shard to the matchmaker.
pub(crate) struct MatchmakerLink {
    inbox: Arc<MatchmakerInbox>,
    writer: OfferWriter,
    /// Messages not sent because the ring was full, in order.
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

    /// Sends pending messages. Returns whether all are sent; the shard may not settle before.
    /// Messages are dropped once the matchmaker has stopped.
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
