//! The kernels compiled by a C++ compiler, one thread a block, against [`crate::host`].

use crate::resident::{segments_of, tables};
use crate::*;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

const ROWS: usize = 5;
const WIDTH: usize = 8;

fn step(op: Op, operands: [usize; 3]) -> Instr {
    Instr::new(op, operands)
}

fn op(op: Op) -> Instr {
    step(op, [0; 3])
}

fn load(feed: usize) -> Instr {
    Instr::feed(feed, Matrix { base: feed * ROWS * 8, stride: 8 }, 0, true)
}

fn matrix(at: usize) -> Matrix {
    Matrix { base: at * ROWS * 16, stride: 16 }
}

/// Returns the first chain: a look-up and two feeds, into one matrix.
fn gathered(width: usize) -> ChainSegment {
    let keep = |column: usize| step(Op::KeepMatrix, [matrix(0).base + column, 16, 0]);
    let looked_up = [step(Op::EntryWord, [2, 0, 0]), step(Op::LookUp, [64, width.next_multiple_of(4), 5])];
    let mut code = looked_up.to_vec();
    code.extend([load(0), op(Op::Mul), keep(0), op(Op::Clear)]);
    code.extend([load(1), op(Op::Tanh), step(Op::Constant, [0, 0, 1]), op(Op::Sub), keep(8)]);
    ChainSegment { width, code }
}

/// Returns a program with every operation, of which one segment is wide and one is narrow.
fn program(width: usize) -> StepProgram {
    let from = |from: Matrix, each: usize| step(Op::Matrix, [from.base, from.stride, each]);
    let product =
        Product { from: matrix(0), weights: 200, transposed: false, inner: 8 + width, columns: 8, to: matrix(1) };
    let turned = Product { transposed: true, to: matrix(2), ..product };
    let best = Reduce { kind: Reduction::ArgMax, from: matrix(1), width: 8, to: matrix(3) };
    let soft = Reduce { kind: Reduction::Softmax, from: matrix(2), width: 8, to: matrix(4) };
    let functions = [Op::Sigmoid, Op::Abs, Op::Sqrt, Op::Exp, Op::Neg, Op::Relu];
    let mut code = vec![from(matrix(1), 1), from(matrix(2), 1), op(Op::Add)];
    code.extend(functions.map(op));
    code.extend([from(matrix(4), 1), op(Op::Sub), step(Op::Constant, [3, 0, 0]), op(Op::Div)]);
    code.extend([step(Op::KeepRow, [0; 3]), step(Op::KeepResult, [0, 0, 0]), op(Op::Clear)]);
    code.extend([from(matrix(3), 0), op(Op::ToFloat), load(0), op(Op::Equal), op(Op::Not)]);
    code.extend([step(Op::KeepRow, [8, 0, 0]), op(Op::Clear), load(1), op(Op::ToInt)]);
    code.extend([from(matrix(3), 0), op(Op::EqualInt), step(Op::KeepResult, [8, 1, 0])]);
    let mut stages = vec![StepStage::Chain(vec![gathered(width)])];
    stages.extend([product, turned].map(StepStage::Product));
    stages.extend([best, soft].map(StepStage::Reduce));
    stages.push(StepStage::Chain(vec![ChainSegment { width, code }]));
    let (staged, scratch) = (ROWS * 20, 5 * ROWS * 16);
    StepProgram { feeds: 3, immediate: 1 << 2, staged, results: 16, scratch, stages }
}

/// Returns numbers between -2 and 2.
fn numbers(count: usize, seed: usize) -> Vec<u32> {
    let number = |at: usize| ((at + 1) * (seed + 3) * 7919 % 401) as f32 / 100.0 - 2.0;
    (0..count).map(|at| number(at).to_bits()).collect()
}

fn spec(width: usize) -> CellModelSpec {
    let (programs, constants) = (vec![program(width)], numbers(400, 1));
    CellModelSpec { programs, constants, row_units: 4, rows: 12, precision: Precision::Fp32, sizes: vec![2, ROWS] }
}

