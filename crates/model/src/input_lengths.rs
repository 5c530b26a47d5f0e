//! The length of a request: a dimension of its inputs.

use crate::{Extent, TensorSpec};

/// Dimension of each input that is the length of the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputLengths {
    /// Length of the longest request.
    pub max: u32,
    /// Dimensions in the order of the inputs; `None` for an input without a length.
    pub dims: Vec<Option<usize>>,
}

impl InputLengths {
    /// Returns the extent of a request. `specs` are the inputs of its model, and `shape` returns
    /// the shape of the request's input of a name. The error names the input that is too long or
    /// differs from another.
    pub fn extent<'a>(
        &self,
        specs: &[TensorSpec],
        shape: impl Fn(&str) -> Option<&'a [i64]>,
    ) -> Result<Extent, String> {
        let mut agreed: Option<(&str, i64)> = None;
        for (spec, dim) in specs.iter().zip(&self.dims) {
            let Some(dim) = dim else { continue };
            let length = shape(&spec.name).and_then(|shape| shape.get(*dim).copied()).unwrap_or(0);
            if !(1..=i64::from(self.max)).contains(&length) {
                return Err(format!(
                    "input '{}' is {length} long in dimension {dim}, but the model takes 1 to {}; send less, or raise \
                     max_length in its model.toml",
                    spec.name, self.max
                ));
            }
            match agreed {
                Some((other, agreed)) if agreed != length => {
                    return Err(format!(
                        "input '{}' is {length} long, but '{other}' is {agreed}; send them equally long",
                        spec.name
                    ));
                }
                _ => agreed = Some((&spec.name, length)),
            }
        }
        Ok(Extent { length: agreed.map_or(1, |(_, length)| length as u32), ..Extent::ONE })
    }
}
