//! From a cell's ONNX graph to expressions and products.
//!
//! A value of the graph has a row for each member. Dimensions of one element are kept in mind and
//! change nothing, so that the layouts of exporters (squeezes, transposes of such dimensions) cost
//! nothing. What is not known is refused with the operator's name; such a cell is left to another
//! engine.

use super::expr::{Expr, ExprId};
use super::schedule::{Factor, Schedule};
use super::tensors::{ConstantTensor, Constants, read_numbers};
use ripieno_cuda::{Op, Reduction};
use ripieno_onnx::proto::{AttributeProto, NodeProto, TensorProto};
use std::collections::HashMap;
use std::path::Path;

/// A dimension of a value with rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowDim {
    /// The members of the batch.
    Batch,
    Fixed(usize),
}

/// Width and type of an input of the cell.
#[derive(Clone, Copy, Debug)]
pub(super) struct FeedKind {
    pub(super) width: usize,
    pub(super) is_int: bool,
    /// True if the input is one element of the request, which stands in the entry itself.
    pub(super) is_immediate: bool,
}

/// A value of the graph.
#[derive(Clone, Debug)]
pub(super) enum LoweredValue {
    /// One row for each member.
    Rows { expr: ExprId, dims: Vec<RowDim> },
    /// The same for all members.
    Constant(ConstantTensor),
}

/// The values of a graph while its nodes are read.
pub(super) struct Lowering<'a> {
    pub(super) schedule: Schedule,
    pub(super) constants: &'a mut Constants,
    pub(super) values: HashMap<String, LoweredValue>,
    /// Folder of external weights.
    pub(super) folder: &'a Path,
}

type Lowered = Result<Vec<LoweredValue>, String>;

