//! Bytes that an engine can read as numbers.
//!
//! Tensors travel as bytes, but engines need slices of numbers, and a byte slice may begin at any
//! address. So batches are gathered into a buffer that is aligned for every datatype. The engine's
//! output vectors become bytes without copying.

use crate::contract::kept::KeptBytes;
use bytemuck::NoUninit;
use bytes::Bytes;
use ripieno_model::DataType;

/// A reusable buffer, aligned for every datatype.
#[derive(Debug, Default)]
pub(crate) struct AlignedBuffer {
    words: Vec<u64>,
    /// Number of words allocated in advance.
    ahead: usize,
    /// Size of the part that batches have used.
    kept: KeptBytes,
}

impl AlignedBuffer {
    /// Largest buffer that is allocated in advance. Larger buffers grow when needed.
    const MAX_AHEAD_BYTES: usize = 1 << 32;

    /// Creates a buffer of this size. The system commits its pages when they are first written.
    pub(crate) fn with_capacity(bytes: usize) -> AlignedBuffer {
        let ahead = if bytes <= Self::MAX_AHEAD_BYTES { bytes.div_ceil(size_of::<u64>()) } else { 0 };
        AlignedBuffer { words: vec![0; ahead], ahead, kept: KeptBytes::default() }
    }

    /// Gives the used memory back to the system. The content is lost.
    pub(crate) fn release(&mut self) {
        if self.kept.bytes() > 0 {
            // The old memory is freed first, so that the new memory can take its place.
            self.words = Vec::new();
            *self = AlignedBuffer::with_capacity(self.ahead * size_of::<u64>());
        }
    }

    /// Returns the first `bytes` bytes for writing. Allocates only if the buffer has never been
    /// this large.
    pub(crate) fn first_mut(&mut self, bytes: usize) -> &mut [u8] {
        let words = bytes.div_ceil(size_of::<u64>());
        if self.words.len() < words {
            self.words.resize(words, 0);
        }
        self.kept.raise_to(words * size_of::<u64>());
        &mut bytemuck::cast_slice_mut(&mut self.words)[..bytes]
    }

    /// Returns the first `bytes` bytes.
    pub(crate) fn first(&self, bytes: usize) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..bytes]
    }
}

/// Whether the address of `data` is aligned for elements of `size` bytes.
pub(crate) fn is_aligned(data: &[u8], size: usize) -> bool {
    data.as_ptr().addr().is_multiple_of(size.max(1))
}

/// Converts a number to the bytes of an element; `None` if the datatype cannot represent it.
pub(crate) fn bytes_of(datatype: DataType, number: f64) -> Option<Vec<u8>> {
    macro_rules! whole {
        ($($name:ident: $int:ty),*) => {
            match datatype {
                $(DataType::$name => (number.fract() == 0.0 && number >= <$int>::MIN as f64 && number <= <$int>::MAX as f64)
                    .then(|| (number as $int).to_le_bytes().to_vec()),)*
                DataType::Bool => [0.0, 1.0].contains(&number).then(|| vec![number as u8]),
                DataType::Fp16 => Some(half::f16::from_f64(number).to_le_bytes().to_vec()),
                DataType::Bf16 => Some(half::bf16::from_f64(number).to_le_bytes().to_vec()),
                DataType::Fp32 => Some((number as f32).to_le_bytes().to_vec()),
                DataType::Fp64 => Some(number.to_le_bytes().to_vec()),
                DataType::Bytes => None,
            }
        };
    }
    whole!(Uint8: u8, Uint16: u16, Uint32: u32, Uint64: u64, Int8: i8, Int16: i16, Int32: i32, Int64: i64)
}

/// Converts a vector of numbers to bytes without copying them.
pub(crate) fn into_bytes<T: NoUninit + Send>(elements: Vec<T>) -> Bytes {
    struct VecOwner<T>(Vec<T>);
    impl<T: NoUninit> AsRef<[u8]> for VecOwner<T> {
        fn as_ref(&self) -> &[u8] {
            bytemuck::cast_slice(&self.0)
        }
    }
    Bytes::from_owner(VecOwner(elements))
}

const _: () = assert!(cfg!(target_endian = "little"), "tensors travel little-endian and are read in place");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_allocates_only_when_it_was_never_as_large() {
        let mut buffer = AlignedBuffer::with_capacity(64);
        let at = buffer.first(64).as_ptr();
        buffer.first_mut(64)[63] = 7;
        assert_eq!((buffer.first_mut(64).as_ptr(), buffer.first(64)[63]), (at, 7));
        assert_eq!(buffer.first_mut(65).len(), 65);
    }

    #[test]
    fn a_released_buffer_keeps_nothing_and_can_be_used_again() {
        let mut buffer = AlignedBuffer::with_capacity(64);
        assert_eq!(buffer.kept.bytes(), 0, "no batch has used it");
        buffer.first_mut(1000)[999] = 7;
        assert_eq!(buffer.kept.bytes(), 1000);
        buffer.release();
        assert_eq!((buffer.kept.bytes(), buffer.words.len()), (0, 8));
        assert_eq!((buffer.first_mut(9).len(), buffer.kept.bytes()), (9, 16));
    }

    #[test]
    fn a_vector_becomes_bytes_in_place() {
        let elements = vec![1.0f32, -2.5];
        let at = elements.as_ptr().addr();
        let bytes = into_bytes(elements);
        assert_eq!((bytes.as_ptr().addr(), &bytes[4..]), (at, &(-2.5f32).to_le_bytes()[..]));
        assert!(is_aligned(&bytes, 4) && !is_aligned(&bytes[1..], 4));
    }
}
