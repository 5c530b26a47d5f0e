//! A backend that immediately does what the model's name says.

use parking_lot::Mutex;
use ripieno_base::{DeviceId, ModelId, Nanos};
use ripieno_executor::Tensor;
use ripieno_model::{DataType, TensorSpec};
use ripieno_repository::registry::{IndexRow, ModelRegistry, ModelState, Repository, ServedEntry, Upload};
use ripieno_repository::slo::{Slo, SloOrigin};
use ripieno_runtime::{
    DeviceRefused, DeviceSnapshot, EngineProcesses, Failure, Job, JobOutput, JobResult, ModelSnapshot,
    SchedulerSnapshot, SlowLink, StreamedStep,
};
use ripieno_server::{Backend, DeviceChange, Withdraw};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;

/// Handles a job.
type Act = fn(Job, &Scripted) -> Result<(), Failure>;

/// The models' behaviours; a model's id is its position. In addition, there is one identity model
/// per datatype.
pub(crate) const MODELS: [(&str, Act); 21] = [
    ("simple", |job, _| answer(job, echo)),
    ("two", |job, _| answer(job, echo)),
    ("expired", |job, _| answer(job, |_| Err(Failure::Expired))),
    ("failing", |job, _| answer(job, |_| Err(Failure::Failed("device on fire".into())))),
    ("unloaded", |job, _| answer(job, |_| Err(Failure::Unloaded))),
    ("cancelled", |job, _| answer(job, |_| Err(Failure::Cancelled))),
    ("full", |_, _| Err(Failure::QueueFull { bound: 7, retry_after: Duration::from_millis(1200) })),
    ("leaving", |_, _| Err(Failure::ShuttingDown)),
    ("down", |_, _| {
        let (cause, retry_after) = ("its process ended: signal: 6".to_owned(), Duration::from_millis(2500));
        Err(Failure::Outage { cause, retry_after })
    }),
    ("stuck", |job, scripted| {
        scripted.stuck.lock().push(job);
        let _ = scripted.events.try_send(Event::Submitted);
        Ok(())
    }),
    ("timed", |job, scripted| {
        let _ = scripted.events.try_send(Event::Timeout(job.stage.or(job.timeout)));
        answer(job, echo)
    }),
    ("counting", |mut job, _| {
        step(&mut job, 3);
        answer(job, |_| Ok(answered(vec![tensor("y", &[1, 3], &[0.0, 1.0, 2.0]), tensor("z", &[1, 1], &[9.0])])))
    }),
    ("broken-off", |mut job, _| {
        step(&mut job, 0);
        answer(job, |_| Err(Failure::Expired))
    }),
    ("flooding", |mut job, scripted| {
        step(&mut job, 100_000);
        scripted.stuck.lock().push(job);
        Ok(())
    }),
    ("bursting", |mut job, _| {
        step(&mut job, 4_000);
        answer(job, |_| Ok(answered(Vec::new())))
    }),
    ("large-steps", |mut job, _| {
        let Some(on_step) = &mut job.on_step else { return answer(job, echo) };
        let y = tensor("y", &[1, 16_384], &[0.0; 16_384]);
        (1..=LARGE_STEPS).for_each(|at| on_step(StreamedStep { outputs: vec![y.clone()], last: at == LARGE_STEPS }));
        answer(job, |_| Ok(answered(Vec::new())))
    }),
    ("picky", |_, _| Err(Failure::Invalid("two roots".into()))),
    ("crowded", |_, _| Err(Failure::NodesFull { held: 3, bound: 4, retry_after: Duration::from_millis(1200) })),
    ("too-long", |job, _| answer(job, |_| Err(Failure::TooLong { needed: Duration::from_micros(5_300_200) }))),
    ("distant", |_, _| Err(Failure::SlowLink { link: SlowLink::Messages, takes: Duration::from_micros(95_700) })),
    ("queued", |job, _| answer(job, |_| Err(Failure::Expired))),
];

/// Steps of 64 KiB that the model `large-steps` sends.
pub(crate) const LARGE_STEPS: usize = 200;

/// Sends steps if they are requested, the last one marked; endless models send two.
fn step(job: &mut Job, steps: usize) {
    let Some(on_step) = &mut job.on_step else { return };
    for at in 0..steps.max(2) {
        on_step(StreamedStep { outputs: vec![tensor("y", &[1, 1], &[at as f32])], last: at + 1 == steps });
    }
}

fn tensor(name: &str, shape: &[i64], values: &[f32]) -> Tensor {
    let data: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    Tensor { name: name.into(), datatype: DataType::Fp32, shape: shape.to_vec(), data: data.into() }
}

fn answered(outputs: Vec<Tensor>) -> JobOutput {
    JobOutput { outputs, queued: Nanos(1), executed: Nanos(1), batch: 1, late: false }
}

#[derive(Debug, PartialEq)]
pub(crate) enum Event {
    Submitted,
    Withdrawn,
    Timeout(Option<Duration>),
}

pub(crate) struct Scripted {
    pub(crate) stuck: Mutex<Vec<Job>>,
    /// Whether this backend is the primary scheduler.
    pub(crate) primary: AtomicBool,
    events: mpsc::Sender<Event>,
}

impl Scripted {
    pub(crate) fn new() -> (Arc<Scripted>, mpsc::Receiver<Event>) {
        let (events, receive) = mpsc::channel(64);
        (Arc::new(Scripted { stuck: Mutex::default(), primary: AtomicBool::new(true), events }), receive)
    }
}