/// Compiles the kernels with the harness and returns the program's path.
fn harness(folder: &Path) -> std::path::PathBuf {
    let (source, program) =
        (Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kernels/harness.cpp"), folder.join("harness"));
    let built = Command::new("c++").args(["-O1", "-std=c++17", "-o"]).arg(&program).arg(&source).status();
    assert!(built.expect("a C++ compiler is needed").success());
    program
}

/// Lets the harness run the step, and returns its rows of state, and its faults and results.
fn run_kernels(
    harness: &Path,
    spec: &CellModelSpec,
    entries: &[u32],
    staged: &[u32],
    arena: &[u32],
) -> (Vec<u32>, Vec<u32>) {
    let program = &spec.programs[0];
    let (code, segments) = tables(spec);
    let results = vec![0; ROWS * program.results];
    let mut words = vec![ROWS as u32, spec.entry_words(0) as u32, program.results as u32];
    let scratch = vec![0x7fc0_dead; program.scratch];
    for part in [entries, staged, &results, arena, &scratch, &spec.constants, &code, &segments] {
        words.push(part.len() as u32);
        words.extend(part);
    }
    let mut first = 0;
    for (at, stage) in program.stages.iter().enumerate() {
        let numbers = match stage {
            StepStage::Chain(segments) => {
                vec![first, segments.len(), usize::from(at == 0), usize::from(at + 1 == program.stages.len())]
            }
            StepStage::Product(Product { from, weights, transposed, inner, columns, to }) => {
                vec![from.base, from.stride, *weights, usize::from(*transposed), *inner, *columns, to.base, to.stride]
            }
            StepStage::Reduce(Reduce { kind, from, width, to }) => {
                vec![*kind as usize, from.base, from.stride, *width, to.base, to.stride]
            }
        };
        first += segments_of(stage).len();
        words.push(numbers.len() as u32);
        words.extend(numbers.iter().map(|&number| number as u32));
    }
    let folder = harness.parent().unwrap();
    std::fs::write(folder.join("in"), bytemuck::cast_slice::<u32, u8>(&words)).unwrap();
    assert!(Command::new(harness).arg(folder).status().unwrap().success());
    let out = std::fs::read(folder.join("out")).unwrap();
    let out: Vec<u32> = out.as_chunks().0.iter().map(|&bytes| u32::from_le_bytes(bytes)).collect();
    assert_eq!(out[0], 1, "one step is done");
    (out[1..=arena.len()].to_vec(), out[1 + arena.len()..].to_vec())
}

#[test]
fn the_kernels_compute_as_the_host_does() {
    let folder = tempfile::tempdir().unwrap();
    let harness = harness(folder.path());
    for width in [WIDTH, WIDTH - 1] {
        let spec = Arc::new(spec(width));
        let model = HostDevice::default().load(Arc::clone(&spec)).unwrap();
        let mut lane = Arc::clone(&model).lane().unwrap();
        let inputs = lane.inputs(0).unwrap();
        // The first feed is a row of the device, the second one a row or staged, the third an id.
        for (row, entry) in inputs.entries.chunks_exact_mut(5).enumerate() {
            let (written, id) = ((row as u32 + 5) * 4, [0, 4, u32::MAX, 5, 2][row]);
            entry.copy_from_slice(&[0, if row % 2 == 0 { STAGED } else { 0 }, id, written, [0, 1, 2, 3][row % 4]]);
        }
        inputs.staged.copy_from_slice(&numbers(inputs.staged.len(), 5));
        let (entries, staged) = (inputs.entries.to_vec(), inputs.staged.to_vec());
        lane.launch(0, ROWS).unwrap();
        let outputs = lane.settle().unwrap();
        let mut arena = vec![0; spec.arena_words()];
        let (found_arena, found) = run_kernels(&harness, &spec, &entries, &staged, &std::mem::take(&mut arena));
        let close = |a: u32, b: u32, wanted: bool| {
            let (x, y) = (f32::from_bits(a), f32::from_bits(b));
            !wanted || a == b || x.is_nan() && y.is_nan() || (x - y).abs() <= 1e-5 * (1.0 + y.abs())
        };
        let (faults, found) = found.split_at(ROWS);
        assert_eq!((outputs.faults, faults), (&[0, 0, 0, 1, 0][..], &[0, 0, 0, 1, 0][..]));
        let mut read = vec![0; 16];
        for row in 0..ROWS {
            model.read((row + 5) * 4, &mut read).unwrap();
            for column in (0..width).chain(8..8 + width) {
                let (host, kernel) = (read[column], found_arena[(row + 5) * 16 + column]);
                assert!(close(kernel, host, true), "state of row {row}, column {column}: {kernel:x}, not {host:x}");
                let wanted = entries[row * 5 + 4] >> (column / 8) & 1 != 0;
                let (host, kernel) = (outputs.results[row * 16 + column], found[row * 16 + column]);
                assert!(close(kernel, host, wanted), "result of row {row}, column {column}: {kernel:x}, not {host:x}");
            }
        }
    }
}

#[test]
fn programs_and_entries_that_leave_their_memory_are_refused() {
    let load = |change: fn(&mut CellModelSpec)| {
        let mut spec = spec(WIDTH);
        change(&mut spec);
        HostDevice::default().load(Arc::new(spec)).err()
    };
    assert_eq!(load(|_| ()), None);
    let changes: [fn(&mut CellModelSpec); 6] = [
        |spec| spec.programs[0].scratch -= 9,
        |spec| spec.constants.truncate(300),
        |spec| spec.row_units = 3,
        |spec| spec.programs[0].staged = 70,
        |spec| spec.programs[0].results -= 1,
        |spec| spec.sizes = vec![2, 2],
    ];
    for change in changes {
        assert_eq!(load(change), Some(CudaError::InvalidProgram));
    }
    let model = HostDevice::default().load(Arc::new(spec(WIDTH))).unwrap();
    let mut lane = model.lane().unwrap();
    lane.inputs(0).unwrap().entries.fill(0);
    assert_eq!(lane.launch(0, 3), Err(CudaError::InvalidProgram), "3 is none of the sizes");
    lane.inputs(0).unwrap().entries[5] = 12 * 4;
    assert_eq!(lane.launch(0, 2), Err(CudaError::InvalidProgram), "there are 12 rows");
}
