//! Conversion of a model's output tensors into embeddings, class probabilities and scores.

use half::f16;
use ripieno_model::DataType;

/// Methods that reduce one row per token to one row per text. The rows of several are put side by
/// side in their order, of which the first has the lowest four bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pooling(u32);

impl Pooling {
    /// The first token's row.
    pub const CLS: Pooling = Pooling(1);
    /// The largest number of each column.
    pub const MAX: Pooling = Pooling(2);
    /// The mean over all tokens.
    pub const MEAN: Pooling = Pooling(3);
    /// The sum over all tokens, divided by the square root of their number.
    pub const MEAN_SQRT_LEN: Pooling = Pooling(4);
    /// The mean over all tokens, of which the n-th weighs n.
    pub const WEIGHTED_MEAN: Pooling = Pooling(5);
    /// The last token's row.
    pub const LAST: Pooling = Pooling(6);

    /// All methods with their names in configurations.
    pub const ALL: [(&'static str, Pooling); 6] = [
        ("cls", Pooling::CLS),
        ("max", Pooling::MAX),
        ("mean", Pooling::MEAN),
        ("mean_sqrt_len", Pooling::MEAN_SQRT_LEN),
        ("weighted_mean", Pooling::WEIGHTED_MEAN),
        ("last", Pooling::LAST),
    ];

    /// Largest number of methods.
    pub(crate) const MOST: usize = (u32::BITS / Pooling::BITS) as usize;
    const BITS: u32 = 4;

    /// Returns the methods of this and then of `other`, of which at most eight fit.
    #[must_use]
    pub const fn then(self, other: Pooling) -> Pooling {
        Pooling(self.0 | (other.0 << (Pooling::BITS * self.count() as u32)))
    }

    /// Returns the number of rows that are put side by side.
    pub const fn count(self) -> usize {
        (u32::BITS - self.0.leading_zeros()).div_ceil(Pooling::BITS) as usize
    }

    /// Returns the pooled rows of `width` numbers each, from one row per token.
    pub fn pool(self, rows: &[f32], width: usize) -> Vec<f32> {
        let methods = (0..self.count()).map(|at| Pooling((self.0 >> (Pooling::BITS * at as u32)) & 0xf));
        methods.flat_map(|method| method.pool_one(rows, width)).collect()
    }

    fn pool_one(self, rows: &[f32], width: usize) -> Vec<f32> {
        let tokens = rows.len() / width.max(1);
        let column = |fold: &dyn Fn(&mut dyn Iterator<Item = f32>) -> f32| -> Vec<f32> {
            (0..width).map(|at| fold(&mut rows.iter().skip(at).step_by(width).copied())).collect()
        };
        match self {
            Pooling::CLS => rows[..width].to_vec(),
            Pooling::LAST => rows[rows.len() - width..].to_vec(),
            Pooling::MAX => column(&|numbers| numbers.fold(f32::NEG_INFINITY, f32::max)),
            Pooling::MEAN_SQRT_LEN => column(&|numbers| numbers.sum::<f32>() / (tokens as f32).sqrt()),
            Pooling::WEIGHTED_MEAN => {
                let total = (tokens * (tokens + 1) / 2) as f32;
                column(&|numbers| {
                    (1..).zip(numbers).map(|(weight, number)| weight as f32 * number).sum::<f32>() / total
                })
            }
            _ => column(&|numbers| numbers.sum::<f32>() / tokens as f32),
        }
    }
}

/// Task that a model performs on texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TextTask {
    /// Produces an embedding for each text.
    Embed {
        /// Pooling method; `None` if the model's output has one row per text already.
        pooling: Option<Pooling>,
        /// Whether embeddings are normalised to unit length.
        normalize: bool,
    },
    /// Produces class probabilities for each text.
    Classify {
        /// Class names.
        labels: Vec<String>,
        /// Whether several classes may apply to one text; each then has an independent probability.
        multi_label: bool,
    },
    /// Scores how well a document answers a query, from 0 to 1.
    Rerank,
}

