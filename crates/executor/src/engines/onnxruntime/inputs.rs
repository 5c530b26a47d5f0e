//! Input tensors in memory of the host that a session's device reaches by itself; see `bound.rs`.
//!
//! A tensor is used again for later batches of its type and shape. Batches are padded to a few
//! sizes, so there are few shapes. A batch is copied into such tensors when it runs, or is received
//! into them before. The engine then knows them by their addresses.

use super::tensors::value_bytes;
use super::turn;
use crate::contract::input_memory::{InputMemory, InputSpace};
use bytes::Bytes;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use ort::memory::Allocator;
use ort::value::{DynTensor, TensorElementType};
use parking_lot::Mutex;
use ripieno_model::DataType;
use std::sync::Arc;

/// Number of tensors that are kept for further batches of a block.
const KEPT_TENSORS: usize = 32;

/// A tensor of a known type and shape.
pub(super) struct InputTensor {
    datatype: DataType,
    shape: Vec<i64>,
    pub(super) tensor: DynTensor,
}

impl InputTensor {
    fn is(&self, datatype: DataType, shape: &[i64]) -> bool {
        self.datatype == datatype && self.shape == shape
    }

    /// Returns the memory of the tensor. `None` for booleans, which not every byte is.
    fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        macro_rules! elements {
            ($type:ty) => {
                self.tensor.try_extract_tensor_mut::<$type>().ok()?.1
            };
        }
        Some(match self.datatype {
            DataType::Uint8 => elements!(u8),
            DataType::Uint16 => bytemuck::cast_slice_mut(elements!(u16)),
            DataType::Uint32 => bytemuck::cast_slice_mut(elements!(u32)),
            DataType::Uint64 => bytemuck::cast_slice_mut(elements!(u64)),
            DataType::Int8 => bytemuck::cast_slice_mut(elements!(i8)),
            DataType::Int16 => bytemuck::cast_slice_mut(elements!(i16)),
            DataType::Int32 => bytemuck::cast_slice_mut(elements!(i32)),
            DataType::Int64 => bytemuck::cast_slice_mut(elements!(i64)),
            DataType::Fp16 => bytemuck::cast_slice_mut(elements!(f16).reinterpret_cast_mut()),
            DataType::Bf16 => bytemuck::cast_slice_mut(elements!(bf16).reinterpret_cast_mut()),
            DataType::Fp32 => bytemuck::cast_slice_mut(elements!(f32)),
            DataType::Fp64 => bytemuck::cast_slice_mut(elements!(f64)),
            DataType::Bool | DataType::Bytes => return None,
        })
    }

    /// Copies an input of the tensor's type and shape into it.
    fn write(&mut self, data: &[u8]) -> Result<(), String> {
        if self.datatype == DataType::Bool {
            let bits = bytemuck::checked::try_cast_slice::<u8, bool>(data);
            let bits = bits.map_err(|_| "a BOOL element is neither 0 nor 1".to_owned())?;
            let place = self.tensor.try_extract_tensor_mut::<bool>().map_err(|cause| cause.to_string())?.1;
            place.copy_from_slice(bits);
            return Ok(());
        }
        self.bytes_mut().ok_or("it has no memory")?.copy_from_slice(data);
        Ok(())
    }

    /// Returns the content of the tensor.
    pub(super) fn bytes(&self) -> &[u8] {
        value_bytes(&self.tensor, self.datatype).unwrap_or_default()
    }
}

/// The input tensors of a block on one GPU, or on the CPU.
pub(super) struct InputTensors {
    /// Number of the GPU.
    gpu: Option<u32>,
    /// The tensors.
    state: Mutex<TensorState>,
}

struct TensorState {
    host: Allocator,
    /// Tensors that no batch uses, the last used ones last.
    spare: Vec<InputTensor>,
    /// Tensors that a batch was received into.
    received: Vec<Arc<InputTensor>>,
}

impl InputTensors {
    pub(super) fn new(host: Allocator, gpu: Option<u32>) -> Arc<InputTensors> {
        let state = TensorState { host, spare: Vec::new(), received: Vec::new() };
        Arc::new(InputTensors { gpu, state: Mutex::new(state) })
    }

