//! The context of a GPU: driver, cuBLAS and kernels.
//!
//! The context is the device's primary one, which other libraries of the process use, too. It is
//! never released: a process that used a GPU keeps it.

use crate::CudaError;
use crate::api::{BlasApi, DriverApi, Handle};
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::ffi::CStr;
use std::path::PathBuf;
use std::ptr;

/// Held by a thread that records a graph, and shared by those that take or free memory or wait for
/// the GPU: one of these calls, on any thread, may spoil a recording in progress.
static RECORDING: RwLock<()> = RwLock::new(());

/// The kernels, made from `kernels/cells.cu` by `scripts/ptx`.
const KERNELS: &str = concat!(include_str!("../kernels/cells.ptx"), "\0");

/// The context that all memory and streams of a GPU share.
pub(crate) struct Context {
    pub(crate) api: DriverApi,
    pub(crate) blas: BlasApi,
    pub(crate) handle: Handle,
    pub(crate) chain: Handle,
    pub(crate) reduce: Handle,
}

// SAFETY: handles of the driver, whose functions may be called on any thread.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// Opens the primary context of a GPU, and loads the kernels.
    pub(crate) fn open(folders: &[PathBuf], ordinal: u32) -> Result<Context, CudaError> {
        let api = DriverApi::load(folders)?;
        let blas = BlasApi::load(folders)?;
        let (mut count, mut device, mut handle) = (0, 0, ptr::null_mut());
        // SAFETY: `count` is a place for the result.
        api.check("cuDeviceGetCount", unsafe { (api.device_count)(&mut count) })?;
        if i64::from(ordinal) >= i64::from(count) {
            return Err(CudaError::NoDevice { ordinal, count });
        }
        // SAFETY: `device` is a place for the result.
        api.check("cuDeviceGet", unsafe { (api.device_get)(&mut device, ordinal as i32) })?;
        let attribute = |number| {
            let mut value = 0;
            // SAFETY: `value` is a place for the result, and the device exists.
            api.check("cuDeviceGetAttribute", unsafe { (api.device_attribute)(&mut value, number, device) })?;
            Ok(value)
        };
        const MAJOR: i32 = 75;
        const MINOR: i32 = 76;
        let (major, minor) = (attribute(MAJOR)?, attribute(MINOR)?);
        if major < 8 {
            return Err(CudaError::OldDevice { ordinal, major, minor });
        }
        // SAFETY: `handle` is a place for the result, and the device exists.
        api.check("cuDevicePrimaryCtxRetain", unsafe { (api.context_retain)(&mut handle, device) })?;
        let _shared = RECORDING.read_recursive();
        let mut context = Context { api, blas, handle, chain: ptr::null_mut(), reduce: ptr::null_mut() };
        context.enter()?;
        let mut module = ptr::null_mut();
        // SAFETY: `module` is a place for the result, and the text ends with zero.
        let status = unsafe { (context.api.module_load)(&mut module, KERNELS.as_ptr().cast()) };
        context.api.check("cuModuleLoadData", status)?;
        context.chain = context.function(module, c"chain")?;
        context.reduce = context.function(module, c"reduce")?;
        Ok(context)
    }

    /// Keeps other threads from recording, for calls that may spoil a recording.
    pub(crate) fn share(&self) -> RwLockReadGuard<'static, ()> {
        // A failed call may give memory back while it is held.
        RECORDING.read_recursive()
    }

    /// Keeps all other threads from calls that may spoil a recording.
    pub(crate) fn record(&self) -> RwLockWriteGuard<'static, ()> {
        RECORDING.write()
    }

    /// Makes the context the thread's current one.
    pub(crate) fn enter(&self) -> Result<(), CudaError> {
        // SAFETY: the context is never released.
        self.api.check("cuCtxSetCurrent", unsafe { (self.api.context_set)(self.handle) })
    }

    fn function(&self, module: Handle, name: &CStr) -> Result<Handle, CudaError> {
        let mut function = ptr::null_mut();
        // SAFETY: `function` is a place for the result, and the module is never unloaded.
        let status = unsafe { (self.api.module_function)(&mut function, module, name.as_ptr()) };
        self.api.check("cuModuleGetFunction", status)?;
        Ok(function)
    }
}
