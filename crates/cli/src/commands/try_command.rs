//! The line that `serve` prints for trying a model: a curl command with an inference request.

use ripieno_repository::{ModelReport, Sample};

/// A model with a request; if no model has a short enough request, the model alone.
pub(crate) struct TryCommand<'a> {
    model: &'a str,
    sample: Option<&'a Sample>,
}

/// Returns the model that is easiest to try: a readable request is preferred to one of zeros.
pub(crate) fn easiest(models: &[ModelReport]) -> Option<TryCommand<'_>> {
    let served = || models.iter().filter(|model| model.error.is_none());
    let reads = |model: &&ModelReport| matches!(model.sample, Some(Sample::Json(_) | Sample::Text { .. }));
    let best = served().find(reads).or(served().find(|model| model.sample.is_some())).or(served().next())?;
    Some(TryCommand { model: &best.name, sample: best.sample.as_ref() })
}

impl TryCommand<'_> {
    /// Returns the command, for a server at this URL.
    pub(crate) fn command(&self, url: &str, options: &str) -> String {
        // The name of a folder may have any characters.
        let model: String = self.model.bytes().map(escaped).collect();
        let of_model = format!("{url}/v2/models/{model}");
        let header = "-H 'Inference-Header-Content-Length: 0'";
        match self.sample {
            Some(Sample::Text { path, body }) => {
                format!("curl{options} {url}{path} -H 'Content-Type: application/json' -d '{body}'")
            }
            Some(Sample::Json(body)) => format!("curl{options} {of_model}/infer -d '{body}'"),
            Some(Sample::Zeros(bytes)) => {
                format!(
                    "head -c {bytes} /dev/zero | curl{options} {of_model}/infer {header} --data-binary @- -o answer.bin"
                )
            }
            Some(Sample::Binary { head, bytes }) => format!(
                "(printf %s '{head}'; head -c {bytes} /dev/zero) | curl{options} {of_model}/infer \
                 -H 'Inference-Header-Content-Length: {}' --data-binary @- -o answer.bin",
                head.len()
            ),
            None => format!("curl{options} {of_model}"),
        }
    }
}

fn escaped(byte: u8) -> String {
    match byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    }
}
