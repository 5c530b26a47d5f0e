//! Early exits and skips in a chain: shares by block, drawn for each request before it arrives.

use super::ParseResult;
use super::blocks::BlockTable;
use crate::Route;
use ripieno_base::BlockId;
use ripieno_model::{Block, Walk};
use ripieno_workload::{SeededRng, unit};

/// The routes of a model's requests.
#[derive(Clone, Debug, PartialEq)]
pub struct Routes(Vec<Fork>);

/// Shares of the requests that have run a block.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Fork {
    /// Share that ends there.
    exit: f64,
    /// Share that skips to the block `to`.
    skip: f64,
    to: BlockId,
}

impl Routes {
    pub(crate) fn draw(&self, random: &mut SeededRng) -> Route {
        let mut route = Route::ALL;
        let mut at = 0;
        while let Some(fork) = self.0.get(at) {
            let (block, drawn) = (BlockId(at as u16), unit(random));
            if drawn < fork.exit {
                return route.ending_after(block);
            }
            if drawn < fork.exit + fork.skip {
                route = route.skipping(block, fork.to);
                at = fork.to.index();
            } else {
                at += 1;
            }
        }
        route
    }

    /// Returns the share of requests that run each block.
    pub(super) fn reach(&self) -> Vec<f64> {
        let mut reach = vec![0.0; self.0.len() + 1];
        reach[0] = 1.0;
        for (at, fork) in self.0.iter().enumerate() {
            reach[at + 1] += reach[at] * (1.0 - fork.exit - fork.skip);
            reach[fork.to.index()] += reach[at] * fork.skip;
        }
        reach.pop();
        reach
    }

    /// Parses the routes that the tables of a model's blocks declare, if any, and marks the blocks
    /// with skips.
    pub(super) fn parse(walk: Walk, tables: &[BlockTable], blocks: &mut [Block]) -> ParseResult<Option<Routes>> {
        if tables.iter().all(|table| table.exit_share.is_none() && table.skip_share.is_none()) {
            let lost = tables.iter().find(|table| table.skip_to.is_some());
            return match lost {
                Some(table) => Err(format!("block {:?}: skip_to needs skip_share", table.name)),
                None => Ok(None),
            };
        }
        if walk != Walk::Chain {
            return Err(format!("exit_share and skip_share have no meaning for walk = {:?}; remove them", walk.name()));
        }
        let fork = |at: usize| fork(at, tables).map_err(|problem| format!("block {:?}: {problem}", tables[at].name));
        let forks = (0..tables.len()).map(fork).collect::<ParseResult<Vec<_>>>()?;
        for (block, fork) in blocks.iter_mut().zip(&forks) {
            block.skips = fork.skip > 0.0;
        }
        Ok(Some(Routes(forks)))
    }
}

fn fork(at: usize, tables: &[BlockTable]) -> ParseResult<Fork> {
    let table = &tables[at];
    let (exit, skip) = (table.exit_share.unwrap_or(0.0), table.skip_share.unwrap_or(0.0));
    if !(exit >= 0.0 && skip >= 0.0 && exit + skip <= 1.0) {
        return Err(format!("exit_share = {exit}, skip_share = {skip}; both are at least 0, and 1 together at most"));
    }
    if exit + skip > 0.0 && (at + 1 == tables.len() || at + 1 >= Route::BLOCKS) {
        return Err(format!("only blocks before the last one, and the first {}, are left early", Route::BLOCKS - 1));
    }
    let Some(name) = &table.skip_to else {
        let to = BlockId((at + 1).min(tables.len() - 1) as u16);
        return if skip > 0.0 {
            Err("skip_share needs skip_to, a later block".to_owned())
        } else {
            Ok(Fork { exit, skip, to })
        };
    };
    let later = tables.iter().take(Route::BLOCKS).skip(at + 1).position(|other| other.name == *name);
    let to = later.ok_or_else(|| format!("skip_to = {name:?}; it must be the name of a later block"))?;
    Ok(Fork { exit, skip, to: BlockId((at + 1 + to) as u16) })
}
