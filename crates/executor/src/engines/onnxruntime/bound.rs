//! A session's tensors bound to buffers of the host that its device reaches by itself: page-locked
//! memory for CUDA, which copies from and to it two to four times as fast as other memory.
//!
//! Inputs are in such memory if they were received into it, or are copied; see `inputs.rs`. Outputs
//! get new memory for each batch, because answers refer to it. Strings cannot be in such memory,
//! and are bound as the library holds them.
//!
//! On the CPU bindings only cost a copy. Tests use them there.

use super::inputs::{InputTensor, InputTensors};
use super::tensors::{self, InputAddresses};
use crate::run::rows::EngineInput;
use ort::memory::{AllocationDevice, Allocator, AllocatorType, MemoryInfo, MemoryType};
use ort::session::{IoBinding, Session, SessionInputValue, SessionOutputs};
use ripieno_model::DataType;
use std::ops::Range;
use std::sync::Arc;

/// The binding of a session.
pub(super) struct BoundTensors {
    binding: IoBinding,
    host: Allocator,
    /// Memory of strings.
    plain: MemoryInfo<'static>,
    inputs: Arc<InputTensors>,
    /// Copies of the last batch's inputs.
    copies: Vec<InputTensor>,
    /// Whether the last batch replaced a default.
    replaced: bool,
}

impl BoundTensors {
    /// Creates the binding of a session, whose inputs are in these tensors.
    pub(super) fn new(
        session: &Session,
        gpu: Option<u32>,
        inputs: &Arc<InputTensors>,
    ) -> Result<BoundTensors, ort::Error> {
        let host = host_memory(session, gpu)?;
        let (binding, plain, inputs) = (session.create_binding()?, MemoryInfo::default(), Arc::clone(inputs));
        Ok(BoundTensors { binding, host, plain, inputs, copies: Vec::new(), replaced: false })
    }

    /// Runs a batch. Returns the outputs, and the addresses of the inputs.
    pub(super) fn run<'a>(
        &'a mut self,
        session: &'a mut Session,
        inputs: &[EngineInput<'_>],
        unbatched: bool,
        outputs: &[(&str, DataType)],
    ) -> Result<(SessionOutputs<'a>, InputAddresses), String> {
        self.inputs.give_back(self.copies.drain(..));
        let mut addresses = InputAddresses::default();
        // A replaced default must not stay bound for the next batch.
        if std::mem::replace(&mut self.replaced, inputs.iter().any(|input| input.whole)) {
            self.binding.clear_inputs();
        }
        for input in inputs {
            let bound = self.bind_input(input, unbatched);
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

    /// Binds an input. Returns the addresses of its tensor, if it is in one.
    fn bind_input(&mut self, input: &EngineInput<'_>, unbatched: bool) -> Result<Option<Range<*const u8>>, String> {
        let text = |cause: ort::Error| cause.to_string();
        let shape: Vec<i64> = input.shape(unbatched).collect();
        if let Some(received) = self.inputs.received(input.data, input.datatype, &shape) {
            self.binding.bind_input(input.name, &received.tensor).map_err(text)?;
            return Ok(Some(input.data.as_ptr_range()));
        }
        let has_memory = !input.data.is_empty();
        let copy = has_memory.then(|| self.inputs.copy(input.data, input.datatype, &shape)).transpose()?.flatten();
        let Some(copy) = copy else {
            let value = tensors::to_ort(input, unbatched)?;
            let bound = match &value {
                SessionInputValue::Owned(value) => self.binding.bind_input(input.name, value),
                SessionInputValue::View(value) => self.binding.bind_input(input.name, value),
                SessionInputValue::ViewMut(value) => self.binding.bind_input(input.name, value),
            };
            return bound.map(|()| None).map_err(text);
        };
        self.binding.bind_input(input.name, &copy.tensor).map_err(text)?;
        let addresses = copy.bytes().as_ptr_range();
        self.copies.push(copy);
        Ok(Some(addresses))
    }
}

/// Returns the memory of the host that a session's device reaches by itself.
pub(super) fn host_memory(session: &Session, gpu: Option<u32>) -> Result<Allocator, ort::Error> {
    match gpu {
        // Versions of the library differ in the number of this memory beside several GPUs.
        Some(ordinal) => page_locked(session, ordinal as i32).or_else(|_| page_locked(session, 0)),
        None => Ok(Allocator::default()),
    }
}

fn page_locked(session: &Session, number: i32) -> Result<Allocator, ort::Error> {
    let place = MemoryInfo::new(AllocationDevice::CUDA_PINNED, number, AllocatorType::Device, MemoryType::CPUOutput)?;
    Allocator::new(session, place)
}
