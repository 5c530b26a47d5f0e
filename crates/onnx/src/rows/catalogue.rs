//! The operators that have a rule.

use super::call::{BY_POSITION, Made, RowCall, meet, unknown};
use super::value::{RowContent, RowValue};
use super::{
    attention, elementwise, indexing, layout, learned, linear, normal, pieces, quantised, recurrent, reduce, resize,
    sizes, windows,
};
use crate::dim::Dim;

/// Operators that draw random numbers.
const RANDOM: [&str; 6] =
    ["Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"];

/// Operators the shape of whose output depends on the values of all their input.
const BY_DATA: [&str; 6] = ["MaxRoiPool", "NonMaxSuppression", "NonZero", "RoiAlign", "StringSplit", "Unique"];

/// Operators that accept tensors that depend on the number of rows, beside elementwise ones.
const COUNTS: [&str; 20] = [
    "AffineGrid",
    "Concat",
    "ConstantOfShape",
    "Expand",
    "Gather",
    "Pad",
    "Range",
    "ReduceMax",
    "ReduceMin",
    "ReduceProd",
    "ReduceSum",
    "Reshape",
    "Resize",
    "Shape",
    "Size",
    "Slice",
    "Split",
    "Squeeze",
    "Tile",
    "Unsqueeze",
];

/// Operators that accept positions of rows as elements.
const POSITIONS: [&str; 11] = [
    "Cast",
    "Concat",
    "Expand",
    "Gather",
    "GatherND",
    "Identity",
    "Reshape",
    "ScatterND",
    "Shape",
    "Transpose",
    "Unsqueeze",
];

