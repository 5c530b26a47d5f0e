//! Answers of a request that runs cell by cell: outputs of every step as they come, and of the last
//! step.

use super::super::row::CellRow;
use super::super::wiring::{AnswerFrom, Wiring};
use super::{CellWalk, root};
use crate::{AnswerSteps, ExecError, MemberProgress, Tensor};
use bytes::Bytes;
use ripieno_model::Steps;
use std::sync::Arc;

/// Outputs of all steps so far.
#[derive(Debug, Default)]
pub(super) struct StackedOutput {
    shape: Vec<i64>,
    data: Vec<u8>,
}

impl CellWalk {
    /// Appends the step's outputs to the answers that contain every step.
    pub(super) fn collect(
        &mut self,
        wiring: &Wiring,
        block: usize,
        node: u32,
        of: &dyn Fn(usize) -> CellRow,
        progress: &mut MemberProgress,
    ) -> Result<(), ExecError> {
        for (answer, every) in wiring.answers.iter().zip(&mut self.every) {
            let (AnswerSteps::Every, AnswerFrom::Block(from, output)) = (answer.take, &answer.from) else { continue };
            if *from != block {
                continue;
            }
            let rows = of(*output).to_host()?;
            let (bytes, tensor) = (rows.bytes(), rows.to_tensor(&answer.name));
            let (cell, length) = (&wiring.cells[block], self.extent.map_or(0, |extent| extent.length));
            if cell.backward {
                every.data.resize(bytes.len() * length as usize, 0);
                let at = bytes.len() * (length - 1 - node) as usize;
                every.data[at..at + bytes.len()].copy_from_slice(bytes);
            } else {
                every.data.truncate(bytes.len() * node as usize);
                every.data.extend_from_slice(bytes);
            }
            every.shape = [&[1, i64::from(node) + 1], &tensor.shape[1..]].concat();
            if self.stream {
                let shape = [&[1, 1], &tensor.shape[1..]].concat();
                progress.step.push(Tensor { shape, ..tensor });
            }
        }
        Ok(())
    }

    pub(super) fn is_complete(&self, wiring: &Wiring) -> bool {
        let mut cells = wiring.cells.iter().zip(&self.blocks);
        self.nodes_left == 0 && cells.all(|(cell, track)| track.over || cell.steps == Steps::Nodes)
    }

    pub(super) fn answer(&mut self, wiring: &Wiring) -> Result<Vec<Tensor>, ExecError> {
        let mut outputs = Vec::with_capacity(wiring.answers.len());
        for (at, answer) in wiring.answers.iter().enumerate() {
            let rows = match (&answer.from, answer.take) {
                (_, AnswerSteps::Every) => {
                    let StackedOutput { shape, data } = std::mem::take(&mut self.every[at]);
                    let (name, datatype) = (Arc::clone(&answer.name), answer.datatype);
                    outputs.push(Tensor { name, datatype, shape, data: Bytes::from(data) });
                    continue;
                }
                (AnswerFrom::Block(block, output), AnswerSteps::Last) => self.blocks[*block].last[*output].clone(),
                (AnswerFrom::Root(of), AnswerSteps::Last) => {
                    self.graph.as_ref().and_then(|graph| self.of_node(graph, root(wiring, graph), of))
                }
            };
            let rows = rows.ok_or_else(|| ExecError(format!("no cell has left the output '{}'", answer.name)))?;
            outputs.push(rows.to_host()?.to_tensor(&answer.name));
        }
        Ok(outputs)
    }
}
