//! Protocol between the server and an engine process: protobuf frames over a socket.
//!
//! First the server sends the load request and receives a reply. Then it sends batches, one at a
//! time, and receives a reply to each. While one runs, it may send the inputs of the next one. The
//! outputs of a batch may come in a second reply, after the next batch was sent. A frame begins
//! with its length. The length is bounded, because the other side may be faulty.

use crate::contract::buffer::is_aligned;
use crate::run::rows::BatchTensor;
use bytes::Bytes;
use prost::Message;
use ripieno_model::DataType;
use std::io::{self, Read, Write};

/// Largest frame in bytes. No batch or output is larger.
pub(super) const MAX_FRAME: usize = 1 << 30;

/// Largest total size of tensors that go through shared memory instead, in bytes.
pub(super) const MAX_SHARED: usize = 256 << 20;

/// Largest buffer allocated before the data of its frame arrives.
const MAX_PREALLOCATED: usize = 64 << 20;

/// Engine and model to load. The process loads each block as a separate model.
#[derive(Clone, PartialEq, Message)]
pub(super) struct LoadRequest {
    /// Whether the engine is ONNX Runtime rather than the built-in one.
    #[prost(bool, tag = "1")]
    pub(super) onnxruntime: bool,
    #[prost(string, optional, tag = "2")]
    pub(super) library: Option<String>,
    #[prost(uint64, tag = "3")]
    pub(super) threads: u64,
    #[prost(uint64, tag = "4")]
    pub(super) max_batch: u64,
    #[prost(bool, tag = "5")]
    pub(super) unbatched: bool,
    #[prost(message, repeated, tag = "6")]
    pub(super) blocks: Vec<LoadBlock>,
    /// Limit of the process's address space in bytes.
    #[prost(uint64, optional, tag = "7")]
    pub(super) memory_limit: Option<u64>,
    #[prost(message, optional, tag = "8")]
    pub(super) gpu: Option<LoadGpu>,
    /// Whether ONNX Runtime binds tensors on the CPU, too.
    #[prost(bool, tag = "9")]
    pub(super) binds_on_cpu: bool,
    /// Set if the blocks are functions of a Python file.
    #[prost(message, optional, tag = "10")]
    pub(super) python: Option<LoadPython>,
    /// Set if the process runs cells on a device of its own, and no blocks.
    #[prost(message, optional, tag = "11")]
    pub(super) cells: Option<LoadCells>,
}

/// Programs of cells.
#[derive(Clone, PartialEq, Message)]
pub(super) struct LoadCells {
    /// The model's programs, as words of [`CellModelSpec`](ripieno_cuda::CellModelSpec).
    #[prost(bytes = "bytes", tag = "1")]
    pub(super) spec: Bytes,
    /// Seed of the random times of steps, where the device is this machine's CPU.
    #[prost(uint64, tag = "2")]
    pub(super) host_seed: u64,
}

/// A call to a process of cells: for a lane, or for words of a row.
#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct CellsCall {
    /// True if the call opens a lane. The lane's socket follows.
    #[prost(bool, tag = "1")]
    pub(super) opens_lane: bool,
    /// First unit to read.
    #[prost(uint64, tag = "2")]
    pub(super) unit: u64,
    /// Number of words to read.
    #[prost(uint64, tag = "3")]
    pub(super) words: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct CellsReply {
    #[prost(string, optional, tag = "1")]
    pub(super) error: Option<String>,
    /// Number of steps that a new lane has in flight.
    #[prost(uint32, tag = "2")]
    pub(super) depth: u32,
    /// Words that were read.
    #[prost(bytes = "bytes", tag = "3")]
    pub(super) data: Bytes,
}

/// Settings of a model written in Python.
#[derive(Clone, PartialEq, Message)]
pub(super) struct LoadPython {
    /// Version of the protocol; see [`PYTHON_PROTOCOL`].
    #[prost(uint32, tag = "1")]
    pub(super) protocol: u32,
    /// Inputs that the model's configuration declares, for files that declare none.
    #[prost(message, repeated, tag = "2")]
    pub(super) inputs: Vec<DeclaredTensor>,
    /// Outputs that the model's configuration declares.
    #[prost(message, repeated, tag = "3")]
    pub(super) outputs: Vec<DeclaredTensor>,
}

/// Version of the protocol that Python workers speak.
pub(super) const PYTHON_PROTOCOL: u32 = 2;

/// Blocks that a Python file declares, in the order of the file.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Declaration {
    #[prost(uint32, tag = "1")]
    pub(super) protocol: u32,
    #[prost(message, repeated, tag = "2")]
    pub(super) blocks: Vec<DeclaredBlock>,
    /// Largest length of a request; 0 if the file declares none.
    #[prost(uint32, tag = "3")]
    pub(super) max_length: u32,
    /// Largest number of steps of the function that runs until its end; 0 if there is none.
    #[prost(uint32, tag = "4")]
    pub(super) max_steps: u32,
}