impl Lowering<'_> {
    /// Returns an input of the cell.
    pub(super) fn feed(&mut self, feed: usize, kind: FeedKind, mut dims: Vec<RowDim>) -> LoweredValue {
        dims.insert(0, RowDim::Batch);
        let expr = if kind.is_immediate { Expr::EntryWord { feed } } else { Expr::Feed { feed, offset: 0 } };
        let expr = self.schedule.exprs.add(expr, kind.width, kind.is_int);
        LoweredValue::Rows { expr, dims }
    }

    /// Returns the expression of an output.
    pub(super) fn output(&self, name: &str, width: usize, is_int: bool) -> Result<ExprId, String> {
        match self.values.get(name) {
            Some(LoweredValue::Rows { expr, .. })
                if self.schedule.exprs.width(*expr) == width && self.is_int(*expr) == is_int =>
            {
                Ok(*expr)
            }
            _ => Err(format!("output '{name}' is constant, or not of its declared shape and type")),
        }
    }

    /// Reads one operator.
    pub(super) fn node(&mut self, node: &NodeProto) -> Result<(), String> {
        if !matches!(&*node.domain, "" | "ai.onnx") {
            return Err(format!("{}.{} is no standard operator", node.domain, node.op_type));
        }
        let outputs = self.outputs(node).map_err(|cause| format!("{}: {cause}", node.op_type))?;
        self.values.extend(node.output.iter().cloned().zip(outputs));
        Ok(())
    }

    fn outputs(&mut self, node: &NodeProto) -> Lowered {
        let unary = |op| move |this: &mut Self| this.unary(op, node);
        let one = match &*node.op_type {
            "Identity" | "Dropout" => self.input(node, 0)?,
            "Constant" => LoweredValue::Constant(constant(node, self.folder)?),
            "Squeeze" | "Unsqueeze" | "Transpose" | "Reshape" | "Flatten" => self.relaid(node)?,
            "Cast" => self.cast(node)?,
            "Sigmoid" => unary(Op::Sigmoid)(self)?,
            "Tanh" => unary(Op::Tanh)(self)?,
            "Relu" => unary(Op::Relu)(self)?,
            "Exp" => unary(Op::Exp)(self)?,
            "Neg" => unary(Op::Neg)(self)?,
            "Abs" => unary(Op::Abs)(self)?,
            "Sqrt" => unary(Op::Sqrt)(self)?,
            "Not" => unary(Op::Not)(self)?,
            "Add" => self.binary(Op::Add, node)?,
            "Sub" => self.binary(Op::Sub, node)?,
            "Mul" => self.binary(Op::Mul, node)?,
            "Div" => self.binary(Op::Div, node)?,
            "Equal" => self.binary(Op::Equal, node)?,
            "MatMul" => self.product(node, false)?,
            "Gemm" => self.gemm(node)?,
            "Concat" => self.concat(node)?,
            "Gather" => self.look_up(node)?,
            "ArgMax" => self.reduction(node, Reduction::ArgMax)?,
            "Softmax" => self.reduction(node, Reduction::Softmax)?,
            "Split" => return self.split(node),
            _ => return Err("the GPU's cells do not know it".to_owned()),
        };
        Ok(vec![one])
    }

    fn input(&self, node: &NodeProto, at: usize) -> Result<LoweredValue, String> {
        let name = node.input.get(at).filter(|name| !name.is_empty()).ok_or("an input is missing")?;
        self.values.get(name).cloned().ok_or_else(|| format!("'{name}' is not known"))
    }

    fn rows(&self, node: &NodeProto, at: usize) -> Result<(ExprId, Vec<RowDim>), String> {
        match self.input(node, at)? {
            LoweredValue::Rows { expr, dims } => Ok((expr, dims)),
            LoweredValue::Constant(_) => Err("it computes with constants only".to_owned()),
        }
    }

    fn constant(&self, node: &NodeProto, at: usize) -> Result<ConstantTensor, String> {
        match self.input(node, at)? {
            LoweredValue::Constant(numbers) => Ok(numbers),
            LoweredValue::Rows { .. } => Err(format!("'{}' is not constant", node.input[at])),
        }
    }

    fn is_int(&self, expr: ExprId) -> bool {
        self.schedule.exprs.get(expr).is_int
    }

    fn unary(&mut self, op: Op, node: &NodeProto) -> Result<LoweredValue, String> {
        let (expr, dims) = self.rows(node, 0)?;
        if self.is_int(expr) != (op == Op::Not) {
            return Err("of integers".to_owned());
        }
        let (width, is_int) = (self.schedule.exprs.width(expr), op == Op::Not);
        Ok(LoweredValue::Rows { expr: self.schedule.exprs.add(Expr::Unary(op, expr), width, is_int), dims })
    }

    fn cast(&mut self, node: &NodeProto) -> Result<LoweredValue, String> {
        const FLOAT: i64 = 1;
        const INTS: [i64; 3] = [6, 7, 9];
        let (expr, dims) = self.rows(node, 0)?;
        let to = attribute(node, "to").and_then(|to| to.i).unwrap_or(0);
        let op = match (self.is_int(expr), to) {
            (false, FLOAT) => return Ok(LoweredValue::Rows { expr, dims }),
            (true, FLOAT) => Op::ToFloat,
            (false, 6 | 7) => Op::ToInt,
            (true, 6 | 7) => return Ok(LoweredValue::Rows { expr, dims }),
            _ if INTS.contains(&to) => return Err("to BOOL".to_owned()),
            _ => return Err(format!("to ONNX's type {to}")),
        };
        let width = self.schedule.exprs.width(expr);
        Ok(LoweredValue::Rows { expr: self.schedule.exprs.add(Expr::Unary(op, expr), width, op == Op::ToInt), dims })
    }

    /// Lowers an operation with two operands, one of which may be a constant or have one column.
    fn binary(&mut self, op: Op, node: &NodeProto) -> Result<LoweredValue, String> {
        let (a, b) = (self.input(node, 0)?, self.input(node, 1)?);
        let (a, b, dims) = match (a, b) {
            (LoweredValue::Rows { expr: a, dims }, LoweredValue::Rows { expr: b, dims: others }) => {
                if dims.len() != others.len() {
                    return Err("of values with different numbers of dimensions".to_owned());
                }
                let widest = if self.schedule.exprs.width(b) > self.schedule.exprs.width(a) { others } else { dims };
                (a, b, widest)
            }
            (LoweredValue::Rows { expr, dims }, LoweredValue::Constant(numbers)) => {
                (expr, self.beside(&numbers, expr, &dims)?, dims)
            }
            (LoweredValue::Constant(numbers), LoweredValue::Rows { expr, dims }) => {
                (self.beside(&numbers, expr, &dims)?, expr, dims)
            }
            _ => return Err("of two constants".to_owned()),
        };
        let is_int = self.is_int(a);
        if is_int != self.is_int(b) || is_int && op != Op::Equal {
            return Err("of integers".to_owned());
        }
        let widths = [a, b].map(|operand| self.schedule.exprs.width(operand));
        let width = widths[0].max(widths[1]);
        if widths.iter().any(|&own| own != width && own != 1) {
            return Err(format!("of {} and {} columns", widths[0], widths[1]));
        }
        let [a, b] = [(a, widths[0]), (b, widths[1])]
            .map(|(operand, own)| if own < width { self.schedule.as_leaf(operand) } else { Ok(operand) });
        let op = if is_int { Op::EqualInt } else { op };
        let expr = Expr::Binary(op, a?, b?);
        Ok(LoweredValue::Rows {
            expr: self.schedule.exprs.add(expr, width, op == Op::Equal || op == Op::EqualInt),
            dims,
        })
    }

    /// Returns a constant that stands beside a value in an operation.
    fn beside(&mut self, numbers: &ConstantTensor, expr: ExprId, dims: &[RowDim]) -> Result<ExprId, String> {
        let width = self.schedule.exprs.width(expr);
        let last = match dims.last() {
            Some(RowDim::Fixed(last)) => *last,
            _ => 1,
        };
        let count = numbers.count();
        if count != 1 && (count != width || count != last || numbers.dims.last() != Some(&count)) {
            return Err(format!("with a constant of shape {:?}", numbers.dims));
        }
        let base = self.constants.words(numbers);
        Ok(self.schedule.exprs.add(Expr::Constant { base }, count, numbers.is_int))
    }

    fn product(&mut self, node: &NodeProto, transposed: bool) -> Result<LoweredValue, String> {
        let (expr, mut dims) = self.rows(node, 0)?;
        let factor = self.constant(node, 1)?;
        let shape: Vec<usize> = match &factor.dims[..] {
            [ones @ .., a, b] if ones.iter().all(|&dim| dim == 1) => vec![*a, *b],
            _ => return Err(format!("by a constant of shape {:?}", factor.dims)),
        };
        let (inner, columns) = if transposed { (shape[1], shape[0]) } else { (shape[0], shape[1]) };
        let width = self.schedule.exprs.width(expr);
        if factor.is_int || self.is_int(expr) || width != inner || dims.last() != Some(&RowDim::Fixed(inner)) {
            return Err(format!("of {width} columns by a constant of shape {:?}", factor.dims));
        }
        let base = self.constants.factor(&factor);
        let expr = self.schedule.product(expr, Factor { base, transposed, inner, columns })?;
        dims.pop();
        dims.push(RowDim::Fixed(columns));
        Ok(LoweredValue::Rows { expr, dims })
    }

    fn gemm(&mut self, node: &NodeProto) -> Result<LoweredValue, String> {
        let number = |name| attribute(node, name).and_then(|value| value.f).unwrap_or(1.0);
        if number("alpha") != 1.0 || number("beta") != 1.0 || integer(node, "transA", 0) != 0 {
            return Err("with alpha, beta or transA".to_owned());
        }
        let product = self.product(node, integer(node, "transB", 0) != 0)?;
        let LoweredValue::Rows { expr, dims } = product else { return Ok(product) };
        if node.input.get(2).is_none_or(String::is_empty) {
            return Ok(LoweredValue::Rows { expr, dims });
        }
        let bias = self.constant(node, 2)?;
        let (bias, width) = (self.beside(&bias, expr, &dims)?, self.schedule.exprs.width(expr));
        Ok(LoweredValue::Rows { expr: self.schedule.exprs.add(Expr::Binary(Op::Add, expr, bias), width, false), dims })
    }

    /// Lowers an operator that changes the layout of a value but not the order of its elements.
    fn relaid(&mut self, node: &NodeProto) -> Result<LoweredValue, String> {
        let (expr, dims) = self.rows(node, 0)?;
        let dims = match &*node.op_type {
            "Squeeze" | "Unsqueeze" => self.unit_dims(node, &dims)?,
            "Transpose" => {
                let perm = attribute(node, "perm").map(|perm| perm.ints.clone()).unwrap_or_default();
                let moved: Option<Vec<RowDim>> =
                    perm.iter().map(|&at| dims.get(usize::try_from(at).ok()?).copied()).collect();
                let moved = moved.filter(|moved| moved.len() == dims.len()).ok_or("without a full perm")?;
                let order =
                    |dims: &[RowDim]| dims.iter().copied().filter(|dim| *dim != RowDim::Fixed(1)).collect::<Vec<_>>();
                if order(&moved) == order(&dims) { moved } else { return Err("that moves elements".to_owned()) }
            }
            _ => {
                let first = dims.first() == Some(&RowDim::Batch);
                if !first || node.op_type == "Flatten" && integer(node, "axis", 1) != 1 {
                    return Err("of the batch".to_owned());
                }
                let width = self.schedule.exprs.width(expr);
                let shape = if node.op_type == "Reshape" { self.constant(node, 1)?.ints() } else { Some(vec![0, -1]) };
                match shape.as_deref() {
                    Some([0 | -1, columns]) if *columns == -1 || *columns == width as i64 => {}
                    other => return Err(format!("to {other:?}")),
                }
                vec![RowDim::Batch, RowDim::Fixed(width)]
            }
        };
        Ok(LoweredValue::Rows { expr, dims })
    }

    /// Returns the dimensions of a value after dimensions of one element were removed or added.
    fn unit_dims(&self, node: &NodeProto, dims: &[RowDim]) -> Result<Vec<RowDim>, String> {
        let axes = match attribute(node, "axes") {
            Some(axes) => Some(axes.ints.clone()),
            None if node.input.len() > 1 => self.constant(node, 1)?.ints(),
            None => None,
        };
        let axes = axes.ok_or("without axes")?;
        let added = if node.op_type == "Unsqueeze" { axes.len() } else { 0 };
        let rank = (dims.len() + added) as i64;
        let named = |at: i64| axes.iter().any(|&axis| if axis < 0 { axis + rank == at } else { axis == at });
        if added > 0 {
            let mut old = dims.iter().copied();
            let dim = |at: i64| if named(at) { Some(RowDim::Fixed(1)) } else { old.next() };
            return Ok((0..rank).map_while(dim).collect());
        }
        let (gone, kept): (Vec<_>, Vec<_>) = (0..).zip(dims).partition(|&(at, _)| named(at));
        match gone.iter().all(|(_, dim)| **dim == RowDim::Fixed(1)) {
            true => Ok(kept.into_iter().map(|(_, &dim)| dim).collect()),
            false => Err("of the batch".to_owned()),
        }
    }

    /// Returns the axis of an operator, if it is the columns of a value.
    fn last_axis(&self, node: &NodeProto, dims: &[RowDim], default: i64) -> Result<(), String> {
        let (axis, rank) = (integer(node, "axis", default), dims.len() as i64);
        let axis = if axis < 0 { axis + rank } else { axis };
        match axis + 1 == rank && matches!(dims.last(), Some(RowDim::Fixed(_))) {
            true => Ok(()),
            false => Err(format!("along dimension {axis}")),
        }
    }

    fn concat(&mut self, node: &NodeProto) -> Result<LoweredValue, String> {
        let mut parts = Vec::with_capacity(node.input.len());
        let mut dims = Vec::new();
        for at in 0..node.input.len() {
            let (expr, own) = self.rows(node, at)?;
            self.last_axis(node, &own, 0)?;
            parts.push(expr);
            dims = own;
        }
        let is_int = self.is_int(*parts.first().ok_or("of nothing")?);
        if parts.iter().any(|&part| self.is_int(part) != is_int) {
            return Err("of different types".to_owned());
        }
        let width = parts.iter().map(|&part| self.schedule.exprs.width(part)).sum();
        dims.pop();
        dims.push(RowDim::Fixed(width));
        Ok(LoweredValue::Rows { expr: self.schedule.exprs.add(Expr::Concat(parts), width, is_int), dims })
    }

    fn split(&mut self, node: &NodeProto) -> Lowered {
        let (expr, dims) = self.rows(node, 0)?;
        self.last_axis(node, &dims, 0)?;
        let width = self.schedule.exprs.width(expr);
        let sizes = match attribute(node, "split") {
            Some(split) => Some(split.ints.clone()),
            None if node.input.len() > 1 => self.constant(node, 1)?.ints(),
            None => None,
        };
        let each = width / node.output.len().max(1);
        let sizes = sizes.unwrap_or_else(|| vec![each as i64; node.output.len()]);
        if sizes.iter().sum::<i64>() != width as i64 || sizes.iter().any(|&size| size < 1) {
            return Err(format!("of {width} columns into {sizes:?}"));
        }
        let mut from = 0;
        let mut outputs = Vec::with_capacity(sizes.len());
        for size in sizes.into_iter().map(|size| size as usize) {
            let part = match self.schedule.exprs.columns(expr, from, size) {
                Some(part) => part,
                None => {
                    let whole = self.schedule.as_leaf(expr)?;
                    self.schedule.exprs.columns(whole, from, size).ok_or("of columns that do not exist")?
                }
            };
            let dims = [&dims[..dims.len() - 1], &[RowDim::Fixed(size)]].concat();
            outputs.push(LoweredValue::Rows { expr: part, dims });
            from += size;
        }
        Ok(outputs)
    }

    /// Lowers a look-up of ids in a constant table.
    fn look_up(&mut self, node: &NodeProto) -> Result<LoweredValue, String> {
        let table = self.constant(node, 0)?;
        let (id, mut dims) = self.rows(node, 1)?;
        let &[count, columns] = &table.dims[..] else { return Err(format!("in a table of shape {:?}", table.dims)) };
        if integer(node, "axis", 0) != 0 || table.is_int || !self.is_int(id) || self.schedule.exprs.width(id) != 1 {
            return Err("that is no look-up of one id in a table of floats".to_owned());
        }
        let (base, stride) = self.constants.table(&table);
        let expr = self.schedule.exprs.add(Expr::Table { base, stride, count, id }, columns, false);
        dims.push(RowDim::Fixed(columns));
        Ok(LoweredValue::Rows { expr, dims })
    }

    fn reduction(&mut self, node: &NodeProto, kind: Reduction) -> Result<LoweredValue, String> {
        let (expr, mut dims) = self.rows(node, 0)?;
        self.last_axis(node, &dims, if kind == Reduction::ArgMax { 0 } else { -1 })?;
        if self.is_int(expr) || integer(node, "select_last_index", 0) != 0 {
            return Err("of integers, or the last of equal ones".to_owned());
        }
        let expr = self.schedule.reduction(expr, kind)?;
        if kind == Reduction::ArgMax {
            dims.pop();
            dims.extend((integer(node, "keepdims", 1) != 0).then_some(RowDim::Fixed(1)));
        }
        Ok(LoweredValue::Rows { expr, dims })
    }
}

