//! Shapes of trees, written as nested brackets: `x` is a leaf, `((xx)x)` a node whose left child
//! has two leaves.

use thiserror::Error;

/// The reason why a text is not a tree.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TreeError {
    /// An unexpected character or bracket.
    #[error("tree {text:?}, character {at}: {problem}")]
    Syntax {
        /// The text, shortened.
        text: String,
        /// The position, from 1.
        at: usize,
        /// The fault.
        problem: &'static str,
    },
    /// No data set has this name.
    #[error("dataset = {0:?}; there is \"sst-test\"")]
    Unknown(String),
}

/// The children of each node of a tree; the root is the first, leaves have none.
pub type Children = Vec<Vec<i64>>;

/// Parses nested brackets.
pub fn parse_tree(text: &str) -> Result<Children, TreeError> {
    let fault = |at: usize, problem| {
        let text: String = text.chars().take(40).collect();
        Err(TreeError::Syntax { text, at: at + 1, problem })
    };
    let mut nodes: Children = Vec::new();
    let mut open: Vec<usize> = Vec::new();
    let mut length = 0;
    for (at, letter) in text.trim().chars().enumerate() {
        length = at + 1;
        if open.is_empty() && !nodes.is_empty() {
            return fault(at, "the tree has ended before; it has one root");
        }
        match letter {
            'x' | '(' => {
                let node = nodes.len();
                if let Some(&parent) = open.last() {
                    nodes[parent].push(node as i64);
                }
                nodes.push(Vec::new());
                if letter == '(' {
                    open.push(node);
                }
            }
            ')' => match open.pop() {
                Some(node) if !nodes[node].is_empty() => {}
                _ => return fault(at, "a node has at least one child; a leaf is x"),
            },
            _ => return fault(at, "a tree is written with ( ) and x only"),
        }
    }
    match (nodes.is_empty(), open.is_empty()) {
        (true, _) => fault(0, "it is empty; a single leaf is x"),
        (_, false) => fault(length, "a bracket is not closed"),
        _ => Ok(nodes),
    }
}

/// Returns a complete binary tree.
pub fn complete_tree(leaves: u32) -> Children {
    let leaves = i64::from(leaves);
    let inner = |node: i64| node < leaves - 1;
    (0..2 * leaves - 1).map(|node| if inner(node) { vec![2 * node + 1, 2 * node + 2] } else { Vec::new() }).collect()
}

/// Returns the shapes of a built-in data set, one per line after a header.
pub fn tree_shapes(name: &str) -> Result<&'static str, TreeError> {
    match name {
        "sst-test" => Ok(include_str!("../data/sst-test.csv")),
        other => Err(TreeError::Unknown(other.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brackets_become_children() {
        assert_eq!(parse_tree("x"), Ok(vec![vec![]]));
        assert_eq!(parse_tree("((xx)x)"), Ok(vec![vec![1, 4], vec![2, 3], vec![], vec![], vec![]]));
        assert_eq!(parse_tree("(x)"), Ok(vec![vec![1], vec![]]));
        assert_eq!(parse_tree("(xxx)").unwrap()[0], [1, 2, 3]);
    }

    #[test]
    fn what_is_no_tree_is_named() {
        let problem = |text: &str| parse_tree(text).unwrap_err().to_string();
        assert!(problem("").contains("empty"));
        assert!(problem("(xx").contains("not closed"));
        assert!(problem("xx").contains("character 2"));
        assert!(problem("(x))").contains("one root"));
        assert!(problem("()").contains("at least one child"));
        assert!(problem("(x,x)").contains("character 3"));
    }

    #[test]
    fn the_treebank_has_its_shapes() {
        let shapes: Vec<_> = tree_shapes("sst-test").unwrap().lines().skip(1).collect();
        assert_eq!(shapes.len(), 2210);
        let nodes: usize = shapes.iter().map(|shape| parse_tree(shape).unwrap().len()).sum();
        let leaves = (nodes + shapes.len()) as f64 / 2.0 / shapes.len() as f64;
        assert!((leaves - 19.2).abs() < 0.5, "{leaves}");
    }

    #[test]
    fn a_complete_tree_has_all_its_leaves() {
        let tree = complete_tree(16);
        assert_eq!((tree.len(), tree.iter().filter(|children| children.is_empty()).count()), (31, 16));
        assert_eq!(complete_tree(1), vec![Vec::<i64>::new()]);
    }
}
