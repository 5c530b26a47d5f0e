//! Connection slots: a limit on all connections and on each peer's.
//!
//! When all slots are taken, the connection that has been idle for longest is closed; a peer at its
//! own limit closes one of its own. A connection with a call in progress is never closed to make
//! room.

use super::connection::ClientConnection;
use crate::config::ServerConfig;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

/// Interval at which full slots are checked for a connection that has become idle.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

pub(crate) struct ConnectionSlots {
    bound: usize,
    per_peer: Option<usize>,
    open: Mutex<OpenConnections>,
    /// Notified when a slot becomes free.
    freed: Notify,
}

#[derive(Default)]
struct OpenConnections {
    connections: BTreeMap<u64, Arc<ClientConnection>>,
    next: u64,
}

/// A connection's slot, freed on drop.
pub(crate) struct ConnectionSlot {
    slots: Arc<ConnectionSlots>,
    ticket: u64,
}

/// Reason for which a connection gets no slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoSlot {
    /// All slots are taken by connections with calls; one may become free.
    Full,
    /// The peer is at its limit, and all its connections have calls.
    PeerFull,
}

impl ConnectionSlots {
    pub(crate) fn new(config: &ServerConfig) -> Arc<ConnectionSlots> {
        let (bound, per_peer) = (config.max_connections.max(1), config.max_connections_per_peer);
        Arc::new(ConnectionSlots { bound, per_peer, open: Mutex::default(), freed: Notify::new() })
    }

    /// Acquires a slot, closing an idle connection if necessary.
    pub(crate) fn acquire(
        self: &Arc<ConnectionSlots>,
        connection: &Arc<ClientConnection>,
    ) -> Result<ConnectionSlot, NoSlot> {
        let mut open = self.open.lock();
        let peer = peer_group(connection.peer);
        let share = self.share(connection.peer);
        let of_peer = || open.connections.values().filter(|other| peer_group(other.peer) == peer).count();
        let crowded = share < self.bound && of_peer() >= share;
        if crowded {
            open.evict(|other| peer_group(other.peer) == peer).ok_or(NoSlot::PeerFull)?;
        } else if open.connections.len() >= self.bound {
            open.evict(|_| true).ok_or(NoSlot::Full)?;
        }
        connection.on_slot_acquired();
        let ticket = open.next;
        open.next += 1;
        open.connections.insert(ticket, connection.clone());
        Ok(ConnectionSlot { slots: self.clone(), ticket })
    }

    /// Waits until a slot or an idle connection may be available.
    pub(crate) async fn freed(&self) {
        let _ = tokio::time::timeout(POLL_INTERVAL, self.freed.notified()).await;
    }

    /// Returns the limit of a peer. Loopback has none by default, because it is more often a proxy
    /// or a test than a single client.
    fn share(&self, peer: IpAddr) -> usize {
        let unless_set = if peer.to_canonical().is_loopback() { self.bound } else { (self.bound / 4).max(1) };
        self.per_peer.unwrap_or(unless_set)
    }
}

impl OpenConnections {
    /// Closes the longest idle connection among those that `may` accepts.
    fn evict(&mut self, may: impl Fn(&ClientConnection) -> bool) -> Option<()> {
        let idle = |(&ticket, other): (&u64, &Arc<ClientConnection>)| Some((other.idle_since()?, ticket));
        let oldest = self.connections.iter().filter(|(_, other)| may(other)).filter_map(idle).min()?.1;
        let gone = self.connections.remove(&oldest)?;
        tracing::debug!(peer = %gone.peer, "an idle connection is closed to make room");
        gone.evicted.notify_one();
        Some(())
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.slots.open.lock().connections.remove(&self.ticket);
        self.slots.freed.notify_one();
    }
}

/// Returns the group of a peer's address. In IPv6 it is the /64 network, because a client has many
/// addresses.
pub(super) fn peer_group(peer: IpAddr) -> u128 {
    match peer.to_canonical() {
        IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
        IpAddr::V6(address) => address.to_bits() >> 64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::budget::MemoryBudget;
    use hyper::Version;
    use std::time::Instant;

    fn slots(bound: usize, per_peer: Option<usize>) -> (Arc<ConnectionSlots>, ServerConfig) {
        let config =
            ServerConfig { max_connections: bound, max_connections_per_peer: per_peer, ..ServerConfig::default() };
        (ConnectionSlots::new(&config), config)
    }

    fn from(address: &str, config: &ServerConfig) -> Arc<ClientConnection> {
        ClientConnection::new(address.parse().unwrap(), MemoryBudget::new(0), config)
    }

    #[test]
    fn the_longest_idle_goes_and_the_busy_stay() {
        let (slots, config) = slots(2, None);
        let (busy, idle, late) = (from("127.0.0.1", &config), from("127.0.0.1", &config), from("127.0.0.1", &config));
        busy.begin(Version::HTTP_11, false);
        let _slots = (slots.acquire(&busy).unwrap(), slots.acquire(&idle).unwrap());
        let _third = slots.acquire(&late).unwrap();
        late.begin(Version::HTTP_11, false);
        assert_eq!(slots.acquire(&from("127.0.0.1", &config)).err(), Some(NoSlot::Full));
        late.end();
        assert!(slots.acquire(&from("127.0.0.1", &config)).is_ok());
    }

    #[test]
    fn time_without_a_slot_does_not_count() {
        let (slots, config) = slots(1, None);
        let connection = from("127.0.0.1", &config);
        let made = connection.idle_since().unwrap();
        while Instant::now() <= made {}
        let _slot = slots.acquire(&connection).unwrap();
        assert!(connection.idle_since().unwrap() > made);
    }

    #[test]
    fn loopback_has_no_share_however_it_is_written() {
        let (slots, config) = slots(8, None);
        let mut taken = Vec::new();
        for address in ["127.0.0.1", "::ffff:127.0.0.1", "::1"].into_iter().cycle().take(8) {
            let connection = from(address, &config);
            connection.begin(Version::HTTP_11, false);
            taken.push(slots.acquire(&connection).unwrap_or_else(|why| panic!("{address}: {why:?}")));
        }
        assert_eq!(slots.acquire(&from("::ffff:127.0.0.1", &config)).err(), Some(NoSlot::Full));
    }

    #[test]
    fn a_peer_has_a_share() {
        let (slots, config) = slots(8, None);
        let busy = |address: &str| {
            let connection = from(address, &config);
            connection.begin(Version::HTTP_2, false);
            slots.acquire(&connection)
        };
        let _two = (busy("192.0.2.1").unwrap(), busy("192.0.2.1").unwrap());
        assert_eq!(busy("192.0.2.1").err(), Some(NoSlot::PeerFull));
        let _other = busy("192.0.2.2").unwrap();
        let _six = (busy("2001:db8::1").unwrap(), busy("2001:db8::2").unwrap());
        assert_eq!(busy("2001:db8::3").err(), Some(NoSlot::PeerFull));
        assert!(busy("2001:db8:0:1::1").is_ok());
    }
}