impl TextTask {
    /// Returns the task's name in configurations.
    pub fn name(&self) -> &'static str {
        match self {
            TextTask::Embed { .. } => "embed",
            TextTask::Classify { .. } => "classify",
            TextTask::Rerank => "rerank",
        }
    }
}

/// Scales a vector to unit length; a zero vector is unchanged.
pub fn normalize(vector: &mut [f32]) {
    let length = vector.iter().map(|number| number * number).sum::<f32>().sqrt();
    if length > 0.0 {
        vector.iter_mut().for_each(|number| *number /= length);
    }
}

/// Converts logits into probabilities of mutually exclusive classes.
pub(crate) fn softmax(logits: &mut [f32]) {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    logits.iter_mut().for_each(|logit| *logit = (*logit - largest).exp());
    let sum: f32 = logits.iter().sum();
    logits.iter_mut().for_each(|logit| *logit /= sum);
}

/// Converts a logit into an independent probability.
pub(crate) fn sigmoid(logit: f32) -> f32 {
    1.0 / (1.0 + (-logit).exp())
}

/// Decodes a tensor from little-endian bytes; returns `None` if the datatype is not a real number.
pub(crate) fn floats(datatype: DataType, bytes: &[u8]) -> Option<Vec<f32>> {
    match datatype {
        DataType::Fp32 => Some(bytes.as_chunks().0.iter().map(|&number| f32::from_le_bytes(number)).collect()),
        DataType::Fp16 => Some(bytes.as_chunks().0.iter().map(|&number| f16::from_le_bytes(number).to_f32()).collect()),
        DataType::Fp64 => Some(bytes.as_chunks().0.iter().map(|&number| f64::from_le_bytes(number) as f32).collect()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_become_one_row() {
        let rows = [1.0, 2.0, 3.0, 4.0, 5.0, 9.0];
        assert_eq!(Pooling::CLS.pool(&rows, 2), [1.0, 2.0]);
        assert_eq!(Pooling::LAST.pool(&rows, 2), [5.0, 9.0]);
        assert_eq!(Pooling::MEAN.pool(&rows, 2), [3.0, 5.0]);
        assert_eq!(Pooling::MAX.pool(&[1.0, -2.0, -3.0, -4.0], 2), [1.0, -2.0]);
        assert_eq!(Pooling::MEAN_SQRT_LEN.pool(&[2.0, 4.0, 6.0, 8.0], 1), [10.0]);
        assert_eq!(Pooling::WEIGHTED_MEAN.pool(&[6.0, 0.0, 6.0], 1), [4.0]);
        let both = Pooling::MEAN.then(Pooling::CLS);
        assert_eq!((both.count(), both.pool(&rows, 2)), (2, vec![3.0, 5.0, 1.0, 2.0]));
        assert_eq!(both.then(Pooling::MEAN).pool(&rows, 2), [3.0, 5.0, 1.0, 2.0, 3.0, 5.0]);
    }

    #[test]
    fn vectors_and_probabilities() {
        let mut vector = [3.0, 4.0];
        normalize(&mut vector);
        assert_eq!(vector, [0.6, 0.8]);
        let mut nothing = [0.0, 0.0];
        normalize(&mut nothing);
        assert_eq!(nothing, [0.0, 0.0]);
        // Without subtracting the maximum first, this would be infinity over infinity.
        let mut logits = [1000.0, 1000.0, 0.0];
        softmax(&mut logits);
        assert_eq!(logits, [0.5, 0.5, 0.0]);
        assert_eq!(sigmoid(0.0), 0.5);
    }

    #[test]
    fn numbers_of_three_types() {
        let half: Vec<u8> = [1.5, -2.0].into_iter().flat_map(|number| f16::from_f32(number).to_le_bytes()).collect();
        let double: Vec<u8> = [1.5f64, -2.0].into_iter().flat_map(f64::to_le_bytes).collect();
        assert_eq!(floats(DataType::Fp16, &half), Some(vec![1.5, -2.0]));
        assert_eq!(floats(DataType::Fp64, &double), Some(vec![1.5, -2.0]));
        assert_eq!(floats(DataType::Int64, &double), None);
    }
}
