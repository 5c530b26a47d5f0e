//! Texts of one call, each a request of its own: so they are batched with those of others, by length.

use crate::access::Caller;
use crate::bounds::budget::Budget;
use crate::check::wire_datatype;
use crate::infer::{Accepted, Asked, accept, delivered};
use crate::problem::{Kind, Problem};
use crate::state::State;
use ripieno_model::DataType;
use ripieno_repository::registry::ServedEntry;
use ripieno_text::{TextModel, Tokens};
use ripieno_wire::{InferRequest, Parameters, RequestedOutput, WireTensor};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What a model gives of a text is read at once up to this size: it takes some 0.1 ms.
const READ_INLINE_BYTES: usize = 256 << 10;

/// A call for a model that reads text.
pub(crate) struct TextCall<'a> {
    pub(crate) state: &'a State,
    pub(crate) budget: Arc<Budget>,
    pub(crate) entry: Arc<ServedEntry>,
    pub(crate) text: Arc<TextModel>,
    pub(crate) caller: Caller,
    /// The time that a gateway gives each of them.
    pub(crate) slo: Option<Duration>,
}

impl TextCall<'_> {
    /// What the model says of each, in their order. The first that fails ends them all.
    pub(crate) async fn answer(&self, texts: Vec<Tokens>) -> Result<Vec<Vec<f32>>, Problem> {
        // Enough to fill the batch that runs and the next one; a queue is not filled by one call.
        let most = 2 * self.entry.max_batch;
        let (mut answers, mut waiting) = (Vec::with_capacity(texts.len()), VecDeque::new());
        for tokens in texts {
            if waiting.len() >= most
                && let Some(first) = waiting.pop_front()
            {
                answers.push(self.read(first).await?);
            }
            let accepted = accept(self.state, &self.budget, self.asked(&tokens), None).await?;
            waiting.push_back((tokens.ids.len(), accepted));
        }
        for first in waiting {
            answers.push(self.read(first).await?);
        }
        Ok(answers)
    }

    fn asked(&self, tokens: &Tokens) -> Asked {
        let datatype = |name: &str| {
            let spec = self.entry.inputs.iter().find(|spec| spec.name == name);
            spec.map_or(DataType::Int64, |spec| spec.datatype)
        };
        let input = |(name, length, data): (&str, usize, Vec<u8>)| WireTensor {
            name: name.to_owned(),
            datatype: wire_datatype(datatype(name)),
            shape: vec![1, length as i64],
            data: data.into(),
            parameters: Parameters::default(),
            is_slice: false,
            place: None,
        };
        let request = InferRequest {
            model: self.entry.name.clone(),
            version: self.entry.version.clone(),
            inputs: self.text.inputs(tokens, datatype).into_iter().map(input).collect(),
            outputs: vec![RequestedOutput { name: self.text.output.clone(), ..RequestedOutput::default() }],
            binary_outputs: true,
            ..InferRequest::default()
        };
        let (received, caller, slo) = (Instant::now(), self.caller, self.slo);
        Asked { request, received, timeout: None, slo, caller, place: None }
    }

    async fn read(&self, (tokens, mut accepted): (usize, Accepted)) -> Result<Vec<f32>, Problem> {
        let answered = accepted.answer().await?;
        let begun = Instant::now();
        let text = self.text.clone();
        let output = answered.outputs.into_iter().find(|tensor| *tensor.name == *text.output);
        let numbers = match output {
            None => Ok(None),
            Some(tensor) => {
                let large = tensor.data.len() > READ_INLINE_BYTES;
                let work = move || text.read(tokens, tensor.datatype, &tensor.shape, &tensor.data);
                if large { self.state.work(work).await } else { Ok(work()) }
            }
        };
        self.entry.stats.encoding.add(begun.elapsed());
        let unlike = || {
            let (model, output) = (&self.entry.name, &self.text.output);
            Problem::new(
                Kind::Internal,
                format!("model '{model}' gave an output '{output}' that is not what it declares"),
            )
        };
        let numbers = numbers.and_then(|numbers| numbers.ok_or_else(unlike));
        delivered(&self.entry, answered.late, numbers)
    }
}
