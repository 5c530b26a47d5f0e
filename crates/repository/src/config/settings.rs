//! Keys of `model.toml` that are said elsewhere.

use crate::edge::Edge;
use ripieno_base::Nanos;
use ripieno_model::TensorSpec;
use std::fmt::Write;

/// Keys of `model.toml`, where something is said of them; what stands in a `model.toml` goes before.
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
    /// The inputs, the batch first if there is one. Those whose type or shape is left open are not among them.
    pub inputs: Vec<TensorSpec>,
    /// The outputs, likewise.
    pub outputs: Vec<TensorSpec>,
    /// `labels` of outputs
    pub labels: Vec<(String, String)>,
    /// The outputs that clients are told of and get, if they are not to get all.
    pub answers: Vec<String>,
    /// What a front end does for it, which a `model.toml` cannot say.
    pub edge: Edge,
}

impl Settings {
    /// The text of a `model.toml` that says the same; `file` is the ONNX file, if it is not called `model.onnx`.
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

/// A TOML string.
fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}
