//! Memory of a GPU, and memory of the host that a GPU reads and writes in place.

use crate::CudaError;
use crate::context::Context;
use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

/// Memory may be used by all contexts, and has an address on the device.
const PORTABLE_AND_MAPPED: u32 = 1 | 2;

/// Words in a GPU's memory. Freed on drop.
pub(crate) struct DeviceWords {
    context: Arc<Context>,
    pub(crate) address: u64,
    words: usize,
}

impl DeviceWords {
    /// Takes memory and fills it with `fill`.
    pub(crate) fn new(context: &Arc<Context>, words: usize, fill: u32) -> Result<DeviceWords, CudaError> {
        let words = words.max(1);
        let _shared = context.share();
        context.enter()?;
        let mut address = 0;
        // SAFETY: `address` is a place for the result, and the context is current.
        let status = unsafe { (context.api.memory_alloc)(&mut address, words * 4) };
        if status == OUT_OF_MEMORY {
            return Err(CudaError::OutOfMemory((words * 4).div_ceil(1 << 20)));
        }
        context.api.check("cuMemAlloc", status)?;
        let memory = DeviceWords { context: Arc::clone(context), address, words };
        // SAFETY: the memory has that many words.
        context.api.check("cuMemsetD32", unsafe { (context.api.memory_set)(address, fill, words) })?;
        Ok(memory)
    }

    /// Takes memory with these words.
    pub(crate) fn of(context: &Arc<Context>, words: &[u32]) -> Result<DeviceWords, CudaError> {
        let memory = DeviceWords::new(context, words.len(), 0)?;
        let bytes = size_of_val(words);
        let _shared = context.share();
        // SAFETY: both sides have that many bytes, and `words` lives until the copy has ended.
        let status =
            unsafe { (context.api.copy_to_device)(memory.address, words.as_ptr().cast(), bytes, ptr::null_mut()) };
        context.api.check("cuMemcpyHtoD", status)?;
        // SAFETY: null is the default stream, on which the copy was queued.
        context.api.check("cuStreamSynchronize", unsafe { (context.api.stream_synchronize)(ptr::null_mut()) })?;
        Ok(memory)
    }

    /// Copies words from the device, on a stream of its own.
    pub(crate) fn read(&self, stream: &GpuStream, from: usize, to: &mut [u32]) -> Result<(), CudaError> {
        if from.checked_add(to.len()).is_none_or(|end| end > self.words) {
            return Err(CudaError::InvalidProgram);
        }
        let context = &self.context;
        let _shared = context.share();
        context.enter()?;
        let (address, bytes) = (self.address + from as u64 * 4, size_of_val(to));
        // SAFETY: both sides have that many bytes, and `to` lives until the copy has ended below.
        let status = unsafe { (context.api.copy_to_host)(to.as_mut_ptr().cast(), address, bytes, stream.handle) };
        context.api.check("cuMemcpyDtoH", status)?;
        stream.synchronize()
    }
}

impl DeviceWords {
    /// Copies words from another GPU's memory to a place here, on a stream of this GPU.
    pub(crate) fn copy_from(
        &self,
        stream: &GpuStream,
        (from, from_word): (&DeviceWords, usize),
        to_word: usize,
        words: usize,
    ) -> Result<(), CudaError> {
        let inside =
            |memory: &DeviceWords, first: usize| first.checked_add(words).is_some_and(|end| end <= memory.words);
        if !inside(from, from_word) || !inside(self, to_word) {
            return Err(CudaError::InvalidProgram);
        }
        let context = &self.context;
        let _shared = context.share();
        context.enter()?;
        let (to, source) = (self.address + to_word as u64 * 4, from.address + from_word as u64 * 4);
        let (own, other) = (context.handle, from.context.handle);
        // SAFETY: both places have that many words, which live until the copy has ended below.
        let status = unsafe { (context.api.copy_peer)(to, own, source, other, words * 4, stream.handle) };
        context.api.check("cuMemcpyPeerAsync", status)?;
        stream.synchronize()
    }
}

const OUT_OF_MEMORY: i32 = 2;

impl Drop for DeviceWords {
    fn drop(&mut self) {
        let _shared = self.context.share();
        if self.context.enter().is_ok() {
            // SAFETY: the memory was taken by `new` and is freed once. The driver waits for kernels
            // that use it.
            unsafe { (self.context.api.memory_free)(self.address) };
        }
    }
}