    /// Returns the tensor that an input was received into; `None` if it was not.
    pub(super) fn received(&self, input: &[u8], datatype: DataType, shape: &[i64]) -> Option<Arc<InputTensor>> {
        let is_it = |tensor: &&Arc<InputTensor>| std::ptr::eq(tensor.bytes(), input) && tensor.is(datatype, shape);
        self.state.lock().received.iter().find(is_it).cloned()
    }

    /// Returns a tensor with a copy of an input; `None` for strings, which have no such memory.
    pub(super) fn copy(&self, input: &[u8], datatype: DataType, shape: &[i64]) -> Result<Option<InputTensor>, String> {
        let spare = self.take_spare(datatype, shape);
        let Some(mut tensor) = spare.map_or_else(|| self.make(datatype, shape), |spare| Ok(Some(spare)))? else {
            return Ok(None);
        };
        tensor.write(input)?;
        Ok(Some(tensor))
    }

    /// Keeps tensors for further batches.
    pub(super) fn give_back(&self, tensors: impl IntoIterator<Item = InputTensor>) {
        let mut state = self.state.lock();
        for tensor in tensors {
            if state.spare.len() == KEPT_TENSORS {
                state.spare.remove(0);
            }
            state.spare.push(tensor);
        }
    }

    fn take_spare(&self, datatype: DataType, shape: &[i64]) -> Option<InputTensor> {
        let mut state = self.state.lock();
        let at = state.spare.iter().rposition(|tensor| tensor.is(datatype, shape))?;
        Some(state.spare.remove(at))
    }

    fn make(&self, datatype: DataType, shape: &[i64]) -> Result<Option<InputTensor>, String> {
        let Some(element) = element_type(datatype) else { return Ok(None) };
        let tensor = DynTensor::new(&self.state.lock().host, element, shape.to_vec());
        let tensor = tensor.map_err(|cause| cause.to_string())?;
        Ok(Some(InputTensor { datatype, shape: shape.to_vec(), tensor }))
    }
}

/// Memory into which the batches of a block can be received.
pub(super) struct ReceivedInputs {
    pub(super) tensors: Arc<InputTensors>,
    pub(super) unbatched: bool,
}

impl InputMemory for ReceivedInputs {
    fn take(&self, datatype: DataType, shape: &[i64]) -> Option<Box<dyn InputSpace>> {
        if matches!(datatype, DataType::Bool | DataType::Bytes) {
            return None;
        }
        let shape = if self.unbatched { shape.get(1..)? } else { shape };
        let made = || {
            // Taking memory is an error while a session records work for the GPU.
            let _turn = turn(self.tensors.gpu);
            self.tensors.make(datatype, shape).ok().flatten()
        };
        let tensor = Some(self.tensors.take_spare(datatype, shape).or_else(made)?);
        let mut taken = TakenInput { tensor, tensors: Arc::clone(&self.tensors) };
        if taken.bytes_mut().is_empty() { None } else { Some(Box::new(taken)) }
    }

    fn release(&self) {
        self.tensors.state.lock().spare.clear();
    }
}

/// A tensor to receive an input into. Without one, it is used again.
struct TakenInput {
    tensor: Option<InputTensor>,
    tensors: Arc<InputTensors>,
}

impl InputSpace for TakenInput {
    fn bytes_mut(&mut self) -> &mut [u8] {
        self.tensor.as_mut().and_then(InputTensor::bytes_mut).unwrap_or_default()
    }

    fn freeze(mut self: Box<Self>) -> Bytes {
        let (tensor, tensors) = (self.tensor.take().map(Arc::new), Arc::clone(&self.tensors));
        tensors.state.lock().received.extend(tensor.clone());
        Bytes::from_owner(ReceivedInput { tensor, tensors })
    }
}

impl Drop for TakenInput {
    fn drop(&mut self) {
        self.tensors.give_back(self.tensor.take());
    }
}

