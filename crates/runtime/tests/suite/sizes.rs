//! Live: requests whose inputs differ in size, on a device whose time is in proportion to it.
//! Bounds are generous: they tell a device that large requests fill from one that they do not.

use crate::common::{Client, start as start_engine};
use bytes::Bytes;
use ripieno_base::{ModelId, Nanos};
use ripieno_executor::{
    BlockSource, Device, EmulatedEngine, EmulatedOptions, Executor, LoadError, LoadedModel, MemberProgress,
    ModelSource, Sink, Task, TaskResult, Tensor,
};
use ripieno_model::{DataType, Model, Profile, TensorSpec};
use ripieno_policies::{build_served, find, served_options};
use ripieno_runtime::{Engine, EngineConfig, Job, JobResult, ServedModel};
use ripieno_sched::{Limits, Objective, Options, Setup};
use std::any::Any;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const LIMITS: Limits = Limits { requests: 256, depth: 2, batch: 8, ..Limits::ONE };
/// Time of an image of 64 by 64 pixels.
const SMALL_MS: f64 = 1.0;
const SLO: Nanos = Nanos::from_millis(40);
/// Number of requests of each kind, and the time between two of them.
const LARGE: (usize, Duration) = (50, Duration::from_millis(40));
const SMALL: (usize, Duration) = (200, Duration::from_millis(10));

/// Images of any width and height.
struct Images([TensorSpec; 1]);

