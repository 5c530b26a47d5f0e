//! The backends' records of accepted orders: the time at which a scheduler commanded all of them,
//! and whether two did.

use anyhow::Context;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;

/// An accepted order.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Order {
    at_ns: u128,
    /// The epoch and the number of the claim in it.
    claim: (u64, u64),
    holder: String,
}

/// The accepted orders of all backends so far.
#[derive(Default)]
pub(super) struct OrderLog {
    /// The files, each with an incomplete last line.
    files: Vec<(File, String)>,
    /// The last order of each device.
    last: BTreeMap<(usize, usize), Order>,
    /// Time at which each device first followed an epoch.
    begun: BTreeMap<(u64, (usize, usize)), u128>,
    holders: BTreeMap<u64, String>,
    /// Violations: a device went back to an earlier claim, or an epoch has two holders.
    pub(super) split: Vec<String>,
}

impl OrderLog {
    /// Adds the orders of this file.
    pub(super) fn add(&mut self, path: &str) -> anyhow::Result<()> {
        self.files.push((
            File::options()
                .read(true)
                .append(true)
                .create(true)
                .open(path)
                .with_context(|| format!("cannot open {path}"))?,
            String::new(),
        ));
        Ok(())
    }

    /// Reads the lines written since the last call.
    pub(super) fn read(&mut self) -> anyhow::Result<()> {
        let mut read = Vec::new();
        for (at, (file, rest)) in self.files.iter_mut().enumerate() {
            file.read_to_string(rest)?;
            let whole = rest.rfind('\n').map_or(0, |end| end + 1);
            read.extend(rest.drain(..whole).collect::<String>().lines().map(|line| (at, line.to_owned())));
        }
        for (file, line) in read {
            self.take(file, &line).with_context(|| format!("{line:?} is no order"))?;
        }
        Ok(())
    }

    fn take(&mut self, file: usize, line: &str) -> anyhow::Result<()> {
        let mut words = line.split(' ');
        let mut word = || words.next().context("it is too short");
        let (at_ns, device) = (word()?.parse()?, (file, word()?.parse()?));
        let order = Order { at_ns, claim: (word()?.parse()?, word()?.parse()?), holder: word()?.to_owned() };
        let epoch = order.claim.0;
        if let Some(last) = self.last.get(&device).filter(|last| last.claim > order.claim) {
            self.split.push(format!("device {device:?} accepted {order:?} after {last:?}"));
        }
        let holder = self.holders.entry(epoch).or_insert_with(|| order.holder.clone());
        if *holder != order.holder {
            self.split.push(format!("epoch {epoch} is of {holder} and of {}", order.holder));
        }
        self.begun.entry((epoch, device)).or_insert(order.at_ns);
        self.last.insert(device, order);
        Ok(())
    }

    /// Returns the latest epoch and its holder.
    pub(super) fn latest(&self) -> Option<(u64, &str)> {
        self.holders.last_key_value().map(|(&epoch, holder)| (epoch, holder.as_str()))
    }

    /// Returns the time at which this number of devices followed an epoch later than `over`.
    pub(super) fn commanded(&self, over: u64, devices: usize) -> Option<u128> {
        let (latest, _) = self.latest().filter(|(epoch, _)| *epoch > over)?;
        let times: Vec<u128> =
            self.begun.range((latest, (0, 0))..=(latest, (usize::MAX, usize::MAX))).map(|(_, &at)| at).collect();
        if times.len() < devices { None } else { times.into_iter().max() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_leader_and_a_second_one_are_seen_from_the_followed_orders() {
        let mut orders = OrderLog::default();
        for line in ["5 0 1 1 a claim", "6 1 1 2 a claim", "7 0 1 1 a batch", "9 0 2 1 b claim"] {
            orders.take(0, line).unwrap();
        }
        assert_eq!((orders.commanded(0, 2), orders.commanded(1, 1)), (None, Some(9)));
        // While a spare takes over, one device may follow the old scheduler and another the new
        // one.
        orders.take(0, "10 1 1 2 a batch").unwrap();
        orders.take(0, "12 1 2 2 b claim").unwrap();
        assert_eq!((orders.commanded(1, 2), orders.latest()), (Some(12), Some((2, "b"))));
        assert!(orders.split.is_empty());
        orders.take(0, "13 0 1 1 a batch").unwrap();
        orders.take(0, "14 0 2 1 a batch").unwrap();
        assert_eq!(orders.split.len(), 2, "{:?}", orders.split);
        assert!(orders.take(0, "14 0 2").is_err());
    }
}
