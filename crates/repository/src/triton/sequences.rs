//! Conversion of `sequence_batching`.

use super::model_type;
use crate::edge::{SequenceControl, SequenceState, Sequences, Signal};
use ripieno_model::DataType;
use ripieno_wire::proto::inference::ModelConfig;
use ripieno_wire::proto::inference::model_config::SchedulingChoice;
use ripieno_wire::proto::inference::model_sequence_batching::control::Kind;
use ripieno_wire::proto::inference::model_sequence_batching::{self as proto, ControlInput};
use std::time::Duration;

/// Triton's default idle time.
const DEFAULT_IDLE: Duration = Duration::from_secs(1);
/// Maximum size of a sequence's initial states.
const MAX_STATE_BYTES: i64 = 1 << 28;

/// Returns the sequence handling of the model, if configured; the error names what is not
/// supported.
pub(super) fn sequences(config: &ModelConfig) -> Option<Result<Sequences, String>> {
    let Some(SchedulingChoice::SequenceBatching(batching)) = &config.scheduling_choice else { return None };
    let idle = match batching.max_sequence_idle_microseconds {
        0 => DEFAULT_IDLE,
        micros => Duration::from_micros(micros),
    };
    let controls = batching.control_input.iter().map(control).collect::<Result<_, _>>();
    let states = batching.state.iter().map(state).collect::<Result<_, _>>();
    Some(controls.and_then(|controls| Ok(Sequences { idle, controls, states: states?, inputs: Vec::new() })))
}

fn control(input: &ControlInput) -> Result<SequenceControl, String> {
    let name = &input.name;
    let [control] = &input.control[..] else {
        return Err(format!("control_input {name:?} must have one control; write it"));
    };
    let flags = || flags(control).ok_or_else(|| format!("control_input {name:?} needs the values of false and true"));
    let (datatype, signal) = match control.kind() {
        Kind::ControlSequenceStart => flags().map(|(datatype, values)| (datatype, Signal::Start(values))),
        Kind::ControlSequenceEnd => flags().map(|(datatype, values)| (datatype, Signal::End(values))),
        Kind::ControlSequenceReady => flags().map(|(datatype, values)| (datatype, Signal::Ready(values))),
        Kind::ControlSequenceCorrid => {
            let known = [DataType::Uint64, DataType::Int64, DataType::Uint32, DataType::Int32, DataType::Bytes];
            let datatype = model_type(control.data_type()).filter(|datatype| known.contains(datatype));
            let fix = || format!("control_input {name:?} must be INT32, UINT32, INT64, UINT64 or STRING; correct it");
            datatype.map(|datatype| (datatype, Signal::Id)).ok_or_else(fix)
        }
    }?;
    Ok(SequenceControl { input: name.clone(), datatype, signal })
}

/// Returns the encoded values of false and true, whichever datatype they are given in.
fn flags(control: &proto::Control) -> Option<(DataType, [Vec<u8>; 2])> {
    match (&control.int32_false_true[..], &control.fp32_false_true[..], &control.bool_false_true[..]) {
        ([no, yes], [], []) => Some((DataType::Int32, [no.to_le_bytes().to_vec(), yes.to_le_bytes().to_vec()])),
        ([], [no, yes], []) => Some((DataType::Fp32, [no.to_le_bytes().to_vec(), yes.to_le_bytes().to_vec()])),
        ([], [], [no, yes]) => Some((DataType::Bool, [vec![u8::from(*no)], vec![u8::from(*yes)]])),
        _ => None,
    }
}

fn state(state: &proto::State) -> Result<SequenceState, String> {
    let name = &state.input_name;
    let datatype = model_type(state.data_type()).ok_or_else(|| format!("state {name:?} needs a data_type"))?;
    let first = match &state.initial_state[..] {
        [] => state.dims.iter().map(|&size| size.max(1)).collect(),
        [initial] => initial.dims.clone(),
        _ => return Err(format!("state {name:?} has several initial states; leave one")),
    };
    let elements = first.iter().try_fold(1_i64, |product, &size| product.checked_mul(size).filter(|_| size >= 0));
    if elements.is_none_or(|elements| elements > MAX_STATE_BYTES / 8) || state.dims.iter().any(|&size| size < -1) {
        return Err(format!("state {name:?} cannot begin as {first:?}; correct dims or initial_state"));
    }
    Ok(SequenceState {
        input: name.clone(),
        output: state.output_name.clone(),
        datatype,
        dims: state.dims.clone(),
        first,
    })
}
