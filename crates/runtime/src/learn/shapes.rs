//! Numbers for the shapes of a model's requests.
//!
//! Rows of different shapes cannot be in one tensor, so the core forms batches of one shape. The
//! core knows a shape only by the number assigned here. Each combination of the sizes of a model's
//! open dimensions gets a number. The batch dimension and padded lengths do not count as open.
//! Clients choose shapes freely, so the number of shapes is bounded. If all numbers are taken, a
//! new shape gets the least recently used number that no live request has. If every number is in
//! use, the request runs alone.
//!
//! A number keeps its size, by which the cost of a request is learnt (`shape_costs.rs`).

use crate::learn::shape_costs::{ShapeCosts, SizeBucket};
use ripieno_base::{Nanos, Time};
use ripieno_executor::{LoadedModel, Tensor};
use ripieno_sched::{CostScale, Shape};
use std::collections::HashMap;

/// Largest number of shapes among a model's live requests.
const MAX_SHAPES: usize = 256;

/// Largest number of open dimensions that a remote request can send. Remote requests with more open
/// dimensions run alone.
const MAX_OPEN_DIMS: usize = 4;

/// Sizes of a remote request's open dimensions; `None` if there are too many or one is too large.
pub type OpenSizes = Option<[u32; MAX_OPEN_DIMS]>;

/// The open dimensions of a model, as pairs of input index and dimension index.
#[derive(Clone, Debug)]
pub struct OpenDims(Vec<(usize, usize)>);

impl OpenDims {
    /// Returns the open dimensions of a model. There are none if its requests run cell by cell.
    pub fn of(loaded: &dyn LoadedModel, unfolds: bool) -> OpenDims {
        let lengths = loaded.lengths();
        let is_length = |input: usize, dim: usize| {
            lengths.is_some_and(|lengths| lengths.dims.get(input).is_some_and(|length| *length == Some(dim)))
        };
        let mut open = Vec::new();
        for (input, spec) in loaded.inputs().iter().enumerate().filter(|_| !unfolds) {
            let dims = spec.shape.iter().enumerate().skip(1).filter(|&(dim, &size)| size < 0 && !is_length(input, dim));
            open.extend(dims.map(|(dim, _)| (input, dim)));
        }
        OpenDims(open)
    }

    /// Returns the sizes of the open dimensions in `inputs`, which must be in the model's order. A
    /// remote server sends the sizes instead of the inputs.
    pub fn sizes(&self, inputs: &[Tensor]) -> OpenSizes {
        let mut sizes = [0; MAX_OPEN_DIMS];
        if self.0.len() > MAX_OPEN_DIMS {
            return None;
        }
        for (to, size) in sizes.iter_mut().zip(self.each(inputs)) {
            *to = u32::try_from(size).ok()?;
        }
        Some(sizes)
    }

    fn each<'a>(&'a self, inputs: &'a [Tensor]) -> impl Iterator<Item = i64> + 'a {
        let size = |&(input, dim): &(usize, usize)| inputs.get(input)?.shape.get(dim).copied();
        self.0.iter().map(move |open| size(open).unwrap_or(0))
    }
}

/// The data from which a request's shape is determined.
pub(crate) enum ShapeSource<'a> {
    Inputs(&'a [Tensor]),
    Sizes(OpenSizes),
}

/// The shapes in use of one model with open dimensions.
#[derive(Debug)]
pub(crate) struct ShapeTable {
    open: OpenDims,
    numbers: HashMap<Vec<i64>, u32>,
    /// Shapes, indexed by number.
    entries: Vec<ShapeEntry>,
    costs: ShapeCosts,
    /// Number of requests so far, used as the time of last use.
    turn: u64,
    /// Buffer for the sizes of the current request.
    scratch: Vec<i64>,
}

#[derive(Debug)]
struct ShapeEntry {
    sizes: Vec<i64>,
    bucket: SizeBucket,
    /// Number of requests in the core.
    live: usize,
    used: u64,
}

impl ShapeTable {
    /// Creates the table. Returns `None` if all requests of the model have one shape, or run cell
    /// by cell.
    pub(crate) fn new(loaded: &dyn LoadedModel, unfolds: bool) -> Option<ShapeTable> {
        let open = OpenDims::of(loaded, unfolds);
        let (numbers, kept, scratch) = (HashMap::new(), Vec::new(), Vec::new());
        (!open.0.is_empty()).then_some(ShapeTable {
            open,
            numbers,
            entries: kept,
            costs: ShapeCosts::new(),
            turn: 0,
            scratch,
        })
    }

