//! Expressions over the columns of a row, as they are read from a cell's graph.
//!
//! An expression is computed for each row and column on its own. Leaves are the cell's inputs,
//! constants, rows of tables and matrices. What needs whole rows (products, reductions) ends an
//! expression and gives a matrix.

use ripieno_cuda::Op;

/// Number of an expression.
pub(super) type ExprId = usize;
/// Number of a matrix.
pub(super) type MatrixId = usize;

/// A leaf or an operation.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Expr {
    /// Columns of an input of the cell, from `offset` on.
    Feed { feed: usize, offset: usize },
    /// An input of the cell that is one element of the request.
    EntryWord { feed: usize },
    /// A constant, at a word. Of width 1: the same for all columns.
    Constant { base: usize },
    /// The row of a table that an id names: first word, words a row, rows.
    Table { base: usize, stride: usize, count: usize, id: ExprId },
    /// Columns of a matrix, from `offset` on.
    Matrix { matrix: MatrixId, offset: usize },
    /// A function.
    Unary(Op, ExprId),
    /// An operation with two operands, of which one may have width 1.
    Binary(Op, ExprId, ExprId),
    /// Columns side by side.
    Concat(Vec<ExprId>),
}

/// An expression with its width and kind.
#[derive(Clone, Debug)]
pub(super) struct TypedExpr {
    pub(super) expr: Expr,
    /// Number of columns.
    pub(super) width: usize,
    /// True if the expression is an integer; otherwise it is a float.
    pub(super) is_int: bool,
}

/// The expressions of a cell.
#[derive(Debug, Default)]
pub(super) struct Exprs {
    all: Vec<TypedExpr>,
}

impl Exprs {
    pub(super) fn add(&mut self, expr: Expr, width: usize, is_int: bool) -> ExprId {
        self.all.push(TypedExpr { expr, width, is_int });
        self.all.len() - 1
    }

    pub(super) fn get(&self, id: ExprId) -> &TypedExpr {
        &self.all[id]
    }

    pub(super) fn width(&self, id: ExprId) -> usize {
        self.all[id].width
    }

    /// Whether a single load computes the expression at any column.
    pub(super) fn is_leaf(&self, id: ExprId) -> bool {
        matches!(
            self.all[id].expr,
            Expr::Feed { .. } | Expr::EntryWord { .. } | Expr::Constant { .. } | Expr::Matrix { .. }
        )
    }

    /// Returns the operands.
    pub(super) fn operands(&self, id: ExprId) -> Vec<ExprId> {
        match &self.all[id].expr {
            Expr::Feed { .. } | Expr::EntryWord { .. } | Expr::Constant { .. } | Expr::Matrix { .. } => Vec::new(),
            Expr::Table { id, .. } => vec![*id],
            Expr::Unary(_, a) => vec![*a],
            Expr::Binary(_, a, b) => vec![*a, *b],
            Expr::Concat(parts) => parts.clone(),
        }
    }

    /// Returns columns of an expression; `None` if they lie in several parts.
    pub(super) fn columns(&mut self, id: ExprId, from: usize, width: usize) -> Option<ExprId> {
        let TypedExpr { expr, width: all, is_int } = self.all[id].clone();
        if from == 0 && width == all {
            return Some(id);
        }
        // The first column of an operand of width 1 serves all columns.
        let cut = |exprs: &mut Exprs, id: ExprId| match exprs.width(id) {
            1 => Some(id),
            _ => exprs.columns(id, from, width),
        };
        let expr = match expr {
            Expr::Feed { feed, offset } => Expr::Feed { feed, offset: offset + from },
            Expr::EntryWord { .. } => return None,
            Expr::Constant { base } => Expr::Constant { base: base + from },
            Expr::Table { base, stride, count, id } => Expr::Table { base: base + from, stride, count, id },
            Expr::Matrix { matrix, offset } => Expr::Matrix { matrix, offset: offset + from },
            Expr::Unary(op, a) => Expr::Unary(op, cut(self, a)?),
            Expr::Binary(op, a, b) => Expr::Binary(op, cut(self, a)?, cut(self, b)?),
            Expr::Concat(parts) => {
                let mut begin = 0;
                for part in parts {
                    let own = self.width(part);
                    if (begin..begin + own).contains(&from) {
                        return if from + width <= begin + own {
                            self.columns(part, from - begin, width)
                        } else {
                            None
                        };
                    }
                    begin += own;
                }
                return None;
            }
        };
        Some(self.add(expr, width, is_int))
    }
}
