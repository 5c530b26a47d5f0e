//! Functions of the driver and of cuBLAS, found when they are first needed.
//!
//! A library is never unloaded, because CUDA's libraries do not support it. A missing library or
//! function is an error that names it, unlike with bindings that abort when they miss one.

use crate::CudaError;
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::path::{Path, PathBuf};
use std::ptr;

pub(crate) type Handle = *mut c_void;

/// Returns the address of a kernel's argument.
pub(crate) fn pointer<T>(argument: &mut T) -> *mut c_void {
    ptr::from_mut(argument).cast()
}

const DRIVER: &str = "libcuda.so.1";
const DRIVER_FIX: &str =
    "install the NVIDIA driver of this machine's distribution, or start the container with --gpus all";
const BLAS: &str = "libcublas.so";
/// Versions of cuBLAS whose functions are the same.
const BLAS_FILES: [&str; 2] = ["libcublas.so.13", "libcublas.so.12"];
const BLAS_FIX: &str =
    "pip install nvidia-cublas, or nvidia-cublas-cu12 for drivers below 580; or add its folder to LD_LIBRARY_PATH";
/// CUDA 12.0, whose compiler made the kernels.
const LEAST_DRIVER: c_int = 12_000;

/// Declares a table of functions, and how it is filled from a library.
macro_rules! functions {
    ($(#[$doc:meta])* $table:ident, $library:expr, $fix:expr; $($field:ident = $symbol:literal: fn($($argument:ty),*);)*) => {
        $(#[$doc])*
        pub(crate) struct $table {
            $(pub(crate) $field: unsafe extern "C" fn($($argument),*) -> c_int,)*
        }

        impl $table {
            fn of(library: &'static Library) -> Result<$table, CudaError> {
                $(
                    // SAFETY: the type is the function's in the headers of CUDA 12 and 13, and the
                    // library is never unloaded.
                    let $field = unsafe { library.get::<unsafe extern "C" fn($($argument),*) -> c_int>($symbol) };
                    let $field = $field.map_err(|_| CudaError::NoSymbol {
                        library: $library,
                        symbol: $symbol,
                        fix: $fix,
                    })?;
                )*
                Ok($table { $($field: *$field,)* })
            }
        }
    };
}

functions! {
    /// Functions of the driver.
    DriverApi, DRIVER, DRIVER_FIX;
    init = "cuInit": fn(c_uint);
    driver_version = "cuDriverGetVersion": fn(*mut c_int);
    error_string = "cuGetErrorString": fn(c_int, *mut *const c_char);
    device_count = "cuDeviceGetCount": fn(*mut c_int);
    device_get = "cuDeviceGet": fn(*mut c_int, c_int);
    device_attribute = "cuDeviceGetAttribute": fn(*mut c_int, c_int, c_int);
    context_retain = "cuDevicePrimaryCtxRetain": fn(*mut Handle, c_int);
    context_set = "cuCtxSetCurrent": fn(Handle);
    memory_alloc = "cuMemAlloc_v2": fn(*mut u64, usize);
    memory_free = "cuMemFree_v2": fn(u64);
    memory_set = "cuMemsetD32_v2": fn(u64, c_uint, usize);
    copy_to_device = "cuMemcpyHtoDAsync_v2": fn(u64, *const c_void, usize, Handle);
    copy_to_host = "cuMemcpyDtoHAsync_v2": fn(*mut c_void, u64, usize, Handle);
    copy_peer = "cuMemcpyPeerAsync": fn(u64, Handle, u64, Handle, usize, Handle);
    host_alloc = "cuMemHostAlloc": fn(*mut *mut c_void, usize, c_uint);
    host_pointer = "cuMemHostGetDevicePointer_v2": fn(*mut u64, *mut c_void, c_uint);
    host_free = "cuMemFreeHost": fn(*mut c_void);
    module_load = "cuModuleLoadData": fn(*mut Handle, *const c_void);
    module_function = "cuModuleGetFunction": fn(*mut Handle, Handle, *const c_char);
    launch = "cuLaunchKernel": fn(Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut *mut c_void, *mut *mut c_void);
    stream_create = "cuStreamCreate": fn(*mut Handle, c_uint);
    stream_destroy = "cuStreamDestroy_v2": fn(Handle);
    stream_synchronize = "cuStreamSynchronize": fn(Handle);
    stream_query = "cuStreamQuery": fn(Handle);
    capture_begin = "cuStreamBeginCapture_v2": fn(Handle, c_int);
    capture_end = "cuStreamEndCapture": fn(Handle, *mut Handle);
    graph_instantiate = "cuGraphInstantiateWithFlags": fn(*mut Handle, Handle, u64);
    graph_upload = "cuGraphUpload": fn(Handle, Handle);
    graph_launch = "cuGraphLaunch": fn(Handle, Handle);
    graph_destroy = "cuGraphDestroy": fn(Handle);
    graph_exec_destroy = "cuGraphExecDestroy": fn(Handle);
}

functions! {
    /// Functions of cuBLAS.
    BlasApi, BLAS, BLAS_FIX;
    create = "cublasCreate_v2": fn(*mut Handle);
    destroy = "cublasDestroy_v2": fn(Handle);
    set_stream = "cublasSetStream_v2": fn(Handle, Handle);
    set_workspace = "cublasSetWorkspace_v2": fn(Handle, u64, usize);
    gemm = "cublasGemmEx": fn(Handle, c_int, c_int, c_int, c_int, c_int, *const c_void, u64, c_int, c_int, u64, c_int, c_int, *const c_void, u64, c_int, c_int, c_int, c_int);
}

impl DriverApi {
    /// Loads and initialises the driver.
    pub(crate) fn load(folders: &[PathBuf]) -> Result<DriverApi, CudaError> {
        let no_library = |cause| CudaError::NoLibrary { name: DRIVER, cause, fix: DRIVER_FIX };
        let library = open(folders, &[DRIVER]).map_err(no_library)?;
        let api = DriverApi::of(library)?;
        // SAFETY: the call takes no memory.
        api.check("cuInit", unsafe { (api.init)(0) })?;
        let mut version = 0;
        // SAFETY: `version` is a place for the result.
        api.check("cuDriverGetVersion", unsafe { (api.driver_version)(&mut version) })?;
        if version < LEAST_DRIVER { Err(CudaError::OldDriver(version)) } else { Ok(api) }
    }

    /// Returns an error with the driver's text unless the status is 0.
    pub(crate) fn check(&self, call: &'static str, status: c_int) -> Result<(), CudaError> {
        if status == 0 {
            return Ok(());
        }
        let mut text: *const c_char = ptr::null();
        // SAFETY: `text` is a place for the result, which the driver points to a constant or null.
        let known = unsafe { (self.error_string)(status, &mut text) } == 0 && !text.is_null();
        // SAFETY: the driver returned a constant text that ends with zero.
        let text = known.then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned());
        Err(CudaError::Driver { call, text: text.unwrap_or_else(|| format!("error {status}")) })
    }
}

impl BlasApi {
    pub(crate) fn load(folders: &[PathBuf]) -> Result<BlasApi, CudaError> {
        // cuBLAS needs this part, which a Python package keeps beside it.
        for parts in [["libcublasLt.so.13"], ["libcublasLt.so.12"]] {
            if open(folders, &parts).is_ok() {
                break;
            }
        }
        let no_library = |cause| CudaError::NoLibrary { name: BLAS, cause, fix: BLAS_FIX };
        BlasApi::of(open(folders, &BLAS_FILES).map_err(no_library)?)
    }

    pub(crate) fn check(&self, call: &'static str, status: c_int) -> Result<(), CudaError> {
        if status == 0 { Ok(()) } else { Err(CudaError::Blas { call, status }) }
    }
}

/// Opens the first of these files that can be loaded, from the folders or where the loader looks.
fn open(folders: &[PathBuf], names: &[&str]) -> Result<&'static Library, String> {
    let mut failed = String::new();
    for name in names {
        let inside = folders.iter().map(|folder| folder.join(name)).filter(|file| file.is_file());
        for file in inside.chain([Path::new(name).to_path_buf()]) {
            // SAFETY: CUDA's libraries may be loaded at any time, on any thread.
            match unsafe { Library::open(Some(&file), RTLD_NOW | RTLD_GLOBAL) } {
                Ok(library) => return Ok(Box::leak(Box::new(library))),
                Err(cause) => failed = cause.to_string(),
            }
        }
    }
    Err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// Compiles a library with these functions, all of which return a number.
    fn library(folder: &Path, name: &str, functions: &[(&str, i32)]) {
        let source = folder.join("library.c");
        let text: String =
            functions.iter().map(|(name, value)| format!("int {name}() {{ return {value}; }}\n")).collect();
        std::fs::write(&source, text).unwrap();
        let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(folder.join(name)).arg(&source).status();
        assert!(built.unwrap().success());
    }

    #[test]
    fn what_is_missing_is_named_and_nothing_panics() {
        let folder = tempfile::tempdir().unwrap();
        let folders = [folder.path().to_path_buf()];
        let text = BlasApi::load(&folders).err().unwrap().to_string();
        assert!(
            text.starts_with("libcublas.so was not found (") && text.contains("pip install nvidia-cublas"),
            "{text}"
        );
        library(folder.path(), "libcublas.so.12", &[("cublasCreate_v2", 0)]);
        let text = BlasApi::load(&folders).err().unwrap().to_string();
        assert!(text.starts_with("libcublas.so has no function cublasDestroy_v2: it is too old"), "{text}");
        std::fs::write(folder.path().join(DRIVER), "no library").unwrap();
        let text = DriverApi::load(&folders).err().unwrap().to_string();
        assert!(
            text.starts_with("libcuda.so.1 was not found (") && text.contains("install the NVIDIA driver"),
            "{text}"
        );
    }
}
