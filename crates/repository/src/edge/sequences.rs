//! Sequences: related requests, each of which continues from the state that the previous one left.
//!
//! The model is stateless to the runtime: the server adds the sequence's states to the inputs and
//! takes the next states from the outputs. Sequences therefore share batches like any requests, and
//! may change devices between requests.

use ripieno_executor::{LoadedModel, Tensor};
use ripieno_model::{DataType, TensorSpec};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Sequence handling of a model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sequences {
    /// Idle time after which a sequence is removed.
    pub idle: Duration,
    /// Inputs that signal the role of a request in its sequence.
    pub controls: Vec<SequenceControl>,
    /// States carried from one request to the next.
    pub states: Vec<SequenceState>,
    /// All inputs of the loaded model, in its order.
    pub inputs: Vec<TensorSpec>,
}

/// An input that the server fills.
#[derive(Clone, Debug, PartialEq)]
pub struct SequenceControl {
    /// Name of the input.
    pub input: String,
    /// Datatype of the control tensor.
    pub datatype: DataType,
    /// Content of the control tensor.
    pub signal: Signal,
}

/// Content of a control input: a flag, encoded as one of two elements, or the sequence id.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Signal {
    Start([Vec<u8>; 2]),
    End([Vec<u8>; 2]),
    /// A request is present; always true for requests that run.
    Ready([Vec<u8>; 2]),
    Id,
}

/// An output that becomes an input of the next request.
#[derive(Clone, Debug, PartialEq)]
pub struct SequenceState {
    /// Name of the input.
    pub input: String,
    /// Name of the output.
    pub output: String,
    /// Datatype of both.
    pub datatype: DataType,
    /// Shape without the batch dimension, with -1 for open dimensions.
    pub dims: Vec<i64>,
    /// Shape of the initial zeros.
    pub first: Vec<i64>,
}

/// Id of a sequence.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum SequenceId {
    Number(u64),
    Text(String),
}

impl fmt::Display for SequenceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SequenceId::Number(number) => number.fmt(f),
            SequenceId::Text(text) => write!(f, "\"{}\"", text.escape_debug()),
        }
    }
}

/// Role of a request in its sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SequenceEvent {
    /// Id of the sequence.
    pub id: SequenceId,
    /// Whether the request is the first.
    pub start: bool,
    /// Whether the request is the last.
    pub end: bool,
}

impl Sequences {
    /// Returns true if the server fills this input, so that clients neither see nor send it.
    pub fn fills(&self, input: &str) -> bool {
        self.controls.iter().any(|control| control.input == input)
            || self.states.iter().any(|state| state.input == input)
    }

    /// Returns true if this output is kept for the next request.
    pub fn keeps(&self, output: &str) -> bool {
        self.states.iter().any(|state| state.output == output)
    }

