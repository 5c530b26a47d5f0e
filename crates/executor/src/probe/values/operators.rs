//! Bounds of each operator's outputs, computed from the bounds of its inputs. Unknown operators may
//! output any number.

use super::numbers::numbers;
use super::value::{ANY, ElementOrigin, ElementValue, MAX_ITEMS, MAX_LENGTH, NARROW, NumberBounds, TensorValue};
use ripieno_onnx::proto::{NodeProto, TensorProto, elem};

/// Whether an operator copies elements without changing them.
pub(super) fn hands_on(op: &str) -> bool {
    matches!(
        op,
        "Identity"
            | "Reshape"
            | "Squeeze"
            | "Unsqueeze"
            | "Flatten"
            | "Transpose"
            | "Concat"
            | "Split"
            | "Constant"
            | "If"
            | "Shape"
            | "Size"
    )
}

/// Whether truncation of an input to 32 bits has no effect. The operator only compares the input
/// with other numbers, or takes it as a position, which may lie beyond the end.
pub(super) fn bounds_only(op: &str, at: usize) -> bool {
    match op {
        "Slice" => at == 1 || at == 2,
        "Clip" => at == 1 || at == 2,
        "Gather" | "GatherElements" | "GatherND" | "ScatterElements" | "ScatterND" => at == 1,
        "Min" | "Max" | "Less" | "LessOrEqual" | "Greater" | "GreaterOrEqual" => true,
        _ => false,
    }
}

/// Whether an operator computes new numbers, which may be larger than its inputs.
pub(super) fn computes(op: &str) -> bool {
    matches!(
        op,
        "Add"
            | "Sub"
            | "Mul"
            | "Div"
            | "Pow"
            | "Neg"
            | "Abs"
            | "Sum"
            | "CumSum"
            | "ReduceSum"
            | "ReduceProd"
            | "ReduceSumSquare"
            | "ReduceL1"
            | "MatMul"
            | "Gemm"
            | "Einsum"
            | "BitShift"
            | "Mod"
    )
}

/// Rule for the size of an operator's output tensor.
enum OutputSize {
    /// Product of the elements of an input: the first of these inputs that exists.
    Product(&'static [SizeInput]),
    /// Number of values between the inputs start and limit, by the input step.
    Span,
}

/// An input whose elements determine the size of an output tensor.
#[derive(Clone, Copy)]
struct SizeInput {
    at: usize,
    /// Number added to each element.
    increase: f64,
    /// Whether the input is the shape of the output.
    is_shape: bool,
}

impl SizeInput {
    const fn shape(at: usize, increase: f64) -> SizeInput {
        SizeInput { at, increase, is_shape: true }
    }

