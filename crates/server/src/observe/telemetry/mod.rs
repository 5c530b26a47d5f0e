//! Spans of sampled calls and of their batches, sent by OTLP.
//!
//! The path of a request does one thing: a sampled call gets a tag. Everything else is read from
//! the flight recorder a second later, on a thread of its own: a span for the call, as a child of
//! its client's, with children decode, queue and execute. There is one for each of its batches,
//! too, linked to all sampled members, as these are linked to it. So a call that is not sampled
//! costs nothing, and a sampled one a place in a bounded table.

pub(crate) mod calls;
mod spans;
#[cfg(test)]
mod tests;

use crate::state::ServerState;
use spans::CallSpans;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::MissedTickBehavior;

/// Interval at which ended calls are sent.
const EVERY: Duration = Duration::from_secs(1);
/// Sends the spans of ended calls until the server drains.
pub(crate) async fn export(state: Arc<ServerState>) {
    let (Some(telemetry), Some(flight)) = (state.telemetry.clone(), state.backend.flight()) else { return };
    let mut spans = CallSpans::new(&telemetry, &flight);
    let mut ticks = tokio::time::interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = state.until_draining() => return,
        }
        let telemetry = telemetry.clone();
        let sent = tokio::task::spawn_blocking(move || {
            spans.send(&telemetry);
            spans
        });
        match sent.await {
            Ok(back) => spans = back,
            Err(error) => return tracing::error!(%error, "spans are sent no longer"),
        }
    }
}
