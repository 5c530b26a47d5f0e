//! Memory that both ends of a connection have mapped, one region for each direction.
//!
//! The other end may write at any time, so no slice of a region exists: vm-memory copies bytes in
//! and out. A region can grow but is sealed against shrinking, so that reading it cannot fault,
//! whatever the other end does.

use super::protocol::MAX_SHARED;
use rustix::cmsg_space;
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, fcntl_get_seals, memfd_create};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use vm_memory::{ByteValued, Bytes, FileOffset, MmapRegion, VolatileMemory};

const MIN_REGION: usize = 1 << 20;

/// The regions of a connection.
pub(super) struct SharedRegions {
    /// Region that this end writes.
    pub(super) outbound: GrowingMemory,
    /// Region that the other end writes.
    pub(super) inbound: GrowingMemory,
}

impl SharedRegions {
    /// Creates both regions and passes them to the other end of `socket`. `None` if the system
    /// creates none; the other end then has none either.
    pub(super) fn offer(socket: &UnixStream) -> io::Result<Option<SharedRegions>> {
        let regions = GrowingMemory::create()
            .and_then(|outbound| Ok(SharedRegions { outbound, inbound: GrowingMemory::create()? }))
            .ok();
        let fds: Vec<_> =
            regions.iter().flat_map(|both| [both.outbound.file.as_fd(), both.inbound.file.as_fd()]).collect();
        send_files(socket, &fds)?;
        Ok(regions)
    }

    /// Receives the regions that the other end of `socket` has created.
    pub(super) fn accept(socket: &UnixStream) -> io::Result<Option<SharedRegions>> {
        let mut files = receive_files(socket)?.into_iter();
        match (files.next(), files.next()) {
            // The other end names its regions first: its outbound one is inbound here.
            (Some(inbound), Some(outbound)) => {
                let (outbound, inbound) = (GrowingMemory::open(outbound)?, GrowingMemory::open(inbound)?);
                Ok(Some(SharedRegions { outbound, inbound }))
            }
            _ => Ok(None),
        }
    }
}

/// Passes files, at most two, to the other end of `socket`.
pub(super) fn send_files(socket: &UnixStream, files: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(2))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(files));
    }
    sendmsg(socket, &[IoSlice::new(&[0])], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives the files of one [`send_files`].
pub(super) fn receive_files(socket: &UnixStream) -> io::Result<Vec<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(2))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let received = recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    if received.bytes == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let files = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => Some(files),
        _ => None,
    });
    Ok(files.flatten().collect())
}

/// A part of memory that grows.
pub(super) struct GrowingMemory {
    file: Arc<File>,
    map: Option<MmapRegion>,
}

impl GrowingMemory {
    fn create() -> io::Result<GrowingMemory> {
        let fd = memfd_create("ripieno-batch", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::SEAL)?;
        GrowingMemory::open(fd)
    }

    fn open(fd: OwnedFd) -> io::Result<GrowingMemory> {
        if !fcntl_get_seals(&fd)?.contains(SealFlags::SHRINK) {
            return Err(invalid("shared memory that may shrink"));
        }
        Ok(GrowingMemory { file: Arc::new(File::from(fd)), map: None })
    }

    /// Grows the region to hold this number of bytes.
    pub(super) fn reserve(&mut self, bytes: usize) -> io::Result<()> {
        let size = bytes.next_power_of_two().max(MIN_REGION);
        if (self.file.metadata()?.len() as usize) < size {
            self.file.set_len(size as u64)?;
        }
        self.map(bytes).map(drop)
    }

    /// Gives the pages back to the system. The content is lost.
    pub(super) fn release(&mut self) -> io::Result<()> {
        let size = self.file.metadata()?.len();
        if size > 0 {
            fallocate(&self.file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, size)?;
        }
        Ok(())
    }

    /// Writes `data` at an offset in bytes.
    pub(super) fn write<T: ByteValued>(&mut self, at: usize, data: &[T]) -> io::Result<()> {
        let bytes = size_of_val(data);
        let end = at.checked_add(bytes).ok_or_else(|| invalid("a place beyond all memory"))?;
        self.map(end)?.get_slice(at, bytes).map_err(io::Error::other)?.copy_from(data);
        Ok(())
    }