    const fn counts(at: usize, increase: f64) -> SizeInput {
        SizeInput { at, increase, is_shape: false }
    }
}

/// Returns the rule for an operator's output size. `None` if the output exceeds the inputs at most
/// by a bounded factor.
fn size(op: &str) -> Option<OutputSize> {
    Some(match op {
        "ConstantOfShape" => OutputSize::Product(const { &[SizeInput::shape(0, 0.0)] }),
        "Expand" | "AffineGrid" => OutputSize::Product(const { &[SizeInput::shape(1, 1.0)] }),
        "Tile" | "Pad" | "OneHot" | "Upsample" => OutputSize::Product(const { &[SizeInput::counts(1, 1.0)] }),
        "Resize" => OutputSize::Product(const { &[SizeInput::shape(3, 1.0), SizeInput::counts(2, 1.0)] }),
        "HannWindow" | "HammingWindow" | "BlackmanWindow" | "Loop" => {
            OutputSize::Product(const { &[SizeInput::counts(0, 0.0)] })
        }
        "Range" => OutputSize::Span,
        _ => return None,
    })
}

/// Whether numbers determine the size of the operator's output.
pub(super) fn sizes(op: &str) -> bool {
    size(op).is_some()
}

/// Returns the largest number of elements that numbers of a request can make an operator create,
/// and the index of the responsible input. `None` if numbers of a request have no influence.
pub(super) fn largest(node: &NodeProto, taken: &[Option<TensorValue>]) -> Option<(f64, usize)> {
    match size(&node.op_type)? {
        OutputSize::Product(inputs) => inputs.iter().find_map(|&input| product(taken, input)),
        OutputSize::Span => span(taken),
    }
}

fn asks(value: &&TensorValue) -> bool {
    value.origin == ElementOrigin::Request
}

fn input(taken: &[Option<TensorValue>], at: usize) -> Option<&TensorValue> {
    taken.get(at).and_then(Option::as_ref)
}

/// Returns the product for one input. An input of unknown length may have any number of dimensions.
/// Constant inputs count only if they are the shape itself.
fn product(taken: &[Option<TensorValue>], size: SizeInput) -> Option<(f64, usize)> {
    let SizeInput { at, increase, is_shape } = size;
    let value = input(taken, at).filter(|value| asks(value) || is_shape && value.known().is_some())?;
    let count = |item: &ElementValue| match item.origin {
        ElementOrigin::Request => item.bounds.most.max(1.0) + increase,
        ElementOrigin::Constant if is_shape => item.bounds.most.max(1.0),
        ElementOrigin::Constant | ElementOrigin::Shapes => 1.0,
    };
    let elements = value.items.as_ref().map_or(f64::INFINITY, |items| items.iter().map(count).product());
    Some((elements, at))
}

fn span(taken: &[Option<TensorValue>]) -> Option<(f64, usize)> {
    let asked = (0..3).find(|&at| input(taken, at).filter(asks).is_some())?;
    let bounds = |at: usize| input(taken, at).map_or(ANY, |value| value.bounds);
    let (start, limit, step) = (bounds(0), bounds(1), bounds(2));
    let whole = input(taken, 0).is_some_and(|value| matches!(value.kind, elem::INT64 | elem::INT32));
    let least = if step.least > 0.0 {
        step.least
    } else if step.most < 0.0 {
        -step.most
    } else {
        0.0
    };
    let least = if whole { least.max(1.0) } else { least };
    let span = (limit.most - start.least).max(start.most - limit.least).max(0.0);
    let elements = span / least;
    Some((if elements.is_nan() { f64::INFINITY } else { elements }, asked))
}

/// Returns the values of an operator's outputs.
pub(super) fn compute(node: &NodeProto, taken: &[Option<TensorValue>]) -> Vec<TensorValue> {
    let unknown = || TensorValue::new(0, ElementOrigin::Request, ANY);
    let all: Vec<TensorValue> = taken.iter().map(|value| value.clone().unwrap_or_else(unknown)).collect();
    let first = || all.first().cloned().unwrap_or_else(unknown);
    let origin = all.iter().map(|value| value.origin).max().unwrap_or(ElementOrigin::Constant);
    let given = |kind, bounds| TensorValue::new(kind, origin, bounds);
    let index = || given(elem::INT64, NumberBounds::new(0.0, MAX_LENGTH));
    let value = match &*node.op_type {
        "Constant" => constant(node),
        "ConstantOfShape" => {
            let fill = node.attr("value").and_then(|value| value.t.as_deref());
            let fill = fill.map_or(TensorValue::constant(elem::FLOAT, Some([0.0].into_iter()), 1), tensor);
            TensorValue { items: None, ..fill }
        }
        "Shape" | "Size" => TensorValue::new(elem::INT64, ElementOrigin::Shapes, NumberBounds::new(0.0, NARROW.most)),
        "ArgMax" | "ArgMin" | "NonZero" | "NonMaxSuppression" => index(),
        "TopK" => return vec![TensorValue { items: None, ..first() }, index()],
        "Unique" => return vec![TensorValue { items: None, ..first() }, index(), index(), index()],
        "Cast" => cast(node, &first()),
        "Range" => {
            let bounds = all.iter().take(2).map(|value| value.bounds).reduce(NumberBounds::union).unwrap_or(ANY);
            given(first().kind, bounds)
        }
        "OneHot" => {
            let values = all.get(2).cloned().unwrap_or_else(unknown);
            given(values.kind, values.bounds)
        }
        "Where" => {
            let sides = all.get(1..).unwrap_or_default();
            let bounds = sides.iter().map(|value| value.bounds).reduce(NumberBounds::union).unwrap_or(ANY);
            given(sides.first().map_or(0, |value| value.kind), bounds)
        }
        "Identity" | "Squeeze" | "Unsqueeze" | "Reshape" | "Flatten" => first(),
        "Concat" => concat(&all, origin),
        "Gather" => gather(&all, origin),
        "Slice" => slice(node, &all, origin),
        "Split" => return node.output.iter().map(|_| TensorValue { items: None, ..first() }).collect(),
        "Pad" | "ScatterElements" | "ScatterND" => {
            let zero = NumberBounds::new(0.0, 0.0);
            let filled = all.get(2).map_or(zero, |value| value.bounds);
            given(first().kind, first().bounds.union(filled))
        }
        "Transpose" | "Expand" | "Tile" | "GatherElements" | "GatherND" | "Compress" | "ReduceMax" | "ReduceMin"
        | "ReduceMean" | "MaxPool" | "Trilu" | "ReverseSequence" | "Dropout" | "DepthToSpace" | "SpaceToDepth" => {
            given(first().kind, first().bounds)
        }
        "Equal" | "Less" | "LessOrEqual" | "Greater" | "GreaterOrEqual" | "And" | "Or" | "Xor" | "Not" | "IsNaN"
        | "IsInf" => given(elem::BOOL, NumberBounds::new(0.0, 1.0)),
        op => match arithmetic(op, &all) {
            Some(value) => value,
            None => return node.output.iter().map(|_| other(op, &all, origin)).collect(),
        },
    };
    vec![value]
}

/// Returns the value of an operator that is not analysed: any number of its likely type.
fn other(op: &str, all: &[TensorValue], origin: ElementOrigin) -> TensorValue {
    let kind = match op {
        "Sigmoid" | "Softmax" | "HardSigmoid" => {
            return TensorValue::new(elem::FLOAT, origin, NumberBounds::new(0.0, 1.0));
        }
        "Tanh" | "Erf" | "Sin" | "Cos" => return TensorValue::new(elem::FLOAT, origin, NumberBounds::new(-1.0, 1.0)),
        "MatMulInteger" | "ConvInteger" => elem::INT32,
        "DequantizeLinear" => elem::FLOAT,
        "QuantizeLinear" => all.get(2).map_or(elem::UINT8, |zero| zero.kind),
        "DynamicQuantizeLinear" => 0,
        _ => all.first().map_or(0, |value| value.kind),
    };
    TensorValue::new(kind, origin, NumberBounds::of_type(kind))
}

fn tensor(tensor: &TensorProto) -> TensorValue {
    TensorValue::constant(tensor.data_type, numbers(tensor), tensor.dims.len())
}

fn constant(node: &NodeProto) -> TensorValue {
    let Some(attribute) = node.attribute.first() else { return TensorValue::new(0, ElementOrigin::Constant, ANY) };
    fn reals(numbers: &[f32]) -> Option<impl ExactSizeIterator<Item = f64> + '_> {
        Some(numbers.iter().map(|&number| f64::from(number)))
    }
    fn integers(numbers: &[i64]) -> Option<impl ExactSizeIterator<Item = f64> + '_> {
        Some(numbers.iter().map(|&number| number as f64))
    }
    match (&*attribute.name, &attribute.t) {
        ("value", Some(value)) => tensor(value),
        ("value_int", _) => TensorValue::constant(elem::INT64, integers(&[attribute.i.unwrap_or(0)]), 0),
        ("value_ints", _) => TensorValue::constant(elem::INT64, integers(&attribute.ints), 1),
        ("value_float", _) => TensorValue::constant(elem::FLOAT, reals(&[attribute.f.unwrap_or(0.0)]), 0),
        ("value_floats", _) => TensorValue::constant(elem::FLOAT, reals(&attribute.floats), 1),
        _ => TensorValue::new(0, ElementOrigin::Constant, ANY),
    }
}

