//! Steps of a sentence encoder after its pooling, as `modules.json` lists them.

use crate::heads::{normalize, sigmoid};
use crate::read::read_bounded;
use half::{bf16, f16};
use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;
use std::path::Path;

/// Upper bound on the weights of a step, in bytes.
const MAX_WEIGHTS: u64 = 256 << 20;
/// Epsilon of sentence-transformers' LayerNorm, which is PyTorch's default.
const EPSILON: f32 = 1e-5;

/// A step that maps a vector to a vector.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum HeadStep {
    /// Scales the vector to unit length.
    Normalize,
    Dense(Dense),
    LayerNorm {
        weight: Vec<f32>,
        bias: Vec<f32>,
    },
}

/// A fully connected layer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Dense {
    inputs: usize,
    /// One row of `inputs` numbers for each output.
    weight: Vec<f32>,
    bias: Vec<f32>,
    activation: Activation,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Activation {
    Identity,
    Tanh,
    Relu,
    Sigmoid,
}

#[derive(Deserialize)]
struct DenseFile {
    #[serde(default = "tanh")]
    activation_function: String,
}

/// The activation of a Dense module that names none.
fn tanh() -> String {
    "torch.nn.modules.activation.Tanh".to_owned()
}

impl HeadStep {
    /// Reads a Dense module from its folder.
    pub(crate) fn dense(folder: &Path) -> Result<HeadStep, String> {
        let config = folder.join("config.json");
        let file: DenseFile = serde_json::from_slice(&read_bounded(&config, 1 << 20)?)
            .map_err(|error| format!("{}: {error}", config.display()))?;
        let activation = match file.activation_function.rsplit('.').next().unwrap_or_default() {
            "Identity" => Activation::Identity,
            "Tanh" => Activation::Tanh,
            "ReLU" => Activation::Relu,
            "Sigmoid" => Activation::Sigmoid,
            other => {
                return Err(format!(
                    "{}: activation_function {other:?} is not known here, which knows Identity, Tanh, ReLU and Sigmoid",
                    config.display()
                ));
            }
        };
        let mut weights = Weights::read(folder)?;
        let (weight, shape) = weights.take("linear.weight")?;
        let &[outputs, inputs] = &shape[..] else { return Err(weights.misshapen("linear.weight")) };
        let bias = if weights.has("linear.bias") { weights.take("linear.bias")?.0 } else { vec![0.0; outputs] };
        if bias.len() != outputs {
            return Err(weights.misshapen("linear.bias"));
        }
        Ok(HeadStep::Dense(Dense { inputs, weight, bias, activation }))
    }

    /// Reads a LayerNorm module from its folder.
    pub(crate) fn layer_norm(folder: &Path) -> Result<HeadStep, String> {
        let mut weights = Weights::read(folder)?;
        let (weight, bias) = (weights.take("norm.weight")?.0, weights.take("norm.bias")?.0);
        if weight.len() != bias.len() {
            return Err(weights.misshapen("norm.bias"));
        }
        Ok(HeadStep::LayerNorm { weight, bias })
    }

    /// Returns the size of the vector after this step; `None` if it takes another size.
    pub(crate) fn size_after(&self, size: usize) -> Option<usize> {
        match self {
            HeadStep::Normalize => Some(size),
            HeadStep::Dense(dense) => (dense.inputs == size).then_some(dense.bias.len()),
            HeadStep::LayerNorm { weight, .. } => (weight.len() == size).then_some(size),
        }
    }

    /// Applies the step to a vector of the size that it takes.
    pub(crate) fn apply(&self, mut vector: Vec<f32>) -> Vec<f32> {
        match self {
            HeadStep::Normalize => normalize(&mut vector),
            HeadStep::Dense(dense) => return dense.apply(&vector),
            HeadStep::LayerNorm { weight, bias } => {
                let count = vector.len() as f32;
                let mean = vector.iter().sum::<f32>() / count;
                let variance = vector.iter().map(|number| (number - mean).powi(2)).sum::<f32>() / count;
                let scale = 1.0 / (variance + EPSILON).sqrt();
                for ((number, weight), bias) in vector.iter_mut().zip(weight).zip(bias) {
                    *number = (*number - mean) * scale * weight + bias;
                }
            }
        }
        vector
    }
}