    /// Checks controls and states against the loaded model. The error names the tensor and the fix.
    pub fn check(&self, model: &dyn LoadedModel) -> Result<(), String> {
        let mut given: Vec<&str> = self.controls.iter().map(|control| &*control.input).collect();
        given.extend(self.states.iter().map(|state| &*state.input));
        given.sort_unstable();
        if let Some(twice) = given.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(format!("input {:?} is given twice; name it once", twice[0]));
        }
        for SequenceControl { input, datatype, .. } in &self.controls {
            let spec = find(model.inputs(), input, "input")?;
            agree(spec, *datatype, &vec![1; spec.shape.len().saturating_sub(1)])?;
        }
        for SequenceState { input, output, datatype, dims, first } in &self.states {
            agree(find(model.inputs(), input, "input")?, *datatype, dims)?;
            agree(find(model.inputs(), input, "input")?, *datatype, first)?;
            agree(find(model.outputs(), output, "output")?, *datatype, dims)?;
        }
        Ok(())
    }

    /// Returns the initial states of a sequence.
    pub fn initial_states(&self) -> Vec<Tensor> {
        let zeros = |state: &SequenceState| {
            let elements: i64 = state.first.iter().product();
            // An empty BYTES element is its 4-byte length.
            let data = vec![0; elements as usize * state.datatype.size().unwrap_or(4)];
            let shape = [1].iter().chain(&state.first).copied().collect();
            Tensor { name: Arc::from(&*state.input), datatype: state.datatype, shape, data: data.into() }
        };
        self.states.iter().map(zeros).collect()
    }

    /// Combines the client's inputs, the sequence's states and the controls into the model's
    /// inputs, in its order.
    pub fn model_inputs(
        &self,
        given: &[Tensor],
        states: &[Tensor],
        event: &SequenceEvent,
    ) -> Result<Arc<[Tensor]>, String> {
        let take = |spec: &TensorSpec| {
            if let Some(control) = self.controls.iter().find(|control| control.input == spec.name) {
                return control.tensor(spec, event);
            }
            let tensor = states.iter().chain(given).find(|tensor| *tensor.name == *spec.name);
            tensor.cloned().ok_or_else(|| format!("input {:?} is missing", spec.name))
        };
        let is_own = |tensor: &&Tensor| self.inputs.iter().all(|spec| *spec.name != *tensor.name);
        let replaced = given.iter().filter(is_own).cloned().map(Ok);
        self.inputs.iter().map(take).chain(replaced).collect()
    }

    /// Extracts the next states from the outputs, under the names of their inputs; `None` if one is
    /// missing.
    pub fn next_states(&self, outputs: &[Tensor]) -> Option<Vec<Tensor>> {
        let next = |state: &SequenceState| {
            let tensor = outputs.iter().find(|tensor| *tensor.name == *state.output)?;
            Some(Tensor { name: Arc::from(&*state.input), ..tensor.clone() })
        };
        self.states.iter().map(next).collect()
    }
}

impl SequenceControl {
    fn tensor(&self, spec: &TensorSpec, event: &SequenceEvent) -> Result<Tensor, String> {
        let data = match &self.signal {
            Signal::Start(values) => values[usize::from(event.start)].clone(),
            Signal::End(values) => values[usize::from(event.end)].clone(),
            Signal::Ready(values) => values[1].clone(),
            Signal::Id => id_bytes(&event.id, self.datatype)?,
        };
        let (name, shape) = (Arc::from(&*self.input), vec![1; spec.shape.len()]);
        Ok(Tensor { name, datatype: self.datatype, shape, data: data.into() })
    }
}

fn id_bytes(id: &SequenceId, datatype: DataType) -> Result<Vec<u8>, String> {
    let text = |text: &str| [&(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat();
    let number = match id {
        SequenceId::Text(id) if datatype == DataType::Bytes => return Ok(text(id)),
        SequenceId::Text(_) => return Err(format!("sequence_id is {id}; the model takes a number of {datatype}")),
        SequenceId::Number(number) => *number,
    };
    let bytes = match datatype {
        DataType::Bytes => Some(text(&number.to_string())),
        DataType::Uint64 => Some(number.to_le_bytes().to_vec()),
        DataType::Int64 => i64::try_from(number).ok().map(|number| number.to_le_bytes().to_vec()),
        DataType::Uint32 => u32::try_from(number).ok().map(|number| number.to_le_bytes().to_vec()),
        DataType::Int32 => i32::try_from(number).ok().map(|number| number.to_le_bytes().to_vec()),
        _ => None,
    };
    bytes.ok_or_else(|| format!("sequence_id is {number}; the model takes a number of {datatype}"))
}

fn find<'a>(specs: &'a [TensorSpec], name: &str, kind: &str) -> Result<&'a TensorSpec, String> {
    specs.iter().find(|spec| spec.name == name).ok_or_else(|| format!("the model has no {kind} {name:?}; correct it"))
}

