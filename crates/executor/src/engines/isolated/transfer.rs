//! Tensors on their way to or from an engine process: small ones within frames, tensors of large
//! batches through shared memory.
//!
//! Through a socket, a tensor is copied into a frame, into the system's buffers, and out of them in
//! parts, for each of which a thread wakes. Through shared memory it is copied in and out once.

use super::protocol::{MAX_FRAME, MAX_SHARED, PackedTensor, SharedRange, number, too_large};
#[cfg(target_os = "linux")]
use super::shared::SharedRegions;
#[cfg(not(target_os = "linux"))]
use super::unshared::NoRegions as SharedRegions;
use crate::contract::buffer::AlignedBuffer;
use crate::contract::kept::KeptBytes;
use bytes::Bytes;
use parking_lot::Mutex;
use ripieno_model::DataType;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

/// Smallest total size of tensors that go through shared memory.
const MIN_SHARED: usize = 64 << 10;
/// Alignment of tensors in shared memory.
const ALIGNMENT: usize = 64;
/// Number of read buffers that are kept.
const KEPT_BUFFERS: usize = 4;

/// A tensor to send.
pub(super) struct OutgoingTensor<'a> {
    pub(super) name: &'a str,
    pub(super) datatype: DataType,
    pub(super) shape: Vec<i64>,
    pub(super) data: &'a [u8],
}

/// One end of a connection, as far as tensors are concerned.
pub(super) struct TensorTransfer {
    shared: Option<SharedRegions>,
    buffers: ReadBuffers,
    /// Used part of the region that this end writes.
    kept_outbound: KeptBytes,
    /// Used part of the region that the other end writes.
    kept_inbound: KeptBytes,
}

impl TensorTransfer {
    fn new(shared: Option<SharedRegions>) -> TensorTransfer {
        let (kept_outbound, kept_inbound) = (KeptBytes::default(), KeptBytes::default());
        TensorTransfer { shared, buffers: ReadBuffers::default(), kept_outbound, kept_inbound }
    }

    /// Begins at the server's end of a new connection.
    pub(super) fn offer(socket: &UnixStream) -> io::Result<TensorTransfer> {
        Ok(TensorTransfer::new(SharedRegions::offer(socket)?))
    }

    /// Begins at the process's end of a new connection.
    pub(super) fn accept(socket: &UnixStream) -> io::Result<TensorTransfer> {
        Ok(TensorTransfer::new(SharedRegions::accept(socket)?))
    }

    /// Gives back the buffers that are kept for further batches.
    pub(super) fn release_buffers(&mut self) {
        self.buffers.0.lock().clear();
    }

    /// Gives back the memory that both ends share. Only the server's end may call it, and only
    /// between two batches: the process cannot know whether the server has read its last reply.
    pub(super) fn release_regions(&mut self) {
        let used = self.shared_bytes() > 0;
        if let Some(shared) = self.shared.as_mut().filter(|_| used) {
            // Where the system cannot give pages back, they stay for the next batch.
            let _ = shared.outbound.release().and_then(|()| shared.inbound.release());
        }
        self.kept_outbound.clear();
        self.kept_inbound.clear();
    }

    /// Returns the used bytes of the memory that both ends share.
    pub(super) fn shared_bytes(&self) -> usize {
        self.kept_outbound.bytes() + self.kept_inbound.bytes()
    }