impl LoadedModel for Images {
    fn inputs(&self) -> &[TensorSpec] {
        &self.0
    }
    fn outputs(&self) -> &[TensorSpec] {
        &self.0
    }
    fn blocks(&self) -> usize {
        1
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

fn images() -> Arc<dyn LoadedModel> {
    Arc::new(Images([TensorSpec { name: "x".into(), datatype: DataType::Uint8, shape: vec![-1, -1, -1] }]))
}

/// Opens a device that is busy in proportion to the pixels of a batch, and counts large images.
#[derive(Default)]
struct Pixels {
    large: Arc<AtomicUsize>,
}

impl Executor for Pixels {
    fn name(&self) -> &'static str {
        "pixels"
    }
    fn device_key(&self) -> String {
        "pixels".to_owned()
    }
    fn load(&self, _: &ModelSource) -> Result<Arc<dyn LoadedModel>, LoadError> {
        Ok(images())
    }
    fn open(&self, _: usize, sink: Sink) -> Result<Box<dyn Device>, LoadError> {
        let (tasks, received) = channel::<Task>();
        let large = Arc::clone(&self.large);
        // No message comes: a batch ends when the wait for one does.
        let (keep, silence) = channel::<()>();
        let thread = std::thread::spawn(move || {
            let _keep = keep;
            for task in received {
                let started = Instant::now();
                let inputs = task.members.iter().map(|member| member.entry.as_ref().expect("each is new").inputs());
                let pixels: Vec<usize> = inputs.map(|inputs| inputs[0].data.len()).collect();
                large.fetch_add(pixels.iter().filter(|&&pixels| pixels > 64 * 64).count(), Relaxed);
                let span = pixels.iter().sum::<usize>() as f64 / (64.0 * 64.0) * SMALL_MS;
                let _ = silence.recv_timeout(Duration::from_secs_f64(span / 1e3));
                let outcome = Ok(pixels.iter().map(|_| MemberProgress::ended(Vec::new())).collect());
                let finished = Instant::now();
                sink(TaskResult {
                    id: task.id,
                    outcome,
                    rerun: None,
                    lost: None,
                    started,
                    finished,
                    host_time: std::time::Duration::ZERO,
                    holds_next: false,
                });
            }
        });
        Ok(Box::new(PixelsDevice { tasks: Mutex::new(Some(tasks)), thread: Some(thread) }))
    }
}

struct PixelsDevice {
    tasks: Mutex<Option<Sender<Task>>>,
    thread: Option<JoinHandle<()>>,
}

impl Device for PixelsDevice {
    fn depth(&self) -> usize {
        LIMITS.depth
    }
    fn attach(&self, _: ModelId, _: Arc<dyn LoadedModel>) {}
    fn detach(&self, _: ModelId) {}
    fn submit(&self, task: Task) -> Result<(), Task> {
        self.tasks.lock().unwrap().as_ref().expect("the device is open").send(task).expect("the worker listens");
        Ok(())
    }
}

impl Drop for PixelsDevice {
    fn drop(&mut self) {
        drop(self.tasks.lock().unwrap().take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Starts a server of a model that was profiled at 256 by 256 pixels.
fn start(policy: &str, executor: &Arc<dyn Executor>) -> (Engine, ModelId) {
    let setup = Setup { models: Vec::new(), devices: 1, limits: LIMITS };
    let policy = find(policy).unwrap();
    let options = served_options(policy, Options::new(), Objective::Latency);
    let scheduler = build_served(policy.name, &setup, &options).unwrap();
    let mut config = EngineConfig::new(scheduler, setup, vec![Arc::clone(executor)]);
    config.policy = Some(policy);
    let engine = Engine::start(config).unwrap();
    let model = Model::whole("images", Profile::linear(16.0 * SMALL_MS, 0.0, 8).unwrap(), SLO);
    let served =
        ServedModel { model, loaded: images(), max_queue: Some(256), max_queued_work: None, answer_late: false };
    let id = engine.load(served).unwrap();
    (engine, id)
}

fn submit(engine: &Engine, model: ModelId, side: usize, answers: &Sender<(usize, JobResult)>) {
    let data = Bytes::from(vec![0; side * side]);
    let shape = vec![1, side as i64, side as i64];
    let inputs = vec![Tensor { name: "x".into(), datatype: DataType::Uint8, shape, data }].into();
    let answers = answers.clone();
    let on_answer = Box::new(move |answer: JobResult| drop(answers.send((side, answer))));
    let job = Job::new(model, inputs, 1, on_answer);
    engine.submit(job).unwrap();
}

#[test]
fn large_requests_that_cannot_be_in_time_are_refused_and_small_ones_kept() {
    for policy in ["deferred", "unified", "timeout"] {
        let pixels = Pixels::default();
        let large = Arc::clone(&pixels.large);
        let executor: Arc<dyn Executor> = Arc::new(pixels);
        let (engine, model) = start(policy, &executor);
        let (sender, answers) = channel();
        let began = Instant::now();
        let (mut sent_large, mut sent_small, mut answered) = (0, 0, Vec::new());
        // Images of 512 by 512 pixels take 64 ms, longer than the SLO; by the profile 16.
        while sent_small < SMALL.0 {
            let next = (LARGE.1 * sent_large as u32).min(SMALL.1 * sent_small as u32);
            while let Ok(answer) = answers.recv_timeout((began + next).saturating_duration_since(Instant::now())) {
                answered.push(answer);
            }
            if next == LARGE.1 * sent_large as u32 && sent_large < LARGE.0 {
                submit(&engine, model, 512, &sender);
                sent_large += 1;
            } else {
                submit(&engine, model, 64, &sender);
                sent_small += 1;
            }
        }
        engine.drain(Duration::from_secs(10));
        drop(sender);
        answered.extend(answers);
        let kept = answered.iter().filter(|(side, answer)| *side == 64 && answer.is_ok()).count();
        let ran = large.load(Relaxed);
        println!("{policy}: {ran} of {} large ones ran, {kept} of {} small ones answered", LARGE.0, SMALL.0);
        assert!(ran <= 12, "{policy}: {ran} large ones ran");
        assert!(kept * 10 >= SMALL.0 * 8, "{policy}: {kept} of {} small ones answered", SMALL.0);
    }
}

/// A device fills a batch up to one of the model's sizes, unless the batch has that size.
#[test]
fn rows_up_to_a_batch_size_count_as_padding() {
    let executor: Arc<dyn Executor> = Arc::new(EmulatedEngine::new(EmulatedOptions::default()));
    let profile = Profile::linear(0.1, 0.1, 8).unwrap();
    let spec = TensorSpec { name: "x".to_owned(), datatype: DataType::Uint8, shape: vec![-1, 1] };
    let block = BlockSource { profile: Some(profile.clone()), ..BlockSource::new("m") };
    let (inputs, outputs, batch_sizes) = (vec![spec.clone()], vec![spec], vec![1, 4, 8]);
    let source = ModelSource { inputs, outputs, batch_sizes, ..ModelSource::new("m", vec![block], 8) };
    let loaded = executor.load(&source).unwrap();
    let limits = Limits { requests: 8, models: 1, batch: 8, ..Limits::ONE };
    let engine = start_engine(&executor, 1, limits, 1);
    let model = Model::whole("m", profile, Nanos::from_millis(60_000));
    let served = ServedModel { model, loaded, max_queue: Some(8), max_queued_work: None, answer_late: false };
    let client = Client::new(&engine, engine.load(served).unwrap());
    for (rows, executed, padding) in [(3, 4, 1), (4, 8, 1), (1, 9, 1), (5, 17, 4)] {
        let _ticket = client.submit(0, rows, None).unwrap();
        client.next().1.unwrap();
        let seen = engine.model_metrics(client.model).unwrap();
        assert_eq!((seen.executed_rows, seen.padding_rows), (executed, padding), "{rows} rows");
    }
}