impl Dense {
    fn apply(&self, vector: &[f32]) -> Vec<f32> {
        let rows = self.weight.chunks_exact(self.inputs.max(1)).zip(&self.bias);
        let sums = rows.map(|(row, bias)| bias + row.iter().zip(vector).map(|(a, b)| a * b).sum::<f32>());
        let activate = |number: f32| match self.activation {
            Activation::Identity => number,
            Activation::Tanh => number.tanh(),
            Activation::Relu => number.max(0.0),
            Activation::Sigmoid => sigmoid(number),
        };
        sums.map(activate).collect()
    }
}

/// The weights of one step.
struct Weights {
    shown: String,
    bytes: Vec<u8>,
}

impl Weights {
    fn read(folder: &Path) -> Result<Weights, String> {
        let path = folder.join("model.safetensors");
        let shown = path.display().to_string();
        if !path.is_file() {
            return Err(format!("{shown}: there is no such file; weights of modules.json are read in this form only"));
        }
        let weights = Weights { bytes: read_bounded(&path, MAX_WEIGHTS)?, shown };
        weights.tensors().map(|_| ())?;
        Ok(weights)
    }

    fn tensors(&self) -> Result<SafeTensors<'_>, String> {
        SafeTensors::deserialize(&self.bytes).map_err(|error| format!("{}: {error}", self.shown))
    }

    fn has(&self, name: &str) -> bool {
        self.tensors().is_ok_and(|tensors| tensors.tensor(name).is_ok())
    }

    /// Returns a tensor's numbers and shape.
    fn take(&mut self, name: &str) -> Result<(Vec<f32>, Vec<usize>), String> {
        let tensors = self.tensors()?;
        let tensor = tensors.tensor(name).map_err(|error| format!("{}: {error}", self.shown))?;
        let data = tensor.data();
        let numbers = match tensor.dtype() {
            Dtype::F32 => data.as_chunks().0.iter().map(|&number| f32::from_le_bytes(number)).collect(),
            Dtype::F16 => data.as_chunks().0.iter().map(|&number| f16::from_le_bytes(number).to_f32()).collect(),
            Dtype::BF16 => data.as_chunks().0.iter().map(|&number| bf16::from_le_bytes(number).to_f32()).collect(),
            other => return Err(format!("{}: {name} is {other:?}; F32, F16 and BF16 are read", self.shown)),
        };
        Ok((numbers, tensor.shape().to_vec()))
    }

    fn misshapen(&self, name: &str) -> String {
        format!("{}: {name} does not have the shape that its module needs", self.shown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dense(activation: Activation) -> HeadStep {
        HeadStep::Dense(Dense {
            inputs: 2,
            weight: vec![1.0, 2.0, -1.0, 0.5, 0.0, -3.0],
            bias: vec![0.0, 1.0, 2.0],
            activation,
        })
    }

    #[test]
    fn a_dense_step_multiplies_adds_and_activates() {
        assert_eq!(dense(Activation::Identity).apply(vec![1.0, 2.0]), [5.0, 1.0, -4.0]);
        assert_eq!(dense(Activation::Relu).apply(vec![1.0, 2.0]), [5.0, 1.0, 0.0]);
        assert_eq!((dense(Activation::Tanh).size_after(2), dense(Activation::Tanh).size_after(3)), (Some(3), None));
    }

    #[test]
    fn a_layer_norm_has_mean_zero_and_deviation_one() {
        let norm = HeadStep::LayerNorm { weight: vec![1.0, 1.0], bias: vec![0.0, 1.0] };
        let made = norm.apply(vec![3.0, 5.0]);
        assert!((made[0] + 1.0).abs() < 1e-4 && (made[1] - 2.0).abs() < 1e-4, "{made:?}");
    }
}