    /// Returns the shape of a call that enters the core as `requests` requests. The call's inputs
    /// must be in the model's order.
    pub(crate) fn enter(&mut self, request: ShapeSource<'_>, requests: usize) -> Shape {
        self.turn += 1;
        self.scratch.clear();
        match request {
            ShapeSource::Inputs(inputs) => self.scratch.extend(self.open.each(inputs)),
            ShapeSource::Sizes(Some(sizes)) => {
                self.scratch.extend(sizes.into_iter().take(self.open.0.len()).map(i64::from));
            }
            ShapeSource::Sizes(None) => return Shape::ALONE,
        }
        let known = self.numbers.get(&self.scratch).copied();
        let Some(number) = known.or_else(|| self.assign_number()) else { return Shape::ALONE };
        let kept = &mut self.entries[number as usize];
        (kept.live, kept.used) = (kept.live + requests, self.turn);
        Shape(number)
    }

    /// Returns the cost of requests of a shape, relative to the profile.
    pub(crate) fn cost(&self, shape: Shape) -> CostScale {
        self.bucket(shape).map_or(CostScale::PROFILED, |bucket| self.costs.scale(bucket))
    }

    /// Returns whether the cost of requests of a shape has been measured.
    pub(crate) fn is_cost_known(&self, shape: Shape) -> bool {
        self.bucket(shape).is_some_and(|bucket| self.costs.is_known(bucket))
    }

    /// Learns from a task with requests of a shape.
    pub(crate) fn observe(&mut self, now: Time, shape: Shape, took: Nanos, profiled: Nanos) {
        if let Some(bucket) = self.bucket(shape) {
            self.costs.observe(now, bucket, took, profiled);
        }
    }

    /// Records that a request of a shape was refused because it could not be in time.
    pub(crate) fn on_hopeless(&mut self, now: Time, shape: Shape) {
        if let Some(bucket) = self.bucket(shape) {
            self.costs.on_hopeless(now, bucket);
        }
    }

    /// Forgets the costs, after a change of the profile that they are relative to.
    pub(crate) fn forget_costs(&mut self) {
        self.costs.forget();
    }

    fn bucket(&self, shape: Shape) -> Option<SizeBucket> {
        self.entries.get(shape.0 as usize).map(|entry| entry.bucket)
    }

    /// Counts a request with this shape as having left the core.
    pub(crate) fn leave(&mut self, shape: Shape) {
        if shape != Shape::ALONE {
            self.entries[shape.0 as usize].live -= 1;
        }
    }

