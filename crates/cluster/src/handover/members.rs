//! Who is there: everybody who says hello, until they are silent for too long or their connection breaks.

use super::ids::{Process, Role};
use ripieno_base::{Nanos, Time};
use std::collections::BTreeMap;

#[derive(Clone, Debug)]
pub(super) struct Members {
    most: usize,
    gone: Nanos,
    heard: BTreeMap<Process, (Role, Time)>,
}

impl Members {
    pub(super) fn new(most: usize, gone: Nanos) -> Members {
        Members { most, gone, heard: BTreeMap::new() }
    }

    /// Hears somebody. Whether they are new; none if there is no place for them.
    pub(super) fn on_hello(&mut self, now: Time, who: Process, role: Role) -> Option<bool> {
        if !self.heard.contains_key(&who) && self.heard.len() >= self.most {
            return None;
        }
        Some(self.heard.insert(who, (role, now)).is_none())
    }

    pub(super) fn remove(&mut self, who: Process) -> Option<Role> {
        self.heard.remove(&who).map(|(role, _)| role)
    }

    pub(super) fn of(&self, role: Role) -> impl Iterator<Item = Process> {
        self.heard.iter().filter(move |(_, (own, _))| *own == role).map(|(&who, _)| who)
    }

    /// Whoever has been silent for too long.
    pub(super) fn silent(&self, now: Time) -> Vec<Process> {
        let silent = self.heard.iter().filter(|(_, (_, heard))| *heard + self.gone <= now);
        silent.map(|(&who, _)| who).collect()
    }
}
