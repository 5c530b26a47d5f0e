//! Clients as small numbers.
//!
//! Whoever shares devices between clients needs a table of them, so a client is a number of 16 bits. Numbers are given
//! here and nowhere else. There are fewer of them than clients in the world: the client that has been silent for longest
//! gives its number to the next newcomer. 0 is nobody's: it stands for clients that cannot be told apart.

use lru::LruCache;
use parking_lot::Mutex;
use std::net::IpAddr;
use std::num::NonZeroUsize;

/// Clients that are told apart at once.
const MOST_CLIENTS: u16 = u16::MAX;
/// Longer names are told apart by so many bytes.
const MAX_NAME_BYTES: usize = 128;

/// Who a client is, as far as the server knows.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum ClientKey {
    /// By the name of its token.
    Token(Box<[u8]>),
    /// By the SHA-256 of its certificate.
    Certificate([u8; 32]),
    /// By what it says.
    Header(Box<[u8]>),
    /// By its address.
    Peer(IpAddr),
}

impl ClientKey {
    pub(super) fn token(name: &str) -> ClientKey {
        ClientKey::Token(cut(name.as_bytes()))
    }

    pub(super) fn header(id: &[u8]) -> ClientKey {
        ClientKey::Header(cut(id))
    }

    /// Of IPv6 the upper half: the lower one is the client's to choose.
    pub(super) fn peer(address: IpAddr) -> ClientKey {
        ClientKey::Peer(match address.to_canonical() {
            IpAddr::V6(address) => IpAddr::V6((address.to_bits() >> 64 << 64).into()),
            v4 => v4,
        })
    }
}

fn cut(name: &[u8]) -> Box<[u8]> {
    name[..name.len().min(MAX_NAME_BYTES)].into()
}

/// The numbers of the clients that were seen last.
pub(super) struct Clients(Mutex<LruCache<ClientKey, u16>>);

impl Default for Clients {
    fn default() -> Clients {
        Clients::with_capacity(MOST_CLIENTS)
    }
}

impl Clients {
    fn with_capacity(most: u16) -> Clients {
        let most = NonZeroUsize::new(most.into()).unwrap_or(NonZeroUsize::MIN);
        // Grows as clients come: most servers have few.
        let mut numbers = LruCache::unbounded();
        numbers.resize(most);
        Clients(Mutex::new(numbers))
    }

    /// The client's number: the same as long as it is among those seen last.
    pub(super) fn number(&self, key: ClientKey) -> u16 {
        let mut numbers = self.0.lock();
        if let Some(&number) = numbers.get(&key) {
            return number;
        }
        let is_full = numbers.len() == numbers.cap().get();
        let freed = if is_full { numbers.pop_lru().map(|(_, number)| number) } else { None };
        // Numbers are taken in turn until all are given, so that the count of clients is the last number.
        let number = freed.unwrap_or_else(|| u16::try_from(numbers.len() + 1).unwrap_or(MOST_CLIENTS));
        numbers.put(key, number);
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn header(id: u32) -> ClientKey {
        ClientKey::header(&id.to_le_bytes())
    }

    #[test]
    fn a_client_keeps_its_number_and_is_not_taken_for_another() {
        let clients = Clients::default();
        let keys = [ClientKey::token("a"), ClientKey::header(b"a"), ClientKey::Certificate([0; 32]), header(7)];
        let numbers = keys.clone().map(|key| clients.number(key));
        assert_eq!(numbers, [1, 2, 3, 4]);
        assert_eq!(keys.map(|key| clients.number(key)), numbers);
    }

    #[test]
    fn the_table_is_bounded_and_the_longest_silent_client_makes_room() {
        let clients = Clients::with_capacity(3);
        assert_eq!([1, 2, 3].map(|id| clients.number(header(id))), [1, 2, 3]);
        assert_eq!(clients.number(header(1)), 1);
        assert_eq!(clients.number(header(4)), 2, "client 2 was silent for longest");
        assert_eq!((clients.number(header(1)), clients.number(header(3))), (1, 3));
        let all = Clients::default();
        let given: BTreeSet<u16> = (0..200_000).map(|id| all.number(header(id))).collect();
        assert_eq!((given.len(), given.first(), given.last()), (65_535, Some(&1), Some(&65_535)));
        assert_eq!(all.0.lock().len(), 65_535);
    }

    #[test]
    fn an_ipv6_client_does_not_multiply_within_its_network() {
        let peer = |text: &str| ClientKey::peer(text.parse().unwrap());
        assert_eq!(peer("2001:db8::1"), peer("2001:db8::2:3"));
        assert_ne!(peer("2001:db8::1"), peer("2001:db8:0:1::1"));
        assert_eq!(peer("::ffff:10.0.0.1"), peer("10.0.0.1"));
        assert_ne!(peer("10.0.0.1"), peer("10.0.0.2"));
        let long = |last: u8| ClientKey::header(&[&[b'a'; 200][..], &[last]].concat());
        assert_eq!(long(1), long(2));
    }
}
