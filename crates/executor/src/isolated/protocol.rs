//! What the server and the process of an engine say to each other: frames of protobuf over a socket.
//!
//! First comes what to load, and the answer whether it is loaded; then batches, one at a time, each with its answer. A frame
//! begins with its length, which is bounded: whoever is on the other side may be broken.

use crate::buffer::is_aligned;
use crate::rows::{Batch, Input};
use bytes::Bytes;
use prost::Message;
use ripieno_model::DataType;
use std::io::{self, Read, Write};

/// No batch is so large, nor what is made of it.
const MAX_FRAME: usize = 1 << 30;

/// The most room that is made for a frame before it comes.
const MOST_AHEAD: usize = 64 << 20;

/// Which engine, and what it is to load. Each block is a model of its own for it.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Load {
    /// Of the built-in engine, if no other.
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
    /// The most bytes of address space.
    #[prost(uint64, optional, tag = "7")]
    pub(super) memory_limit: Option<u64>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LoadBlock {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) path: String,
    #[prost(message, repeated, tag = "3")]
    pub(super) ranges: Vec<Range>,
}

/// What an input may hold.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Range {
    #[prost(string, tag = "1")]
    pub(super) tensor: String,
    #[prost(double, tag = "2")]
    pub(super) least: f64,
    #[prost(double, tag = "3")]
    pub(super) most: f64,
}

/// A batch on a block.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Run {
    #[prost(uint32, tag = "1")]
    pub(super) block: u32,
    #[prost(uint64, tag = "2")]
    pub(super) rows: u64,
    #[prost(message, repeated, tag = "3")]
    pub(super) inputs: Vec<Packed>,
    /// Which one it is.
    #[prost(uint64, tag = "4")]
    pub(super) number: u64,
}

/// What became of it, or of loading: nothing to say, or the error.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Done {
    #[prost(string, optional, tag = "1")]
    pub(super) error: Option<String>,
    #[prost(message, repeated, tag = "2")]
    pub(super) outputs: Vec<Packed>,
    /// Which batch: no answer must be taken for another one's.
    #[prost(uint64, tag = "3")]
    pub(super) number: u64,
}

/// A tensor; the first dimension is the rows of the batch.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Packed {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    /// Its place in [`DataType::ALL`].
    #[prost(uint32, tag = "2")]
    pub(super) datatype: u32,
    #[prost(int64, repeated, tag = "3")]
    pub(super) shape: Vec<i64>,
    #[prost(bytes = "bytes", tag = "4")]
    pub(super) data: Bytes,
}

impl Packed {
    pub(super) fn of_input(input: &Input<'_>) -> Packed {
        let shape = input.shape(false).collect();
        let data = Bytes::copy_from_slice(input.data);
        Packed { name: input.name.to_owned(), datatype: number(input.datatype), shape, data }
    }

    pub(super) fn datatype(&self) -> Result<DataType, String> {
        let known = DataType::ALL.get(self.datatype as usize).copied();
        known.ok_or_else(|| format!("tensor '{}' has an unknown datatype", self.name))
    }

    /// As the blocks after it take it: in a frame it lies anywhere, which would have each of them copy it.
    pub(super) fn into_batch(self) -> Result<Batch, String> {
        let datatype = self.datatype()?;
        let in_place = is_aligned(&self.data, datatype.size().unwrap_or(1));
        let data = if in_place { self.data } else { Bytes::copy_from_slice(&self.data) };
        Batch::new(datatype, self.shape, data)
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
    // What does not come takes no room: no page of a large buffer is there before it is written.
    let mut frame = Vec::with_capacity(length.min(MOST_AHEAD));
    from.take(length as u64).read_to_end(&mut frame)?;
    if frame.len() < length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    M::decode(Bytes::from(frame)).map_err(|cause| io::Error::new(io::ErrorKind::InvalidData, cause))
}

/// A batch that is too large fails by itself, so whoever sends looks first.
pub(super) fn fits(message: &impl Message) -> Result<(), String> {
    let length = message.encoded_len();
    if length <= MAX_FRAME { Ok(()) } else { Err(too_large(length).to_string()) }
}

fn too_large(length: usize) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("{length} bytes in one batch; at most {MAX_FRAME} can be passed on"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run() -> Run {
        let data = Bytes::from_static(&[1, 2, 3, 4]);
        let tensor = Packed { name: "x".to_owned(), datatype: number(DataType::Fp32), shape: vec![1, 1], data };
        Run { block: 1, rows: 1, inputs: vec![tensor], number: 7 }
    }

    #[test]
    fn a_frame_comes_back() {
        let mut wire = Vec::new();
        send(&mut wire, &run()).unwrap();
        let back: Run = receive(&mut &wire[..]).unwrap();
        assert_eq!(back, run());
        assert_eq!(back.inputs[0].datatype(), Ok(DataType::Fp32));
    }

    #[test]
    fn what_is_no_frame_is_an_error() {
        let mut wire = Vec::new();
        send(&mut wire, &run()).unwrap();
        for cut in 0..wire.len() {
            assert!(receive::<Run>(&mut &wire[..cut]).is_err(), "{cut}");
        }
        assert!(receive::<Run>(&mut &u32::MAX.to_le_bytes()[..]).is_err());
        for byte in 4..wire.len() {
            for bit in 0..8 {
                let mut broken = wire.clone();
                broken[byte] ^= 1 << bit;
                // An error or another message, never a panic, nor a batch that is not what it says.
                if let Ok(back) = receive::<Run>(&mut &broken[..]) {
                    back.inputs.into_iter().for_each(|tensor| drop(tensor.into_batch()));
                }
            }
        }
    }
}