/// Answers a job.
pub(crate) fn answer(job: Job, with: fn(&[Tensor]) -> JobResult) -> Result<(), Failure> {
    let Job { inputs, on_step, on_answer, .. } = job;
    drop(on_step);
    on_answer(with(&inputs));
    Ok(())
}

/// Returns the inputs as outputs, "x" as "y".
pub(crate) fn echo(inputs: &[Tensor]) -> JobResult {
    let output = |input: &Tensor| Tensor { name: Arc::from(input.name.replace('x', "y")), ..input.clone() };
    let outputs = inputs.iter().map(output).collect();
    Ok(answered(outputs))
}

impl Backend for Scripted {
    fn submit(&self, job: Job) -> Result<Withdraw, Failure> {
        match MODELS.get(job.model.index()) {
            Some((_, act)) => act(job, self)?,
            None => answer(job, echo)?,
        }
        let events = self.events.clone();
        Ok(Box::new(move || drop(events.try_send(Event::Withdrawn))))
    }

    fn model(&self, _: ModelId) -> Option<ModelSnapshot> {
        None
    }

    /// The engine process of a model with this name is down.
    fn processes(&self, id: ModelId) -> Option<EngineProcesses> {
        let (name, _) = MODELS.get(id.index())?;
        (*name == "down").then_some(EngineProcesses { up: false, restarts: 7 })
    }

    fn devices(&self) -> Vec<DeviceSnapshot> {
        vec![DeviceSnapshot::default()]
    }

    fn is_primary(&self) -> bool {
        self.primary.load(Ordering::Relaxed)
    }

    fn change_devices(&self, _: DeviceChange) -> Result<DeviceId, DeviceRefused> {
        Err(DeviceRefused::Stopped)
    }

    fn scheduler(&self) -> SchedulerSnapshot {
        SchedulerSnapshot::default()
    }
}

fn spec(name: &str, datatype: DataType, shape: &[i64]) -> TensorSpec {
    TensorSpec { name: name.into(), datatype, shape: shape.to_vec() }
}

/// Makes a model ready.
pub(crate) fn serve(
    registry: &ModelRegistry,
    name: &str,
    version: &str,
    id: u16,
    datatype: DataType,
    tensors: &[&str],
) {
    // A raw string is one element.
    let width = if name == "texts" { 1 } else { 2 };
    let specs = |of: &dyn Fn(&str) -> String| -> Vec<TensorSpec> {
        tensors.iter().map(|t| spec(&of(t), datatype, &[-1, width])).collect()
    };
    let mut outputs = specs(&|name| name.replace('x', "y"));
    outputs.extend((name == "counting").then(|| spec("z", datatype, &[-1, 1])));
    let entry = ServedEntry {
        name: name.into(),
        version: version.into(),
        id: Some(ModelId(id)),
        platform: "emulated".into(),
        inputs: specs(&|name| name.to_owned()),
        optional: vec![],
        outputs,
        batched: true,
        unbatched: None,
        max_batch: 8,
        streams: name == "counting",
        lengths: None,
        labels: Default::default(),
        text: None,
        no_text: None,
        slo: Slo { span: Nanos::from_millis(100), origin: SloOrigin::Owner, answer_late: false },
        one_row: Some(Nanos::from_millis(if name == "queued" { 50 } else { 178 })),
        ensemble: None,
        edge: Default::default(),
        stats: Default::default(),
    };
    registry.set(name, version, ModelState::Ready(Arc::new(entry)), "");
}

pub(crate) fn registry() -> Arc<ModelRegistry> {
    let registry = ModelRegistry::new();
    for (id, (name, _)) in MODELS.iter().enumerate() {
        let tensors: &[&str] = if *name == "two" { &["x0", "x1"] } else { &["x"] };
        serve(&registry, name, "1", id as u16, DataType::Fp32, tensors);
    }
    for (at, datatype) in DataType::ALL.into_iter().enumerate() {
        serve(&registry, &format!("identity_{datatype}"), "1", 100 + at as u16, datatype, &["x"]);
    }
    registry.set("broken", "1", ModelState::Unavailable, "model.onnx: not an ONNX file");
    Arc::new(registry)
}

/// Loads "simple", and "late" with an empty configuration and no file except one of three bytes;
/// other models are unknown.
pub(crate) struct Shelf(pub(crate) Arc<ModelRegistry>);

impl Repository for Shelf {
    fn load(&self, name: &str, upload: Option<&Upload>) -> Result<(), String> {
        let fits = |upload: &Upload| {
            let files: Vec<_> = upload.files.iter().map(|(path, content)| (path.as_str(), &content[..])).collect();
            upload.config.as_deref() == Some("{}") && matches!(&files[..], [] | [("1/model.onnx", [0, 0, 0])])
        };
        match (name, upload) {
            ("simple", None) => Ok(()),
            ("late", Some(upload)) if fits(upload) => {
                serve(&self.0, "late", "1", 0, DataType::Fp32, &["x"]);
                Ok(())
            }
            _ => Err(format!("failed to load '{name}': no folder of this name")),
        }
    }

    fn unload(&self, name: &str) -> Result<(), String> {
        self.0.get(name, "").map_err(|error| error.to_string())?;
        self.0.set(name, "1", ModelState::Unavailable, "unloaded");
        Ok(())
    }

    fn index(&self) -> Vec<IndexRow> {
        self.0.index()
    }
}
