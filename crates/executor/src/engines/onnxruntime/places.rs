//! GPUs of an engine, or its CPU, and the number of batches that run there concurrently.

use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The places where an engine's devices compute.
pub(super) struct EnginePlaces {
    places: Vec<PlaceUse>,
    /// Number of open devices at each place.
    devices: Mutex<Vec<usize>>,
}

struct PlaceUse {
    /// Number of the GPU; `None` for the CPU.
    ordinal: Option<u32>,
    /// Largest number of concurrent batches, summed over all open devices.
    concurrent: AtomicUsize,
}

impl EnginePlaces {
    /// Creates a place for each GPU, or one for the CPU if there are none.
    pub(super) fn new(gpus: &[u32]) -> Arc<EnginePlaces> {
        let place = |ordinal| PlaceUse { ordinal, concurrent: AtomicUsize::new(0) };
        let places: Vec<PlaceUse> = match gpus {
            [] => vec![place(None)],
            gpus => gpus.iter().map(|&gpu| place(Some(gpu))).collect(),
        };
        let devices = Mutex::new(vec![0; places.len()]);
        Arc::new(EnginePlaces { places, devices })
    }

    /// Returns the numbers of the GPUs; empty for the CPU.
    pub(super) fn ordinals(&self) -> Vec<u32> {
        self.places.iter().filter_map(|place| place.ordinal).collect()
    }

    pub(super) fn all(self: &Arc<EnginePlaces>) -> impl Iterator<Item = EnginePlace> {
        (0..self.places.len()).map(|at| EnginePlace { places: Arc::clone(self), at })
    }
}

/// One of the places.
pub(super) struct EnginePlace {
    places: Arc<EnginePlaces>,
    at: usize,
}

impl EnginePlace {
    pub(super) fn ordinal(&self) -> Option<u32> {
        self.places.places[self.at].ordinal
    }

    /// Returns the largest number of concurrent batches of all open devices at the place.
    pub(super) fn concurrent(&self) -> usize {
        self.places.places[self.at].concurrent.load(Ordering::Relaxed)
    }
}

/// Adds a device and its largest number of concurrent batches to a place, while the device is open.
pub(super) struct ConcurrencyClaim {
    place: EnginePlace,
    own: usize,
}

impl ConcurrencyClaim {
    /// Claims the place with the fewest devices.
    pub(super) fn new(places: &Arc<EnginePlaces>, own: usize) -> ConcurrencyClaim {
        let mut devices = places.devices.lock();
        let at = (0..devices.len()).min_by_key(|&at| devices[at]).expect("an engine has a place");
        devices[at] += 1;
        places.places[at].concurrent.fetch_add(own, Ordering::Relaxed);
        ConcurrencyClaim { place: EnginePlace { places: Arc::clone(places), at }, own }
    }

    /// Returns the index of the place.
    pub(super) fn place(&self) -> usize {
        self.place.at
    }
}

impl Drop for ConcurrencyClaim {
    fn drop(&mut self) {
        let EnginePlace { places, at } = &self.place;
        places.devices.lock()[*at] -= 1;
        places.places[*at].concurrent.fetch_sub(self.own, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_spread_over_the_gpus() {
        let places = EnginePlaces::new(&[4, 2]);
        let open = |lanes| ConcurrencyClaim::new(&places, lanes);
        let (first, second, third) = (open(2), open(1), open(3));
        assert_eq!([&first, &second, &third].map(ConcurrencyClaim::place), [0, 1, 0]);
        let seen = || places.all().map(|place| (place.ordinal(), place.concurrent())).collect::<Vec<_>>();
        assert_eq!(seen(), [(Some(4), 5), (Some(2), 1)]);
        drop(second);
        assert_eq!(open(7).place(), 1, "a device that is opened again gets the GPU of the one that was closed");
        assert_eq!(seen(), [(Some(4), 5), (Some(2), 0)]);
        drop((first, third));
        assert_eq!(EnginePlaces::new(&[]).all().map(|place| place.ordinal()).collect::<Vec<_>>(), [None]);
    }
}
