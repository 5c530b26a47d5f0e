//! The loop that follows changes of tokens and certificates.

use crate::state::State;
use std::sync::Arc;
use tokio::time::MissedTickBehavior;

/// Follows changes of tokens and certificates until the server goes down.
pub(crate) async fn keep_fresh(state: Arc<State>) {
    let Some(every) = state.access.refresh_every() else { return };
    let mut ticks = tokio::time::interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = state.drained() => return,
        }
        // Files may lie on a slow disk. A panic there is logged by the runtime, and the next tick tries again.
        let shared = state.clone();
        let _ = tokio::task::spawn_blocking(move || shared.access.refresh()).await;
    }
}
