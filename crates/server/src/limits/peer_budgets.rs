//! Memory budgets per peer, so that one peer cannot use up the server's budget.

use super::budget::MemoryBudget;
use super::slots::peer_group;
use crate::config::ServerConfig;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Weak};

/// Minimum number of remembered peers before a sweep.
const MIN_SWEEP_PEERS: usize = 64;

pub(crate) struct PeerBudgets {
    whole: Arc<MemoryBudget>,
    per_peer: Option<usize>,
    peers: Mutex<PeerTable>,
}

#[derive(Default)]
struct PeerTable {
    budgets: BTreeMap<u128, Weak<MemoryBudget>>,
    /// Number of peers at which those that have left are removed.
    sweep_at: usize,
}

impl PeerBudgets {
    pub(crate) fn new(whole: Arc<MemoryBudget>, config: &ServerConfig) -> PeerBudgets {
        PeerBudgets { whole, per_peer: config.max_held_per_peer, peers: Mutex::default() }
    }

    /// Returns the budget shared by all connections of a peer. Loopback has no limit unless one is
    /// configured, as for slots.
    pub(crate) fn budget_of(&self, peer: IpAddr) -> Arc<MemoryBudget> {
        let bound = self.whole.bound();
        let unless_set = if peer.to_canonical().is_loopback() { bound } else { bound / 2 };
        let share = self.per_peer.unwrap_or(unless_set);
        if share >= bound {
            return self.whole.clone();
        }
        let mut peers = self.peers.lock();
        let peer = peer_group(peer);
        if let Some(budget) = peers.budgets.get(&peer).and_then(Weak::upgrade) {
            return budget;
        }
        if peers.budgets.len() >= peers.sweep_at {
            peers.budgets.retain(|_, budget| budget.strong_count() > 0);
            peers.sweep_at = (2 * peers.budgets.len()).max(MIN_SWEEP_PEERS);
        }
        let budget = MemoryBudget::child(&self.whole, share);
        peers.budgets.insert(peer, Arc::downgrade(&budget));
        budget
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::ProblemKind;

    fn shares(per_peer: Option<usize>) -> PeerBudgets {
        let config = ServerConfig { max_held_per_peer: per_peer, ..ServerConfig::default() };
        PeerBudgets::new(MemoryBudget::new(100), &config)
    }

    fn of(shares: &PeerBudgets, peer: &str) -> Arc<MemoryBudget> {
        shares.budget_of(peer.parse().unwrap())
    }

    #[test]
    fn a_peer_holds_half_and_leaves_the_rest_to_others() {
        let shares = shares(None);
        let first = of(&shares, "192.0.2.1").reserve(50).unwrap();
        let refused = of(&shares, "::ffff:192.0.2.1").reserve(1).unwrap_err();
        assert!(refused.kind == ProblemKind::Overloaded && refused.message.contains("50 of 50"), "{}", refused.message);
        assert_eq!(of(&shares, "192.0.2.1").reserve(51).unwrap_err().kind, ProblemKind::TooLarge);
        let _second = of(&shares, "2001:db8::1").reserve(30).unwrap();
        assert!(of(&shares, "2001:db8::2").reserve(21).is_err(), "one network is one peer");
        let refused = of(&shares, "192.0.2.3").reserve(21).unwrap_err();
        assert!(
            refused.kind == ProblemKind::Overloaded && refused.message.contains("80 of 100"),
            "{}",
            refused.message
        );
        // A refusal by the parent takes nothing from the child.
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
            shares.budget_of(IpAddr::V4(peer.into()));
        }
        assert!(shares.peers.lock().budgets.len() <= MIN_SWEEP_PEERS + 1);
        assert!(Arc::ptr_eq(&stays, &of(&shares, "192.0.2.1")));
    }
}
