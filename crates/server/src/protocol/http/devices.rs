//! Calls that list, add and remove devices.

use super::{HttpAnswer, json};
use crate::backend::DeviceChange;
use crate::problem::Problem;
use crate::state::ServerState;
use hyper::StatusCode;
use serde_json::{Value, json as value};
use std::sync::Arc;

pub(super) fn list(state: &ServerState) -> HttpAnswer {
    let row = |device: ripieno_runtime::DeviceSnapshot| {
        let busy_s = device.busy_ns as f64 / 1e9;
        let (state, percent, batches) = (device.state.name(), device.percent, device.batches);
        value!({"id": device.id, "state": state, "percent": percent, "batches": batches, "busy_s": busy_s})
    };
    let rows: Vec<Value> = state.backend.devices().into_iter().map(row).collect();
    json(StatusCode::OK, &value!({"devices": rows}))
}

pub(super) async fn change(state: &Arc<ServerState>, change: DeviceChange) -> Result<HttpAnswer, Problem> {
    let backend = state.backend.clone();
    // Attaching all models to a new device starts engine threads.
    let id = state.loads.run_on_loader(move || backend.change_devices(change)).await??;
    tracing::info!(device = id.0, ?change, "devices were changed by a call");
    Ok(json(StatusCode::OK, &value!({"id": id.0})))
}