/// A function of a Python file.
#[derive(Clone, PartialEq, Message)]
pub(super) struct DeclaredBlock {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(message, repeated, tag = "2")]
    pub(super) inputs: Vec<DeclaredTensor>,
    #[prost(message, repeated, tag = "3")]
    pub(super) outputs: Vec<DeclaredTensor>,
    /// Inputs that are the outputs of the same name of the step before. Empty if the function is no
    /// step.
    #[prost(string, repeated, tag = "4")]
    pub(super) state: Vec<String>,
    /// Output that is true at the last step; `None` if the step runs for each element.
    #[prost(string, optional, tag = "5")]
    pub(super) ended: Option<String>,
    /// Outputs that clients do not get.
    #[prost(string, repeated, tag = "6")]
    pub(super) hidden: Vec<String>,
}

/// A tensor of a Python model.
#[derive(Clone, PartialEq, Message)]
pub(super) struct DeclaredTensor {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    /// Index of the datatype in [`DataType::ALL`].
    #[prost(uint32, tag = "2")]
    pub(super) datatype: u32,
    /// Dimensions with the batch; -1 where the size is open.
    #[prost(int64, repeated, tag = "3")]
    pub(super) shape: Vec<i64>,
    /// Index of the dimension that is the length of the request; 0 if there is none.
    #[prost(uint32, tag = "4")]
    pub(super) length_dim: u32,
    /// Value of the elements that pad an input.
    #[prost(double, tag = "5")]
    pub(super) pad: f64,
    /// Value of the elements of a state at the first step.
    #[prost(double, tag = "6")]
    pub(super) initial: f64,
}

/// GPU to run the model on.
#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct LoadGpu {
    #[prost(uint32, tag = "1")]
    pub(super) ordinal: u32,
    /// Limit of the GPU's memory in bytes.
    #[prost(uint64, optional, tag = "2")]
    pub(super) memory_limit: Option<u64>,
    #[prost(bool, tag = "3")]
    pub(super) allow_cpu_nodes: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LoadBlock {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) path: String,
    #[prost(message, repeated, tag = "3")]
    pub(super) ranges: Vec<RangeMessage>,
}

/// Range of an input's values.
#[derive(Clone, PartialEq, Message)]
pub(super) struct RangeMessage {
    #[prost(string, tag = "1")]
    pub(super) tensor: String,
    #[prost(double, tag = "2")]
    pub(super) least: f64,
    #[prost(double, tag = "3")]
    pub(super) most: f64,
}

/// A batch on a block.
#[derive(Clone, PartialEq, Message)]
pub(super) struct RunRequest {
    #[prost(uint32, tag = "1")]
    pub(super) block: u32,
    #[prost(uint64, tag = "2")]
    pub(super) rows: u64,
    #[prost(message, repeated, tag = "3")]
    pub(super) inputs: Vec<PackedTensor>,
    /// Number of the batch.
    #[prost(uint64, tag = "4")]
    pub(super) number: u64,
    /// Whether the batch is one request, whose tensors may differ in their first dimension.
    #[prost(bool, tag = "5")]
    pub(super) alone: bool,
    /// Bytes beyond which the process keeps no memory for further batches.
    #[prost(uint64, tag = "6")]
    pub(super) kept_bound: u64,
    /// Whether these are inputs only: the batch runs if the next request has its number.
    #[prost(bool, tag = "7")]
    pub(super) is_ahead: bool,
    /// Whether the inputs were sent ahead.
    #[prost(bool, tag = "8")]
    pub(super) was_sent: bool,
    /// Whether large outputs may follow the reply.
    #[prost(bool, tag = "9")]
    pub(super) may_follow: bool,
}

/// Result of a batch or of loading: outputs or an error.
#[derive(Clone, PartialEq, Message)]
pub(super) struct RunReply {
    #[prost(string, optional, tag = "1")]
    pub(super) error: Option<String>,
    #[prost(message, repeated, tag = "2")]
    pub(super) outputs: Vec<PackedTensor>,
    /// Number of the batch, so that the reply cannot be mistaken for another batch's.
    #[prost(uint64, tag = "3")]
    pub(super) number: u64,
    /// Blocks of a Python file, in the reply to its load request.
    #[prost(message, optional, tag = "4")]
    pub(super) declared: Option<Declaration>,
    /// Bytes that the process keeps for further batches, beside shared memory.
    #[prost(uint64, tag = "5")]
    pub(super) kept: u64,
    /// Whether the batch has run and its outputs follow in another reply; these have no data.
    #[prost(bool, tag = "6")]
    pub(super) follows: bool,
}

