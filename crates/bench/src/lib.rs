//! Open-loop load for any server of the Open Inference Protocol; it depends on the protocol only,
//! not on our server.
//!
//! [`target::Client`] is a client of a server, [`inputs::requests`] generates the requests,
//! [`load::open_loop`] sends them by a schedule and reports; [`measure`] makes all the runs of a
//! command line, [`BenchArgs`].

mod args;
pub mod inputs;
pub mod load;
mod output;
mod session;
pub mod target;
pub mod unfolded;

#[cfg(test)]
mod tests;

use anyhow::Context;
use ripieno_report::{Search, search};

use args::ArrivalArg;
pub use args::BenchArgs;
pub use output::{BenchResults, BenchRow, table};
use session::BenchSession;

/// Makes all the runs of a command line.
pub fn measure(args: &BenchArgs, runtime: &tokio::runtime::Runtime) -> anyhow::Result<BenchResults> {
    let mut session = runtime.block_on(BenchSession::open(args))?;
    let (mut last_good, mut first_bad) = (None, None);
    if args.find_goodput {
        session.slo_ms.context(
            "goodput counts answers within an SLO, and the server names none for this model; give one with --slo-ms",
        )?;
        let options = Search { step: args.goodput_step, ..Search::from_ceiling(args.rate.unwrap_or(100.0)) };
        let found = search(options, |rate| {
            let row = runtime.block_on(session.run(Some(rate)))?;
            anyhow::Ok((row.bad_rate, row))
        })?;
        (last_good, first_bad) = (found.good.map(|trial| trial.run), found.bad.map(|trial| trial.run));
    } else if let ArrivalArg::Trace(_) = args.arrival {
        runtime.block_on(session.run(None))?;
    } else {
        let rates = args.sweep.as_ref().map(|sweep| sweep.0.clone()).unwrap_or(args.rate.into_iter().collect());
        for rate in rates {
            runtime.block_on(session.run(Some(rate)))?;
        }
    }
    let best = if args.find_goodput { last_good.clone() } else { session.runs.last().cloned() };
    Ok(results(args, session, best, last_good, first_bad))
}

fn results(
    args: &BenchArgs,
    session: BenchSession<'_>,
    best: Option<BenchRow>,
    last_good: Option<BenchRow>,
    first_bad: Option<BenchRow>,
) -> BenchResults {
    BenchResults {
        url: args.url.clone(),
        model: args.model.clone(),
        protocol: format!("{:?}", session.protocol).to_lowercase(),
        arrival: args.arrival.to_string(),
        seed: args.seed,
        slo_ms: session.slo_ms,
        duration_s: session.window_s,
        best,
        runs: session.runs,
        last_good,
        first_bad,
    }
}