/// Converts bounds to the target type. BOOL and small types have fixed bounds, and fractions are
/// truncated.
fn cast(node: &NodeProto, from: &TensorValue) -> TensorValue {
    let to = node.int("to", 0) as i32;
    let fit = |bounds: NumberBounds| {
        let held = NumberBounds::of_type(to);
        if bounds.within(held) { bounds } else { held }
    };
    let items = from
        .items
        .as_ref()
        .map(|items| items.iter().map(|item| ElementValue { bounds: fit(item.bounds), ..*item }).collect());
    TensorValue { kind: to, origin: from.origin, bounds: fit(from.bounds), items }
}

fn concat(all: &[TensorValue], origin: ElementOrigin) -> TensorValue {
    let kind = all.first().map_or(0, |value| value.kind);
    let items = all.iter().map(|value| value.items.clone()).collect::<Option<Vec<_>>>().map(|items| items.concat());
    match items {
        Some(items) => TensorValue::of_items(kind, items),
        None => {
            let bounds = all.iter().map(|value| value.bounds).reduce(NumberBounds::union).unwrap_or(ANY);
            // If a part of a shape is unknown, the list may contain numbers of the request.
            TensorValue::new(kind, origin, bounds)
        }
    }
}

fn gather(all: &[TensorValue], origin: ElementOrigin) -> TensorValue {
    let data = all.first().cloned().unwrap_or_else(|| TensorValue::new(0, origin, ANY));
    let picked = all.get(1).and_then(TensorValue::known).zip(data.items.as_ref()).and_then(|(indices, items)| {
        let length = items.len() as i64;
        let pick =
            |index: i64| items.get(usize::try_from(if index < 0 { index + length } else { index }).ok()?).copied();
        indices.into_iter().map(pick).collect::<Option<Vec<ElementValue>>>()
    });
    match picked {
        Some(items) => TensorValue::of_items(data.kind, items),
        None => TensorValue::new(data.kind, origin, data.bounds),
    }
}