    /// Assigns a number to the sizes in `scratch`; `None` if live requests use all numbers.
    fn assign_number(&mut self) -> Option<u32> {
        let number = if self.entries.len() < MAX_SHAPES {
            self.entries.push(ShapeEntry { sizes: Vec::new(), bucket: SizeBucket::of(&[]), live: 0, used: 0 });
            self.entries.len() - 1
        } else {
            let idle = self.entries.iter().enumerate().filter(|(_, kept)| kept.live == 0);
            let (number, kept) = idle.min_by_key(|(_, kept)| kept.used)?;
            self.numbers.remove(&kept.sizes);
            number
        };
        self.entries[number].sizes.clone_from(&self.scratch);
        self.entries[number].bucket = SizeBucket::of(&self.scratch);
        self.numbers.insert(self.scratch.clone(), number as u32);
        Some(number as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ripieno_model::InputLengths;
    use ripieno_model::{DataType, TensorSpec};
    use std::any::Any;

    struct Open(Vec<TensorSpec>, Option<InputLengths>);

    impl LoadedModel for Open {
        fn inputs(&self) -> &[TensorSpec] {
            &self.0
        }
        fn outputs(&self) -> &[TensorSpec] {
            &[]
        }
        fn blocks(&self) -> usize {
            1
        }
        fn lengths(&self) -> Option<&InputLengths> {
            self.1.as_ref()
        }
        fn as_any(&self) -> &dyn Any {
            self
        }
    }

    fn shapes(inputs: &[&[i64]], lengths: Option<&[Option<usize>]>) -> Option<ShapeTable> {
        let spec = |shape: &&[i64]| TensorSpec { name: "x".into(), datatype: DataType::Fp32, shape: shape.to_vec() };
        let lengths = lengths.map(|dims| InputLengths { max: 8, dims: dims.to_vec() });
        ShapeTable::new(&Open(inputs.iter().map(spec).collect(), lengths), false)
    }

    fn enter(shapes: &mut ShapeTable, inputs: &[Tensor], requests: usize) -> Shape {
        shapes.enter(ShapeSource::Inputs(inputs), requests)
    }

    fn request(inputs: &[&[i64]]) -> Vec<Tensor> {
        let tensor = |shape: &&[i64]| Tensor {
            name: "x".into(),
            datatype: DataType::Fp32,
            shape: shape.to_vec(),
            data: bytes::Bytes::new(),
        };
        inputs.iter().map(tensor).collect()
    }

    #[test]
    fn only_open_dimensions_that_nothing_pads_make_a_shape() {
        assert!(shapes(&[&[-1, 4], &[-1]], None).is_none());
        assert!(shapes(&[&[-1, -1]], Some(&[Some(1)])).is_none());
        let mut both = shapes(&[&[-1, -1], &[-1, -1, 3]], Some(&[Some(1), None])).unwrap();
        let mut of = |a: &[i64], b: &[i64]| enter(&mut both, &request(&[a, b]), 1);
        let first = of(&[1, 5], &[1, 6, 3]);
        assert_eq!(of(&[2, 7], &[2, 6, 3]), first, "rows and length do not matter");
        assert_ne!(of(&[1, 5], &[1, 7, 3]), first);
    }

    #[test]
    fn equal_shapes_have_equal_numbers_and_others_do_not() {
        let mut shapes = shapes(&[&[-1, -1], &[-1, -1]], None).unwrap();
        let mut of = |a, b| enter(&mut shapes, &request(&[&[1, a], &[1, b]]), 1);
        let seen = [of(4, 5), of(5, 4), of(4, 4), of(5, 5)];
        assert!((0..4).all(|at| !seen[..at].contains(&seen[at])));
        assert_eq!([of(4, 5), of(5, 4), of(4, 4), of(5, 5)], seen);
    }

    #[test]
    fn sizes_stand_for_the_inputs_that_they_are_of() {
        let specs = |inputs: &[&[i64]]| {
            let spec =
                |shape: &&[i64]| TensorSpec { name: "x".into(), datatype: DataType::Fp32, shape: shape.to_vec() };
            Open(inputs.iter().map(spec).collect(), None)
        };
        let loaded = specs(&[&[-1, -1], &[-1, 3, -1]]);
        let (mut shapes, open) = (ShapeTable::new(&loaded, false).unwrap(), OpenDims::of(&loaded, false));
        let mut both = |a, b| {
            let inputs = request(&[&[1, a], &[1, 3, b]]);
            let elsewhere = shapes.enter(ShapeSource::Sizes(open.sizes(&inputs)), 1);
            (elsewhere, enter(&mut shapes, &inputs, 1))
        };
        let ((first, same), (other, other_same)) = (both(4, 5), both(5, 4));
        assert!(first == same && other == other_same && first != other);
        assert_eq!(both(1 << 32, 1).0, Shape::ALONE, "a size that the sizes cannot say");
        let many = OpenDims::of(&specs(&[&[-1, -1, -1, -1, -1, -1]]), false);
        assert_eq!(many.sizes(&request(&[&[1; 6]])), None);
    }

    #[test]
    fn numbers_are_bounded_and_reused_only_when_free() {
        let mut shapes = shapes(&[&[-1, -1]], None).unwrap();
        let wide = |width: usize| request(&[&[1, width as i64]]);
        let numbers: Vec<Shape> = (0..MAX_SHAPES).map(|width| enter(&mut shapes, &wide(width), 2)).collect();
        assert_eq!(enter(&mut shapes, &wide(MAX_SHAPES), 1), Shape::ALONE);
        shapes.leave(Shape::ALONE);
        // Shape 7 has no live request and the oldest use. Shape 3 was used again, and shape 9 still
        // has a live request.
        [3, 3, 7, 7, 9].iter().for_each(|&at: &usize| shapes.leave(numbers[at]));
        assert_eq!(enter(&mut shapes, &wide(3), 1), numbers[3]);
        shapes.leave(numbers[3]);
        assert_eq!(
            enter(&mut shapes, &wide(MAX_SHAPES), 1),
            numbers[7],
            "the least recently used of those that are free"
        );
        assert_eq!(enter(&mut shapes, &wide(7), 1), numbers[3]);
        assert_eq!(enter(&mut shapes, &wide(3), 1), Shape::ALONE);
        assert_eq!(enter(&mut shapes, &wide(9), 1), numbers[9]);
        assert!(shapes.numbers.len() == MAX_SHAPES && shapes.entries.len() == MAX_SHAPES);
    }
}
