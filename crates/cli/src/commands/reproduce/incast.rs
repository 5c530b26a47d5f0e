//! One backend that reads from several frontends at the same time, through the cluster's data
//! plane: the reads of a batch whose requests came in at different frontends.
//!
//! Scheduler and frontends are real. The backend speaks the protocol by itself, so that it can time
//! each read; it waits for a batch of all requests, and then asks for all inputs.

use super::cluster::{ServingFrontend, frontend, lock, scheduler};
use crate::commands::cluster_demo::processes::{DemoFolder, until};
use anyhow::{Context as _, ensure};
use bytes::Bytes;
use ripieno_base::Nanos;
use ripieno_cluster::plane::{
    Handshake, LinkBounds, MemberEnd, Message, MessageReader, PeerLink, Role, RunTask, RunningReport, TaskEnd, Tcp,
    Transport as _, connect_handshake,
};
use ripieno_cluster::{ModelDescription, OfferedModel, encode_offers};
use ripieno_executor::{RemoteRows, Tensor};
use ripieno_model::{DataType, DropRule, Model, Profile, TensorSpec};
use ripieno_reproduce::Incast;
use ripieno_runtime::Job;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

const CONNECT: Duration = Duration::from_secs(5);
const SLO: Nanos = Nanos::from_millis(60_000);

/// The connection to a frontend, and the number and time of each read that it has answered.
struct FrontendReads {
    link: Arc<PeerLink>,
    answered: Receiver<(u64, Instant)>,
}

/// Measures the latencies of all reads, in µs.
pub(super) fn measure(incast: Incast) -> anyhow::Result<Vec<f64>> {
    let Incast { frontends, objects, bytes, rounds } = incast;
    let folder = DemoFolder::new(None)?;
    // A batch waits until it is full.
    let (_scheduler, address) = scheduler("timeout", &["timeout_ms=30000".to_owned()], 1, &folder)?;
    let frontends: Vec<ServingFrontend> = (0..frontends).map(|_| frontend(&address)).collect::<anyhow::Result<_>>()?;
    let (measured, latencies) = channel();
    let (link, reader) = connect(&address, Role::Scheduler, LinkBounds::CONTROL)?;
    let models = offered(frontends.len() * objects, bytes)?;
    let backend = IncastBackend { link: Arc::clone(&link), data: HashMap::new(), measured };
    // While one batch runs, the next one may be on its way.
    link.send(&Message::RegisterBackend { depth: 2, models });
    let running = thread::spawn(move || backend.run(reader));
    let serves = |(frontend, known): &ServingFrontend| frontend.serving_devices() > 0 && !lock(known).is_empty();
    until("the frontends serve", || Ok(frontends.iter().all(serves)))?;
    let mut all = Vec::new();
    for _ in 0..rounds {
        let answers = submit(&frontends, objects, bytes)?;
        for _ in 0..frontends.len() * objects {
            ensure!(answers.recv().context("a request has no answer")?, "a request failed");
            all.push(latencies.recv().context("the backend has ended")?);
        }
    }
    frontends.iter().for_each(|(frontend, _)| frontend.close());
    link.close();
    // It ends with its connection, and the error says so.
    drop(running.join());
    Ok(all)
}

/// Submits a round; each answer says whether it went well.
fn submit(frontends: &[ServingFrontend], objects: usize, bytes: usize) -> anyhow::Result<Receiver<bool>> {
    let (tell, told) = channel();
    for (frontend, known) in frontends {
        let model = lock(known).first().context("no model is served")?.0;
        for _ in 0..objects {
            let data = Bytes::from(vec![7; bytes]);
            let input = Tensor { name: "x".into(), datatype: DataType::Uint8, shape: vec![1, bytes as i64], data };
            let tell: Sender<bool> = tell.clone();
            let on_answer = Box::new(move |answer: Result<_, _>| {
                // The receiver is gone if the measurement has failed.
                let _ = tell.send(answer.is_ok());
            });
            let inputs = Arc::new([input]);
            let job = Job::new(model, inputs, 1, on_answer);
            frontend.submit(job).map_err(|failure| anyhow::anyhow!(failure.to_string()))?;
        }
    }
    Ok(told)
}