/// Returns the reason if an operator draws random numbers.
pub(super) fn random(call: &RowCall<'_>) -> Option<&'static str> {
    RANDOM.contains(&call.op()).then_some("it draws random numbers")
}

/// Whether an operator's rule knows inputs that depend on the number of rows.
pub(super) fn takes_counts(call: &RowCall<'_>) -> bool {
    let op = call.op();
    call.node.is_standard() && (COUNTS.contains(&op) || op == "TopK" || op == "Transpose" || is_elementwise(op))
}

/// Whether an operator's rule knows inputs whose elements are positions of rows.
pub(super) fn takes_positions(call: &RowCall<'_>, content: &RowContent) -> bool {
    let op = call.op();
    call.node.is_standard()
        && match content {
            RowContent::Tuples => matches!(op, "Cast" | "GatherND" | "Identity" | "ScatterND" | "Shape"),
            RowContent::Positional => op == "Shape",
            _ => POSITIONS.contains(&op) || is_elementwise(op),
        }
}

fn is_elementwise(op: &str) -> bool {
    elementwise::ELEMENTWISE.contains(&op)
}

/// Returns the outputs of an operator.
pub(super) fn apply(call: &RowCall<'_>) -> Made {
    match &*call.node.domain {
        "" | "ai.onnx" => standard(call),
        "ai.onnx.ml" => learned(call),
        "com.microsoft" => contributed(call),
        "com.microsoft.nchwc" => optimised(call),
        domain => unknown(format!("the analysis knows no operators of {domain}")),
    }
}

fn standard(call: &RowCall<'_>) -> Made {
    let op = call.op();
    match op {
        _ if BY_DATA.contains(&op) => meet(indexing::BY_DATA),
        "Reshape" => layout::reshape(call),
        "Transpose" => layout::transpose(call),
        "Unsqueeze" => layout::unsqueeze(call),
        "Squeeze" => layout::squeeze(call),
        "Flatten" => layout::flatten(call),
        "Expand" => layout::expand(call),
        "Tile" => layout::tile(call),
        "Concat" => pieces::concat(call),
        "Split" => pieces::split(call),
        "Slice" => pieces::slice(call),
        "Pad" => pieces::pad(call),
        "Gather" => indexing::gather(call),
        "GatherElements" => indexing::gather_elements(call),
        "GatherND" => indexing::gather_nd(call),
        "Scatter" | "ScatterElements" => indexing::scatter_elements(call),
        "ScatterND" => indexing::scatter_nd(call),
        "OneHot" => indexing::one_hot(call),
        "Compress" => indexing::compress(call),
        "ReverseSequence" => indexing::reverse_sequence(call),
        "Shape" => sizes::shape(call),
        "Size" => sizes::size(call),
        "ConstantOfShape" => sizes::constant_of_shape(call),
        "Range" => sizes::range(call),
        "Dropout" => elementwise::dropout(call),
        "QuantizeLinear" | "DequantizeLinear" => quantised::linear_scale(call),
        "DynamicQuantizeLinear" => quantised::dynamic(call),
        _ if is_elementwise(op) => elementwise::elementwise(call),
        _ => computing(call),
    }
}

/// Standard operators that combine elements.
fn computing(call: &RowCall<'_>) -> Made {
    match call.op() {
        "Conv" | "ConvTranspose" => windows::convolution(call),
        "ConvInteger" | "QLinearConv" | "DeformConv" | "Col2Im" => windows::other_convolution(call),
        "MaxPool" | "AveragePool" | "LpPool" | "GlobalAveragePool" | "GlobalMaxPool" | "GlobalLpPool" => {
            windows::pool(call)
        }
        "DepthToSpace" | "SpaceToDepth" => windows::convolution(call),
        "Resize" | "Upsample" => resize::resize(call),
        "GridSample" => windows::grid_sample(call),
        "AffineGrid" => windows::affine_grid(call),
        "STFT" => windows::spectra(call),
        "DFT" => reduce::fourier(call),
        "MatMul" => linear::matmul(call),
        "Gemm" => linear::gemm(call),
        "Einsum" => linear::einsum(call),
        "MatMulInteger" => quantised::product(call, [0, 1], &[2]),
        "QLinearMatMul" => quantised::product(call, [0, 3], &[1, 2, 6, 7]),
        "LSTM" | "GRU" | "RNN" => recurrent::recurrent(call),
        "Softmax" | "LogSoftmax" | "Hardmax" => reduce::softmax(call),
        "LpNormalization" => reduce::along_axis(call, -1),
        "CumSum" | "CumProd" => reduce::cumulative(call),
        "TopK" => reduce::top_k(call),
        "ArgMax" | "ArgMin" => reduce::arg_extreme(call),
        "Det" | "Trilu" => reduce::last_axes(call, 2),
        "EyeLike" if !call.given().all(RowValue::is_constant) => meet(BY_POSITION),
        "BatchNormalization" => normal::batch(call),
        "InstanceNormalization" | "GroupNormalization" | "LRN" => normal::instance(call),
        "LayerNormalization" | "RMSNormalization" | "SimplifiedLayerNormalization" => normal::layer(call),
        "MeanVarianceNormalization" => normal::mean_variance(call),
        "Attention" => attention::standard(call),
        "RotaryEmbedding" => attention::rotary(call, 3, [1, 2]),
        op if op.starts_with("Reduce") => reduce::reduce(call),
        _ => unknown(NO_RULE),
    }
}

/// The reason why an operator that is not listed ends the proof.
const NO_RULE: &str = "the analysis has no rule for this operator";

fn learned(call: &RowCall<'_>) -> Made {
    match call.op() {
        "TreeEnsembleClassifier" | "LinearClassifier" | "SVMClassifier" => learned::classifier(call),
        "TreeEnsembleRegressor" | "TreeEnsemble" | "LinearRegressor" | "SVMRegressor" => learned::regressor(call),
        "Scaler" | "Normalizer" | "Imputer" => learned::per_feature(call),
        "Binarizer" | "LabelEncoder" | "CategoryMapper" => learned::per_element(call),
        "OneHotEncoder" => learned::one_hot_encoder(call),
        "ArrayFeatureExtractor" => learned::feature_extractor(call),
        "FeatureVectorizer" => learned::vectorizer(call),
        _ => unknown(NO_RULE),
    }
}

/// Operators of ONNX Runtime, which its optimizer and its exporters write.
fn contributed(call: &RowCall<'_>) -> Made {
    match call.op() {
        "DynamicQuantizeMatMul" | "DynamicQuantizeLSTM" => quantised::dynamic(call),
        "BiasGelu" | "FastGelu" | "Gelu" | "QuickGelu" | "BiasAdd" => elementwise::biased(call),
        "FusedMatMul" | "TransposeMatMul" => linear::fused_matmul(call),
        "FusedGemm" => linear::gemm(call),
        "FusedConv" => windows::summed_convolution(call),
        "NhwcMaxPool" | "NhwcFusedConv" => windows::other_convolution(call),
        "MatMulNBits" | "MatMulBnb4" | "MatMulFpQ4" => linear::weighted(call, Dim::known(call.node.int("N", 0).max(0))),
        "MatMulIntegerToFloat" => quantised::product(call, [0, 1], &[2, 4]),
        "QGemm" => quantised::product(call, [0, 3], &[1, 2, 7, 8]),
        "QLinearAdd" | "QLinearMul" => quantised::elementwise(call, &[0, 3]),
        "QLinearSigmoid" | "QLinearLeakyRelu" => quantised::elementwise(call, &[0]),
        "QLinearSoftmax" => quantised::softmax(call),
        "QLinearConcat" => quantised::concat(call),
        "QuantizeLinear" | "DequantizeLinear" => quantised::linear_scale(call),
        "QLinearConv" | "QLinearAveragePool" | "QLinearGlobalAveragePool" => windows::other_convolution(call),
        "LayerNormalization" | "SimplifiedLayerNormalization" => normal::layer(call),
        "SkipLayerNormalization" | "SkipSimplifiedLayerNormalization" => normal::skip_layer(call),
        "EmbedLayerNormalization" => normal::embedding(call),
        "GroupNorm" => normal::instance(call),
        "Attention" => attention::packed_weights(call),
        "QAttention" => attention::quantised(call),
        "MultiHeadAttention" => attention::multi_head(call),
        "GroupQueryAttention" => attention::grouped(call),
        "RotaryEmbedding" => attention::rotary(call, 1, [2, 3]),
        "Inverse" | "Trilu" => reduce::last_axes(call, 2),
        _ => unknown(NO_RULE),
    }
}

/// Operators on images in blocks of channels.
fn optimised(call: &RowCall<'_>) -> Made {
    match call.op() {
        "Conv" => windows::summed_convolution(call),
        "MaxPool" | "AveragePool" | "GlobalMaxPool" | "GlobalAveragePool" | "ReorderInput" | "ReorderOutput" => {
            windows::other_convolution(call)
        }
        _ => unknown(NO_RULE),
    }
}
