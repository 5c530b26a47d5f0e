//! The graph of a request as bytes: for each node its block, the number of its inputs, and these.
//!
//! The nodes keep their order, since a scheduler names them by their numbers. Missing inputs are
//! left out: a scheduler does not count them, and the device reads the request's own table.

use super::frame::DecodeError;
use bytes::Buf;
use ripieno_base::BlockId;
use ripieno_model::Graph;

/// The largest size of a graph, in bytes: a million nodes with two inputs have it.
pub(super) const MAX_GRAPH: usize = 12 << 20;

/// Size of a node without its inputs, and of an input, in bytes.
const NODE: usize = 4;
const INPUT: usize = 4;

/// Returns true if a graph fits a message.
pub(crate) fn fits(graph: &Graph) -> bool {
    let counted = |node: u32| inputs_of(graph, node).count() <= usize::from(u16::MAX);
    graph.len() * NODE + graph.edges() * INPUT <= MAX_GRAPH && (0..graph.len() as u32).all(counted)
}

fn inputs_of(graph: &Graph, node: u32) -> impl Iterator<Item = u32> + '_ {
    graph.inputs(node).iter().copied().filter(|&input| input != Graph::NONE)
}

pub(super) fn write_graph(graph: &Graph, into: &mut Vec<u8>) {
    for node in 0..graph.len() as u32 {
        let count = inputs_of(graph, node).count() as u16;
        into.extend_from_slice(&graph.block(node).0.to_le_bytes());
        into.extend_from_slice(&count.to_le_bytes());
        inputs_of(graph, node).for_each(|input| into.extend_from_slice(&input.to_le_bytes()));
    }
}

pub(super) fn read_graph(mut bytes: &[u8]) -> Result<Graph, DecodeError> {
    let short = || DecodeError("a graph that is longer than it is".to_owned());
    let (mut nodes, mut inputs) = (Vec::new(), Vec::new());
    while !bytes.is_empty() {
        let block = BlockId(bytes.try_get_u16_le().map_err(|_| short())?);
        let count = usize::from(bytes.try_get_u16_le().map_err(|_| short())?);
        let first = inputs.len();
        for _ in 0..count {
            inputs.push(bytes.try_get_u32_le().map_err(|_| short())?);
        }
        nodes.push((block, first..inputs.len()));
    }
    let graph = Graph::from_sorted(nodes.into_iter().map(|(block, of)| (block, &inputs[of])));
    graph.ok_or_else(|| DecodeError("a graph whose inputs do not come before their nodes".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn graphs_survive_and_what_is_none_is_refused() {
        let sorted = |second: &[u32]| {
            let nodes = [(BlockId(0), &[][..]), (BlockId(7), second), (BlockId(1), &[1, 0])];
            Graph::from_sorted(nodes.into_iter()).unwrap()
        };
        let (graph, read) = (sorted(&[Graph::NONE, 0]), sorted(&[0]));
        let mut bytes = Vec::new();
        write_graph(&graph, &mut bytes);
        assert_eq!((read_graph(&bytes).unwrap(), fits(&graph)), (read, true));
        assert!(!fits(&sorted(&vec![0; 1 << 16])), "more inputs than a number of two bytes counts");
        // Whole nodes at the front are a smaller graph.
        let ends = [4, 12];
        for cut in 0..bytes.len() {
            assert_eq!(read_graph(&bytes[..cut]).is_ok(), ends.contains(&cut), "cut at {cut}");
        }
        bytes[8] = 1;
        assert!(read_graph(&bytes).is_err(), "a node is its own input");
    }
}
