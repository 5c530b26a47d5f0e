//! A session's tensors bound to buffers of the host that its device reaches by itself: page-locked
//! memory for CUDA, which copies from and to it two to four times as fast as other memory.
//!
//! A batch is copied into a buffer, which is used again for later batches of its shape. Batches are
//! padded to a few sizes, so there are few shapes. Outputs get new memory for each batch, because
//! answers refer to it. Strings cannot be in such memory, and are bound as the library holds them.
//!
//! On the CPU bindings only cost a copy. Tests use them there.

use super::tensors::{self, InputAddresses};
use crate::run::rows::EngineInput;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use ort::memory::{AllocationDevice, Allocator, AllocatorType, MemoryInfo, MemoryType};
use ort::session::{IoBinding, Session, SessionInputValue, SessionOutputs};
use ort::value::{DynTensor, TensorElementType};
use ripieno_model::DataType;
use std::ops::Range;

/// Number of input buffers that are kept for each session.
const KEPT_BUFFERS: usize = 32;

/// The binding of a session.
pub(super) struct BoundTensors {
    binding: IoBinding,
    host: Allocator,
    /// Memory of strings.
    plain: MemoryInfo<'static>,
    /// Buffers of earlier batches, the last used ones last.
    buffers: Vec<InputBuffer>,
    /// Whether the last batch replaced a default.
    replaced: bool,
}

struct InputBuffer {
    /// Index of the input.
    input: usize,
    shape: Vec<i64>,
    tensor: DynTensor,
}

impl BoundTensors {
    /// Creates the binding of a session on a GPU, or on the CPU.
    pub(super) fn new(session: &Session, gpu: Option<u32>) -> Result<BoundTensors, ort::Error> {
        let host = match gpu {
            // Versions of the library differ in the number of this memory beside several GPUs.
            Some(ordinal) => page_locked(session, ordinal as i32).or_else(|_| page_locked(session, 0))?,
            None => Allocator::default(),
        };
        let binding = session.create_binding()?;
        Ok(BoundTensors { binding, host, plain: MemoryInfo::default(), buffers: Vec::new(), replaced: false })
    }

    /// Runs a batch. Returns the outputs, and the addresses of the inputs.
    pub(super) fn run<'a>(
        &'a mut self,
        session: &'a mut Session,
        inputs: &[EngineInput<'_>],
        unbatched: bool,
        outputs: &[(&str, DataType)],
    ) -> Result<(SessionOutputs<'a>, InputAddresses), String> {
        let mut addresses = InputAddresses::default();
        // A replaced default must not stay bound for the next batch.
        if std::mem::replace(&mut self.replaced, inputs.iter().any(|input| input.whole)) {
            self.binding.clear_inputs();
        }
        for (at, input) in inputs.iter().enumerate() {
            let bound = self.bind_input(at, input, unbatched);
            addresses.extend(bound.map_err(|cause| format!("input '{}': {cause}", input.name))?);
        }
        for (name, datatype) in outputs {
            // Binding an output again frees it from the memory of the last batch.
            let place = if *datatype == DataType::Bytes { &self.plain } else { self.host.memory_info() };
            self.binding.bind_output_to_device(*name, place).map_err(|cause| format!("output '{name}': {cause}"))?;
        }
        let values = session.run_binding(&self.binding).map_err(|cause| format!("onnxruntime: {cause}"))?;
        self.binding.synchronize_outputs().map_err(|cause| format!("onnxruntime: {cause}"))?;
        Ok((values, addresses))
    }

    /// Binds an input. Returns the addresses of its buffer, if it has one.
    fn bind_input(
        &mut self,
        at: usize,
        input: &EngineInput<'_>,
        unbatched: bool,
    ) -> Result<Option<Range<*const u8>>, String> {
        let text = |cause: ort::Error| cause.to_string();
        let Some(element) = element_type(input.datatype).filter(|_| !input.data.is_empty()) else {
            let value = tensors::to_ort(input, unbatched)?;
            let bound = match &value {
                SessionInputValue::Owned(value) => self.binding.bind_input(input.name, value),
                SessionInputValue::View(value) => self.binding.bind_input(input.name, value),
                SessionInputValue::ViewMut(value) => self.binding.bind_input(input.name, value),
            };
            return bound.map(|()| None).map_err(text);
        };
        let shape: Vec<i64> = input.shape(unbatched).collect();
        let kept = self.buffers.iter().position(|buffer| buffer.input == at && buffer.shape == shape);
        let mut buffer = match kept {
            Some(kept) => self.buffers.remove(kept),
            None => {
                let tensor = DynTensor::new(&self.host, element, shape.clone()).map_err(text)?;
                InputBuffer { input: at, shape, tensor }
            }
        };
        let addresses = write(&mut buffer.tensor, input)?;
        self.binding.bind_input(input.name, &buffer.tensor).map_err(text)?;
        if self.buffers.len() == KEPT_BUFFERS {
            self.buffers.remove(0);
        }
        self.buffers.push(buffer);
        Ok(Some(addresses))
    }
}

fn page_locked(session: &Session, number: i32) -> Result<Allocator, ort::Error> {
    let place = MemoryInfo::new(AllocationDevice::CUDA_PINNED, number, AllocatorType::Device, MemoryType::CPUOutput)?;
    Allocator::new(session, place)
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

/// Copies a batch into a buffer of its type and shape. Returns the addresses of the buffer.
fn write(tensor: &mut DynTensor, input: &EngineInput<'_>) -> Result<Range<*const u8>, String> {
    macro_rules! elements {
        ($type:ty) => {
            tensor.try_extract_tensor_mut::<$type>().map_err(|cause| cause.to_string())?.1
        };
    }
    let place: &mut [u8] = match input.datatype {
        DataType::Bool => {
            let bits = bytemuck::checked::try_cast_slice::<u8, bool>(input.data);
            let place = elements!(bool);
            place.copy_from_slice(bits.map_err(|_| "a BOOL element is neither 0 nor 1".to_owned())?);
            return Ok(bytemuck::cast_slice::<bool, u8>(place).as_ptr_range());
        }
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
        DataType::Bytes => return Err("strings have no buffer".to_owned()),
    };
    place.copy_from_slice(input.data);
    Ok(place.as_ptr_range())
}
