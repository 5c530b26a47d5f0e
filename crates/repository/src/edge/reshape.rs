//! A tensor whose shape differs between clients and the model; the elements and their order are the
//! same.

/// Both shapes, with the batch dimension first. They have the same number of open dimensions, and
/// the same number of elements between consecutive ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reshape {
    clients: Vec<i64>,
    model: Vec<i64>,
}

impl Reshape {
    /// Maps the clients' `dims` to the model's `shape`, both without the batch dimension. The batch
    /// is open if `batched`, else one row.
    pub fn new(dims: &[i64], shape: &[i64], batched: bool) -> Result<Reshape, String> {
        if let Some(size) = dims.iter().chain(shape).find(|size| **size < -1 || **size == 0) {
            return Err(format!("{size} is no size of a dimension; write 1 or more, or -1 for any"));
        }
        let (of_clients, of_model) = (between(dims)?, between(shape)?);
        if of_clients != of_model {
            return Err(format!(
                "dims {dims:?} and reshape {shape:?} must hold as many elements, with as many of -1 and as many elements \
                 between those; correct one of the two"
            ));
        }
        let whole = |rest: &[i64]| [if batched { -1 } else { 1 }].iter().chain(rest).copied().collect();
        Ok(Reshape { clients: whole(dims), model: whole(shape) })
    }

    /// Returns the clients' shape, with -1 for open dimensions.
    pub fn clients(&self) -> &[i64] {
        &self.clients
    }

    /// Returns the model's shape, with -1 for open dimensions.
    pub fn model(&self) -> &[i64] {
        &self.model
    }

    /// Converts a shape sent by a client into the model's; `None` if it does not fit.
    pub fn to_model(&self, shape: &[i64]) -> Option<Vec<i64>> {
        map_shape(&self.clients, &self.model, shape)
    }

    /// Converts an output shape of the model into the clients'; `None` if it does not fit.
    pub fn to_clients(&self, shape: &[i64]) -> Option<Vec<i64>> {
        map_shape(&self.model, &self.clients, shape)
    }
}

/// Returns the number of elements between consecutive open dimensions.
fn between(shape: &[i64]) -> Result<Vec<i64>, String> {
    let product = |part: &[i64]| part.iter().try_fold(1_i64, |product, &size| product.checked_mul(size));
    let products: Option<Vec<i64>> = shape.split(|&size| size == -1).map(product).collect();
    products.ok_or_else(|| format!("{shape:?} holds too many elements"))
}

fn map_shape(from: &[i64], to: &[i64], shape: &[i64]) -> Option<Vec<i64>> {
    let fits = |(&expected, &size): (&i64, &i64)| expected == size || expected == -1;
    if from.len() != shape.len() || !from.iter().zip(shape).all(fits) {
        return None;
    }
    let mut open = from.iter().zip(shape).filter(|(expected, _)| **expected == -1).map(|(_, &size)| size);
    to.iter().map(|&size| if size == -1 { open.next() } else { Some(size) }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_dimensions_stay_in_their_order() {
        let reshape = Reshape::new(&[-1, 2, 3, -1], &[-1, 6, -1, 1], true).unwrap();
        assert_eq!(reshape.to_model(&[4, 5, 2, 3, 7]), Some(vec![4, 5, 6, 7, 1]));
        assert_eq!(reshape.to_clients(&[4, 5, 6, 7, 1]), Some(vec![4, 5, 2, 3, 7]));
        assert_eq!([reshape.to_model(&[4, 5, 3, 2, 7]), reshape.to_model(&[4, 5, 6, 7])], [None, None]);
        let scalar = Reshape::new(&[1], &[], false).unwrap();
        assert_eq!((scalar.to_model(&[1, 1]), scalar.to_clients(&[1])), (Some(vec![1]), Some(vec![1, 1])));
        assert_eq!(scalar.to_model(&[2, 1]), None, "it is one row");
    }

    #[test]
    fn what_does_not_hold_as_much_is_refused() {
        for (dims, shape) in
            [(&[2, 3][..], &[5][..]), (&[-1, 2], &[2]), (&[2, -1], &[-1, 2]), (&[0], &[0]), (&[-2], &[-2])]
        {
            assert!(Reshape::new(dims, shape, true).is_err(), "{dims:?} {shape:?}");
        }
        assert!(Reshape::new(&[i64::MAX, 2], &[2, i64::MAX], true).unwrap_err().contains("too many elements"));
    }
}
