//! A number for each combination of shapes that the requests of a model come in.
//!
//! Rows of different shapes cannot lie side by side in one tensor. The core forms batches of one shape and knows shapes as
//! numbers only, which are given here: to each combination of the open dimensions of a model's inputs that is seen, the batch and
//! the length that requests are padded to left out. There are so many numbers and no more, for a client makes up shapes as it
//! likes; the one that was used longest ago goes to the next new shape as soon as none of its requests lives, and who gets
//! none runs alone.

use ripieno_executor::{Loaded, Tensor};
use ripieno_sched::Shape;
use std::collections::HashMap;

/// The most shapes of a model that requests can have at a time.
const MOST: usize = 256;

/// The most open dimensions of a model whose requests share batches, if their inputs lie elsewhere.
const MOST_OPEN: usize = 4;

/// The sizes of a request's open dimensions, for who does not have its inputs; none if they are too many or too large.
pub type OpenSizes = Option<[u32; MOST_OPEN]>;

/// The open dimensions of a model: which input, which dimension of it.
#[derive(Clone, Debug)]
pub struct OpenDims(Vec<(usize, usize)>);

impl OpenDims {
    /// None if requests unfold and have no rows.
    pub fn of(loaded: &dyn Loaded, unfolds: bool) -> OpenDims {
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

    /// What to say of inputs to who does not have them. They are in the order of the model's.
    pub fn sizes(&self, inputs: &[Tensor]) -> OpenSizes {
        let mut sizes = [0; MOST_OPEN];
        if self.0.len() > MOST_OPEN {
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

/// What is known of a request's shape.
pub(crate) enum Known<'a> {
    Inputs(&'a [Tensor]),
    Sizes(OpenSizes),
}

/// The shapes of one model that has open dimensions.
#[derive(Debug)]
pub(crate) struct Shapes {
    open: OpenDims,
    numbers: HashMap<Vec<i64>, u32>,
    /// By number.
    kept: Vec<Kept>,
    /// Counts requests, to tell what was used when.
    turn: u64,
    /// Where a combination is put together.
    scratch: Vec<i64>,
}

#[derive(Debug)]
struct Kept {
    sizes: Vec<i64>,
    /// Requests in the core.
    live: usize,
    used: u64,
}

impl Shapes {
    /// None if all requests of the model are of one shape, or unfold and have no rows.
    pub(crate) fn new(loaded: &dyn Loaded, unfolds: bool) -> Option<Shapes> {
        let open = OpenDims::of(loaded, unfolds);
        let (numbers, kept, scratch) = (HashMap::new(), Vec::new(), Vec::new());
        (!open.0.is_empty()).then_some(Shapes { open, numbers, kept, turn: 0, scratch })
    }

    /// The shape of a request that enters the core as so many. Its inputs are in the order of the model's.
    pub(crate) fn enter(&mut self, request: Known<'_>, requests: usize) -> Shape {
        self.turn += 1;
        self.scratch.clear();
        match request {
            Known::Inputs(inputs) => self.scratch.extend(self.open.each(inputs)),
            Known::Sizes(Some(sizes)) => {
                self.scratch.extend(sizes.into_iter().take(self.open.0.len()).map(i64::from));
            }
            Known::Sizes(None) => return Shape::ALONE,
        }
        let known = self.numbers.get(&self.scratch).copied();
        let Some(number) = known.or_else(|| self.learn()) else { return Shape::ALONE };
        let kept = &mut self.kept[number as usize];
        (kept.live, kept.used) = (kept.live + requests, self.turn);
        Shape(number)
    }

    /// One request of the shape has left the core.
    pub(crate) fn leave(&mut self, shape: Shape) {
        if shape != Shape::ALONE {
            self.kept[shape.0 as usize].live -= 1;
        }
    }

    /// A number for the combination that was put together; none if all are in use.
    fn learn(&mut self) -> Option<u32> {
        let number = if self.kept.len() < MOST {
            self.kept.push(Kept { sizes: Vec::new(), live: 0, used: 0 });
            self.kept.len() - 1
        } else {
            let idle = self.kept.iter().enumerate().filter(|(_, kept)| kept.live == 0);
            let (number, kept) = idle.min_by_key(|(_, kept)| kept.used)?;
            self.numbers.remove(&kept.sizes);
            number
        };
        self.kept[number].sizes.clone_from(&self.scratch);
        self.numbers.insert(self.scratch.clone(), number as u32);
        Some(number as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ripieno_executor::InputLengths;
    use ripieno_model::{DataType, TensorSpec};
    use std::any::Any;

    struct Open(Vec<TensorSpec>, Option<InputLengths>);

    impl Loaded for Open {
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

    fn shapes(inputs: &[&[i64]], lengths: Option<&[Option<usize>]>) -> Option<Shapes> {
        let spec = |shape: &&[i64]| TensorSpec { name: "x".into(), datatype: DataType::Fp32, shape: shape.to_vec() };
        let lengths = lengths.map(|dims| InputLengths { max: 8, dims: dims.to_vec() });
        Shapes::new(&Open(inputs.iter().map(spec).collect(), lengths), false)
    }

    fn enter(shapes: &mut Shapes, inputs: &[Tensor], requests: usize) -> Shape {
        shapes.enter(Known::Inputs(inputs), requests)
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
        let (mut shapes, open) = (Shapes::new(&loaded, false).unwrap(), OpenDims::of(&loaded, false));
        let mut both = |a, b| {
            let inputs = request(&[&[1, a], &[1, 3, b]]);
            let elsewhere = shapes.enter(Known::Sizes(open.sizes(&inputs)), 1);
            (elsewhere, enter(&mut shapes, &inputs, 1))
        };
        let ((first, same), (other, other_same)) = (both(4, 5), both(5, 4));
        assert!(first == same && other == other_same && first != other);
        assert_eq!(both(1 << 32, 1).0, Shape::ALONE, "a size that the sizes cannot say");
        let many = OpenDims::of(&specs(&[&[-1, -1, -1, -1, -1, -1]]), false);
        assert_eq!(many.sizes(&request(&[&[1; 6]])), None);
    }

    #[test]
    fn numbers_are_bounded_and_reused_only_when_nobody_has_them() {
        let mut shapes = shapes(&[&[-1, -1]], None).unwrap();
        let wide = |width: usize| request(&[&[1, width as i64]]);
        let numbers: Vec<Shape> = (0..MOST).map(|width| enter(&mut shapes, &wide(width), 2)).collect();
        assert_eq!(enter(&mut shapes, &wide(MOST), 1), Shape::ALONE);
        shapes.leave(Shape::ALONE);
        // The one is used again, the other still has a request.
        [3, 3, 7, 7, 9].iter().for_each(|&at: &usize| shapes.leave(numbers[at]));
        assert_eq!(enter(&mut shapes, &wide(3), 1), numbers[3]);
        shapes.leave(numbers[3]);
        assert_eq!(enter(&mut shapes, &wide(MOST), 1), numbers[7], "the least recently used of those that are free");
        assert_eq!(enter(&mut shapes, &wide(7), 1), numbers[3]);
        assert_eq!(enter(&mut shapes, &wide(3), 1), Shape::ALONE);
        assert_eq!(enter(&mut shapes, &wide(9), 1), numbers[9]);
        assert!(shapes.numbers.len() == MOST && shapes.kept.len() == MOST);
    }
}
