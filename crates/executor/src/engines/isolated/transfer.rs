//! Tensors on their way to or from an engine process: small ones within frames, tensors of large
//! batches through shared memory.
//!
//! Through a socket, a tensor is copied into a frame, into the system's buffers, and out of them in
//! parts, for each of which a thread wakes. Through shared memory it is copied in and out once.
//!
//! A batch that is sent while another one runs is written beside that one, which the process may
//! not have read yet.

use super::protocol::{MAX_FRAME, MAX_SHARED, PackedTensor, SharedRange, number, too_large};
#[cfg(target_os = "linux")]
use super::shared::{GrowingMemory, SharedRegions};
#[cfg(not(target_os = "linux"))]
use super::unshared::{NoMemory as GrowingMemory, NoRegions as SharedRegions};
use crate::contract::buffer::AlignedBuffer;
use crate::contract::input_memory::InputMemory;
use crate::contract::kept::KeptBytes;
use crate::run::rows::EngineInput;
use bytes::Bytes;
use parking_lot::Mutex;
use ripieno_model::DataType;
use std::io;
use std::ops::Range;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

/// Smallest total size of tensors that go through shared memory.
pub(super) const MIN_SHARED: usize = 64 << 10;
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

impl<'a> From<&EngineInput<'a>> for OutgoingTensor<'a> {
    fn from(input: &EngineInput<'a>) -> OutgoingTensor<'a> {
        let shape = [input.rows as i64].iter().chain(input.row_shape).copied().collect();
        OutgoingTensor { name: input.name, datatype: input.datatype, shape, data: input.data }
    }
}

/// The tensors that one end of a connection sends.
#[derive(Default)]
pub(super) struct OutboundTensors {
    region: Option<GrowingMemory>,
    /// Used part of the region.
    kept: KeptBytes,
    /// Part of the region that the last batch is in.
    last: Range<usize>,
}

/// The tensors that one end of a connection receives.
#[derive(Default)]
pub(super) struct InboundTensors {
    region: Option<GrowingMemory>,
    /// Used part of the region.
    kept: KeptBytes,
    buffers: ReadBuffers,
}

fn halves(regions: Option<SharedRegions>) -> (OutboundTensors, InboundTensors) {
    let (outbound, inbound) = regions.map(|both| (both.outbound, both.inbound)).unzip();
    let outbound = OutboundTensors { region: outbound, ..OutboundTensors::default() };
    (outbound, InboundTensors { region: inbound, ..InboundTensors::default() })
}

/// Begins at the server's end of a new connection.
pub(super) fn offer(socket: &UnixStream) -> io::Result<(OutboundTensors, InboundTensors)> {
    Ok(halves(SharedRegions::offer(socket)?))
}

/// Begins at the process's end of a new connection.
pub(super) fn accept(socket: &UnixStream) -> io::Result<(OutboundTensors, InboundTensors)> {
    Ok(halves(SharedRegions::accept(socket)?))
}

impl OutboundTensors {
    /// Returns the used bytes of the shared memory.
    pub(super) fn shared_bytes(&self) -> usize {
        self.kept.bytes()
    }

    /// Gives the pages of the shared memory back to the system. Only the server's end may call it,
    /// and only if the process has read everything.
    pub(super) fn release(&mut self) {
        release(&mut self.region, &mut self.kept);
    }

