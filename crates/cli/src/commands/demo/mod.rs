//! `ripieno demo`: shows the purpose of the server in half a minute, with nothing to install or
//! configure.
//!
//! Everything is real and over loopback HTTP: the models were trained by us and run on this
//! machine's processor, and the requests are images and texts that the training never saw. The
//! tables come from open-loop load on live servers that differ only in the policy. Only the
//! accelerators of the tables are emulated: they take as long as published measurements of a GPU,
//! or as long as configured, so that a laptop shows batching where it matters most.

mod answers;
mod assets;
mod compare;
mod lateness;
mod texts;

use crate::args::devices::DeviceArgs;
use crate::args::policy::PolicyArgs;
use crate::output::tables;
use crate::output::{self, print_json};
use crate::service::{Running, Service};
use anyhow::{Context, anyhow};
use assets::AssetsFolder;
use clap::Args;
use ripieno_report::Format;
use ripieno_repository::ModelReport;
use ripieno_repository::registry::ModelRegistry;
use ripieno_sched::{Limits, Options};
use ripieno_server::ServerConfig;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// See it work in half a minute: trained models answer real requests, and policies compete under
/// the same load.
///
/// Needs no accelerator, no network beyond loopback, and no configuration.
#[derive(Args, Debug)]
pub(crate) struct DemoArgs {
    /// Time of each policy under load, in seconds.
    #[arg(long, value_name = "S", default_value_t = 3.0)]
    seconds: f64,

    /// Output format.
    #[arg(long, default_value_t, value_name = "table|json")]
    format: Format,
}

pub(crate) fn run(args: &DemoArgs) -> anyhow::Result<()> {
    anyhow::ensure!((0.5..=600.0).contains(&args.seconds), "--seconds must be between 0.5 and 600");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start tokio")?;
    runtime.block_on(demo(args))
}

async fn demo(args: &DemoArgs) -> anyhow::Result<()> {
    let folder = AssetsFolder::unpack().context("cannot unpack the demo models into the temporary folder")?;
    let people = args.format == Format::Table;
    let say = |text: String| if people { output::print(text) } else { Ok(()) };
    say("Six models that we trained, on this machine's processor (loading, and measuring what batches cost):\n".into())?;
    let live = Live::start_as_served(&folder.images).await?;
    say(format!("{}\n", tables::models(&live.models)))?;
    let images = answers::ask(&live).await?;
    live.stop().await?;
    say(answers::show(&images))?;
    let live = Live::start_as_served(&folder.texts).await?;
    say(format!("{}\n", tables::models(&live.models)))?;
    let texts = texts::ask(live.http).await?;
    live.stop().await?;
    say(texts::show(&texts))?;
    let whole = compare::whole(&folder.whole, args.seconds, people).await?;
    say(compare::show(&whole))?;
    let cells = compare::cells(&folder.cells, args.seconds, people).await?;
    if !people {
        let results = serde_json::json!({ "answers": images, "texts": texts, "comparison": whole, "cells": cells });
        return print_json(&results);
    }
    output::print(compare::show(&cells))?;
    output::print(next_steps(Path::new(".")))
}

/// Returns the commands to try next: with the models and scenarios of the checkout where `folder`
/// is one.
fn next_steps(folder: &Path) -> String {
    if !folder.join(SERVED).is_dir() || !folder.join(SIMULATED).is_file() {
        return "next: ripieno serve MODEL.onnx   (a model of yours)".to_owned();
    }
    format!(
        "next: ripieno serve {SERVED}   (or a MODEL.onnx of yours)\n      ripieno simulate {SIMULATED}   (the same code, \
         8 GPUs, virtual time)"
    )
}

/// A repository and a scenario of the checkout.
const SERVED: &str = "models/repository";
const SIMULATED: &str = "scenarios/symphony/table2-resnet50.toml";

/// Approximate time for the measurement of one model: the demo has half a minute for everything.
const MEASURE_FOR: Duration = Duration::from_millis(1200);

/// A server of the demo, on free ports.
struct Live {
    http: SocketAddr,
    engine: ripieno_runtime::Engine,
    models: Vec<ModelReport>,
    registry: Arc<ModelRegistry>,
    stop: oneshot::Sender<()>,
    served: JoinHandle<bool>,
}

impl Live {
    /// Starts a server with the policy of `serve`.
    async fn start_as_served(repository: &Path) -> anyhow::Result<Live> {
        let (policy, options) = PolicyArgs::default().served(None)?;
        Live::start(repository, DeviceArgs::default(), &policy, options).await
    }

    async fn start(repository: &Path, devices: DeviceArgs, policy: &str, options: Options) -> anyhow::Result<Live> {
        let any = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
        let config = ServerConfig { http: any, grpc: None, metrics: None, ..ServerConfig::default() };
        let service = Service {
            repository: repository.to_owned(),
            devices,
            policy: policy.to_owned(),
            options,
            shards: 1,
            max_live: Limits::SERVED_REQUESTS,
            max_devices: None,
            record: None,
            flight: None,
            measure_for: Some(MEASURE_FOR),
            slo: None,
            control: Default::default(),
            allow_symlinks: false,
            config,
        };
        let Running { engine, repository, registry, server, addresses, .. } =
            service.start(&[Handle::current()]).await?;
        let models = tokio::task::spawn_blocking(move || repository.load_all()).await?.map_err(anyhow::Error::msg)?;
        if let Some(error) = models.iter().find_map(|model| model.error.as_ref()) {
            return Err(anyhow!("{error}"));
        }
        let (stop, stopped) = oneshot::channel();
        let served = tokio::spawn(server.run(async {
            let _ = stopped.await;
        }));
        let http = addresses.http.context("the server has no HTTP address")?;
        Ok(Live { http, engine, models, registry, stop, served })
    }

    /// Returns the number of requests that a model of several blocks has answered before the last
    /// one.
    fn early_exits(&self, model: &str) -> anyhow::Result<Option<u64>> {
        let entry = self.registry.get(model, "").map_err(|error| anyhow!("{error}"))?;
        let blocks = self.models.iter().find(|report| report.name == model).map_or(0, |report| report.blocks.len());
        let metrics = entry.id.and_then(|id| self.engine.model_metrics(id)).context("the demo's model is loaded")?;
        Ok((blocks > 1).then_some(metrics.early_exits))
    }

    async fn stop(self) -> anyhow::Result<()> {
        let _ = self.stop.send(());
        self.served.await?;
        let engine = self.engine;
        tokio::task::spawn_blocking(move || engine.drain(Duration::from_secs(5))).await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_steps_can_be_taken_where_the_demo_ran() {
        let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        assert!(next_steps(&checkout).contains("serve models/repository"));
        assert!(!next_steps(&checkout.join("crates")).contains("models/repository"));
    }
}