fn agree(spec: &TensorSpec, datatype: DataType, dims: &[i64]) -> Result<(), String> {
    let fits = |(&own, &said): (&i64, &i64)| own == said || own == -1 || said == -1;
    let own = spec.shape.get(1..).unwrap_or_default();
    match spec.datatype == datatype && own.len() == dims.len() && own.iter().zip(dims).all(fits) {
        true => Ok(()),
        false => Err(format!(
            "{:?} is {datatype} {dims:?} there, and {} {own:?} in the model, beside the rows; correct it",
            spec.name, spec.datatype
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(name: &str, datatype: DataType, shape: &[i64]) -> TensorSpec {
        TensorSpec { name: name.to_owned(), datatype, shape: shape.to_vec() }
    }

    fn sequences() -> Sequences {
        let flags = [vec![0; 4], 1_f32.to_le_bytes().to_vec()];
        let control = |input: &str, datatype, signal| SequenceControl { input: input.to_owned(), datatype, signal };
        let state = SequenceState {
            input: "past".to_owned(),
            output: "present".to_owned(),
            datatype: DataType::Fp32,
            dims: vec![-1, 2],
            first: vec![1, 2],
        };
        Sequences {
            idle: Duration::from_secs(1),
            controls: vec![
                control("start", DataType::Fp32, Signal::Start(flags)),
                control("id", DataType::Uint32, Signal::Id),
            ],
            states: vec![state],
            inputs: vec![
                spec("past", DataType::Fp32, &[-1, -1, 2]),
                spec("x", DataType::Int8, &[-1]),
                spec("start", DataType::Fp32, &[-1, 1]),
                spec("id", DataType::Uint32, &[-1, 1]),
            ],
        }
    }

    #[test]
    fn the_model_gets_states_and_controls_in_its_own_order() {
        let sequences = sequences();
        let given = [Tensor { name: "x".into(), datatype: DataType::Int8, shape: vec![1], data: vec![7].into() }];
        let event = |id| SequenceEvent { id, start: true, end: false };
        let whole =
            sequences.model_inputs(&given, &sequences.initial_states(), &event(SequenceId::Number(258))).unwrap();
        let seen: Vec<(&str, &[i64], &[u8])> =
            whole.iter().map(|tensor| (&*tensor.name, &tensor.shape[..], &tensor.data[..])).collect();
        let expected: [(&str, &[i64], &[u8]); 4] = [
            ("past", &[1, 1, 2], &[0; 8]),
            ("x", &[1], &[7]),
            ("start", &[1, 1], &[0, 0, 128, 63]),
            ("id", &[1, 1], &[2, 1, 0, 0]),
        ];
        assert_eq!(seen, expected);
        for id in [SequenceId::Number(1 << 32), SequenceId::Text("a".to_owned())] {
            let refused = sequences.model_inputs(&given, &sequences.initial_states(), &event(id)).unwrap_err();
            assert!(refused.contains("a number of UINT32"), "{refused}");
        }
        let present = Tensor { name: "present".into(), ..whole[0].clone() };
        assert_eq!(&*sequences.next_states(&[present]).unwrap()[0].name, "past");
        assert!(sequences.next_states(&[]).is_none());
    }

    #[test]
    fn an_id_is_a_number_or_a_text_as_the_model_takes_it() {
        let (number, text) = (SequenceId::Number(7), SequenceId::Text("ab".to_owned()));
        assert_eq!(id_bytes(&number, DataType::Bytes).unwrap(), [1, 0, 0, 0, b'7']);
        assert_eq!(id_bytes(&text, DataType::Bytes).unwrap(), [2, 0, 0, 0, b'a', b'b']);
        assert_eq!(id_bytes(&number, DataType::Int64).unwrap(), [7, 0, 0, 0, 0, 0, 0, 0]);
        assert!(id_bytes(&SequenceId::Number(u64::MAX), DataType::Int64).is_err());
        assert!(id_bytes(&text, DataType::Int64).unwrap_err().contains("\"ab\""));
    }
}
