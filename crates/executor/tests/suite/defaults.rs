//! Inputs with defaults: a request that replaces one gets the file's answer to it, and its
//! neighbours get theirs.

use crate::common::*;
use ripieno_base::RequestSlot;
use ripieno_executor::*;
use ripieno_model::DataType;
use std::sync::Arc;

/// A request of rows of four numbers, with what it replaces.
#[derive(Clone, Debug, Default)]
struct Given {
    rows: usize,
    scale: Option<Vec<f32>>,
    shift: Option<i64>,
    extra: Option<f32>,
}

impl Given {
    fn x(&self, seed: usize) -> Vec<f32> {
        numbers(4 * self.rows, seed)
    }

    fn tensors(&self, x: Tensor) -> Vec<Tensor> {
        let scale = self.scale.as_ref().map(|scale| fp32("scale", &[1, scale.len() as i64], scale));
        let shift = self.shift.map(|shift| Tensor {
            name: "shift".into(),
            datatype: DataType::Int64,
            shape: vec![1],
            data: shift.to_le_bytes().to_vec().into(),
        });
        let extra = self.extra.map(|extra| fp32("extra", &[1, 1], &[extra]));
        [x].into_iter().chain(scale).chain(shift).chain(extra).collect()
    }

    fn member(&self, slot: usize) -> TaskMember {
        let x = fp32("x", &[self.rows as i64, 4], &self.x(slot));
        let entry = Arc::new(RequestEntry::of(self.tensors(x).into()));
        TaskMember::new(RequestSlot(slot as u32), self.rows, Some(entry))
    }

    /// Answer of the first block to these numbers, whose rows are as wide as `scale` if that has
    /// several numbers.
    fn first(&self, x: &[f32]) -> Vec<f32> {
        let scale = self.scale.clone().unwrap_or(vec![3.0]);
        let shift = self.shift.unwrap_or(1) as f32;
        x.iter().enumerate().map(|(at, x)| x * scale[at % scale.len()] + shift).collect()
    }

    fn second(&self, y: &[f32]) -> Vec<f32> {
        let scale = self.scale.clone().unwrap_or(vec![3.0]);
        y.iter().enumerate().map(|(at, y)| y * scale[at % scale.len()] + self.extra.unwrap_or(0.5)).collect()
    }
}

/// Neighbours of which some replace one or all defaults, by equal or other values.
fn neighbours() -> Vec<Given> {
    let one = Given { rows: 1, ..Given::default() };
    vec![
        one.clone(),
        Given { scale: Some(vec![2.0]), ..one.clone() },
        Given { rows: 2, ..one.clone() },
        Given { shift: Some(-7), ..one.clone() },
        Given { rows: 3, scale: Some(vec![1.0, 10.0, 100.0, -1.0]), shift: Some(2), ..one.clone() },
        Given { scale: Some(vec![2.0]), ..one.clone() },
        Given { scale: Some(vec![3.0]), shift: Some(1), ..one.clone() },
        one,
    ]
}

#[test]
fn neighbours_get_their_own_defaults() {
    for engine in engines() {
        for batch_sizes in [vec![], vec![1, 4, 16]] {
            let stand = Stand::new(&*engine, &ModelSource { batch_sizes, ..files(&["defaults"]) });
            let named: Vec<&str> = stand.model.optional_inputs().iter().map(|spec| &*spec.name).collect();
            assert_eq!((named, stand.model.inputs().len()), (vec!["scale", "shift"], 1));
            for order in [[0, 1, 2, 3, 4, 5, 6, 7], [7, 6, 5, 4, 3, 2, 1, 0]] {
                let members = order.iter().map(|&at| neighbours()[at].member(at)).collect();
                for (&at, answer) in order.iter().zip(stand.run(0, members).unwrap()) {
                    let given = &neighbours()[at];
                    assert!(answer.failed.is_none(), "{}: {:?}", engine.device_key(), answer.failed);
                    assert_eq!(answer.outputs[0].shape, [given.rows as i64, 4]);
                    assert_close(&floats(&answer.outputs[0]), &given.first(&given.x(at)));
                }
            }
        }
    }
}

#[test]
fn defaults_are_replaced_in_every_block_that_has_them() {
    for engine in engines() {
        let stand = Stand::new(&*engine, &files(&["defaults", "defaults_second"]));
        let mut given = neighbours();
        given.push(Given { rows: 1, extra: Some(9.0), ..Given::default() });
        let members: Vec<TaskMember> = given.iter().enumerate().map(|(at, given)| given.member(at)).collect();
        stand.run(0, members.clone()).unwrap();
        let answers = stand.run(1, members.iter().map(later).collect()).unwrap();
        for (at, (given, answer)) in given.iter().zip(answers).enumerate() {
            assert_close(&floats(&answer.outputs[0]), &given.second(&given.first(&given.x(at))));
        }
    }
}

#[test]
fn a_model_without_batches_takes_them_too() {
    for engine in engines() {
        let stand = Stand::new(&*engine, &files(&["defaults_fixed"]));
        for given in neighbours() {
            let given = Given { scale: given.scale.filter(|scale| scale.len() == 1), ..given };
            let x = numbers(4, 3);
            let tensors = given.tensors(fp32("x", &[1, 2, 2], &x));
            let entry = Some(Arc::new(RequestEntry::of(tensors.into())));
            let answer = stand.run(0, vec![TaskMember::new(RequestSlot(0), 1, entry)]).unwrap().remove(0);
            assert_close(&floats(&answer.outputs[0]), &given.first(&x));
        }
    }
}

#[test]
fn a_replacement_that_does_not_fit_fails_alone() {
    for engine in engines() {
        let stand = Stand::new(&*engine, &files(&["defaults"]));
        let wrong = Given { rows: 1, scale: Some(vec![1.0, 2.0, 3.0]), ..Given::default() };
        let right = Given { rows: 2, ..Given::default() };
        let answers = stand.run(0, vec![right.member(0), wrong.member(1), right.member(2)]);
        let answers = answers.unwrap();
        assert!(answers[1].failed.is_some());
        for at in [0, 2] {
            assert_close(&floats(&answers[at].outputs[0]), &right.first(&right.x(at)));
        }
        let stopped = stand.model.batches_stopped();
        assert_eq!(stopped, None, "{}", engine.device_key());
    }
}
