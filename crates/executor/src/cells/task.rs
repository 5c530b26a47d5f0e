//! One batch of a cell: gather, compute, scatter.

use super::walk::Walk;
use super::{Cells, Wiring};
use crate::buffer::AlignedBuffer;
use crate::plan::Plan;
use crate::rows::{Batch, Input, Part};
use crate::worker::{Account, Call, Runner, Watch};
use crate::{ExecError, Progress, Spent, Task};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Instant;

/// A member's place in the arena.
struct Seat {
    walk: Arc<Mutex<Walk>>,
    node: u32,
    /// The walk that it takes part in; none for padding.
    turn: Option<u64>,
}

/// Runs a task on a device. The locks of the walks are not held while the cell computes.
///
/// A task that fails, or panics, ends the walks of its members and nobody else's: steps of theirs that were queued ahead
/// are padding in tasks that others stand in as well.
pub(crate) fn execute(
    plan: &Plan,
    cells: &Cells,
    engine: (&mut Box<dyn Runner>, &mut [AlignedBuffer]),
    task: &Task,
    ready: Instant,
    account: &Account,
) -> Result<Vec<Progress>, ExecError> {
    let mut care = Care { cells, task, failed: true };
    let progress = run(plan, cells, engine, task, ready, account)?;
    care.failed = false;
    Ok(progress)
}

/// Gives the walks of a task up unless it succeeds.
struct Care<'a> {
    cells: &'a Cells,
    task: &'a Task,
    failed: bool,
}

impl Drop for Care<'_> {
    fn drop(&mut self) {
        for member in self.task.members.iter().filter(|_| self.failed) {
            self.cells.arena.slot(member.slot.index()).lock().give_up(member);
        }
    }
}

fn run(
    plan: &Plan,
    cells: &Cells,
    (runner, buffers): (&mut Box<dyn Runner>, &mut [AlignedBuffer]),
    task: &Task,
    ready: Instant,
    account: &Account,
) -> Result<Vec<Progress>, ExecError> {
    let (block, wiring) = (task.block.index(), &cells.wiring);
    if let Some(member) = task.members.iter().find(|member| member.rows != 1) {
        let rows = member.rows;
        return Err(ExecError(format!("a member of model '{}' has {rows} rows; a walk of cells has one", plan.name)));
    }
    let mut watch = Watch::start();
    let (seats, mut parts) = gather_members(wiring, cells, task)?;
    let rows = seats.len().max(runner.least_rows());
    parts.iter_mut().for_each(|parts| parts.resize_with(rows, || Part::Any));
    let mut inputs = Vec::with_capacity(parts.len());
    let (mut copied, mut carried) = (0, false);
    for ((feed, parts), buffer) in wiring.cells[block].feeds.iter().zip(&parts).zip(buffers) {
        let (input, gathered) = Input::assemble(&feed.name, (feed.datatype, &feed.row_shape), parts, buffer)?;
        if !feed.from.is_brought() {
            copied += gathered.min(seats.len());
            carried = true;
        }
        inputs.push(input);
    }
    let gather_ns = watch.lap_ns();
    let outputs = runner.run(&Call { block, rows, length: 1, ready, inputs: &inputs })?;
    let compute_ns = watch.lap_ns();
    account.count(copied, carried && copied == 0);
    drop(parts);
    let outputs = check_outputs(plan, block, outputs, rows)?;
    let progress =
        seats.iter().enumerate().map(|(row, seat)| complete_member(wiring, block, seat, (&outputs, row))).collect();
    account.spend(Spent { gather_ns, compute_ns, scatter_ns: watch.lap_ns() });
    progress
}

/// Finds the members' walks and, for each input of the cell, their parts of it.
fn gather_members<'w>(
    wiring: &'w Wiring,
    cells: &Cells,
    task: &Task,
) -> Result<(Vec<Seat>, Vec<Vec<Part<'w>>>), ExecError> {
    let block = task.block.index();
    let count = wiring.cells[block].feeds.len();
    let mut seats = Vec::with_capacity(task.members.len());
    let mut parts: Vec<Vec<Part<'w>>> = (0..count).map(|_| Vec::with_capacity(task.members.len())).collect();
    for member in &task.members {
        let held = cells.arena.slot(member.slot.index());
        let mut walk = held.lock();
        walk.enter(wiring, member)?;
        let padding = walk.is_padding(wiring, block, member.node);
        if !padding {
            walk.check(wiring, block, member.node)?;
        }
        for (input, parts) in parts.iter_mut().enumerate() {
            parts.push(if padding { Part::Any } else { walk.part(wiring, block, input, member.node)? });
        }
        let turn = (!padding).then_some(walk.turn);
        drop(walk);
        seats.push(Seat { walk: held, node: member.node, turn });
    }
    Ok((seats, parts))
}

fn check_outputs(plan: &Plan, block: usize, outputs: Vec<Batch>, rows: usize) -> Result<Vec<Arc<Batch>>, ExecError> {
    let values = &plan.blocks[block].outputs;
    let check = |(batch, &value): (Batch, &usize)| match batch.rows() == rows {
        true => Ok(Arc::new(batch)),
        false => Err(ExecError(format!(
            "output '{}' of model '{}' has {} rows for a batch of {rows}: its first dimension must be the batch",
            plan.values[value].name,
            plan.name,
            batch.rows()
        ))),
    };
    outputs.into_iter().zip(values).map(check).collect()
}

fn complete_member(
    wiring: &Wiring,
    block: usize,
    seat: &Seat,
    left: (&[Arc<Batch>], usize),
) -> Result<Progress, ExecError> {
    let mut walk = seat.walk.lock();
    // Another walk may have begun in the slot only if its owner has given this one up.
    match seat.turn {
        Some(turn) if turn == walk.turn => walk.leave(wiring, block, seat.node, left),
        _ => Ok(Progress::default()),
    }
}
