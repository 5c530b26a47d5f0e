//! Periodic reload of tokens and certificates.

use crate::state::ServerState;
use std::sync::Arc;
use tokio::time::MissedTickBehavior;

/// Reloads changed tokens and certificates until the server shuts down.
pub(crate) async fn reload_credentials(state: Arc<ServerState>) {
    let Some(every) = state.access.refresh_every() else { return };
    let mut ticks = tokio::time::interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = state.until_draining() => return,
        }
        // Files may be on a slow disk. The runtime logs a panic there, and the next tick tries
        // again.
        let shared = state.clone();
        let _ = tokio::task::spawn_blocking(move || shared.access.refresh()).await;
    }
}
