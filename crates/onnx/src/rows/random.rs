//! Random graphs: none that is called independent answers a row differently beside others.
//!
//! Each graph chains up to twenty operators from templates. Some keep rows apart, some combine them
//! in a chosen way: along an axis, through a fold, a size, a branch, a table of positions, a scale.
//! A template fits the shapes, whatever it does to the rows. Graphs run in rten: three requests of
//! different magnitude alone, and together in two orders.
//!
//! `RIPIENO_ROW_GRAPHS` is the number of graphs.

use super::random_graphs::{ROW, random_graph};
use super::{RowVerdict, analyse_rows};
use crate::OnnxFile;
use ripieno_base::Lcg;
use rten::Value;
use rten_tensor::{AsView, Layout, Tensor};
use std::path::Path;

/// Number of graphs without the variable.
const GRAPHS: u64 = 1000;

/// Returns rows of varied numbers. They are multiples of 1/8, so that sums of them are exact.
fn rows(count: usize, scale: f32, seed: u64) -> Tensor<f32> {
    let mut random = Lcg::new(seed);
    let data: Vec<f32> =
        (0..count * (ROW[0] * ROW[1]) as usize).map(|_| (random.below(65) as f32 - 32.0) / 8.0 * scale).collect();
    Tensor::from_data(&[count, ROW[0] as usize, ROW[1] as usize], data)
}

fn joined(parts: &[&Tensor<f32>]) -> Tensor<f32> {
    let data: Vec<f32> = parts.iter().flat_map(|part| part.to_vec()).collect();
    let count = parts.iter().map(|part| part.size(0)).sum();
    Tensor::from_data(&[count, ROW[0] as usize, ROW[1] as usize], data)
}

/// Returns how the answer to the requests together differs from the answers alone.
fn difference(alone: &[&Tensor<f32>], together: &Tensor<f32>) -> Option<String> {
    let count: usize = alone.iter().map(|answer| answer.size(0)).sum();
    if together.size(0) != count || alone.iter().any(|answer| answer.shape()[1..] != together.shape()[1..]) {
        return Some(format!("the shape is {:?}", together.shape()));
    }
    let expected: Vec<f32> = alone.iter().flat_map(|answer| answer.to_vec()).collect();
    let apart = |(a, b): (&f32, &f32)| a != b && !(a.is_nan() && b.is_nan()) && (a - b).abs() > 1e-3 * (1.0 + a.abs());
    let found = together.to_vec();
    let at = expected.iter().zip(&found).position(apart)?;
    Some(format!("{} instead of {}", found[at], expected[at]))
}

/// Runs requests alone and together. `None`: rten does not run one of them alone.
fn compare(file: Vec<u8>) -> Option<Result<(), String>> {
    let mut options = rten::ModelOptions::with_all_ops();
    options.enable_optimization(false);
    let model = options.load(file).ok()?;
    let (input, output) = (*model.input_ids().first()?, *model.output_ids().first()?);
    let run = |x: &Tensor<f32>| -> Option<Tensor<f32>> {
        let made = model.run(vec![(input, Value::from(x.clone()).into())], &[output], None).ok()?;
        Tensor::<f32>::try_from(made.into_iter().next()?).ok()
    };
    let requests = [rows(1, 1.0, 7), rows(2, 40.0, 8), rows(1, 0.125, 9)];
    let alone = requests.iter().map(run).collect::<Option<Vec<_>>>()?;
    for order in [[0, 1, 2], [2, 0, 1]] {
        let asked = order.map(|at| &requests[at]);
        let Some(together) = run(&joined(&asked)) else { return Some(Err("together they fail".to_owned())) };
        if let Some(how) = difference(&order.map(|at| &alone[at]), &together) {
            return Some(Err(how));
        }
    }
    Some(Ok(()))
}

#[test]
fn no_graph_that_is_called_independent_mixes_rows() {
    let count = std::env::var("RIPIENO_ROW_GRAPHS").ok().and_then(|count| count.parse().ok()).unwrap_or(GRAPHS);
    let (mut proved, mut mixed, mut ran, mut missed) = (0, 0, 0, 0);
    for seed in 0..count {
        let file = random_graph(seed).encode();
        let verdict = analyse_rows(&OnnxFile::parse(file.clone(), Path::new("m.onnx")).unwrap()).verdict();
        let Some(compared) = compare(file) else { continue };
        ran += 1;
        match (&verdict, &compared) {
            (RowVerdict::Independent, Ok(())) => proved += 1,
            (RowVerdict::Independent, Err(how)) => panic!("graph {seed} is called independent: {how}"),
            (_, Err(_)) => mixed += 1,
            (_, Ok(())) => missed += 1,
        }
    }
    println!("{ran} of {count} graphs ran: {proved} proved, {mixed} mix rows, {missed} not proved without effect");
    assert!(ran * 10 >= count * 8, "{ran} of {count} graphs run");
    assert!(proved * 5 >= ran && mixed * 5 >= ran, "{proved} proved, {mixed} mix rows, of {ran}");
}
