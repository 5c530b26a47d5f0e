//! Operator by operator: the bounds of what it gives by those of what it takes. Unknown operators may give any number.

use super::numbers::numbers;
use super::value::{ANY, Bounds, Item, LONGEST, MOST_ITEMS, NARROW, Origin, Value};
use ripieno_onnx::proto::{NodeProto, TensorProto, elem};

/// Whether an operator hands elements on as they are.
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

/// Whether only the order of an input matters, or that it is beyond the end: to cut it to 32 bits changes nothing.
pub(super) fn bounds_only(op: &str, at: usize) -> bool {
    match op {
        "Slice" => at == 1 || at == 2,
        "Clip" => at == 1 || at == 2,
        "Gather" | "GatherElements" | "GatherND" | "ScatterElements" | "ScatterND" => at == 1,
        "Min" | "Max" | "Less" | "LessOrEqual" | "Greater" | "GreaterOrEqual" => true,
        _ => false,
    }
}

/// Whether an operator computes new numbers, which may be larger than those that it takes.
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

/// What says how large a tensor is that an operator makes.
enum Size {
    /// The product of the elements of an input, each made larger by so much; and whether that input is the tensor's shape itself.
    /// Of several the first that applies.
    Product(&'static [(usize, f64, bool)]),
    /// The inputs start, limit and step.
    Span,
}

/// None for operators that make nothing larger than what they take, but for a bounded factor.
fn size(op: &str) -> Option<Size> {
    Some(match op {
        "ConstantOfShape" => Size::Product(&[(0, 0.0, true)]),
        "Expand" | "AffineGrid" => Size::Product(&[(1, 1.0, true)]),
        "Tile" | "Pad" | "OneHot" | "Upsample" => Size::Product(&[(1, 1.0, false)]),
        "Resize" => Size::Product(&[(3, 1.0, true), (2, 1.0, false)]),
        "HannWindow" | "HammingWindow" | "BlackmanWindow" | "Loop" => Size::Product(&[(0, 0.0, false)]),
        "Range" => Size::Span,
        _ => return None,
    })
}

/// Whether numbers say how large a tensor it makes.
pub(super) fn sizes(op: &str) -> bool {
    size(op).is_some()
}

/// The most elements that numbers of a request have an operator make, and the input that they stand in; none where they have
/// no say.
pub(super) fn largest(node: &NodeProto, taken: &[Option<Value>]) -> Option<(f64, usize)> {
    match size(&node.op_type)? {
        Size::Product(inputs) => inputs.iter().find_map(|&input| product(taken, input)),
        Size::Span => span(taken),
    }
}

fn asks(value: &&Value) -> bool {
    value.origin == Origin::Request
}

fn input(taken: &[Option<Value>], at: usize) -> Option<&Value> {
    taken.get(at).and_then(Option::as_ref)
}

/// Of a list whose length is unknown, nobody knows how many dimensions there are. What the file says counts where the list is the
/// shape itself.
fn product(taken: &[Option<Value>], (at, grows, is_shape): (usize, f64, bool)) -> Option<(f64, usize)> {
    let value = input(taken, at).filter(|value| asks(value) || is_shape && value.known().is_some())?;
    let count = |item: &Item| match item.origin {
        Origin::Request => item.bounds.most.max(1.0) + grows,
        Origin::Constant if is_shape => item.bounds.most.max(1.0),
        Origin::Constant | Origin::Shapes => 1.0,
    };
    let elements = value.items.as_ref().map_or(f64::INFINITY, |items| items.iter().map(count).product());
    Some((elements, at))
}

fn span(taken: &[Option<Value>]) -> Option<(f64, usize)> {
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

/// What an operator gives, output by output.
pub(super) fn compute(node: &NodeProto, taken: &[Option<Value>]) -> Vec<Value> {
    let unknown = || Value::new(0, Origin::Request, ANY);
    let all: Vec<Value> = taken.iter().map(|value| value.clone().unwrap_or_else(unknown)).collect();
    let first = || all.first().cloned().unwrap_or_else(unknown);
    let origin = all.iter().map(|value| value.origin).max().unwrap_or(Origin::Constant);
    let given = |kind, bounds| Value::new(kind, origin, bounds);
    let index = || given(elem::INT64, Bounds::new(0.0, LONGEST));
    let value = match &*node.op_type {
        "Constant" => constant(node),
        "ConstantOfShape" => {
            let fill = node.attr("value").and_then(|value| value.t.as_deref());
            let fill = fill.map_or(Value::constant(elem::FLOAT, Some([0.0].into_iter()), 1), tensor);
            Value { items: None, ..fill }
        }
        "Shape" | "Size" => Value::new(elem::INT64, Origin::Shapes, Bounds::new(0.0, NARROW.most)),
        "ArgMax" | "ArgMin" | "NonZero" | "NonMaxSuppression" => index(),
        "TopK" => return vec![Value { items: None, ..first() }, index()],
        "Unique" => return vec![Value { items: None, ..first() }, index(), index(), index()],
        "Cast" => cast(node, &first()),
        "Range" => {
            let bounds = all.iter().take(2).map(|value| value.bounds).reduce(Bounds::union).unwrap_or(ANY);
            given(first().kind, bounds)
        }
        "OneHot" => {
            let values = all.get(2).cloned().unwrap_or_else(unknown);
            given(values.kind, values.bounds)
        }
        "Where" => {
            let sides = all.get(1..).unwrap_or_default();
            let bounds = sides.iter().map(|value| value.bounds).reduce(Bounds::union).unwrap_or(ANY);
            given(sides.first().map_or(0, |value| value.kind), bounds)
        }
        "Identity" | "Squeeze" | "Unsqueeze" | "Reshape" | "Flatten" => first(),
        "Concat" => concat(&all, origin),
        "Gather" => gather(&all, origin),
        "Slice" => slice(node, &all, origin),
        "Split" => return node.output.iter().map(|_| Value { items: None, ..first() }).collect(),
        "Pad" | "ScatterElements" | "ScatterND" => {
            let zero = Bounds::new(0.0, 0.0);
            let filled = all.get(2).map_or(zero, |value| value.bounds);
            given(first().kind, first().bounds.union(filled))
        }
        "Transpose" | "Expand" | "Tile" | "GatherElements" | "GatherND" | "Compress" | "ReduceMax" | "ReduceMin"
        | "ReduceMean" | "MaxPool" | "Trilu" | "ReverseSequence" | "Dropout" | "DepthToSpace" | "SpaceToDepth" => {
            given(first().kind, first().bounds)
        }
        "Equal" | "Less" | "LessOrEqual" | "Greater" | "GreaterOrEqual" | "And" | "Or" | "Xor" | "Not" | "IsNaN"
        | "IsInf" => given(elem::BOOL, Bounds::new(0.0, 1.0)),
        op => match arithmetic(op, &all) {
            Some(value) => value,
            None => return node.output.iter().map(|_| other(op, &all, origin)).collect(),
        },
    };
    vec![value]
}

/// What is not followed: any number of what is likely its type.
fn other(op: &str, all: &[Value], origin: Origin) -> Value {
    let kind = match op {
        "Sigmoid" | "Softmax" | "HardSigmoid" => return Value::new(elem::FLOAT, origin, Bounds::new(0.0, 1.0)),
        "Tanh" | "Erf" | "Sin" | "Cos" => return Value::new(elem::FLOAT, origin, Bounds::new(-1.0, 1.0)),
        "MatMulInteger" | "ConvInteger" => elem::INT32,
        "DequantizeLinear" => elem::FLOAT,
        "QuantizeLinear" => all.get(2).map_or(elem::UINT8, |zero| zero.kind),
        "DynamicQuantizeLinear" => 0,
        _ => all.first().map_or(0, |value| value.kind),
    };
    Value::new(kind, origin, Bounds::of_type(kind))
}

fn tensor(tensor: &TensorProto) -> Value {
    Value::constant(tensor.data_type, numbers(tensor), tensor.dims.len())
}

fn constant(node: &NodeProto) -> Value {
    let Some(attribute) = node.attribute.first() else { return Value::new(0, Origin::Constant, ANY) };
    fn reals(numbers: &[f32]) -> Option<impl ExactSizeIterator<Item = f64> + '_> {
        Some(numbers.iter().map(|&number| f64::from(number)))
    }
    fn integers(numbers: &[i64]) -> Option<impl ExactSizeIterator<Item = f64> + '_> {
        Some(numbers.iter().map(|&number| number as f64))
    }
    match (&*attribute.name, &attribute.t) {
        ("value", Some(value)) => tensor(value),
        ("value_int", _) => Value::constant(elem::INT64, integers(&[attribute.i.unwrap_or(0)]), 0),
        ("value_ints", _) => Value::constant(elem::INT64, integers(&attribute.ints), 1),
        ("value_float", _) => Value::constant(elem::FLOAT, reals(&[attribute.f.unwrap_or(0.0)]), 0),
        ("value_floats", _) => Value::constant(elem::FLOAT, reals(&attribute.floats), 1),
        _ => Value::new(0, Origin::Constant, ANY),
    }
}

