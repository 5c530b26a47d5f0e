//! The texts of a call, each submitted as a separate request, so that they are batched by length
//! with texts of other calls.

use crate::access::Caller;
use crate::call::infer::{Accepted, InferCall, accept, delivered};
use crate::limits::budget::MemoryBudget;
use crate::problem::{Problem, ProblemKind};
use crate::state::ServerState;
use ripieno_model::DataType;
use ripieno_repository::registry::ServedEntry;
use ripieno_text::{TextModel, Tokens};
use ripieno_wire::{InferRequest, Parameters, RequestedOutput, WireTensor};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Outputs up to this size are decoded on the connection's thread, which takes about 0.1 ms.
const READ_INLINE_BYTES: usize = 256 << 10;

/// A call to a model that accepts text.
pub(crate) struct TextCall<'a> {
    pub(crate) state: &'a ServerState,
    pub(crate) budget: Arc<MemoryBudget>,
    pub(crate) entry: Arc<ServedEntry>,
    pub(crate) text: Arc<TextModel>,
    pub(crate) caller: Caller,
    /// Time that a gateway allows for each text.
    pub(crate) slo: Option<Duration>,
}

impl TextCall<'_> {
    /// Returns the result of each text, in order. The first failure ends all.
    pub(crate) async fn answer(&self, texts: Vec<Tokens>) -> Result<Vec<Vec<f32>>, Problem> {
        // Enough to fill the running batch and the next one without filling the queue.
        let most = 2 * self.entry.max_batch;
        let (mut answers, mut waiting) = (Vec::with_capacity(texts.len()), VecDeque::new());
        for tokens in texts {
            if waiting.len() >= most
                && let Some((tokens, accepted)) = waiting.pop_front()
            {
                answers.push(self.read(answers.len(), tokens, accepted).await?);
            }
            let accepted = accept(self.state, &self.budget, self.infer_call(&tokens), None).await?;
            waiting.push_back((tokens.ids.len(), accepted));
        }
        for (tokens, accepted) in waiting {
            answers.push(self.read(answers.len(), tokens, accepted).await?);
        }
        Ok(answers)
    }

    fn infer_call(&self, tokens: &Tokens) -> InferCall {
        let datatype = |name: &str| {
            let spec = self.entry.inputs.iter().find(|spec| spec.name == name);
            spec.map_or(DataType::Int64, |spec| spec.datatype)
        };
        let input = |(name, length, data): (&str, usize, Vec<u8>)| WireTensor {
            name: name.to_owned(),
            datatype: datatype(name),
            shape: vec![1, length as i64],
            data: data.into(),
            parameters: Parameters::default(),
            is_slice: false,
            shared_memory: None,
        };
        let request = InferRequest {
            model: self.entry.name.clone(),
            version: self.entry.version.clone(),
            inputs: self.text.encode_inputs(tokens, datatype).into_iter().map(input).collect(),
            outputs: vec![RequestedOutput { name: self.text.output.clone(), ..RequestedOutput::default() }],
            binary_outputs: true,
            ..InferRequest::default()
        };
        let (received, caller, slo) = (Instant::now(), self.caller, self.slo);
        InferCall { request, received, timeout: None, slo, caller, trace: None, position: None }
    }

    /// Returns the error for an answer to the text with this index that holds NaN or infinity. As a
    /// vector it would spoil each search beside it.
    fn no_numbers(&self, at: usize) -> Problem {
        let (model, output) = (&self.entry.name, &self.text.output);
        let message = format!("text {at}: model '{model}' gave an output '{output}' that holds NaN or infinity");
        Problem::new(ProblemKind::Internal, message)
    }

    async fn read(&self, at: usize, tokens: usize, mut accepted: Accepted) -> Result<Vec<f32>, Problem> {
        let answered = accepted.answer().await?;
        let begun = Instant::now();
        let text = self.text.clone();
        let output = answered.outputs.into_iter().find(|tensor| *tensor.name == *text.output);
        let numbers = match output {
            None => Ok(None),
            Some(tensor) => {
                let large = tensor.data.len() > READ_INLINE_BYTES;
                let work = move || text.read(tokens, tensor.datatype, &tensor.shape, &tensor.data);
                if large { self.state.run_cpu_bound(work).await } else { Ok(work()) }
            }
        };
        self.entry.stats.encoding.add(begun.elapsed());
        let unlike = || {
            let (model, output) = (&self.entry.name, &self.text.output);
            Problem::new(
                ProblemKind::Internal,
                format!("model '{model}' gave an output '{output}' that is not what it declares"),
            )
        };
        let numbers = numbers.and_then(|numbers| numbers.ok_or_else(unlike)).and_then(|numbers| {
            if numbers.iter().all(|number| number.is_finite()) { Ok(numbers) } else { Err(self.no_numbers(at)) }
        });
        delivered(&self.entry, answered.late, numbers)
    }
}
