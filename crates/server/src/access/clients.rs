//! Client numbers.
//!
//! Sharing devices between clients needs a table of clients, so a client is a 16-bit number,
//! assigned only here. When all numbers are taken, the client that has been inactive for longest
//! gives its number to the next new client. Number 0 stands for clients that cannot be told apart.

use lru::LruCache;
use parking_lot::Mutex;
use std::net::IpAddr;
use std::num::NonZeroUsize;

/// Maximum number of clients that are distinguished at the same time.
const MAX_CLIENTS: u16 = u16::MAX;
/// Length in bytes to which names are truncated for comparison.
const MAX_NAME_BYTES: usize = 128;

/// Identity of a client, as far as the server knows it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum ClientKey {
    /// Name of the client's token.
    Token(Box<[u8]>),
    /// SHA-256 of the client's certificate.
    Certificate([u8; 32]),
    /// Value of a header that the client sends.
    Header(Box<[u8]>),
    /// Address of the client.
    Peer(IpAddr),
}

impl ClientKey {
    pub(super) fn token(name: &str) -> ClientKey {
        ClientKey::Token(truncate_name(name.as_bytes()))
    }

    pub(super) fn header(id: &[u8]) -> ClientKey {
        ClientKey::Header(truncate_name(id))
    }

    /// Identifies a client by its address. In IPv6 only the upper half counts, because the client
    /// chooses the lower one.
    pub(super) fn peer(address: IpAddr) -> ClientKey {
        ClientKey::Peer(match address.to_canonical() {
            IpAddr::V6(address) => IpAddr::V6((address.to_bits() >> 64 << 64).into()),
            v4 => v4,
        })
    }

    /// Returns the name that an operator knows the client by.
    fn name(&self) -> String {
        match self {
            ClientKey::Token(name) => format!("token {}", String::from_utf8_lossy(name)),
            ClientKey::Header(name) => String::from_utf8_lossy(name).into_owned(),
            ClientKey::Certificate([a, b, c, d, ..]) => format!("certificate {a:02x}{b:02x}{c:02x}{d:02x}…"),
            ClientKey::Peer(address) => address.to_string(),
        }
    }
}

fn truncate_name(name: &[u8]) -> Box<[u8]> {
    name[..name.len().min(MAX_NAME_BYTES)].into()
}

/// Numbers of the most recently active clients.
pub(super) struct ClientNumbers(Mutex<LruCache<ClientKey, u16>>);

impl Default for ClientNumbers {
    fn default() -> ClientNumbers {
        ClientNumbers::with_capacity(MAX_CLIENTS)
    }
}

impl ClientNumbers {
    fn with_capacity(most: u16) -> ClientNumbers {
        let most = NonZeroUsize::new(most.into()).unwrap_or(NonZeroUsize::MIN);
        // The cache grows on demand, because most servers have few clients.
        let mut numbers = LruCache::unbounded();
        numbers.resize(most);
        ClientNumbers(Mutex::new(numbers))
    }

    /// Returns the name of the client that has this number now. Looks at all of them: for pages
    /// that a person reads.
    pub(super) fn name(&self, number: u16) -> Option<String> {
        let numbers = self.0.lock();
        numbers.iter().find(|(_, other)| **other == number).map(|(key, _)| key.name())
    }

    /// Returns the client's number, which is stable while the client is among the most recently
    /// active.
    pub(super) fn number(&self, key: ClientKey) -> u16 {
        let mut numbers = self.0.lock();
        if let Some(&number) = numbers.get(&key) {
            return number;
        }
        let is_full = numbers.len() == numbers.cap().get();
        let freed = if is_full { numbers.pop_lru().map(|(_, number)| number) } else { None };
        // Numbers are assigned in ascending order until all are used, so the next one follows from
        // the size.
        let number = freed.unwrap_or_else(|| u16::try_from(numbers.len() + 1).unwrap_or(MAX_CLIENTS));
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
        let clients = ClientNumbers::default();
        let keys = [ClientKey::token("a"), ClientKey::header(b"a"), ClientKey::Certificate([0; 32]), header(7)];
        let numbers = keys.clone().map(|key| clients.number(key));
        assert_eq!(numbers, [1, 2, 3, 4]);
        assert_eq!(keys.map(|key| clients.number(key)), numbers);
        let names = numbers.map(|number| clients.name(number).unwrap());
        assert_eq!(names[..3], ["token a", "a", "certificate 00000000…"]);
        assert_eq!((clients.name(9), clients.number(ClientKey::peer([10, 0, 0, 9].into()))), (None, 5));
        assert_eq!(clients.name(5).unwrap(), "10.0.0.9");
    }

    #[test]
    fn the_table_is_bounded_and_the_longest_silent_client_makes_room() {
        let clients = ClientNumbers::with_capacity(3);
        assert_eq!([1, 2, 3].map(|id| clients.number(header(id))), [1, 2, 3]);
        assert_eq!(clients.number(header(1)), 1);
        assert_eq!(clients.number(header(4)), 2, "client 2 was silent for longest");
        assert_eq!((clients.number(header(1)), clients.number(header(3))), (1, 3));
        let all = ClientNumbers::default();
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