/// To BOOL and small types as they hold; of what has a fraction the whole part.
fn cast(node: &NodeProto, from: &Value) -> Value {
    let to = node.int("to", 0) as i32;
    let fit = |bounds: Bounds| {
        let held = Bounds::of_type(to);
        if bounds.within(held) { bounds } else { held }
    };
    let items =
        from.items.as_ref().map(|items| items.iter().map(|item| Item { bounds: fit(item.bounds), ..*item }).collect());
    Value { kind: to, origin: from.origin, bounds: fit(from.bounds), items }
}

fn concat(all: &[Value], origin: Origin) -> Value {
    let kind = all.first().map_or(0, |value| value.kind);
    let items = all.iter().map(|value| value.items.clone()).collect::<Option<Vec<_>>>().map(|items| items.concat());
    match items {
        Some(items) => Value::of_items(kind, items),
        None => {
            let bounds = all.iter().map(|value| value.bounds).reduce(Bounds::union).unwrap_or(ANY);
            // Beside what is unknown of a shape may stand what a request says.
            Value::new(kind, origin, bounds)
        }
    }
}

fn gather(all: &[Value], origin: Origin) -> Value {
    let data = all.first().cloned().unwrap_or_else(|| Value::new(0, origin, ANY));
    let picked = all.get(1).and_then(Value::known).zip(data.items.as_ref()).and_then(|(indices, items)| {
        let length = items.len() as i64;
        let pick =
            |index: i64| items.get(usize::try_from(if index < 0 { index + length } else { index }).ok()?).copied();
        indices.into_iter().map(pick).collect::<Option<Vec<Item>>>()
    });
    match picked {
        Some(items) => Value::of_items(data.kind, items),
        None => Value::new(data.kind, origin, data.bounds),
    }
}

