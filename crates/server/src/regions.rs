//! Shared memory in which clients leave inputs and find outputs, instead of sending them.
//!
//! A client registers a range of a POSIX shared-memory object under a name of its choice. The object stays the client's: it may
//! shrink or go at any moment. So nothing is mapped, since touching a page that is gone would end the server; bytes are copied
//! through the descriptor, after a look at how large the object is now, and what was copied is checked like any other tensor.

pub(crate) mod request;

use crate::access::Owner;
use crate::problem::{Kind, Problem};
use parking_lot::Mutex;
use ripieno_wire::Place;
use rustix::fs::{Mode, OFlags};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Where Linux has its POSIX shared-memory objects. Opened as files: some libraries' shm_open follows links.
const FOLDER: &str = "/dev/shm";
/// Each holds a file descriptor.
const MAX_REGIONS: usize = 1024;
/// So that one owner leaves room for others.
const MAX_REGIONS_OF_ONE: usize = MAX_REGIONS / 2;
/// The longest name of a region, and the longest key, which is a file's name.
const MAX_NAME_BYTES: usize = 255;

/// Part of a shared-memory object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) key: String,
    pub(crate) offset: u64,
    pub(crate) byte_size: u64,
}

/// A registered range. It can be used for as long as somebody holds it, even if its name is gone by then.
#[derive(Debug)]
struct Region {
    range: Range,
    object: File,
}

/// All regions, by owner and name.
#[derive(Default)]
pub(crate) struct Regions(Mutex<BTreeMap<(Owner, String), Arc<Region>>>);

impl Regions {
    pub(crate) fn register(&self, owner: Owner, name: String, range: Range) -> Result<(), Problem> {
        if name.is_empty() || name.len() > MAX_NAME_BYTES {
            return Err(Problem::invalid(format!("a region's name has 1 to {MAX_NAME_BYTES} bytes")));
        }
        let mut regions = self.0.lock();
        let held = regions.keys().filter(|(of, _)| *of == owner).count();
        if regions.len() >= MAX_REGIONS || held >= MAX_REGIONS_OF_ONE {
            return Err(Problem::new(
                Kind::Overloaded,
                format!(
                    "a client may have {MAX_REGIONS_OF_ONE} shared memory regions, and all together {MAX_REGIONS}; \
                         unregister some"
                ),
            ));
        }
        let key = (owner, name);
        if regions.contains_key(&key) {
            let message = format!("shared memory region '{}' already in manager", key.1);
            return Err(Problem::new(Kind::AlreadyThere, message));
        }
        let region = Region::open(range).map_err(|cause| {
            Problem::invalid(format!("failed to register shared memory region '{}': {cause}", key.1))
        })?;
        regions.insert(key, Arc::new(region));
        Ok(())
    }

    /// Without a name, of all. An unknown name is no error: what was wanted is the case.
    pub(crate) fn unregister(&self, owner: Owner, name: Option<&str>) {
        self.0.lock().retain(|(of, this), _| *of != owner || name.is_some_and(|name| this != name));
    }

    /// Without a name, of all.
    pub(crate) fn status(&self, owner: Owner, name: Option<&str>) -> Result<Vec<(String, Range)>, Problem> {
        let regions = self.0.lock();
        let wanted = regions.iter().filter(|((of, this), _)| *of == owner && name.is_none_or(|name| this == name));
        let found: Vec<_> = wanted.map(|((_, name), region)| (name.clone(), region.range.clone())).collect();
        match name {
            Some(name) if found.is_empty() => Err(unknown(name)),
            _ => Ok(found),
        }
    }

    fn spot(&self, owner: Owner, place: &Place) -> Result<Spot, Problem> {
        let region =
            self.0.lock().get(&(owner, place.region.clone())).cloned().ok_or_else(|| unknown(&place.region))?;
        let size = region.range.byte_size;
        if place.offset.checked_add(place.byte_size).is_none_or(|end| end > size) {
            return Err(Problem::invalid(format!(
                "{} bytes at {} are not within shared memory region '{}' of {size} bytes",
                place.byte_size, place.offset, place.region
            )));
        }
        Ok(Spot { region, place: place.clone() })
    }
}

fn unknown(name: &str) -> Problem {
    Problem::new(Kind::NotFound, format!("Unable to find shared memory region: '{name}'; register it first"))
}

impl Region {
    fn open(range: Range) -> Result<Region, String> {
        let key = range.key.strip_prefix('/').unwrap_or(&range.key);
        if key.is_empty() || key.len() > MAX_NAME_BYTES || matches!(key, "." | "..") || key.contains(['/', '\0']) {
            return Err(format!("'{key}' is no key of a shared memory object; it has no '/' but at the beginning"));
        }
        // Its permissions decide whether the server's user may have it. A link would lead to any file, and a pipe would block.
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let object = rustix::fs::open(format!("{FOLDER}/{key}"), flags, Mode::empty());
        let object = object.map_err(|cause| format!("cannot open '{key}': {cause}"))?;
        let region = Region { object: File::from(object), range };
        let end = region.range.offset.checked_add(region.range.byte_size).filter(|end| i64::try_from(*end).is_ok());
        let end = end.ok_or("its offset and size are more than a file can have")?;
        if region.range.byte_size == 0 {
            return Err("it has no bytes".to_owned());
        }
        region.check(end)?;
        Ok(region)
    }

    /// Whether the object has so many bytes now.
    fn check(&self, end: u64) -> Result<(), String> {
        let object = self.object.metadata().map_err(|cause| format!("cannot look at '{}': {cause}", self.range.key))?;
        match object.len() {
            _ if !object.is_file() => Err(format!("'{}' is no shared memory object", self.range.key)),
            size if size < end => Err(format!("'{}' has {size} bytes, but {end} are needed", self.range.key)),
            _ => Ok(()),
        }
    }
}

/// A place within a region that is there.
#[derive(Clone, Debug)]
pub(crate) struct Spot {
    region: Arc<Region>,
    place: Place,
}

impl Spot {
    fn start(&self) -> u64 {
        self.region.range.offset + self.place.offset
    }

    fn read(&self, bytes: &mut [u8]) -> Result<(), Problem> {
        let read = self.region.object.read_exact_at(bytes, self.start());
        read.map_err(|cause| Problem::invalid(format!("region '{}' cannot be read: {cause}", self.place.region)))
    }

    /// Writes an output. The object is looked at before, so that one that has shrunk is not made larger again.
    pub(crate) fn write(&self, output: &str, bytes: &[u8]) -> Result<(), Problem> {
        let (room, size) = (self.place.byte_size, bytes.len() as u64);
        if size > room {
            return Err(Problem::invalid(format!(
                "shared memory size specified with the request for output '{output}' ({room} bytes) should be at least {size} \
                 bytes to hold the results"
            )));
        }
        let written = self
            .region
            .check(self.start() + size)
            .and_then(|()| self.region.object.write_all_at(bytes, self.start()).map_err(|cause| cause.to_string()));
        written.map_err(|cause| Problem::invalid(format!("output '{output}', region '{}': {cause}", self.place.region)))
    }
}
