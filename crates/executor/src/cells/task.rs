//! One batch of a cell: gather, compute, scatter.

use super::walk::Walk;
use super::{Cells, Wiring};
use crate::account::{Account, Watch};
use crate::buffer::AlignedBuffer;
use crate::parts::{Terms, caught, run_in_parts};
use crate::plan::Plan;
use crate::rows::{Batch, Input, Part};
use crate::runner::{Call, Runner};
use crate::worker::Done;
use crate::{Again, ExecError, Member, Progress, Spent, Task};
use parking_lot::Mutex;
use std::sync::Arc;

/// A member's place in the arena.
struct Seat {
    /// Its place in the task.
    at: usize,
    walk: Arc<Mutex<Walk>>,
    node: u32,
    /// The walk that it takes part in; none for padding.
    turn: Option<u64>,
}

/// Runs a task on a device. The locks of the walks are not held while the cell computes.
///
/// A task that fails ends the walks of those members that it fails on, and nobody else's: steps of theirs that were queued ahead
/// are padding in tasks that others stand in as well. One that panics outside of the engine ends them all.
pub(crate) fn execute(
    plan: &Plan,
    cells: &Cells,
    engine: (&mut Box<dyn Runner>, &mut [AlignedBuffer]),
    task: &Task,
    terms: &Terms<'_>,
    account: &Account,
) -> Result<Done, ExecError> {
    let mut guard = AbandonOnDrop { cells, task, failed: true };
    let (progress, again) = run(plan, cells, engine, task, terms, account)?;
    guard.failed = false;
    for (member, _) in task.members.iter().zip(&progress).filter(|(_, progress)| progress.failed.is_some()) {
        give_up(cells, member);
    }
    Done::of(progress, again)
}

/// Gives the walks of a task up unless it comes to its end.
struct AbandonOnDrop<'a> {
    cells: &'a Cells,
    task: &'a Task,
    failed: bool,
}

impl Drop for AbandonOnDrop<'_> {
    fn drop(&mut self) {
        self.task.members.iter().filter(|_| self.failed).for_each(|member| give_up(self.cells, member));
    }
}

fn give_up(cells: &Cells, member: &Member) {
    cells.arena.slot(member.slot.index()).lock().give_up(member);
}

fn run(
    plan: &Plan,
    cells: &Cells,
    (runner, buffers): (&mut Box<dyn Runner>, &mut [AlignedBuffer]),
    task: &Task,
    terms: &Terms<'_>,
    account: &Account,
) -> Result<(Vec<Progress>, Option<Again>), ExecError> {
    let (block, wiring) = (task.block.index(), &cells.wiring);
    check_rows(plan, task)?;
    let mut watch = Watch::start();
    let mut failures = vec![None; task.members.len()];
    let (seats, mut parts) = gather_members(wiring, cells, task, &mut failures);
    let mut progress = vec![Progress::default(); task.members.len()];
    let mut spent = Spent::default();
    let all: Vec<usize> = (0..seats.len()).collect();
    let until = |seat: usize| (terms.until)(seats[seat].at);
    let terms = Terms { until: &until, ..*terms };
    let mut seat_failures = vec![None; seats.len()];
    let batches = if all.is_empty() { Vec::new() } else { vec![all] };
    let again = run_in_parts(batches, &mut seat_failures, &terms, &mut |part, ready| {
        // Padding only fills the first batch up.
        let whole = part.len() == seats.len();
        let part: Vec<usize> = part.iter().copied().filter(|&seat| whole || seats[seat].turn.is_some()).collect();
        if part.is_empty() {
            return Ok(());
        }
        let rows = part.len().max(runner.least_rows());
        let of_part;
        let parts = match whole {
            true => {
                parts.iter_mut().for_each(|parts| parts.resize_with(rows, || Part::Any));
                &parts
            }
            false => {
                of_part = parts.iter().map(|parts| pick(parts, &part, rows)).collect::<Vec<_>>();
                &of_part
            }
        };
        let mut inputs = Vec::with_capacity(parts.len());
        let (mut copied, mut carried) = (0, false);
        for ((feed, parts), buffer) in wiring.cells[block].feeds.iter().zip(parts).zip(&mut *buffers) {
            let (input, gathered) = Input::assemble(&feed.name, (feed.datatype, &feed.row_shape), parts, buffer)?;
            if !feed.from.is_brought() {
                copied += gathered.min(part.len());
                carried = true;
            }
            inputs.push(input);
        }
        spent.gather_ns += watch.lap_ns();
        let outputs = caught(|| runner.run(&Call { block, rows, length: 1, ready, inputs: &inputs }));
        spent.compute_ns += watch.lap_ns();
        account.count(copied, carried && copied == 0);
        let outputs = check_outputs(plan, block, outputs?, rows)?;
        for (row, &seat) in part.iter().enumerate() {
            let left = complete_member(wiring, block, &seats[seat], (&outputs, row));
            progress[seats[seat].at] = left.unwrap_or_else(Progress::failed);
        }
        spent.scatter_ns += watch.lap_ns();
        Ok(())
    })?;
    // Padding belongs to nobody who could be told.
    let of_seats = seats.iter().zip(seat_failures).filter(|(seat, _)| seat.turn.is_some());
    of_seats.for_each(|(seat, cause)| failures[seat.at] = cause);
    let failed = progress.iter_mut().zip(failures).filter_map(|(progress, cause)| Some((progress, cause?)));
    failed.for_each(|(progress, cause)| *progress = Progress::failed(cause));
    account.spend(spent);
    Ok((progress, again))
}

