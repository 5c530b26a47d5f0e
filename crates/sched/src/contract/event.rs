//! Inputs as values: a recorder writes them and a replay reads them.

use crate::{Action, Control, Outbox, Outcome, Request, Scheduler, TaskDone};
use ripieno_base::{BlockId, RequestSlot, TaskId, Time};
use ripieno_model::Graph;

/// One call into a scheduler, or its decisions.
///
/// Settles are events of their own, since the set of inputs before a settle affects its decisions.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Event {
    /// [`Scheduler::on_graph`].
    Graph {
        /// The request.
        request: RequestSlot,
        /// Graph of the request.
        graph: Graph,
    },
    /// [`Scheduler::on_request`].
    Request(Request),
    /// [`Scheduler::on_task_done`].
    TaskDone {
        /// The task.
        task: TaskId,
        /// The outcome.
        outcome: Outcome,
        /// Per member, whether its walk ended.
        ended: Vec<bool>,
        /// Per member, the block that it continues with; empty if none skips any.
        #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Vec::is_empty"))]
        skips: Vec<BlockId>,
    },
    /// [`Scheduler::on_control`].
    Control(Control),
    /// A grant to a shard, as integers.
    Grant([u64; 8]),
    /// [`Scheduler::settle`] and its decisions: the actions, and the members of each start in their
    /// order.
    Settle {
        /// The actions.
        actions: Vec<Action>,
        /// The members of each `Start` among them.
        members: Vec<Vec<RequestSlot>>,
        /// The nodes of each `Start` among them; empty if none of them has any.
        #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Vec::is_empty"))]
        nodes: Vec<Vec<u32>>,
    },
}

impl Event {
    /// Returns the settle event for the decisions that `scheduler` has just made.
    pub fn of_settle(scheduler: &dyn Scheduler, actions: &[Action]) -> Event {
        let starts = actions.iter().filter_map(|action| match action {
            Action::Start { task, .. } => Some((scheduler.members(*task).to_vec(), scheduler.nodes(*task).to_vec())),
            _ => None,
        });
        let (members, mut nodes): (Vec<_>, Vec<_>) = starts.unzip();
        if nodes.iter().all(Vec::is_empty) {
            nodes.clear();
        }
        Event::Settle { actions: actions.to_vec(), members, nodes }
    }

    /// Repeats this event on `scheduler`. Returns the new decisions as the error if they differ
    /// from the recorded ones.
    pub fn replay(&self, now: Time, scheduler: &mut dyn Scheduler, out: &mut Outbox) -> Result<(), Event> {
        match self {
            Event::Graph { request, graph } => scheduler.on_graph(*request, graph),
            Event::Request(request) => scheduler.on_request(now, request),
            Event::TaskDone { task, outcome, ended, skips } => {
                scheduler.on_task_done(now, &TaskDone { task: *task, outcome: *outcome, ended, skips });
            }
            Event::Control(control) => scheduler.on_control(now, control.clone()),
            // The driver repeats grants, which this contract does not know.
            Event::Grant(_) => {}
            Event::Settle { .. } => {
                out.clear();
                scheduler.settle(now, out);
                let decided = Event::of_settle(scheduler, out.actions());
                return if decided == *self { Ok(()) } else { Err(decided) };
            }
        }
        Ok(())
    }
}
