//! Shared memory regions, in which clients place inputs and receive outputs instead of sending
//! them.
//!
//! A client registers a range of a POSIX shared memory object under a name. The object remains the
//! client's, which may shrink or remove it at any time. It is therefore not mapped, since accessing
//! a removed page would crash the server. Bytes are copied through the file descriptor after a size
//! check, and are validated like any other tensor.

pub(crate) mod request;

use crate::access::RegionOwner;
use crate::problem::{Problem, ProblemKind};
use parking_lot::Mutex;
use ripieno_wire::SharedMemoryRef;
use rustix::fs::{Mode, OFlags};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Folder of POSIX shared memory objects on Linux. They are opened as files, because some
/// libraries' shm_open follows links.
const FOLDER: &str = "/dev/shm";
/// Maximum number of regions, each of which holds a file descriptor.
const MAX_REGIONS: usize = 1024;
/// Maximum number of regions per owner, so that one owner cannot use all.
const MAX_REGIONS_PER_OWNER: usize = MAX_REGIONS / 2;
/// Maximum length of a region's name, and of its key, which is a file name.
const MAX_NAME_BYTES: usize = 255;

/// A range of a shared memory object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RegionRange {
    pub(crate) key: String,
    pub(crate) offset: u64,
    pub(crate) byte_size: u64,
}

/// A registered range. It stays usable for current holders after it is unregistered.
#[derive(Debug)]
struct Region {
    range: RegionRange,
    object: File,
}

/// All regions, by owner and name.
#[derive(Default)]
pub(crate) struct Regions(Mutex<BTreeMap<(RegionOwner, String), Arc<Region>>>);

impl Regions {
    pub(crate) fn register(&self, owner: RegionOwner, name: String, range: RegionRange) -> Result<(), Problem> {
        if name.is_empty() || name.len() > MAX_NAME_BYTES {
            return Err(Problem::invalid(format!("a region's name has 1 to {MAX_NAME_BYTES} bytes")));
        }
        let mut regions = self.0.lock();
        let held = regions.keys().filter(|(of, _)| *of == owner).count();
        if regions.len() >= MAX_REGIONS || held >= MAX_REGIONS_PER_OWNER {
            return Err(Problem::new(
                ProblemKind::Overloaded,
                format!(
                    "a client may have {MAX_REGIONS_PER_OWNER} shared memory regions, and all together {MAX_REGIONS}; \
                         unregister some"
                ),
            ));
        }
        let key = (owner, name);
        if regions.contains_key(&key) {
            let message = format!("shared memory region '{}' already in manager", key.1);
            return Err(Problem::new(ProblemKind::AlreadyThere, message));
        }
        let region = Region::open(range).map_err(|cause| {
            Problem::invalid(format!("failed to register shared memory region '{}': {cause}", key.1))
        })?;
        regions.insert(key, Arc::new(region));
        Ok(())
    }

    /// Unregisters a region, or all of the owner's without a name. An unknown name is not an error.
    pub(crate) fn unregister(&self, owner: RegionOwner, name: Option<&str>) {
        self.0.lock().retain(|(of, this), _| *of != owner || name.is_some_and(|name| this != name));
    }

    /// Returns a region, or all of the owner's without a name.
    pub(crate) fn status(&self, owner: RegionOwner, name: Option<&str>) -> Result<Vec<(String, RegionRange)>, Problem> {
        let regions = self.0.lock();
        let wanted = regions.iter().filter(|((of, this), _)| *of == owner && name.is_none_or(|name| this == name));
        let found: Vec<_> = wanted.map(|((_, name), region)| (name.clone(), region.range.clone())).collect();
        match name {
            Some(name) if found.is_empty() => Err(unknown(name)),
            _ => Ok(found),
        }
    }

    fn slice(&self, owner: RegionOwner, shared_memory: &SharedMemoryRef) -> Result<RegionSlice, Problem> {
        let region = self
            .0
            .lock()
            .get(&(owner, shared_memory.region.clone()))
            .cloned()
            .ok_or_else(|| unknown(&shared_memory.region))?;
        let size = region.range.byte_size;
        if shared_memory.offset.checked_add(shared_memory.byte_size).is_none_or(|end| end > size) {
            return Err(Problem::invalid(format!(
                "{} bytes at {} are not within shared memory region '{}' of {size} bytes",
                shared_memory.byte_size, shared_memory.offset, shared_memory.region
            )));
        }
        Ok(RegionSlice { region, shared_memory: shared_memory.clone() })
    }
}

fn unknown(name: &str) -> Problem {
    Problem::new(ProblemKind::NotFound, format!("Unable to find shared memory region: '{name}'; register it first"))
}

impl Region {
    fn open(range: RegionRange) -> Result<Region, String> {
        let key = range.key.strip_prefix('/').unwrap_or(&range.key);
        if key.is_empty() || key.len() > MAX_NAME_BYTES || matches!(key, "." | "..") || key.contains(['/', '\0']) {
            return Err(format!("'{key}' is no key of a shared memory object; it has no '/' but at the beginning"));
        }
        // File permissions decide about access. Following links could open any file, and opening a
        // pipe could block.
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

    /// Checks that the object currently has at least `end` bytes.
    fn check(&self, end: u64) -> Result<(), String> {
        let object = self.object.metadata().map_err(|cause| format!("cannot look at '{}': {cause}", self.range.key))?;
        match object.len() {
            _ if !object.is_file() => Err(format!("'{}' is no shared memory object", self.range.key)),
            size if size < end => Err(format!("'{}' has {size} bytes, but {end} are needed", self.range.key)),
            _ => Ok(()),
        }
    }
}

/// A range within a registered region.
#[derive(Clone, Debug)]
pub(crate) struct RegionSlice {
    region: Arc<Region>,
    shared_memory: SharedMemoryRef,
}

impl RegionSlice {
    fn start(&self) -> u64 {
        self.region.range.offset + self.shared_memory.offset
    }

    fn read(&self, bytes: &mut [u8]) -> Result<(), Problem> {
        let read = self.region.object.read_exact_at(bytes, self.start());
        read.map_err(|cause| {
            Problem::invalid(format!("region '{}' cannot be read: {cause}", self.shared_memory.region))
        })
    }

    /// Writes an output. The size check before prevents writing from growing an object that has
    /// shrunk.
    pub(crate) fn write(&self, output: &str, bytes: &[u8]) -> Result<(), Problem> {
        let (room, size) = (self.shared_memory.byte_size, bytes.len() as u64);
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
        written.map_err(|cause| {
            Problem::invalid(format!("output '{output}', region '{}': {cause}", self.shared_memory.region))
        })
    }
}
