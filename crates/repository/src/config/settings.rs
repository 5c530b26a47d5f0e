//! Settings of `model.toml` that come from another source.

use crate::edge::EdgeConfig;
use ripieno_base::Nanos;
use ripieno_model::TensorSpec;
use std::fmt::Write;

/// Keys of `model.toml` set elsewhere; a `model.toml` takes precedence.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// `slo_ms`
    pub slo: Option<Nanos>,
    /// `queue_timeout_ms`
    pub queue_timeout: Option<Nanos>,
    /// `late`
    pub answer_late: Option<bool>,
    /// `max_batch`
    pub max_batch: Option<usize>,
    /// `batching = "off"`
    pub unbatched: bool,
    /// `instances`
    pub instances: Option<usize>,
    /// `max_queue`
    pub max_queue: Option<usize>,
    /// `warm_up`
    pub warm_up: Option<usize>,
    /// Inputs with datatype and shape, the batch dimension first if there is one.
    pub inputs: Vec<TensorSpec>,
    /// Outputs, likewise.
    pub outputs: Vec<TensorSpec>,
    /// Inputs of sample requests, likewise; one may be there several times.
    pub samples: Vec<TensorSpec>,
    /// `labels` of outputs
    pub labels: Vec<(String, String)>,
    /// Names of the outputs that clients receive; empty for all.
    pub answers: Vec<String>,
    /// Processing in the server that a `model.toml` cannot configure.
    pub edge: EdgeConfig,
}

impl Settings {
    /// Returns the text of an equivalent `model.toml`; `file` is the ONNX file unless it is
    /// `model.onnx`.
    pub fn to_toml(&self, file: Option<&str>) -> String {
        let mut text = String::new();
        let mut line = |key: &str, value: Option<String>| {
            if let Some(value) = value {
                let _ = writeln!(text, "{key} = {value}");
            }
        };
        let millis = |span: Option<Nanos>| span.map(|span| span.as_millis_f64().to_string());
        let whole = |number: Option<usize>| number.map(|number| number.to_string());
        line("slo_ms", millis(self.slo));
        line("queue_timeout_ms", millis(self.queue_timeout));
        line("late", self.answer_late.map(|answer| if answer { "\"answer\"" } else { "\"refuse\"" }.to_owned()));
        line("batching", self.unbatched.then(|| "\"off\"".to_owned()));
        line("max_batch", whole(self.max_batch));
        line("instances", whole(self.instances));
        line("max_queue", whole(self.max_queue));
        line("warm_up", whole(self.warm_up));
        if let Some(file) = file {
            let _ = write!(text, "\n[[block]]\nname = \"model\"\nfile = {}\n", quoted(file));
        }
        for (section, specs) in [("input", &self.inputs), ("output", &self.outputs)] {
            for TensorSpec { name, datatype, shape } in specs {
                let name = quoted(name);
                let _ = write!(text, "\n[[{section}]]\nname = {name}\ndatatype = \"{datatype}\"\nshape = {shape:?}\n");
                let labels = self.labels.iter().find(|(output, _)| section == "output" && quoted(output) == name);
                if let Some((_, file)) = labels {
                    let _ = writeln!(text, "labels = {}", quoted(file));
                }
            }
        }
        let is_listed = |output: &str| self.outputs.iter().any(|spec| spec.name == output);
        for (output, file) in self.labels.iter().filter(|(output, _)| !is_listed(output)) {
            let _ = write!(text, "\n[[output]]\nname = {}\nlabels = {}\n", quoted(output), quoted(file));
        }
        text
    }
}

/// Returns a quoted TOML string.
fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}