/// A tensor whose first dimension is the rows of the batch.
#[derive(Clone, PartialEq, Message)]
pub(super) struct PackedTensor {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    /// Index of the datatype in [`DataType::ALL`].
    #[prost(uint32, tag = "2")]
    pub(super) datatype: u32,
    #[prost(int64, repeated, tag = "3")]
    pub(super) shape: Vec<i64>,
    #[prost(bytes = "bytes", tag = "4")]
    pub(super) data: Bytes,
    /// Place of the data in the sender's shared memory, instead of `data`.
    #[prost(message, optional, tag = "5")]
    pub(super) shared: Option<SharedRange>,
}

/// A part of shared memory.
#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct SharedRange {
    #[prost(uint64, tag = "1")]
    pub(super) at: u64,
    #[prost(uint64, tag = "2")]
    pub(super) length: u64,
}

impl PackedTensor {
    pub(super) fn datatype(&self) -> Result<DataType, String> {
        let known = DataType::ALL.get(self.datatype as usize).copied();
        known.ok_or_else(|| format!("tensor '{}' has an unknown datatype", self.name))
    }

    /// Converts to an aligned batch. The data in a frame may be unaligned, and then every later
    /// block would copy it.
    pub(super) fn into_batch(self) -> Result<BatchTensor, String> {
        let datatype = self.datatype()?;
        let in_place = is_aligned(&self.data, datatype.size().unwrap_or(1));
        let data = if in_place { self.data } else { Bytes::copy_from_slice(&self.data) };
        BatchTensor::new(datatype, self.shape, data)
    }
}

pub(super) fn number(datatype: DataType) -> u32 {
    DataType::ALL.iter().position(|&other| other == datatype).unwrap_or(DataType::ALL.len()) as u32
}

/// Writes a frame.
pub(super) fn send(to: &mut impl Write, message: &impl Message) -> io::Result<()> {
    let length = message.encoded_len();
    if length > MAX_FRAME {
        return Err(too_large(length));
    }
    let mut frame = Vec::with_capacity(4 + length);
    frame.extend_from_slice(&(length as u32).to_le_bytes());
    message.encode(&mut frame).map_err(io::Error::other)?;
    to.write_all(&frame)
}

/// Reads a frame.
pub(super) fn receive<M: Message + Default>(from: &mut impl Read) -> io::Result<M> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > MAX_FRAME {
        return Err(too_large(length));
    }
    // Memory is allocated as data arrives. The system commits the pages of a large buffer only when
    // they are written.
    let mut frame = Vec::with_capacity(length.min(MAX_PREALLOCATED));
    from.take(length as u64).read_to_end(&mut frame)?;
    if frame.len() < length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    M::decode(Bytes::from(frame)).map_err(|cause| io::Error::new(io::ErrorKind::InvalidData, cause))
}

/// Checks that a message fits into a frame. The sender checks this first, so that an oversized
/// batch fails alone.
pub(super) fn fits(message: &impl Message) -> Result<(), String> {
    let length = message.encoded_len();
    if length <= MAX_FRAME { Ok(()) } else { Err(too_large(length).to_string()) }
}

pub(super) fn too_large(length: usize) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("{length} bytes in one batch; at most {MAX_FRAME} can be passed on"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run() -> RunRequest {
        let data = Bytes::from_static(&[1, 2, 3, 4]);
        let (name, datatype) = ("x".to_owned(), number(DataType::Fp32));
        let tensor = PackedTensor { name, datatype, shape: vec![1, 1], data, shared: None };
        RunRequest { block: 1, rows: 1, inputs: vec![tensor], number: 7, kept_bound: 9, ..RunRequest::default() }
    }

    #[test]
    fn a_frame_comes_back() {
        let mut wire = Vec::new();
        send(&mut wire, &run()).unwrap();
        let back: RunRequest = receive(&mut &wire[..]).unwrap();
        assert_eq!(back, run());
        assert_eq!(back.inputs[0].datatype(), Ok(DataType::Fp32));
    }

    #[test]
    fn what_is_no_frame_is_an_error() {
        let mut wire = Vec::new();
        send(&mut wire, &run()).unwrap();
        for cut in 0..wire.len() {
            assert!(receive::<RunRequest>(&mut &wire[..cut]).is_err(), "{cut}");
        }
        assert!(receive::<RunRequest>(&mut &u32::MAX.to_le_bytes()[..]).is_err());
        for byte in 4..wire.len() {
            for bit in 0..8 {
                let mut broken = wire.clone();
                broken[byte] ^= 1 << bit;
                // Broken data must result in an error or another message, never in a panic or a
                // malformed batch.
                if let Ok(back) = receive::<RunRequest>(&mut &broken[..]) {
                    back.inputs.into_iter().for_each(|tensor| drop(tensor.into_batch()));
                }
            }
        }
    }
}