    /// Prepares tensors for a frame. Until its answer arrives, nothing else may be packed.
    pub(super) fn pack(&mut self, tensors: &[OutgoingTensor<'_>]) -> Result<Vec<PackedTensor>, String> {
        let places = tensors.iter().scan(0, |next, tensor| {
            let at = *next;
            *next = at + tensor.data.len().next_multiple_of(ALIGNMENT);
            Some(at)
        });
        let places: Vec<usize> = places.collect();
        let total = places.iter().zip(tensors).map(|(at, tensor)| at + tensor.data.len()).max().unwrap_or(0);
        if total > MAX_FRAME {
            return Err(too_large(total).to_string());
        }
        let large = (MIN_SHARED..=MAX_SHARED).contains(&total);
        let outbound = self.shared.as_mut().filter(|_| large).map(|shared| &mut shared.outbound);
        // Without memory for a region, the frame holds the tensors.
        let mut outbound = outbound.and_then(|region| region.reserve(total).is_ok().then_some(region));
        if outbound.is_some() {
            self.kept_outbound.raise_to(total);
        }
        let pack = |(tensor, at): (&OutgoingTensor<'_>, usize)| {
            let OutgoingTensor { name, datatype, ref shape, data } = *tensor;
            let written = outbound.as_mut().is_some_and(|region| region.write(at, data).is_ok());
            let shared = written.then_some(SharedRange { at: at as u64, length: data.len() as u64 });
            let data = if written { Bytes::new() } else { Bytes::copy_from_slice(data) };
            PackedTensor { name: name.to_owned(), datatype: number(datatype), shape: shape.clone(), data, shared }
        };
        Ok(tensors.iter().zip(places).map(pack).collect())
    }

    /// Fetches the data of received tensors from shared memory.
    pub(super) fn unpack(&mut self, tensors: &mut [PackedTensor]) -> io::Result<()> {
        // Ranges that overlap could ask for many times the shared memory.
        let mut left = MAX_SHARED;
        for tensor in tensors {
            let Some(SharedRange { at, length }) = tensor.shared.take() else { continue };
            let none = || io::Error::new(io::ErrorKind::InvalidData, "a tensor in memory that is not shared");
            let inbound = &mut self.shared.as_mut().ok_or_else(none)?.inbound;
            let length = usize::try_from(length).ok().filter(|&length| length <= left).ok_or_else(none)?;
            left -= length;
            let at = usize::try_from(at).map_err(|_| none())?;
            let mut lent = self.buffers.take(length);
            inbound.read(at, lent.buffer.first_mut(length))?;
            self.kept_inbound.raise_to(at + length);
            tensor.data = Bytes::from_owner(lent);
        }
        Ok(())
    }
}

/// Buffers that tensors were read into, kept for further tensors. New memory would cost as much
/// time as the copy.
#[derive(Clone, Default)]
struct ReadBuffers(Arc<Mutex<Vec<AlignedBuffer>>>);

impl ReadBuffers {
    fn take(&self, bytes: usize) -> LentBuffer {
        let buffer = self.0.lock().pop().unwrap_or_default();
        LentBuffer { buffer, bytes, pool: self.clone() }
    }
}

/// A buffer in use by a tensor. It returns when the tensor is dropped.
struct LentBuffer {
    buffer: AlignedBuffer,
    bytes: usize,
    pool: ReadBuffers,
}

impl AsRef<[u8]> for LentBuffer {
    fn as_ref(&self) -> &[u8] {
        self.buffer.first(self.bytes)
    }
}

impl Drop for LentBuffer {
    fn drop(&mut self) {
        let mut kept = self.pool.0.lock();
        if kept.len() < KEPT_BUFFERS {
            kept.push(std::mem::take(&mut self.buffer));
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    fn pair() -> (TensorTransfer, TensorTransfer) {
        let (one, two) = UnixStream::pair().unwrap();
        let server = TensorTransfer::offer(&one).unwrap();
        (server, TensorTransfer::accept(&two).unwrap())
    }

    fn tensor(data: &[u8]) -> OutgoingTensor<'_> {
        OutgoingTensor { name: "x", datatype: DataType::Uint8, shape: vec![1, data.len() as i64], data }
    }

    #[test]
    fn tensors_arrive_as_they_were_sent() {
        let (mut server, mut child) = pair();
        for round in 0..3 {
            for sizes in [[3, 5], [MIN_SHARED, 7], [1, 3 << 20]] {
                let parts = sizes.map(|size| (0..size).map(|at| (at * 7 + round) as u8).collect::<Vec<u8>>());
                let mut packed = server.pack(&[tensor(&parts[0]), tensor(&parts[1])]).unwrap();
                let large = sizes.iter().sum::<usize>() >= MIN_SHARED;
                assert!(
                    packed.iter().all(|packed| packed.shared.is_some() == large && packed.data.is_empty() == large)
                );
                child.unpack(&mut packed).unwrap();
                assert_eq!(packed.iter().map(|packed| packed.data.to_vec()).collect::<Vec<_>>(), parts);
            }
        }
        let kept = child.buffers.0.lock().len();
        assert!((1..=KEPT_BUFFERS).contains(&kept), "buffers are used again: {kept}");
        assert!(server.kept_outbound.bytes() > 3 << 20 && child.kept_inbound.bytes() > 3 << 20);
        server.release_regions();
        child.release_buffers();
        assert_eq!((server.kept_outbound.bytes(), child.buffers.0.lock().len()), (0, 0));
        let mut packed = server.pack(&[tensor(&[7; MIN_SHARED])]).unwrap();
        child.unpack(&mut packed).unwrap();
        assert_eq!(packed[0].data, vec![7; MIN_SHARED], "it can be used again");
    }

    #[test]
    fn without_shared_memory_frames_hold_the_tensors() {
        let (mut server, mut child) = pair();
        (server.shared, child.shared) = (None, None);
        let data = vec![7; 2 * MIN_SHARED];
        let mut packed = server.pack(&[tensor(&data)]).unwrap();
        child.unpack(&mut packed).unwrap();
        assert_eq!(packed[0].data, data);
        let shared = Some(SharedRange { at: 0, length: 1 });
        let faulty = PackedTensor { shared, ..packed.remove(0) };
        assert!(child.unpack(&mut [faulty]).is_err());
    }

    #[test]
    fn a_range_beyond_the_memory_is_an_error() {
        let (mut server, mut child) = pair();
        let data = vec![7; MIN_SHARED];
        let packed = child.pack(&[tensor(&data)]).unwrap().remove(0);
        for (at, length) in [(u64::MAX, 1), (0, u64::MAX), (0, MAX_SHARED as u64), (1 << 40, 1)] {
            let shared = Some(SharedRange { at, length });
            let cause = server.unpack(&mut [PackedTensor { shared, ..packed.clone() }]).unwrap_err();
            assert_eq!(cause.kind(), io::ErrorKind::InvalidData, "{at} {length}");
        }
        let shared = Some(SharedRange { at: 0, length: MIN_SHARED as u64 });
        let mut overlapping = vec![PackedTensor { shared, ..packed }; MAX_SHARED / MIN_SHARED + 1];
        assert!(server.unpack(&mut overlapping).is_err(), "more than is shared");
    }
}
