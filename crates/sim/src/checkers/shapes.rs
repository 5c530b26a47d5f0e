//! Checks that requests of different shapes never share a batch, and that [`Shape::ALONE`] requests
//! run alone. This holds for policies behind a server's admission control; a policy by itself knows
//! no shapes.

use crate::observer::{Observer, Run};
use ripieno_base::Time;
use ripieno_sched::{Request, Setup, Shape};

/// The shape of each request.
#[derive(Debug)]
pub struct ShapeChecker {
    /// Shapes by slot.
    shapes: Vec<Shape>,
}

impl ShapeChecker {
    /// Creates a checker for a run with this setup.
    pub fn new(setup: &Setup) -> ShapeChecker {
        ShapeChecker { shapes: vec![Shape::default(); setup.limits.requests] }
    }
}

impl Observer for ShapeChecker {
    fn accepted(&mut self, _id: u64, request: &Request) {
        self.shapes[request.slot.index()] = request.class.shape;
    }

    fn started(&mut self, now: Time, run: &Run<'_>) {
        let (first, rest) = run.slots.split_first().expect("a task has members");
        let shape = self.shapes[first.index()];
        for other in rest {
            assert_eq!(shape, self.shapes[other.index()], "{first:?} and {other:?} share a batch at {now:?}");
            assert!(shape != Shape::ALONE || other == first, "{first:?} is not alone at {now:?}");
        }
    }
}