fn offered(batch: usize, bytes: usize) -> anyhow::Result<Bytes> {
    let tensor = |name: &str, width: i64| {
        [TensorSpec { name: name.to_owned(), datatype: DataType::Uint8, shape: vec![-1, width] }]
    };
    let profile = Profile::linear(0.0, 1.0, batch)?;
    let model = Model { drop: Some(DropRule::Never), ..Model::whole("object", profile, SLO) };
    let description = ModelDescription::whole(model, &tensor("x", bytes as i64), &tensor("y", 1));
    Ok(encode_offers(&[OfferedModel { number: 0, superseded: false, description }]).into())
}

fn connect(address: &str, to: Role, bounds: LinkBounds) -> anyhow::Result<(Arc<PeerLink>, MessageReader)> {
    let stream = Tcp.connect(address, CONNECT)?;
    connect_handshake(&*stream, Handshake::new(Role::Backend, 0), to)?;
    let link = PeerLink::start(Arc::clone(&stream), bounds, "incast")?;
    Ok((link, MessageReader::new(stream, PeerLink::MAX_SILENCE)))
}

/// The backend, on its thread.
struct IncastBackend {
    link: Arc<PeerLink>,
    data: HashMap<u32, FrontendReads>,
    measured: Sender<f64>,
}

impl IncastBackend {
    /// Follows the scheduler until the connection ends.
    fn run(mut self, mut reader: MessageReader) -> anyhow::Result<()> {
        loop {
            match reader.read()? {
                Message::Claim { stamp, .. } => {
                    self.link.send(&Message::Report(RunningReport { stamp, revision: 1, held: Vec::new() }));
                }
                Message::AddFrontend(id, address) => self.add(id, &address)?,
                Message::RunTask(run) => self.read_all(&run)?,
                _ => {}
            }
        }
    }

    fn add(&mut self, id: u32, address: &str) -> anyhow::Result<()> {
        let (link, mut reader) = connect(address, Role::Frontend, LinkBounds::DATA)?;
        let (tell, answered) = channel();
        thread::spawn(move || {
            while let Ok(message) = reader.read() {
                if let Message::Rows { tag, inputs: Some(_) } = message
                    && tell.send((tag, Instant::now())).is_err()
                {
                    return;
                }
            }
        });
        self.data.insert(id, FrontendReads { link, answered });
        Ok(())
    }

    fn reads(&self, origin: &RemoteRows) -> anyhow::Result<&FrontendReads> {
        self.data.get(&origin.frontend).context("an unknown frontend")
    }

    /// Reads the inputs of a batch, each by a pull of its own, and reports its end.
    fn read_all(&self, run: &RunTask) -> anyhow::Result<()> {
        let origins: Vec<_> = run.members.iter().filter_map(|member| member.origin).collect();
        ensure!(origins.len() == run.members.len(), "a member without inputs");
        let mut asked = Vec::new();
        for (tag, origin) in (0..).zip(&origins) {
            let link = &self.reads(origin)?.link;
            asked.push(Instant::now());
            link.send(&Message::Pull { tag, request: origin.request, first_row: 0, rows: 1 });
        }
        for origin in &origins {
            let (tag, at) = self.reads(origin)?.answered.recv().context("a frontend has gone")?;
            let took = at.saturating_duration_since(asked[tag as usize]);
            self.measured.send(took.as_secs_f64() * 1e6)?;
        }
        let y =
            Tensor { name: "y".into(), datatype: DataType::Uint8, shape: vec![1, 1], data: Bytes::from_static(&[0]) };
        for origin in &origins {
            let outputs = Ok(vec![y.clone()]);
            self.reads(origin)?.link.send(&Message::Outputs {
                request: origin.request,
                first_row: 0,
                rows: 1,
                pulled_us: 0,
                outputs,
            });
        }
        let members = Ok(origins.iter().map(|_| MemberEnd::Ended).collect());
        let (task, took_ns) = (run.task, 1_000_000);
        self.link.send(&Message::TaskEnd(TaskEnd { took_ns, ..TaskEnd::without_run(task, members) }));
        Ok(())
    }
}