    /// Reads `into` from an offset in bytes. An error if the region does not reach so far.
    pub(super) fn read<T: ByteValued>(&mut self, at: usize, into: &mut [T]) -> io::Result<()> {
        let bytes = size_of_val(into);
        let end = at.checked_add(bytes).ok_or_else(|| invalid("a place beyond all memory"))?;
        self.map(end)?.get_slice(at, bytes).map_err(io::Error::other)?.copy_to(into);
        Ok(())
    }

    /// Writes a word that the other end may read at the same time, in an order that both ends see.
    pub(super) fn store(&mut self, at: usize, word: u32) -> io::Result<()> {
        let word_at = self.map(at.saturating_add(4))?.get_slice(at, 4).map_err(io::Error::other)?;
        word_at.store(word, 0, Ordering::SeqCst).map_err(io::Error::other)
    }

    /// Reads a word that the other end may write at the same time.
    pub(super) fn load(&mut self, at: usize) -> io::Result<u32> {
        let word_at = self.map(at.saturating_add(4))?.get_slice(at, 4).map_err(io::Error::other)?;
        word_at.load(0, Ordering::SeqCst).map_err(io::Error::other)
    }

    /// Maps the region at least up to byte `end`.
    fn map(&mut self, end: usize) -> io::Result<&MmapRegion> {
        if self.map.as_ref().is_none_or(|map| map.size() < end) {
            let size = usize::try_from(self.file.metadata()?.len()).unwrap_or(MAX_SHARED).min(MAX_SHARED);
            if size < end {
                return Err(invalid("a place beyond the shared memory"));
            }
            self.map = None;
            let file = FileOffset::from_arc(Arc::clone(&self.file), 0);
            self.map = Some(MmapRegion::from_file(file, size).map_err(io::Error::other)?);
        }
        self.map.as_ref().ok_or_else(|| invalid("memory that is not mapped"))
    }
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (SharedRegions, SharedRegions) {
        let (one, two) = UnixStream::pair().unwrap();
        let server = SharedRegions::offer(&one).unwrap().unwrap();
        (server, SharedRegions::accept(&two).unwrap().unwrap())
    }

    #[test]
    fn each_end_reads_what_the_other_writes_as_regions_grow() {
        let (mut server, mut child) = pair();
        for size in [10, 3 << 20, 100, 9 << 20] {
            let data: Vec<u8> = (0..size).map(|at| (at * 7 % 251) as u8).collect();
            for (from, to) in [(&mut server.outbound, &mut child.inbound), (&mut child.outbound, &mut server.inbound)] {
                from.reserve(64 + size).unwrap();
                from.write(64, &data).unwrap();
                let mut read = vec![0u8; size];
                to.read(64, &mut read).unwrap();
                assert_eq!(read, data);
            }
        }
        let pages = |memory: &GrowingMemory| std::os::unix::fs::MetadataExt::blocks(&memory.file.metadata().unwrap());
        assert!(pages(&server.inbound) > 0);
        server.inbound.release().unwrap();
        assert_eq!(pages(&child.outbound), 0, "either end gives the pages of both back");
        child.outbound.write(9, &[7u8]).unwrap();
        let mut read = [1u8; 2];
        server.inbound.read(8, &mut read).unwrap();
        assert_eq!(read, [0, 7]);
    }

    #[test]
    fn a_faulty_end_is_an_error_and_never_a_fault() {
        let (mut server, mut child) = pair();
        child.outbound.reserve(100).unwrap();
        assert!(child.outbound.file.set_len(0).is_err(), "it cannot shrink");
        for (at, size) in [(0, MIN_REGION + 1), (MIN_REGION, 1), (usize::MAX, 2)] {
            let cause = server.inbound.read(at, &mut vec![0u8; size]).unwrap_err();
            assert_eq!(cause.kind(), io::ErrorKind::InvalidData, "{at} {size}");
        }
        let fd = memfd_create("other", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        assert!(GrowingMemory::open(fd).is_err(), "it may shrink");
        let (one, two) = UnixStream::pair().unwrap();
        drop(one);
        assert!(SharedRegions::accept(&two).is_err());
    }
}
