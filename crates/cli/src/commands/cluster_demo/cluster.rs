//! The demo's cluster: its processes, and the faults injected into them.

use super::load::ClientLoad;
use super::orders::OrderLog;
use super::processes::{DemoFolder, Etcd, Process, free, get, until};
use super::{ClusterDemoArgs, DemoFault, FaultTarget};
use anyhow::{Context, ensure};
use ripieno_workload::{SeededRng, below};
use rustix::process::Signal;
use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, SystemTime};

/// A model whose answer is its input, 2 ms a batch.
const MODEL: &str = "\
alpha_ms = 0.05
beta_ms = 2
slo_ms = 5000
max_batch = 16
late = \"answer\"

[[input]]
name = \"x\"
datatype = \"INT64\"
shape = [-1, 1]

[[output]]
name = \"x\"
datatype = \"INT64\"
shape = [-1, 1]
";

/// Largest number of backend processes; each has as many devices as needed.
const MAX_PROCESSES: u16 = 8;
/// Length of a hang.
const HANG: Duration = Duration::from_millis(500);

pub(super) struct Cluster {
    pub(super) etcd: Option<Etcd>,
    schedulers: Vec<Process>,
    backends: Vec<Process>,
    frontends: Vec<Process>,
    /// Addresses for clients.
    pub(super) http: Vec<SocketAddr>,
    pub(super) orders: OrderLog,
    devices: usize,
    interrupted: Arc<AtomicBool>,
    /// Index of the process to repair.
    victim: usize,
    // Removed at the end, after all processes.
    _folder: DemoFolder,
}