fn attribute<'a>(node: &'a NodeProto, name: &str) -> Option<&'a AttributeProto> {
    node.attribute.iter().find(|attribute| attribute.name == name)
}

fn integer(node: &NodeProto, name: &str, default: i64) -> i64 {
    attribute(node, name).and_then(|attribute| attribute.i).unwrap_or(default)
}

fn constant(node: &NodeProto, folder: &Path) -> Result<ConstantTensor, String> {
    let scalar = |is_int, words| ConstantTensor { dims: Vec::new(), is_int, words };
    if let Some(tensor) = attribute(node, "value").and_then(|value| value.t.as_deref()) {
        return numbers(tensor, folder);
    }
    match (
        attribute(node, "value_int").and_then(|value| value.i),
        attribute(node, "value_float").and_then(|value| value.f),
    ) {
        (Some(int), _) => i32::try_from(int).map(|int| scalar(true, vec![int as u32])).map_err(|_| format!("{int}")),
        (_, Some(float)) => Ok(scalar(false, vec![float.to_bits()])),
        _ => Err("of a kind that is not known".to_owned()),
    }
}

/// Reads a constant of the graph.
pub(super) fn numbers(tensor: &TensorProto, folder: &Path) -> Result<ConstantTensor, String> {
    read_numbers(tensor, folder)
}
