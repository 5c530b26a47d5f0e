//! How the budget is divided between peers: each has a part of it that it cannot exceed, so that one cannot take all.

use super::budget::Budget;
use super::places::group;
use crate::config::ServerConfig;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Weak};

/// Peers that may be remembered after they have left.
const LEAST_REMEMBERED: usize = 64;

pub(crate) struct Shares {
    whole: Arc<Budget>,
    per_peer: Option<usize>,
    peers: Mutex<Peers>,
}

#[derive(Default)]
struct Peers {
    budgets: BTreeMap<u128, Weak<Budget>>,
    /// How many there may be before those that have left are removed.
    sweep_at: usize,
}

impl Shares {
    pub(crate) fn new(whole: Arc<Budget>, config: &ServerConfig) -> Shares {
        Shares { whole, per_peer: config.max_held_per_peer, peers: Mutex::default() }
    }

    /// The budget of a peer: one for all its connections. Loopback has no share unless one is set, as for places.
    pub(crate) fn of(&self, peer: IpAddr) -> Arc<Budget> {
        let bound = self.whole.bound();
        let unless_set = if peer.to_canonical().is_loopback() { bound } else { bound / 2 };
        let share = self.per_peer.unwrap_or(unless_set);
        if share >= bound {
            return self.whole.clone();
        }
        let mut peers = self.peers.lock();
        let peer = group(peer);
        if let Some(budget) = peers.budgets.get(&peer).and_then(Weak::upgrade) {
            return budget;
        }
        if peers.budgets.len() >= peers.sweep_at {
            peers.budgets.retain(|_, budget| budget.strong_count() > 0);
            peers.sweep_at = (2 * peers.budgets.len()).max(LEAST_REMEMBERED);
        }
        let budget = Budget::part(&self.whole, share);
        peers.budgets.insert(peer, Arc::downgrade(&budget));
        budget
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::Kind;

    fn shares(per_peer: Option<usize>) -> Shares {
        let config = ServerConfig { max_held_per_peer: per_peer, ..ServerConfig::default() };
        Shares::new(Budget::new(100), &config)
    }

    fn of(shares: &Shares, peer: &str) -> Arc<Budget> {
        shares.of(peer.parse().unwrap())
    }

    #[test]
    fn a_peer_holds_half_and_leaves_the_rest_to_others() {
        let shares = shares(None);
        let first = of(&shares, "192.0.2.1").reserve(50).unwrap();
        let refused = of(&shares, "::ffff:192.0.2.1").reserve(1).unwrap_err();
        assert!(refused.kind == Kind::Overloaded && refused.message.contains("50 of 50"), "{}", refused.message);
        assert_eq!(of(&shares, "192.0.2.1").reserve(51).unwrap_err().kind, Kind::TooLarge);
        let _second = of(&shares, "2001:db8::1").reserve(30).unwrap();
        assert!(of(&shares, "2001:db8::2").reserve(21).is_err(), "one network is one peer");
        let refused = of(&shares, "192.0.2.3").reserve(21).unwrap_err();
        assert!(refused.kind == Kind::Overloaded && refused.message.contains("80 of 100"), "{}", refused.message);
        // A refusal by the whole takes nothing of the share.
        drop(first);
        assert!(of(&shares, "192.0.2.3").reserve(50).is_ok());
        assert_eq!(shares.whole.held(), 30);
    }

    #[test]
    fn loopback_has_no_share_unless_one_is_set() {
        assert!(of(&shares(None), "::ffff:127.0.0.1").reserve(100).is_ok());
        assert!(of(&shares(Some(70)), "127.0.0.1").reserve(71).is_err());
    }

    #[test]
    fn peers_that_have_left_are_forgotten() {
        let shares = shares(None);
        let stays = of(&shares, "192.0.2.1");
        for peer in 0..100_000u32 {
            shares.of(IpAddr::V4(peer.into()));
        }
        assert!(shares.peers.lock().budgets.len() <= LEAST_REMEMBERED + 1);
        assert!(Arc::ptr_eq(&stays, &of(&shares, "192.0.2.1")));
    }
}
