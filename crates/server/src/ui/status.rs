//! The status for programs: what the page says, with the causes that the flight recorder shows.

use super::shared::{ServerProblem, ServerStatus};
use super::verdict;
use crate::problem::{Problem, ProblemKind};
use crate::state::ServerState;
use std::sync::Arc;

/// Runs what may read the flight recorder on a blocking thread, one call at a time.
pub(super) async fn from_history<T: Send + 'static>(
    state: &Arc<ServerState>,
    read: impl FnOnce(&ServerState) -> T + Send + 'static,
) -> Result<T, Problem> {
    let permit = state.ui.rendering.clone().acquire_owned().await;
    let state = state.clone();
    let drawn = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        read(&state)
    });
    drawn.await.map_err(|error| Problem::new(ProblemKind::Internal, format!("the page cannot be drawn: {error}")))
}

/// Returns whether the server is well, and what is wrong, with the causes that the page names.
pub(crate) async fn of(state: &Arc<ServerState>) -> ServerStatus {
    let problems = state.ui.problems();
    if !problems.iter().any(ServerProblem::has_cause) {
        return ServerStatus::new(problems);
    }
    ServerStatus::new(from_history(state, verdict::explained).await.unwrap_or(problems))
}
