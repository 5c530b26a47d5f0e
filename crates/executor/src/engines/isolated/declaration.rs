//! Blocks that a Python file declares, as its process reports them: checked, and kept for later
//! processes.

use super::protocol::{Declaration, DeclaredBlock, DeclaredTensor, PYTHON_PROTOCOL};
use ripieno_model::DataType;
use std::sync::OnceLock;

/// Largest number of blocks that a file may declare.
pub(super) const MAX_BLOCKS: usize = 64;
/// Largest number of inputs, and of outputs, of a block.
const MAX_TENSORS: usize = 256;

/// Checks what a process declares and keeps it. Returns an error if an earlier process has declared
/// something else.
pub(super) fn accept(
    declared: Option<Declaration>,
    known: &OnceLock<Declaration>,
    unbatched: bool,
) -> Result<(), String> {
    let declared = declared.unwrap_or_default();
    if declared.protocol != PYTHON_PROTOCOL {
        let (theirs, version) = (declared.protocol, env!("CARGO_PKG_VERSION"));
        return Err(format!(
            "its package ripieno speaks version {theirs} of the protocol, and this server version {PYTHON_PROTOCOL}; install \
             ripieno=={version} for its interpreter"
        ));
    }
    declared.blocks.iter().try_for_each(|block| check_block(block, unbatched))?;
    match &declared.blocks[..] {
        [] => return Err("its file declares no function".to_owned()),
        blocks if blocks.len() > MAX_BLOCKS => {
            return Err(format!("its file declares more than {MAX_BLOCKS} functions"));
        }
        _ => {}
    }
    match *known.get_or_init(|| declared.clone()) == declared {
        true => Ok(()),
        false => {
            Err("its file declares other inputs or outputs than when it was loaded; load the model again".to_owned())
        }
    }
}

fn check_block(block: &DeclaredBlock, unbatched: bool) -> Result<(), String> {
    for (kind, tensors) in [("input", &block.inputs), ("output", &block.outputs)] {
        let place = |tensor: &DeclaredTensor| format!("{kind} '{}' of function '{}'", tensor.name, block.name);
        if tensors.is_empty() || tensors.len() > MAX_TENSORS {
            return Err(format!(
                "function '{}' declares {} {kind}s; 1 to {MAX_TENSORS} are possible",
                block.name,
                tensors.len()
            ));
        }
        for (at, tensor) in tensors.iter().enumerate() {
            let shape = &tensor.shape;
            if tensors[..at].iter().any(|other| other.name == tensor.name) {
                return Err(format!("{} is declared twice", place(tensor)));
            }
            if tensor.datatype as usize >= DataType::ALL.len() {
                return Err(format!("{} has an unknown datatype", place(tensor)));
            }
            let has_batch = unbatched || shape.first() == Some(&-1);
            let has_length = tensor.length_dim == 0 || (tensor.length_dim as usize) < shape.len();
            if !has_batch || !has_length || shape.iter().any(|&dim| dim < -1) {
                return Err(format!("{} has the shape {shape:?}, which is none", place(tensor)));
            }
        }
    }
    Ok(())
}
