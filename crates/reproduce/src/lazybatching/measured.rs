//! LazyBatching against windows on real models on this machine, for Figures 12 and 13, as ratios.
//!
//! The paper's loads are fixed numbers for its NPU. Here they are 20, 50 and 80 % of the saturated
//! rate of a window of 5 ms, so that low, medium and high mean the same on any machine. Windows run
//! the whole model, LazyBatching the same file in stages: the cost of a cut counts against it.

use super::workload::{WINDOWS_MS, mean};
use crate::context::ReproduceContext;
use crate::machine::PolicyResult;
use crate::measured::{ContestSetting, MeasuredContest};

/// The ratios of windows to LazyBatching, in mean latency (windows over lazy) and throughput (lazy
/// over windows): for the window that is best by its mean over loads, and for all.
#[derive(Clone, Debug)]
pub(super) struct MeasuredGains {
    pub(super) latency: (f64, f64),
    pub(super) throughput: (f64, f64),
    pub(super) note: String,
}

const SHARES: [f64; 3] = [0.2, 0.5, 0.8];
const OUTSTANDING: u16 = 64;

/// Measures the ratios on the model of this network; `None` if not requested, or if the repository
/// does not have it.
pub(super) fn gains(context: &ReproduceContext, network: &str) -> anyhow::Result<Option<MeasuredGains>> {
    let blocks = format!("{network}-blocks");
    let (graph, lazy) = match network {
        // Cells, which windows pad to the longest of a batch.
        "transformer" => ("bucketed,width=1048576,pad=longest,window_ms=", "lazy".to_owned()),
        _ => ("timeout,gather=fifo,drop=never,timeout_ms=", format!("lazy,model={blocks}")),
    };
    let needed = if network == "transformer" { vec![network] } else { vec![network, blocks.as_str()] };
    let Some(measured) = context.models(&needed) else { return Ok(None) };
    let windows: Vec<String> = WINDOWS_MS.iter().map(|window| format!("{graph}{window}")).collect();
    let setting = |policies| ContestSetting { model: network, policies, outstanding: OUTSTANDING, lengths: None };
    let peak_rps = measured.peaks(setting(&windows[..1]))?.answered_rps(&windows[0]);
    let contestants: Vec<String> = windows.iter().cloned().chain([lazy.clone()]).collect();
    let contest = measured.at_shares(setting(&contestants), peak_rps, &SHARES)?;
    Ok(Some(MeasuredGains::of(&contest, &windows, &lazy)))
}

impl MeasuredGains {
    fn of(contest: &MeasuredContest, windows: &[String], lazy: &str) -> MeasuredGains {
        let lazy = contest.of(lazy);
        let ratio = |window: &String, value: &dyn Fn(&PolicyResult, &PolicyResult) -> f64| {
            mean(contest.of(window).into_iter().zip(&lazy).map(|(window, lazy)| value(window, lazy)))
        };
        let both = |value: &dyn Fn(&PolicyResult, &PolicyResult) -> f64| {
            let all: Vec<f64> = windows.iter().map(|window| ratio(window, value)).collect();
            (all.iter().copied().fold(f64::INFINITY, f64::min), mean(all))
        };
        MeasuredGains {
            latency: both(&|window, lazy| window.mean_ms / lazy.mean_ms),
            throughput: both(&|window, lazy| lazy.answered_rps / window.answered_rps),
            note: contest.note(),
        }
    }
}
