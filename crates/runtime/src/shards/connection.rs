//! A matchmaker and its shards, connected without threads: the caller takes their turns.

use super::{MAX_SHARDS, MatchmakerInbox, MatchmakerLink, MatchmakerLoop};
use crate::Clock;
use crate::event_loop::mailbox::{Mail, Mailbox};
use ripieno_policies::Matchmaker;
use ripieno_policies::grants::{Grant, ToMatchmaker};
use ripieno_sched::Limits;
use std::sync::Arc;

/// The connection of one shard to the matchmaker: its link, and the mailbox that receives its
/// grants.
pub struct ShardConnection {
    link: MatchmakerLink,
    mailbox: Arc<Mailbox>,
}

/// Connects `matchmaker` to `shards` shards. Returns the matchmaker's loop and the connections, in
/// the order of the shards' numbers.
///
/// The mailboxes have room for grants but not for submissions. Grants wake no thread, so each
/// thread looks for them in its own turns.
///
/// # Panics
///
/// Panics if `shards` is 0 or greater than 64.
pub fn connect(matchmaker: Matchmaker, limits: &Limits, shards: usize) -> (MatchmakerLoop, Vec<ShardConnection>) {
    assert!((1..=MAX_SHARDS).contains(&shards), "between 1 and {MAX_SHARDS} shards, not {shards}");
    let inbox = Arc::new(MatchmakerInbox::new(limits, matchmaker.models(), shards));
    let connection = |_| ShardConnection {
        link: MatchmakerLink::new(Arc::clone(&inbox)),
        mailbox: Arc::new(Mailbox::new(&Limits { requests: 0, ..*limits }, shards)),
    };
    let connections: Vec<_> = (0..shards).map(connection).collect();
    let mailboxes = connections.iter().map(|connection| Arc::clone(&connection.mailbox)).collect();
    (MatchmakerLoop::new(Clock::start(), matchmaker, inbox, mailboxes, Arc::default()), connections)
}

impl ShardConnection {
    /// Sends the messages of a settle, in order. Messages for which the matchmaker's ring has no
    /// room are kept for the next call of [`flush`](ShardConnection::flush).
    pub fn send(&mut self, mail: impl Iterator<Item = ToMatchmaker>) {
        self.link.send(mail);
    }

    /// Sends pending messages. Returns whether all are sent; the shard may not settle before.
    pub fn flush(&mut self) -> bool {
        self.link.flush()
    }

    /// Returns the next unread grant; `None` if there is none.
    pub fn next_grant(&self) -> Option<Grant> {
        self.mailbox.pop().map(|mail| {
            let Mail::Grant(grant) = mail else { unreachable!("only the matchmaker writes") };
            grant
        })
    }
}