/// An input that was received into a tensor. The tensor is used again once it is dropped.
struct ReceivedInput {
    tensor: Option<Arc<InputTensor>>,
    tensors: Arc<InputTensors>,
}

impl AsRef<[u8]> for ReceivedInput {
    fn as_ref(&self) -> &[u8] {
        self.tensor.as_ref().map(|tensor| tensor.bytes()).unwrap_or_default()
    }
}

impl Drop for ReceivedInput {
    fn drop(&mut self) {
        let Some(tensor) = self.tensor.take() else { return };
        self.tensors.state.lock().received.retain(|received| !Arc::ptr_eq(received, &tensor));
        self.tensors.give_back(Arc::into_inner(tensor));
    }
}

/// Returns the library's type of an element; `None` for strings.
fn element_type(datatype: DataType) -> Option<TensorElementType> {
    Some(match datatype {
        DataType::Bool => TensorElementType::Bool,
        DataType::Uint8 => TensorElementType::Uint8,
        DataType::Uint16 => TensorElementType::Uint16,
        DataType::Uint32 => TensorElementType::Uint32,
        DataType::Uint64 => TensorElementType::Uint64,
        DataType::Int8 => TensorElementType::Int8,
        DataType::Int16 => TensorElementType::Int16,
        DataType::Int32 => TensorElementType::Int32,
        DataType::Int64 => TensorElementType::Int64,
        DataType::Fp16 => TensorElementType::Float16,
        DataType::Bf16 => TensorElementType::Bfloat16,
        DataType::Fp32 => TensorElementType::Float32,
        DataType::Fp64 => TensorElementType::Float64,
        DataType::Bytes => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory() -> ReceivedInputs {
        ReceivedInputs { tensors: InputTensors::new(Allocator::default(), None), unbatched: false }
    }

    fn receive(memory: &ReceivedInputs, datatype: DataType, shape: &[i64], byte: u8) -> Option<Bytes> {
        let mut space = memory.take(datatype, shape)?;
        space.bytes_mut().fill(byte);
        Some(space.freeze())
    }

    #[test]
    fn an_input_is_known_where_it_was_received_until_it_is_dropped() {
        crate::engines::onnxruntime::library::load(None).unwrap();
        let memory = memory();
        let tensors = Arc::clone(&memory.tensors);
        let numbers = DataType::ALL.into_iter().filter(|datatype| datatype.size().is_some());
        for datatype in numbers.filter(|datatype| *datatype != DataType::Bool) {
            let first = receive(&memory, datatype, &[2, 3], 0).unwrap();
            let second = receive(&memory, datatype, &[2, 3], 1).unwrap();
            for (input, byte) in [(&first, 0), (&second, 1)] {
                let known = tensors.received(input, datatype, &[2, 3]).unwrap();
                assert_eq!((known.bytes().as_ptr(), known.bytes()[0]), (input.as_ptr(), byte), "{datatype}");
                assert!(tensors.received(input, datatype, &[3, 2]).is_none());
                assert!(tensors.received(&input[1..], datatype, &[2, 3]).is_none());
                let copied = tensors.copy(input, datatype, &[2, 3]).unwrap().unwrap();
                assert!(copied.bytes() == &input[..] && copied.bytes().as_ptr() != input.as_ptr());
            }
            let at = second.as_ptr();
            drop((first, second));
            assert!(tensors.state.lock().received.is_empty());
            assert_eq!(receive(&memory, datatype, &[2, 3], 2).unwrap().as_ptr(), at, "it is used again");
        }
        assert!(receive(&memory, DataType::Bool, &[1], 0).is_none() && memory.take(DataType::Bytes, &[1]).is_none());
        assert!(memory.take(DataType::Fp32, &[0, 3]).is_none(), "there is nothing to receive");
        assert!(tensors.copy(&[2], DataType::Bool, &[1]).is_err_and(|cause| cause.contains("neither 0 nor 1")));
        (0..100).for_each(|rows| drop(receive(&memory, DataType::Int8, &[rows], 0)));
        assert_eq!(tensors.state.lock().spare.len(), KEPT_TENSORS);
    }
}
