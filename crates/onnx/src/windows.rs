//! Completes the attributes of operators that slide a window: convolutions and pooling.
//!
//! The standard lets a file omit the size of the window, since the weights have it, the strides and
//! the dilations, which are then 1. rten takes omitted ones for lists of no dimension.

use crate::proto::{AttributeProto, NodeProto};
use std::collections::HashMap;

/// Returns the node with all its attributes; `None` if nothing is missing, or for any other node.
/// `dims` are the dimensions of the weights.
pub(crate) fn complete(node: &NodeProto, dims: &HashMap<String, Vec<i64>>) -> Option<NodeProto> {
    let from_weights = match &*node.op_type {
        "Conv" | "ConvTranspose" | "ConvInteger" => true,
        "MaxPool" | "AveragePool" => false,
        _ => return None,
    };
    if !["", "ai.onnx"].contains(&&*node.domain) {
        return None;
    }
    let given = |name: &str| node.attribute.iter().find(|attribute: &&AttributeProto| attribute.name == name);
    let window = match given("kernel_shape") {
        Some(attribute) => attribute.ints.clone(),
        None if from_weights => dims.get(node.input.get(1)?)?.get(2..)?.to_vec(),
        None => return None,
    };
    let ones = vec![1; window.len()];
    let mut complete = node.clone();
    for (name, values) in [("kernel_shape", &window), ("strides", &ones), ("dilations", &ones)] {
        // AveragePool has dilations since opset 19 only.
        if given(name).is_none() && (from_weights || name != "dilations") {
            complete = complete.with_ints(name, values);
        }
    }
    (complete != *node).then_some(complete)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attributes(op_type: &str, given: &[(&str, &[i64])]) -> Option<String> {
        let mut node = NodeProto {
            input: ["x", "w"].map(str::to_owned).to_vec(),
            op_type: op_type.to_owned(),
            ..NodeProto::default()
        };
        for (name, values) in given {
            node = node.with_ints(name, values);
        }
        let dims = HashMap::from([("w".to_owned(), vec![8, 3, 5, 3])]);
        let complete = complete(&node, &dims)?;
        let shown = complete.attribute.iter().map(|attribute| format!("{}={:?}", attribute.name, attribute.ints));
        Some(shown.collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn what_a_file_omits_is_what_the_standard_says() {
        assert_eq!(attributes("Conv", &[]).unwrap(), "kernel_shape=[5, 3] strides=[1, 1] dilations=[1, 1]");
        let given: &[(&str, &[i64])] = &[("kernel_shape", &[5, 3]), ("strides", &[2, 2])];
        assert_eq!(attributes("Conv", given).unwrap(), "kernel_shape=[5, 3] strides=[2, 2] dilations=[1, 1]");
        assert_eq!(attributes("MaxPool", &given[..1]).unwrap(), "kernel_shape=[5, 3] strides=[1, 1]");
        assert_eq!((attributes("MaxPool", given), attributes("Relu", &[])), (None, None));
    }
}
