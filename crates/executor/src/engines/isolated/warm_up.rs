//! Warm-up of processes that start after their model was loaded: processes of further lanes and
//! GPUs, and processes that take the place of one that ended.
//!
//! Where batches are padded to certain sizes, the first batch of a size is slow. So a model runs
//! each of them when it is loaded, in the process that was started then. The first row of that is
//! kept, and other processes run batches made of it before they get work.

use super::transfer::OutgoingTensor;
use crate::run::runner::BlockCall;
use ripieno_model::DataType;
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// Batches that a new process of a model runs.
pub(super) struct ProcessWarmUp {
    sizes: Vec<usize>,
    /// Inputs of one row of each block, from the first batch that succeeded.
    rows: Vec<OnceLock<Vec<RowInput>>>,
    /// Whether a process ended with such a batch, so that further ones must not run it.
    given_up: AtomicBool,
}

/// Runs a batch of a block, with this number of rows and these inputs.
pub(super) type RunBatch<'a> = dyn FnMut(usize, usize, &[OutgoingTensor<'_>]) -> io::Result<()> + 'a;

/// One row of an input.
struct RowInput {
    name: String,
    datatype: DataType,
    shape: Vec<i64>,
    data: Vec<u8>,
}

impl ProcessWarmUp {
    /// Creates the warm-up of a model with at most this number of blocks.
    pub(super) fn new(blocks: usize, sizes: &[usize]) -> ProcessWarmUp {
        let rows = (0..blocks).map(|_| OnceLock::new()).collect();
        ProcessWarmUp { sizes: sizes.to_vec(), rows, given_up: AtomicBool::new(false) }
    }

    /// Keeps a row of a block's first batch that succeeded. `block` is its number in the process.
    pub(super) fn record(&self, block: usize, call: &BlockCall<'_>) {
        // Strings have no size by which a row could be told from the next.
        let fixed = call.inputs.iter().all(|input| input.datatype.size().is_some() && !input.whole);
        if self.sizes.is_empty() || !fixed || self.rows[block].get().is_some() {
            return;
        }
        let row = call.inputs.iter().map(|input| RowInput {
            name: input.name.to_owned(),
            datatype: input.datatype,
            shape: input.row_shape.to_vec(),
            data: input.data[..input.data.len() / input.rows.max(1)].to_vec(),
        });
        let _ = self.rows[block].set(row.collect());
    }

    /// Runs a batch of each size on each block, the largest first. After an error no process runs
    /// these batches again.
    pub(super) fn run(&self, run: &mut RunBatch<'_>) -> io::Result<()> {
        if self.given_up.load(Ordering::Relaxed) {
            return Ok(());
        }
        for &size in self.sizes.iter().rev() {
            for (block, row) in self.rows.iter().enumerate() {
                let Some(row) = row.get() else { continue };
                let data: Vec<Vec<u8>> = row.iter().map(|input| input.data.repeat(size)).collect();
                let inputs = row.iter().zip(&data).map(|(input, data)| OutgoingTensor {
                    name: &input.name,
                    datatype: input.datatype,
                    shape: [size as i64].into_iter().chain(input.shape.iter().copied()).collect(),
                    data,
                });
                let done = run(block, size, &inputs.collect::<Vec<_>>());
                done.inspect_err(|_| self.given_up.store(true, Ordering::Relaxed))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::rows::EngineInput;
    use std::time::Instant;

    fn warm_up(sizes: &[usize]) -> ProcessWarmUp {
        ProcessWarmUp::new(2, sizes)
    }

    fn record(warm_up: &ProcessWarmUp, block: usize, rows: usize, data: &[u8]) {
        let input = EngineInput { name: "x", datatype: DataType::Uint8, row_shape: &[2], rows, data, whole: false };
        let (ready, inputs) = (Instant::now(), &[input]);
        warm_up
            .record(block, &BlockCall { block, rows, length: 1, ready, inputs, sent: None, outputs_may_follow: false });
    }

    /// Returns the block, the shape and the data of each batch.
    fn batches(warm_up: &ProcessWarmUp) -> Vec<(usize, Vec<i64>, Vec<u8>)> {
        let mut run = Vec::new();
        let outcome = warm_up.run(&mut |block, rows, inputs| {
            assert_eq!(inputs[0].shape[0], rows as i64);
            run.push((block, inputs[0].shape.clone(), inputs[0].data.to_vec()));
            Ok(())
        });
        outcome.unwrap();
        run
    }

    #[test]
    fn each_size_runs_with_the_first_row_of_a_batch() {
        let sized = warm_up(&[1, 3]);
        assert!(batches(&sized).is_empty());
        record(&sized, 0, 2, &[1, 2, 3, 4]);
        record(&sized, 0, 1, &[8, 9]);
        record(&sized, 1, 1, &[5, 6]);
        let expected = [
            (0, vec![3, 2], vec![1, 2, 1, 2, 1, 2]),
            (1, vec![3, 2], vec![5, 6, 5, 6, 5, 6]),
            (0, vec![1, 2], vec![1, 2]),
            (1, vec![1, 2], vec![5, 6]),
        ];
        assert_eq!(batches(&sized), expected);
        let free = warm_up(&[]);
        record(&free, 0, 1, &[1, 2]);
        assert!(batches(&free).is_empty(), "without sizes nothing is kept");
    }

    #[test]
    fn a_batch_that_ends_a_process_is_not_run_again() {
        let sized = warm_up(&[1, 2]);
        record(&sized, 0, 1, &[1, 2]);
        let mut count = 0;
        let mut fail = |_: usize, _: usize, _: &[OutgoingTensor<'_>]| {
            count += 1;
            Err(io::ErrorKind::UnexpectedEof.into())
        };
        assert!(sized.run(&mut fail).is_err() && sized.run(&mut fail).is_ok());
        assert_eq!(count, 1);
    }
}