fn check_rows(plan: &Plan, task: &Task) -> Result<(), ExecError> {
    let rows = task.members.iter().map(|member| member.rows).find(|&rows| rows != 1);
    rows.map_or(Ok(()), |rows| {
        Err(ExecError(format!("a member of model '{}' has {rows} rows; a walk of cells has one", plan.name)))
    })
}

/// What these seats have of an input, filled up to so many rows.
fn pick<'w>(parts: &[Part<'w>], seats: &[usize], rows: usize) -> Vec<Part<'w>> {
    let own = seats.iter().map(|&seat| parts[seat].clone());
    own.chain(std::iter::repeat_with(|| Part::Any)).take(rows).collect()
}

/// Finds the members' walks and, for each input of the cell, their parts of it. What befell those who have none goes to their
/// places in `failures`; they get no seat.
fn gather_members<'w>(
    wiring: &'w Wiring,
    cells: &Cells,
    task: &Task,
    failures: &mut [Option<ExecError>],
) -> (Vec<Seat>, Vec<Vec<Part<'w>>>) {
    let block = task.block.index();
    let count = wiring.cells[block].feeds.len();
    let mut seats = Vec::with_capacity(task.members.len());
    let mut parts: Vec<Vec<Part<'w>>> = (0..count).map(|_| Vec::with_capacity(task.members.len())).collect();
    for (at, member) in task.members.iter().enumerate() {
        let walk = cells.arena.slot(member.slot.index());
        match take_seat(wiring, block, &walk, member) {
            Ok((turn, own)) => {
                seats.push(Seat { at, walk, node: member.node, turn });
                parts.iter_mut().zip(own).for_each(|(parts, own)| parts.push(own));
            }
            Err(cause) => failures[at] = Some(cause),
        }
    }
    (seats, parts)
}

/// The walk that a member takes part in, and its part of each input of the cell.
fn take_seat<'w>(
    wiring: &'w Wiring,
    block: usize,
    walk: &Mutex<Walk>,
    member: &Member,
) -> Result<(Option<u64>, Vec<Part<'w>>), ExecError> {
    let mut walk = walk.lock();
    walk.enter(wiring, member)?;
    let padding = walk.is_padding(wiring, block, member.node);
    if !padding {
        walk.check(wiring, block, member.node)?;
    }
    let part = |input| if padding { Ok(Part::Any) } else { walk.part(wiring, block, input, member.node) };
    let parts = (0..wiring.cells[block].feeds.len()).map(part).collect::<Result<_, _>>()?;
    Ok(((!padding).then_some(walk.turn), parts))
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
