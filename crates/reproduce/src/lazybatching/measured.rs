//! LazyBatching against windows on real models of this machine: what Figures 12 and 13 compare, as ratios.
//!
//! The paper's loads are fixed numbers for its NPU. Here they are 20, 50 and 80 % of what a window of 5 ms carries when it is
//! saturated, so that low, medium and high mean the same on any machine. Windows run the model whole, LazyBatching the same file
//! in stages: what a cut costs counts against it. It takes turns with both rules of preemption: the paper's, `slack`, and ours,
//! `gain`, which is how the policy comes.

use super::workload::{WINDOWS_MS, mean};
use crate::context::Context;
use crate::machine::Compared;
use crate::measured::{Contest, Setting};

/// What the windows have over LazyBatching, in mean latency (windows over lazy) and throughput (lazy over windows): of the window
/// that is best by its mean over loads, and of all.
#[derive(Clone, Debug)]
pub(super) struct Gains {
    pub(super) latency: (f64, f64),
    pub(super) throughput: (f64, f64),
    pub(super) note: String,
}

/// The same by the paper's rule of preemption and by ours.
#[derive(Clone, Debug)]
pub(super) struct Both {
    pub(super) slack: Gains,
    pub(super) gain: Gains,
}

const SHARES: [f64; 3] = [0.2, 0.5, 0.8];
const OUTSTANDING: u16 = 64;

/// The gains on the model of this network; none if nobody asked, or the repository does not hold it.
pub(super) fn gains(context: &Context, network: &str) -> anyhow::Result<Option<Both>> {
    let blocks = format!("{network}-blocks");
    let (graph, lazy) = match network {
        // Cells, which windows pad to the longest of a batch.
        "transformer" => ("bucketed,width=1048576,pad=longest,window_ms=", "lazy".to_owned()),
        _ => ("timeout,gather=fifo,drop=never,timeout_ms=", format!("lazy,model={blocks}")),
    };
    let needed = if network == "transformer" { vec![network] } else { vec![network, blocks.as_str()] };
    let Some(measured) = context.models(&needed) else { return Ok(None) };
    let windows: Vec<String> = WINDOWS_MS.iter().map(|window| format!("{graph}{window}")).collect();
    let setting = |policies| Setting { model: network, policies, outstanding: OUTSTANDING, lengths: None };
    let peak_rps = measured.peaks(setting(&windows[..1]))?.answered_rps(&windows[0]);
    let slack = format!("{lazy},preempt=slack");
    let contestants: Vec<String> = windows.iter().cloned().chain([slack.clone(), lazy.clone()]).collect();
    let contest = measured.at_shares(setting(&contestants), peak_rps, &SHARES)?;
    let gains = |lazy: &str| Gains::of(&contest, &windows, lazy);
    Ok(Some(Both { slack: gains(&slack), gain: gains(&lazy) }))
}

impl Gains {
    fn of(contest: &Contest, windows: &[String], lazy: &str) -> Gains {
        let lazy = contest.of(lazy);
        let ratio = |window: &String, value: &dyn Fn(&Compared, &Compared) -> f64| {
            mean(contest.of(window).into_iter().zip(&lazy).map(|(window, lazy)| value(window, lazy)))
        };
        let both = |value: &dyn Fn(&Compared, &Compared) -> f64| {
            let all: Vec<f64> = windows.iter().map(|window| ratio(window, value)).collect();
            (all.iter().copied().fold(f64::INFINITY, f64::min), mean(all))
        };
        Gains {
            latency: both(&|window, lazy| window.mean_ms / lazy.mean_ms),
            throughput: both(&|window, lazy| lazy.answered_rps / window.answered_rps),
            note: contest.note(),
        }
    }
}
