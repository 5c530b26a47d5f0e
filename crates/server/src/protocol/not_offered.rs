//! Errors of Triton calls that this server does not support. Each names an alternative; Triton's
//! clients take a refusal without a message for success.

use crate::problem::{Problem, ProblemKind};

pub(crate) fn trace_settings() -> Problem {
    refused(
        "trace settings are not offered; /metrics and the statistics of a model tell where its requests spend their time, \
         and serve --record FILE writes every request and decision",
    )
}

pub(crate) fn log_settings() -> Problem {
    refused("log settings are not offered; start the server with RIPIENO_LOG=debug, or --log-format json")
}

pub(crate) fn cuda_regions() -> Problem {
    refused(
        "CUDA shared memory is not offered, since no model runs on a GPU here; use system shared memory, or send the tensors",
    )
}

/// Returns the error of an unknown call.
pub(crate) fn unknown_call(path: &str) -> Problem {
    refused(format!(
        "{path} is no call of this server; it has those of inference.GRPCInferenceService and grpc.health.v1.Health"
    ))
}

fn refused(message: impl Into<String>) -> Problem {
    Problem::new(ProblemKind::NotOffered, message)
}