    /// Prepares tensors for a frame. The other end must have read all batches but the last one, and
    /// that one, too, if it is not `beside` it.
    pub(super) fn pack(&mut self, tensors: &[OutgoingTensor<'_>], beside: bool) -> Result<Vec<PackedTensor>, String> {
        let sizes = tensors.iter().map(|tensor| tensor.data.len().next_multiple_of(ALIGNMENT));
        let total: usize = sizes.clone().sum();
        if total > MAX_FRAME {
            return Err(too_large(total).to_string());
        }
        let start = if !beside || total <= self.last.start { 0 } else { self.last.end };
        let large = total >= MIN_SHARED && start + total <= MAX_SHARED;
        // Without memory for a region, the frame holds the tensors.
        let region = self.region.as_mut().filter(|_| large);
        let mut region = region.and_then(|region| region.reserve(start + total).is_ok().then_some(region));
        if region.is_some() {
            self.kept.raise_to(start + total);
            self.last = start..start + total;
        }
        let places = sizes.scan(start, |next, size| Some(std::mem::replace(next, *next + size)));
        let pack = |(tensor, at): (&OutgoingTensor<'_>, usize)| {
            let OutgoingTensor { name, datatype, ref shape, data } = *tensor;
            let written = region.as_mut().is_some_and(|region| region.write(at, data).is_ok());
            let shared = written.then_some(SharedRange { at: at as u64, length: data.len() as u64 });
            let data = if written { Bytes::new() } else { Bytes::copy_from_slice(data) };
            PackedTensor { name: name.to_owned(), datatype: number(datatype), shape: shape.clone(), data, shared }
        };
        Ok(tensors.iter().zip(places).map(pack).collect())
    }
}

impl InboundTensors {
    /// Returns the used bytes of the shared memory.
    pub(super) fn shared_bytes(&self) -> usize {
        self.kept.bytes()
    }

    /// Gives the pages of the shared memory back to the system. Only the server's end may call it,
    /// and only between two batches: the process cannot know whether its last reply was read.
    pub(super) fn release(&mut self) {
        release(&mut self.region, &mut self.kept);
    }

    /// Returns the buffers that are kept for further batches.
    pub(super) fn buffers(&self) -> ReadBuffers {
        self.buffers.clone()
    }

    /// Fetches the data of received tensors from shared memory, into the memory of their engine
    /// where it has some.
    pub(super) fn unpack(&mut self, tensors: &mut [PackedTensor], to: Option<&dyn InputMemory>) -> io::Result<()> {
        // Ranges that overlap could ask for many times the shared memory.
        let mut left = MAX_SHARED;
        for tensor in tensors {
            let Some(SharedRange { at, length }) = tensor.shared.take() else { continue };
            let none = || io::Error::new(io::ErrorKind::InvalidData, "a tensor in memory that is not shared");
            let region = self.region.as_mut().ok_or_else(none)?;
            let length = usize::try_from(length).ok().filter(|&length| length <= left).ok_or_else(none)?;
            left -= length;
            let at = usize::try_from(at).map_err(|_| none())?;
            let mut space = to.and_then(|to| to.take(tensor.datatype().ok()?, &tensor.shape));
            tensor.data = match space.take_if(|space| space.bytes_mut().len() == length) {
                Some(mut space) => {
                    region.read(at, space.bytes_mut())?;
                    space.freeze()
                }
                None => {
                    let mut lent = self.buffers.take(length);
                    region.read(at, lent.buffer.first_mut(length))?;
                    Bytes::from_owner(lent)
                }
            };
            self.kept.raise_to(at + length);
        }
        Ok(())
    }
}

fn release(region: &mut Option<GrowingMemory>, kept: &mut KeptBytes) {
    if let Some(region) = region.as_mut().filter(|_| kept.bytes() > 0) {
        // Where the system cannot give pages back, they stay for the next batch.
        let _ = region.release();
    }
    kept.clear();
}

/// Buffers that tensors were read into, kept for further tensors. New memory would cost as much
/// time as the copy.
#[derive(Clone, Default)]
pub(super) struct ReadBuffers(Arc<Mutex<Vec<AlignedBuffer>>>);

impl ReadBuffers {
    /// Gives the memory of the buffers back.
    pub(super) fn release(&self) {
        self.0.lock().clear();
    }

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

    type Tensors = (OutboundTensors, InboundTensors);