impl Cluster {
    pub(super) fn start(
        args: &ClusterDemoArgs,
        etcd: Option<&Path>,
        interrupted: Arc<AtomicBool>,
    ) -> anyhow::Result<Cluster> {
        let folder = DemoFolder::new(args.keep.as_deref())?;
        for model in 0..args.models() {
            fs::create_dir_all(folder.0.join(format!("models/echo{model}/1")))?;
            fs::write(folder.0.join(format!("models/echo{model}/model.toml")), MODEL)?;
        }
        let (of_scheduler, of_backend) = divided(args, &folder)?;
        let etcd = etcd.map(|program| Etcd::start(program, &folder.0)).transpose()?;
        let epoch = match &etcd {
            Some(etcd) => format!("etcd:{}", etcd.urls.join(",")),
            None => format!("file:{}", folder.at("epoch")),
        };
        if let Some(etcd) = &etcd {
            let answers = |url: &String| TcpStream::connect(url.trim_start_matches("http://")).is_ok();
            until("etcd listens", || Ok(etcd.urls.iter().all(answers)))?;
        }
        let listen: Vec<String> = free(args.schedulers.into())?.iter().map(SocketAddr::to_string).collect();
        let all = listen.join(",");
        let most = args.backends.max(64).to_string();
        let scheduler = |listen: &String| {
            let words = ["--listen", listen, "--metrics", "127.0.0.1:0", "--epoch", &epoch, "--schedulers", &all];
            let more: Vec<&str> = of_scheduler.iter().map(String::as_str).collect();
            let log = folder.at(&format!("scheduler-{}.log", listen.replace(':', "-")));
            Process::role(&[&["scheduler", "--max-devices", &most], &words[..], &more].concat(), log)
        };
        let schedulers = listen.iter().map(scheduler).collect::<anyhow::Result<_>>()?;
        let (mut orders, mut backends, mut left) = (OrderLog::default(), Vec::new(), args.backends);
        for at in 0..args.backends.min(MAX_PROCESSES) {
            let devices = left.div_ceil(args.backends.min(MAX_PROCESSES) - at);
            left -= devices;
            let (path, devices) = (folder.at(&format!("orders-{at}")), devices.to_string());
            let words = ["--scheduler", &all, "--epoch", &epoch, "--orders", &path];
            let device = ["--device", "emulated", "--devices", &devices];
            let models = folder.at("models");
            let words = [&["backend", &models], &words[..], &device[..], &of_backend].concat();
            backends.push(Process::role(&words, folder.at(&format!("backend-{at}.log")))?);
            orders.add(&path)?;
        }
        let ports = free(2 * usize::from(args.frontends))?;
        let (http, data) = ports.split_at(args.frontends.into());
        let frontend = |(http, data): (&SocketAddr, &SocketAddr)| {
            let (http, data) = (http.to_string(), data.to_string());
            let ports = ["--http", &http, "--grpc", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--data", &data];
            let log = folder.at(&format!("frontend-{}.log", http.replace(':', "-")));
            Process::role(&[&["frontend", "--scheduler", &all], &ports[..]].concat(), log)
        };
        let frontends = http.iter().zip(data).map(frontend).collect::<anyhow::Result<_>>()?;
        let (http, devices) = (http.to_vec(), usize::from(args.backends));
        let mut cluster = Cluster {
            etcd,
            schedulers,
            backends,
            frontends,
            http,
            orders,
            devices,
            interrupted,
            victim: 0,
            _folder: folder,
        };
        cluster.commanded(0)?;
        cluster.serves(args.models())?;
        // Processes that have not connected to a spare yet do so.
        thread::sleep(Duration::from_millis(500));
        Ok(cluster)
    }

    /// Waits until each frontend serves all models.
    fn serves(&self, models: u16) -> anyhow::Result<()> {
        let is_ready = |http: &SocketAddr, model: u16| {
            get(http, &format!("/v2/models/echo{model}/ready")).is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"))
        };
        let all = |http: &SocketAddr| (0..models).all(|model| is_ready(http, model));
        until("all models serve", || Ok(self.http.iter().all(all)))
    }

    /// Waits until all backends follow an epoch later than this, and returns the time.
    fn commanded(&mut self, over: u64) -> anyhow::Result<u128> {
        let (orders, devices, mut at) = (&mut self.orders, self.devices, None);
        let interrupted = &self.interrupted;
        until("a scheduler commands all backends", || {
            ensure!(!interrupted.load(Ordering::Relaxed), "interrupted");
            orders.read()?;
            at = orders.commanded(over, devices);
            Ok(at.is_some())
        })?;
        at.context("it has been waited for")
    }

    /// Kills or hangs a process. For a primary, returns the time until the next one commanded all
    /// backends.
    pub(super) fn inject(
        &mut self,
        fault: DemoFault,
        random: &mut SeededRng,
        load: &ClientLoad,
    ) -> anyhow::Result<Option<Duration>> {
        self.orders.read()?;
        let (epoch, holder) = self.orders.latest().context("no scheduler has commanded")?;
        let holder = holder.to_owned();
        let signal = if fault.hangs { Signal::STOP } else { Signal::KILL };
        let mut draw = |of: usize| below(random, of as u64) as usize;
        self.victim = match fault.who {
            FaultTarget::Primary => {
                let named = self.schedulers.iter().position(|scheduler| scheduler.says("process") == holder);
                named.context("the primary is none of the demo's schedulers")?
            }
            FaultTarget::Backend => draw(self.backends.len()),
            FaultTarget::Frontend => draw(self.frontends.len()),
            FaultTarget::Etcd | FaultTarget::Any => draw(3),
        };
        if fault.who == FaultTarget::Frontend && !fault.hangs {
            load.killed[self.victim].store(true, Ordering::Relaxed);
        }
        let begun = now_ns();
        self.victim(fault)?.signal(signal)?;
        if fault.who != FaultTarget::Primary || self.schedulers.len() == 1 {
            thread::sleep(HANG);
            return Ok(None);
        }
        let commanded = self.commanded(epoch)?;
        Ok(Some(Duration::from_nanos(u64::try_from(commanded.saturating_sub(begun)).unwrap_or(u64::MAX))))
    }

    /// Restarts a killed process, and resumes a hanging one.
    pub(super) fn repair(&mut self, fault: DemoFault) -> anyhow::Result<()> {
        let (epoch, _) = self.orders.latest().context("no scheduler has commanded")?;
        match fault.hangs {
            true => self.victim(fault)?.signal(Signal::CONT)?,
            false => self.victim(fault)?.restart()?,
        }
        // Without a spare all backends follow the restarted scheduler.
        let over = if fault.who == FaultTarget::Primary && self.schedulers.len() == 1 && !fault.hangs {
            epoch
        } else {
            epoch - 1
        };
        self.commanded(over).map(drop)
    }

    fn victim(&mut self, fault: DemoFault) -> anyhow::Result<&mut Process> {
        let of = match fault.who {
            FaultTarget::Primary => &mut self.schedulers,
            FaultTarget::Backend => &mut self.backends,
            FaultTarget::Frontend => &mut self.frontends,
            FaultTarget::Etcd | FaultTarget::Any => &mut self.etcd.as_mut().context("there is no etcd")?.nodes,
        };
        of.get_mut(self.victim).context("there is no such process")
    }
}

/// Returns the words by which schedulers and backends divide the models.
fn divided(args: &ClusterDemoArgs, folder: &DemoFolder) -> anyhow::Result<(Vec<String>, Vec<&'static str>)> {
    if args.sub_clusters > 1 {
        let part = |model: u16| serde_json::json!({ "models": [format!("echo{model}")], "devices": 1 });
        let parts: Vec<_> = (0..args.sub_clusters).map(part).collect();
        fs::write(folder.0.join("plan.json"), serde_json::json!({ "sub_clusters": parts }).to_string())?;
        return Ok((vec!["--plan".to_owned(), folder.at("plan.json")], vec!["--planned"]));
    }
    let shards = ["--policy", "deferred", "--shards", &args.shards.to_string()].map(str::to_owned);
    Ok((if args.shards > 1 { shards.to_vec() } else { Vec::new() }, Vec::new()))
}

/// Returns the time since 1970 in nanoseconds; all processes of the machine share the clock.
fn now_ns() -> u128 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos()
}