/// Words in the host's memory at a fixed place, which the GPU sees. Freed on drop.
pub(crate) struct HostWords {
    context: Arc<Context>,
    pointer: *mut u32,
    words: usize,
    /// Address on the device.
    pub(crate) address: u64,
}

// SAFETY: the memory belongs to the value alone, and the driver's functions may be called on any
// thread.
unsafe impl Send for HostWords {}

impl HostWords {
    pub(crate) fn new(context: &Arc<Context>, words: usize) -> Result<HostWords, CudaError> {
        let words = words.max(1);
        let _shared = context.share();
        context.enter()?;
        let mut pointer: *mut c_void = ptr::null_mut();
        // SAFETY: `pointer` is a place for the result, and the context is current.
        let status = unsafe { (context.api.host_alloc)(&mut pointer, words * 4, PORTABLE_AND_MAPPED) };
        context.api.check("cuMemHostAlloc", status)?;
        let mut memory = HostWords { context: Arc::clone(context), pointer: pointer.cast(), words, address: 0 };
        // SAFETY: the memory was taken just now and has that many words.
        unsafe { ptr::write_bytes(memory.pointer, 0, words) };
        // SAFETY: `address` is a place for the result, and `pointer` was taken mapped.
        let status = unsafe { (context.api.host_pointer)(&mut memory.address, pointer, 0) };
        context.api.check("cuMemHostGetDevicePointer", status)?;
        Ok(memory)
    }

    /// Returns the words. No step may be in flight that uses them.
    pub(crate) fn words(&self) -> &[u32] {
        // SAFETY: the memory has that many words, which are initialised. Only a step in flight
        // writes them, and a lane lends them between its steps only.
        unsafe { std::slice::from_raw_parts(self.pointer, self.words) }
    }

    /// Returns the words. No step may be in flight that uses them.
    pub(crate) fn words_mut(&mut self) -> &mut [u32] {
        // SAFETY: as in `words`; `self` is borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.pointer, self.words) }
    }

    /// Reads the first word, which the GPU may write at the same time.
    pub(crate) fn look(&self) -> u32 {
        // SAFETY: the memory has at least one word, aligned; volatile, as the GPU writes it.
        let word = unsafe { ptr::read_volatile(self.pointer) };
        std::sync::atomic::fence(std::sync::atomic::Ordering::Acquire);
        word
    }
}

impl Drop for HostWords {
    fn drop(&mut self) {
        let _shared = self.context.share();
        if self.context.enter().is_ok() {
            // SAFETY: the memory was taken by `new` and is freed once.
            unsafe { (self.context.api.host_free)(self.pointer.cast()) };
        }
    }
}

/// A queue of work on the GPU. Waits for its work on drop.
pub(crate) struct GpuStream {
    context: Arc<Context>,
    pub(crate) handle: crate::api::Handle,
}

// SAFETY: a handle of the driver, whose functions may be called on any thread.
unsafe impl Send for GpuStream {}
// SAFETY: as above; the driver serialises calls on one stream.
unsafe impl Sync for GpuStream {}

impl GpuStream {
    /// Creates a stream that does not wait for the default stream.
    pub(crate) fn new(context: &Arc<Context>) -> Result<GpuStream, CudaError> {
        const NON_BLOCKING: u32 = 1;
        let _shared = context.share();
        context.enter()?;
        let mut handle = ptr::null_mut();
        // SAFETY: `handle` is a place for the result, and the context is current.
        context.api.check("cuStreamCreate", unsafe { (context.api.stream_create)(&mut handle, NON_BLOCKING) })?;
        Ok(GpuStream { context: Arc::clone(context), handle })
    }

    pub(crate) fn synchronize(&self) -> Result<(), CudaError> {
        let _shared = self.context.share();
        // SAFETY: the stream lives.
        let status = unsafe { (self.context.api.stream_synchronize)(self.handle) };
        self.context.api.check("cuStreamSynchronize", status)
    }

    /// Returns the error of the queued work, if it has failed.
    pub(crate) fn failure(&self) -> Option<CudaError> {
        const NOT_READY: i32 = 600;
        // SAFETY: the stream lives.
        let status = unsafe { (self.context.api.stream_query)(self.handle) };
        if status == NOT_READY { None } else { self.context.api.check("cuStreamQuery", status).err() }
    }
}

impl Drop for GpuStream {
    fn drop(&mut self) {
        let _shared = self.context.share();
        if self.context.enter().is_ok() {
            let _ = self.synchronize();
            // SAFETY: the stream was created by `new` and is destroyed once.
            unsafe { (self.context.api.stream_destroy)(self.handle) };
        }
    }
}
