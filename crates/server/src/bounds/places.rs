//! Places for connections: so many in all, so many of one peer.
//!
//! When all are taken, the one that has been idle for the longest goes, of the same peer if that has taken its share. One
//! that is in the middle of a call is never closed for another's sake.

use super::connection::Connection;
use crate::config::ServerConfig;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

/// How often it is looked whether one of the connections that take all places has become idle.
const LOOK_EVERY: Duration = Duration::from_millis(50);

pub(crate) struct Places {
    bound: usize,
    per_peer: Option<usize>,
    open: Mutex<Open>,
    /// Told when a place becomes free.
    freed: Notify,
}

#[derive(Default)]
struct Open {
    connections: BTreeMap<u64, Arc<Connection>>,
    next: u64,
}

/// A place, free again when this is dropped.
pub(crate) struct Place {
    places: Arc<Places>,
    ticket: u64,
}

/// Why a connection has no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoPlace {
    /// All are taken by connections with calls; one may become free.
    Full,
    /// The peer has its share, all with calls.
    PeerFull,
}

impl Places {
    pub(crate) fn new(config: &ServerConfig) -> Arc<Places> {
        let (bound, per_peer) = (config.max_connections.max(1), config.max_connections_per_peer);
        Arc::new(Places { bound, per_peer, open: Mutex::default(), freed: Notify::new() })
    }

    /// Takes a place, that of an idle connection if need be.
    pub(crate) fn take(self: &Arc<Places>, connection: &Arc<Connection>) -> Result<Place, NoPlace> {
        let mut open = self.open.lock();
        let peer = group(connection.peer);
        let share = self.share(connection.peer);
        let of_peer = || open.connections.values().filter(|other| group(other.peer) == peer).count();
        let crowded = share < self.bound && of_peer() >= share;
        if crowded {
            open.evict(|other| group(other.peer) == peer).ok_or(NoPlace::PeerFull)?;
        } else if open.connections.len() >= self.bound {
            open.evict(|_| true).ok_or(NoPlace::Full)?;
        }
        connection.placed();
        let ticket = open.next;
        open.next += 1;
        open.connections.insert(ticket, connection.clone());
        Ok(Place { places: self.clone(), ticket })
    }

    /// Waits until a place may be free, or a connection idle.
    pub(crate) async fn freed(&self) {
        let _ = tokio::time::timeout(LOOK_EVERY, self.freed.notified()).await;
    }

    /// Loopback is a proxy's or a test's address more often than one client's, so it has no share unless one is set.
    fn share(&self, peer: IpAddr) -> usize {
        let unless_set = if peer.to_canonical().is_loopback() { self.bound } else { (self.bound / 4).max(1) };
        self.per_peer.unwrap_or(unless_set)
    }
}

impl Open {
    /// Closes the connection that has been idle for the longest of those that `may` go.
    fn evict(&mut self, may: impl Fn(&Connection) -> bool) -> Option<()> {
        let idle = |(&ticket, other): (&u64, &Arc<Connection>)| Some((other.idle_since()?, ticket));
        let oldest = self.connections.iter().filter(|(_, other)| may(other)).filter_map(idle).min()?.1;
        let gone = self.connections.remove(&oldest)?;
        tracing::debug!(peer = %gone.peer, "an idle connection is closed to make room");
        gone.evicted.notify_one();
        Some(())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.open.lock().connections.remove(&self.ticket);
        self.places.freed.notify_one();
    }
}

/// A peer's address; of IPv6 the network that one customer gets, because its addresses cost nothing.
pub(super) fn group(peer: IpAddr) -> u128 {
    match peer.to_canonical() {
        IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
        IpAddr::V6(address) => address.to_bits() >> 64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bounds::budget::Budget;
    use hyper::Version;
    use std::time::Instant;

    fn places(bound: usize, per_peer: Option<usize>) -> (Arc<Places>, ServerConfig) {
        let config =
            ServerConfig { max_connections: bound, max_connections_per_peer: per_peer, ..ServerConfig::default() };
        (Places::new(&config), config)
    }

    fn from(address: &str, config: &ServerConfig) -> Arc<Connection> {
        Connection::new(address.parse().unwrap(), Budget::new(0), config)
    }

    #[test]
    fn the_longest_idle_goes_and_the_busy_stay() {
        let (places, config) = places(2, None);
        let (busy, idle, late) = (from("127.0.0.1", &config), from("127.0.0.1", &config), from("127.0.0.1", &config));
        busy.begin(Version::HTTP_11, false);
        let _places = (places.take(&busy).unwrap(), places.take(&idle).unwrap());
        let _third = places.take(&late).unwrap();
        late.begin(Version::HTTP_11, false);
        assert_eq!(places.take(&from("127.0.0.1", &config)).err(), Some(NoPlace::Full));
        late.end();
        assert!(places.take(&from("127.0.0.1", &config)).is_ok());
    }

    #[test]
    fn time_without_a_place_does_not_count() {
        let (places, config) = places(1, None);
        let connection = from("127.0.0.1", &config);
        let made = connection.idle_since().unwrap();
        while Instant::now() <= made {}
        let _place = places.take(&connection).unwrap();
        assert!(connection.idle_since().unwrap() > made);
    }

    #[test]
    fn loopback_has_no_share_however_it_is_written() {
        let (places, config) = places(8, None);
        let mut taken = Vec::new();
        for address in ["127.0.0.1", "::ffff:127.0.0.1", "::1"].into_iter().cycle().take(8) {
            let connection = from(address, &config);
            connection.begin(Version::HTTP_11, false);
            taken.push(places.take(&connection).unwrap_or_else(|why| panic!("{address}: {why:?}")));
        }
        assert_eq!(places.take(&from("::ffff:127.0.0.1", &config)).err(), Some(NoPlace::Full));
    }

    #[test]
    fn a_peer_has_a_share() {
        let (places, config) = places(8, None);
        let busy = |address: &str| {
            let connection = from(address, &config);
            connection.begin(Version::HTTP_2, false);
            places.take(&connection)
        };
        let _two = (busy("192.0.2.1").unwrap(), busy("192.0.2.1").unwrap());
        assert_eq!(busy("192.0.2.1").err(), Some(NoPlace::PeerFull));
        let _other = busy("192.0.2.2").unwrap();
        let _six = (busy("2001:db8::1").unwrap(), busy("2001:db8::2").unwrap());
        assert_eq!(busy("2001:db8::3").err(), Some(NoPlace::PeerFull));
        assert!(busy("2001:db8:0:1::1").is_ok());
    }
}