fn slice(node: &NodeProto, all: &[TensorValue], origin: ElementOrigin) -> TensorValue {
    let data = all.first().cloned().unwrap_or_else(|| TensorValue::new(0, origin, ANY));
    let number = |at: usize, key: &str| {
        let input = all.get(at).and_then(TensorValue::known);
        input.or_else(|| Some(node.attr(key)?.ints.clone())).and_then(|list| list.first().copied())
    };
    let steps = all.get(4).map_or(Some(vec![1]), TensorValue::known);
    let cut = data.items.as_ref().zip(number(1, "starts").zip(number(2, "ends"))).filter(|_| steps == Some(vec![1]));
    match cut {
        Some((items, (start, end))) => {
            let length = items.len() as i64;
            let place = |at: i64| (if at < 0 { at + length } else { at }).clamp(0, length) as usize;
            let (start, end) = (place(start), place(end));
            TensorValue::of_items(data.kind, items.get(start..end.max(start)).unwrap_or_default().to_vec())
        }
        None => TensorValue::new(data.kind, origin, data.bounds),
    }
}

/// Applies arithmetic to bounds. If both inputs are short lists, applies it element by element.
fn arithmetic(op: &str, all: &[TensorValue]) -> Option<TensorValue> {
    let first = all.first()?;
    let (kind, origin) = (first.kind, all.iter().map(|value| value.origin).max()?);
    let whole = matches!(kind, elem::INT64 | elem::INT32 | elem::INT8 | elem::UINT8);
    let a = first.bounds;
    let b = all.get(1).map(|value| value.bounds);
    let pair = |of: fn(f64, f64) -> f64| fold(kind, all, of);
    let squares = || a.of_ends(a, |x, y| x * y).union(NumberBounds::new(0.0, 0.0));
    let bounds = match op {
        "Add" | "Sum" => return pair(|x, y| x + y),
        "Sub" => return pair(|x, y| x - y),
        // Zero times any bound is zero, even if the bound is infinite.
        "Mul" => return pair(|x, y| if x == 0.0 || y == 0.0 { 0.0 } else { x * y }),
        "Min" => return pair(f64::min),
        "Max" => return pair(f64::max),
        // An integer divisor other than zero is at least 1 in magnitude.
        "Div" if whole => NumberBounds::new(a.least.min(-a.most), a.most.max(-a.least)),
        "Div" => match b? {
            b if b.least > 0.0 || b.most < 0.0 => a.of_ends(b, |x, y| x / y),
            _ => ANY,
        },
        "Mod" => {
            let most = b?.most.abs().max(b?.least.abs());
            NumberBounds::new(-most, most)
        }
        "Pow" => match b? {
            b if a.least >= 0.0 => a.of_ends(b, f64::powf),
            b if b.least == b.most && b.most >= 1.0 => {
                let most = a.most.abs().max(a.least.abs()).powf(b.most);
                NumberBounds::new(-most, most)
            }
            _ => ANY,
        },
        "Neg" => NumberBounds::new(-a.most, -a.least),
        "Abs" => NumberBounds::new(0.0, a.most.abs().max(a.least.abs())),
        "Relu" => NumberBounds::new(a.least.max(0.0), a.most.max(0.0)),
        "Floor" | "Ceil" | "Round" => NumberBounds::new(a.least.floor(), a.most.ceil()),
        "Sqrt" => NumberBounds::new(0.0, a.most.max(0.0).sqrt()),
        "Clip" => {
            let least = b.map_or(f64::NEG_INFINITY, |bounds| bounds.least);
            let most = all.get(2).map_or(f64::INFINITY, |value| value.bounds.most);
            NumberBounds::new(a.least.max(least).min(most), a.most.min(most).max(least))
        }
        "CumSum" | "ReduceSum" | "AveragePool" | "GlobalAveragePool" => a.times(MAX_LENGTH),
        "ReduceSumSquare" => squares().times(MAX_LENGTH),
        "ReduceL1" => a.union(NumberBounds::new(-a.most, -a.least)).times(MAX_LENGTH),
        "ReduceProd" if a.within(NumberBounds::new(-1.0, 1.0)) => NumberBounds::new(-1.0, 1.0),
        "ReduceProd" => ANY,
        "MatMul" | "Gemm" if whole => {
            a.of_ends(b?, |x, y| if x == 0.0 || y == 0.0 { 0.0 } else { x * y }).times(MAX_LENGTH)
        }
        "BitShift" => ANY,
        _ => return None,
    };
    Some(TensorValue::new(kind, origin, bounds))
}

fn fold(kind: i32, all: &[TensorValue], of: fn(f64, f64) -> f64) -> Option<TensorValue> {
    let mut sum = TensorValue { kind, ..all.first()?.clone() };
    for value in all.get(1..).unwrap_or_default() {
        let lists = sum.items.as_ref().zip(value.items.as_ref());
        let items = lists.filter(|(a, b)| a.len() == b.len() || a.len() == 1 || b.len() == 1).map(|(a, b)| {
            let item = |at: usize| {
                let (a, b) = (a[at % a.len().max(1)], b[at % b.len().max(1)]);
                ElementValue { origin: a.origin.max(b.origin), bounds: a.bounds.of_ends(b.bounds, of) }
            };
            let length = if a.is_empty() || b.is_empty() { 0 } else { a.len().max(b.len()) };
            (0..length.min(MAX_ITEMS)).map(item).collect()
        });
        let bounds = sum.bounds.of_ends(value.bounds, of);
        sum = TensorValue { kind, origin: sum.origin.max(value.origin), bounds, items };
    }
    Some(sum)
}