    fn pair() -> (Tensors, Tensors) {
        let (one, two) = UnixStream::pair().unwrap();
        let server = offer(&one).unwrap();
        (server, accept(&two).unwrap())
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
                let mut packed = server.0.pack(&[tensor(&parts[0]), tensor(&parts[1])], round > 0).unwrap();
                let large = sizes.iter().sum::<usize>() >= MIN_SHARED;
                assert!(
                    packed.iter().all(|packed| packed.shared.is_some() == large && packed.data.is_empty() == large)
                );
                child.1.unpack(&mut packed, None).unwrap();
                assert_eq!(packed.iter().map(|packed| packed.data.to_vec()).collect::<Vec<_>>(), parts);
            }
        }
        let kept = child.1.buffers.0.lock().len();
        assert!((1..=KEPT_BUFFERS).contains(&kept), "buffers are used again: {kept}");
        assert!(server.0.shared_bytes() > 3 << 20 && child.1.shared_bytes() > 3 << 20);
        server.0.release();
        child.1.buffers().release();
        assert_eq!((server.0.shared_bytes(), child.1.buffers.0.lock().len()), (0, 0));
        let mut packed = server.0.pack(&[tensor(&[7; MIN_SHARED])], false).unwrap();
        child.1.unpack(&mut packed, None).unwrap();
        assert_eq!(packed[0].data, vec![7; MIN_SHARED], "it can be used again");
    }

    #[test]
    fn a_batch_beside_another_one_leaves_it_as_it_was() {
        let (mut server, mut child) = pair();
        let mut before: Option<(Vec<PackedTensor>, u8)> = None;
        for (round, size) in [1, 1, 1, 3, 1, 2, 2, 5, 1, 1].into_iter().enumerate() {
            let byte = round as u8;
            let packed = server.0.pack(&[tensor(&vec![byte; size * MIN_SHARED])], before.is_some()).unwrap();
            if let Some((mut packed, byte)) = before.replace((packed, byte)) {
                child.1.unpack(&mut packed, None).unwrap();
                assert!(packed[0].data.iter().all(|&read| read == byte), "round {round}");
            }
        }
        assert!(server.0.shared_bytes() <= 10 * MIN_SHARED, "the memory of earlier batches is used again");
        let far = server.0.pack(&[tensor(&vec![7; MAX_SHARED - MIN_SHARED])], true).unwrap();
        assert!(far[0].shared.is_none(), "what does not fit beside it goes in the frame");
    }

    #[test]
    fn without_shared_memory_frames_hold_the_tensors() {
        let (mut server, mut child) = pair();
        (server.0.region, child.1.region) = (None, None);
        let data = vec![7; 2 * MIN_SHARED];
        let mut packed = server.0.pack(&[tensor(&data)], false).unwrap();
        child.1.unpack(&mut packed, None).unwrap();
        assert_eq!(packed[0].data, data);
        let shared = Some(SharedRange { at: 0, length: 1 });
        let faulty = PackedTensor { shared, ..packed.remove(0) };
        assert!(child.1.unpack(&mut [faulty], None).is_err());
    }

    #[test]
    fn a_range_beyond_the_memory_is_an_error() {
        let (mut server, mut child) = pair();
        let data = vec![7; MIN_SHARED];
        let packed = child.0.pack(&[tensor(&data)], false).unwrap().remove(0);
        for (at, length) in [(u64::MAX, 1), (0, u64::MAX), (0, MAX_SHARED as u64), (1 << 40, 1)] {
            let shared = Some(SharedRange { at, length });
            let cause = server.1.unpack(&mut [PackedTensor { shared, ..packed.clone() }], None).unwrap_err();
            assert_eq!(cause.kind(), io::ErrorKind::InvalidData, "{at} {length}");
        }
        let shared = Some(SharedRange { at: 0, length: MIN_SHARED as u64 });
        let mut overlapping = vec![PackedTensor { shared, ..packed }; MAX_SHARED / MIN_SHARED + 1];
        assert!(server.1.unpack(&mut overlapping, None).is_err(), "more than is shared");
    }
}
