//! The causes for which a call was late, refused or failed, and what to change.

use serde::Serialize;

/// A cause of lateness, refusal or failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// The time until the deadline is less than the model needs for the request alone.
    ShortDeadline,
    /// Another request of its batch failed, or made the batch run again.
    Neighbour,
    /// The engine fails on the request itself.
    OwnFailure,
    /// The request's device or engine process was lost.
    Lost,
    /// No device served.
    NoDevice,
    /// The client did not send the request in time.
    SlowClient,
    /// The request's model or client asked for more than its share.
    Share,
    /// The model had just been loaded, and its batches were slow.
    Cold,
    /// Batches took longer than the profile says.
    SlowDevice,
    /// More work arrived than the devices can do.
    Overload,
    /// A batch held a device before it ran: its inputs came late.
    SlowInputs,
    /// The server's threads did not run when its batch had to begin.
    Stalled,
    /// Devices idled while it waited: the scheduler waited for a fuller batch.
    BatchWait,
    /// The devices were busy with another model.
    QueueBehind,
    /// The devices were busy with other requests of its model.
    OwnQueue,
    /// The request's own batches took most of its time.
    OwnBatch,
    /// Nothing recorded explains it.
    Unknown,
}

impl Cause {
    /// Returns the name for tables and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Cause::ShortDeadline => "deadline shorter than a lone run",
            Cause::Neighbour => "a neighbour in its batch failed",
            Cause::OwnFailure => "the engine fails on the request itself",
            Cause::Lost => "its device or engine process was lost",
            Cause::NoDevice => "no device serves",
            Cause::SlowClient => "the client was slow to send",
            Cause::Share => "share of the devices exceeded",
            Cause::Cold => "cold or reloaded model",
            Cause::SlowDevice => "device slower than its profile",
            Cause::Overload => "more load than the devices can do",
            Cause::SlowInputs => "batches waited at the device for their inputs",
            Cause::Stalled => "the server got no processor",
            Cause::BatchWait => "waited for a fuller batch",
            Cause::QueueBehind => "queued behind another model",
            Cause::OwnQueue => "queued behind other requests of its model",
            Cause::OwnBatch => "its own batch took most of its time",
            Cause::Unknown => "no cause was recorded",
        }
    }

    /// Returns the setting to change.
    pub fn change(self) -> &'static str {
        match self {
            Cause::ShortDeadline => "raise slo_ms in model.toml, or the client's timeout",
            Cause::Neighbour => "find the requests that fail alone (ripieno_bad_requests_total), and mend their client",
            Cause::OwnFailure => "mend the request: the error in its answer names the operator",
            Cause::Lost => "see the log for the device; isolation = \"process\" keeps an engine's crash apart",
            Cause::NoDevice => "start a backend, or restart the server; its log says why the last device was lost",
            Cause::SlowClient => "raise --body-timeout-s, or send smaller requests",
            Cause::Share => {
                "add devices (--devices, or backends), slow the client down, or raise weight, which takes from other models"
            }
            Cause::Cold => "load the model before its clients come; warm_up in model.toml",
            Cause::SlowDevice => "take other load off the device or its cores; the profile follows by itself",
            Cause::Overload => "add devices (--devices, or backends), send less, or raise slo_ms in model.toml",
            Cause::SlowInputs => {
                "move the frontend that /v2/health/status of a frontend names nearer, or raise slo_ms in model.toml"
            }
            Cause::Stalled => "give the server more cores or a larger CPU limit, or take other load off its machine",
            Cause::BatchWait => {
                "a smaller max_batch in model.toml; under --objective efficiency also --objective latency"
            }
            Cause::QueueBehind => "raise weight in model.toml, lower max_batch of the other model, or add devices",
            Cause::OwnQueue => "add devices (--devices), or raise slo_ms in model.toml",
            Cause::OwnBatch => "raise slo_ms, or lower max_batch in model.toml",
            Cause::Unknown => "raise slo_ms in model.toml; record from the server's start (--record FILE)",
        }
    }
}
