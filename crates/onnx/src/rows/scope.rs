//! Names and their values while a graph is walked: in the graph itself, and in the graphs around
//! it.

use super::value::{MAX_RANK, RowValue};
use crate::dim::Dim;
use crate::proto::{FunctionProto, GraphProto};
use std::cell::Cell;
use std::collections::HashMap;

/// Largest number of operators that are visited. Operators of functions and branches count each
/// time.
const MAX_VISITS: usize = 1 << 18;
/// Largest number of sizes and elements that all values hold together.
const MAX_SIZES: usize = 1 << 21;
/// Largest depth of functions and graphs inside each other.
const MAX_DEPTH: usize = 32;

/// State of a walk.
pub(super) struct RowScope<'a> {
    names: Vec<HashMap<String, RowValue>>,
    /// Functions that nodes may call like operators, by name.
    functions: HashMap<&'a str, Vec<&'a FunctionProto>>,
    /// Version of the standard operators.
    pub(super) opset: i64,
    /// Walks a graph in the innermost scope. Branches and loops call it, the walk calls these.
    pub(super) walk: fn(&mut RowScope<'_>, &GraphProto),
    /// Number of symbols that stand for unknown sizes.
    pub(super) symbols: Cell<usize>,
    visits: usize,
    sizes: usize,
}

impl<'a> RowScope<'a> {
    pub(super) fn new(
        functions: &'a [FunctionProto],
        opset: i64,
        walk: fn(&mut RowScope<'_>, &GraphProto),
        values: HashMap<String, RowValue>,
    ) -> RowScope<'a> {
        let mut by_name: HashMap<&str, Vec<&FunctionProto>> = HashMap::new();
        for function in functions {
            by_name.entry(&function.name).or_default().push(function);
        }
        let (symbols, names) = (Cell::new(0), vec![values]);
        RowScope { names, functions: by_name, opset, walk, symbols, visits: 0, sizes: 0 }
    }

    /// Returns the value of a name, in the innermost graph that has it.
    pub(super) fn get(&self, name: &str) -> Option<&RowValue> {
        self.names.iter().rev().find_map(|names| names.get(name))
    }

    /// Returns the functions of this name.
    pub(super) fn functions_named(&self, name: &str) -> &[&'a FunctionProto] {
        self.functions.get(name).map_or(&[], Vec::as_slice)
    }

    /// Counts the sizes and elements of a value. Returns false if all values hold too many, or the
    /// value has too many dimensions.
    pub(super) fn holds(&mut self, value: &RowValue) -> bool {
        let count = |list: &Option<Vec<Dim>>| list.as_ref().map_or(0, Vec::len);
        self.sizes = self.sizes.saturating_add(count(&value.shape) + count(&value.data));
        self.sizes <= MAX_SIZES && count(&value.shape) <= MAX_RANK
    }

    pub(super) fn insert(&mut self, name: &str, value: RowValue) {
        if let Some(names) = self.names.last_mut().filter(|_| !name.is_empty()) {
            names.insert(name.to_owned(), value);
        }
    }

    /// Enters a graph, which sees the names around it. Returns false if it is too deep.
    pub(super) fn enter(&mut self, values: HashMap<String, RowValue>) -> bool {
        self.names.push(values);
        self.names.len() <= MAX_DEPTH
    }

    /// Leaves a graph and returns its names.
    pub(super) fn leave(&mut self) -> HashMap<String, RowValue> {
        self.names.pop().unwrap_or_default()
    }

    /// Replaces all names by the names of a function's body; returns the names around it.
    pub(super) fn isolate(&mut self, values: HashMap<String, RowValue>) -> Vec<HashMap<String, RowValue>> {
        let depth = self.names.len();
        let outside = std::mem::take(&mut self.names);
        // Empty scopes keep the depth.
        self.names = vec![HashMap::new(); depth];
        self.names.push(values);
        outside
    }

    /// Restores the names around a function; returns the names of its body.
    pub(super) fn restore(&mut self, outside: Vec<HashMap<String, RowValue>>) -> HashMap<String, RowValue> {
        let inside = self.leave();
        self.names = outside;
        inside
    }

    /// Whether the scope is not deeper than allowed.
    pub(super) fn is_shallow(&self) -> bool {
        self.names.len() <= MAX_DEPTH
    }

    /// Counts the visit of an operator. Returns false if there were too many.
    pub(super) fn visit(&mut self) -> bool {
        self.visits += 1;
        self.visits <= MAX_VISITS
    }
}
