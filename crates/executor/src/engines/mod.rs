//! Engines that run models: each a folder, or a wrapper around others.

pub(crate) mod cpu;
pub(crate) mod cuda_cells;
pub(crate) mod either;
pub(crate) mod emulated;
pub(crate) mod gpu;
pub(crate) mod isolated;
pub(crate) mod onnxruntime;