fn slice(node: &NodeProto, all: &[Value], origin: Origin) -> Value {
    let data = all.first().cloned().unwrap_or_else(|| Value::new(0, origin, ANY));
    let number = |at: usize, key: &str| {
        let input = all.get(at).and_then(Value::known);
        input.or_else(|| Some(node.attr(key)?.ints.clone())).and_then(|list| list.first().copied())
    };
    let steps = all.get(4).map_or(Some(vec![1]), Value::known);
    let cut = data.items.as_ref().zip(number(1, "starts").zip(number(2, "ends"))).filter(|_| steps == Some(vec![1]));
    match cut {
        Some((items, (start, end))) => {
            let length = items.len() as i64;
            let place = |at: i64| (if at < 0 { at + length } else { at }).clamp(0, length) as usize;
            let (start, end) = (place(start), place(end));
            Value::of_items(data.kind, items.get(start..end.max(start)).unwrap_or_default().to_vec())
        }
        None => Value::new(data.kind, origin, data.bounds),
    }
}

/// Arithmetic by bounds; item by item where both sides are short lists.
fn arithmetic(op: &str, all: &[Value]) -> Option<Value> {
    let first = all.first()?;
    let (kind, origin) = (first.kind, all.iter().map(|value| value.origin).max()?);
    let whole = matches!(kind, elem::INT64 | elem::INT32 | elem::INT8 | elem::UINT8);
    let a = first.bounds;
    let b = all.get(1).map(|value| value.bounds);
    let pair = |of: fn(f64, f64) -> f64| fold(kind, all, of);
    let squares = || a.of_ends(a, |x, y| x * y).union(Bounds::new(0.0, 0.0));
    let bounds = match op {
        "Add" | "Sum" => return pair(|x, y| x + y),
        "Sub" => return pair(|x, y| x - y),
        // Nothing times anything is nothing, however large that may be.
        "Mul" => return pair(|x, y| if x == 0.0 || y == 0.0 { 0.0 } else { x * y }),
        "Min" => return pair(f64::min),
        "Max" => return pair(f64::max),
        // A whole divisor is at least 1.
        "Div" if whole => Bounds::new(a.least.min(-a.most), a.most.max(-a.least)),
        "Div" => match b? {
            b if b.least > 0.0 || b.most < 0.0 => a.of_ends(b, |x, y| x / y),
            _ => ANY,
        },
        "Mod" => {
            let most = b?.most.abs().max(b?.least.abs());
            Bounds::new(-most, most)
        }
        "Pow" => match b? {
            b if a.least >= 0.0 => a.of_ends(b, f64::powf),
            b if b.least == b.most && b.most >= 1.0 => {
                let most = a.most.abs().max(a.least.abs()).powf(b.most);
                Bounds::new(-most, most)
            }
            _ => ANY,
        },
        "Neg" => Bounds::new(-a.most, -a.least),
        "Abs" => Bounds::new(0.0, a.most.abs().max(a.least.abs())),
        "Relu" => Bounds::new(a.least.max(0.0), a.most.max(0.0)),
        "Floor" | "Ceil" | "Round" => Bounds::new(a.least.floor(), a.most.ceil()),
        "Sqrt" => Bounds::new(0.0, a.most.max(0.0).sqrt()),
        "Clip" => {
            let least = b.map_or(f64::NEG_INFINITY, |bounds| bounds.least);
            let most = all.get(2).map_or(f64::INFINITY, |value| value.bounds.most);
            Bounds::new(a.least.max(least).min(most), a.most.min(most).max(least))
        }
        "CumSum" | "ReduceSum" | "AveragePool" | "GlobalAveragePool" => a.times(LONGEST),
        "ReduceSumSquare" => squares().times(LONGEST),
        "ReduceL1" => a.union(Bounds::new(-a.most, -a.least)).times(LONGEST),
        "ReduceProd" if a.within(Bounds::new(-1.0, 1.0)) => Bounds::new(-1.0, 1.0),
        "ReduceProd" => ANY,
        "MatMul" | "Gemm" if whole => {
            a.of_ends(b?, |x, y| if x == 0.0 || y == 0.0 { 0.0 } else { x * y }).times(LONGEST)
        }
        "BitShift" => ANY,
        _ => return None,
    };
    Some(Value::new(kind, origin, bounds))
}

fn fold(kind: i32, all: &[Value], of: fn(f64, f64) -> f64) -> Option<Value> {
    let mut sum = Value { kind, ..all.first()?.clone() };
    for value in all.get(1..).unwrap_or_default() {
        let lists = sum.items.as_ref().zip(value.items.as_ref());
        let items = lists.filter(|(a, b)| a.len() == b.len() || a.len() == 1 || b.len() == 1).map(|(a, b)| {
            let item = |at: usize| {
                let (a, b) = (a[at % a.len().max(1)], b[at % b.len().max(1)]);
                Item { origin: a.origin.max(b.origin), bounds: a.bounds.of_ends(b.bounds, of) }
            };
            let length = if a.is_empty() || b.is_empty() { 0 } else { a.len().max(b.len()) };
            (0..length.min(MOST_ITEMS)).map(item).collect()
        });
        let bounds = sum.bounds.of_ends(value.bounds, of);
        sum = Value { kind, origin: sum.origin.max(value.origin), bounds, items };
    }
    Some(sum)
}
