//! Memory into which a batch can be received so that its engine takes it without another copy.

use bytes::Bytes;
use ripieno_model::DataType;

/// A source of such memory.
pub(crate) trait InputMemory: Send + Sync {
    /// Takes memory for an input. `None` if the engine would have to copy it all the same.
    fn take(&self, datatype: DataType, shape: &[i64]) -> Option<Box<dyn InputSpace>>;

    /// Gives the memory back that no input uses.
    fn release(&self);
}

/// Memory of one input.
pub(crate) trait InputSpace {
    /// Returns the memory, which has the size of the input.
    fn bytes_mut(&mut self) -> &mut [u8];

    /// Returns the input. The engine knows it by its address as long as the bytes live.
    fn freeze(self: Box<Self>) -> Bytes;
}
