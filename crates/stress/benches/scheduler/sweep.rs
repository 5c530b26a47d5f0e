//! The growth of a request's cost with models and devices, against the logarithm.
//!
//! The work per request is kept equal, so that only the number of candidates differs: batches are
//! full at 16 requests, and latencies are such that the load keeps half of any number of devices
//! busy. The cells are run in rounds, so that other load on the machine affects all of them.

use super::{SchedulerBench, or_default};
use ripieno_base::Nanos;
use ripieno_model::{Model, Profile};
use ripieno_report::{Format, Table, number};
use ripieno_sched::Options;
use ripieno_stress::{SchedulerStress, StressReport, print_json};
use serde_json::json;
use std::time::Duration;

const MODELS: [u16; 6] = [1, 4, 20, 100, 400, 1_000];
const DEVICES: [u16; 4] = [8, 100, 1_000, 10_000];
const BATCH: usize = 16;

/// Virtual time between two turns.
const TURN: Nanos = Nanos::from_micros(1);

/// The measurement at one number of models and devices.
struct SweepCell {
    models: u16,
    devices: u16,
    reports: Vec<StressReport>,
}

pub(super) fn run(args: &SchedulerBench) -> anyhow::Result<()> {
    let rate = args.rate[0];
    let mut cells = Vec::new();
    for &models in or_default(&args.models, &MODELS) {
        for &devices in or_default(&args.devices, &DEVICES) {
            cells.push(SweepCell { models, devices, reports: Vec::new() });
        }
    }
    for _ in 0..args.repeat {
        for cell in &mut cells {
            let stress = stress(args, rate, cell.models, cell.devices)?;
            cell.reports.push(if args.in_turns { stress.run_in_turns(TURN)? } else { stress.run()? });
        }
    }
    if args.format == Format::Json {
        let records: Vec<_> = cells.iter().map(|cell| cell.record(&cells[0])).collect();
        print_json(&json!({
            "policy": args.policy, "shards": args.shards, "offered_rps": rate, "in_turns": args.in_turns,
            "repeat": args.repeat, "cells": records,
        }));
        return Ok(());
    }
    let mut table = Table::new([
        "models",
        "devices",
        "mean batch",
        "bad %",
        "shard ns",
        "matchmaker ns",
        "ns/request",
        "ratio",
        "log ratio",
        "away %",
    ]);
    for cell in &cells {
        table.row(cell.row(&cells[0]));
    }
    println!("{table}");
    Ok(())
}

fn stress(args: &SchedulerBench, rate: f64, models: u16, devices: u16) -> anyhow::Result<SchedulerStress> {
    let (devices, batch_ms) = (usize::from(devices), 1e3 * BATCH as f64 / rate);
    let latency_ms = 0.5 * devices as f64 * batch_ms;
    // The same cost for the batch as for each request in it.
    let profile = Profile::linear(latency_ms / (2 * BATCH) as f64, latency_ms / 2.0, BATCH)?;
    // Batches fill up long before they must start.
    let slo = Nanos::from_millis_f64(2.0 * latency_ms + 4.0 * batch_ms * f64::from(models) + 10.0);
    let model = |at: u16| Model::whole(&at.to_string(), profile.clone(), slo);
    Ok(SchedulerStress {
        policy: args.policy.clone(),
        options: Options::new(),
        models: (0..models).map(model).collect(),
        devices,
        shards: usize::from(args.shards.min(models)),
        rate,
        duration: Duration::from_secs_f64(args.duration.unwrap_or(0.5)),
        warmup: Duration::from_millis(300),
    })
}

impl SweepCell {
    fn median(&self, of: impl Fn(&StressReport) -> f64) -> f64 {
        let mut values: Vec<f64> = self.reports.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    }

    fn cost_ns(&self) -> f64 {
        self.median(|report| report.shard_ns + report.matchmaker_ns)
    }

    /// Number of steps of a binary search for a model and a device.
    fn logarithm(&self) -> f64 {
        f64::from(self.models).log2() + f64::from(self.devices).log2()
    }

    fn row(&self, first: &SweepCell) -> [String; 10] {
        [
            number(f64::from(self.models)),
            number(f64::from(self.devices)),
            number(self.median(|report| report.mean_batch)),
            number(100.0 * self.median(|report| report.bad_rate)),
            number(self.median(|report| report.shard_ns)),
            number(self.median(|report| report.matchmaker_ns)),
            number(self.cost_ns()),
            number(self.cost_ns() / first.cost_ns()),
            number(self.logarithm() / first.logarithm()),
            number(100.0 * self.median(|report| report.away)),
        ]
    }

    fn record(&self, first: &SweepCell) -> serde_json::Value {
        json!({
            "models": self.models, "devices": self.devices, "mean_batch": self.median(|report| report.mean_batch),
            "bad_rate": self.median(|report| report.bad_rate),
            "shard_ns_per_request": self.median(|report| report.shard_ns),
            "matchmaker_ns_per_request": self.median(|report| report.matchmaker_ns),
            "ns_per_request": self.cost_ns(), "ratio": self.cost_ns() / first.cost_ns(),
            "log_ratio": self.logarithm() / first.logarithm(), "away": self.median(|report| report.away),
        })
    }
}
