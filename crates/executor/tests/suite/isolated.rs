//! Engines in separate processes. A crash fails only the running batch.

use crate::common::*;
use ripieno_base::{ModelId, RequestSlot, TaskId};
use ripieno_executor::*;
use ripieno_model::DataType;
use rustix::process::{Pid, Signal, kill_process};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// An argument unique to these processes: a test filter that skips nothing.
const STARTED_BY_A_KEEPER: &str = "--skip=started-by-a-keeper";

/// The program that [`isolation`] starts; not a test.
#[test]
fn engine_process() {
    if std::env::args().any(|arg| arg == STARTED_BY_A_KEEPER) {
        serve_engine().unwrap();
    }
}

pub(crate) fn isolation() -> Isolation {
    let args = ["isolated::engine_process", "--exact", "--nocapture", STARTED_BY_A_KEEPER];
    let args = args.map(str::to_owned).to_vec();
    let program = std::env::current_exe().unwrap();
    Isolation { program, args, memory_limit: None, task_limit: Isolation::TASK_LIMIT }
}

/// An engine whose models all run in processes.
pub(crate) struct Isolating(pub(crate) Box<dyn Executor>);

impl Executor for Isolating {
    fn name(&self) -> &'static str {
        self.0.name()
    }
    fn device_key(&self) -> String {
        self.0.device_key()
    }
    fn load(&self, source: &ModelSource) -> Result<Arc<dyn LoadedModel>, LoadError> {
        self.0.load(&ModelSource { isolation: Some(isolation()), ..source.clone() })
    }
    fn open(&self, lanes: usize, sink: Sink) -> Result<Box<dyn Device>, LoadError> {
        self.0.open(lanes, sink)
    }
}

/// Engines and models with an input that kills their process: an impossible allocation, a fatal
/// division.
fn killers() -> [(Box<dyn Executor>, ModelSource, i64, &'static str); 3] {
    let range = InputRange { tensor: "n".to_owned(), least: 1.0, most: 11_000.0 };
    let isolated = || Some(Isolation { memory_limit: Some(1 << 29), ..isolation() });
    let scratch = ModelSource { ranges: vec![range], isolation: isolated(), ..files(&["scratch"]) };
    let quotient = ModelSource { isolation: Some(isolation()), ..files(&["quotient"]) };
    [
        (cpu().engine, scratch, 11_000, "signal: 6"),
        (onnxruntime().engine, quotient.clone(), -1, "signal: 8"),
        (onnxruntime_bound().engine, quotient, -1, "signal: 8"),
    ]
}

fn number(slot: u32, n: i64) -> TaskMember {
    let data = n.to_le_bytes().to_vec();
    let tensor = Tensor { name: "n".into(), datatype: DataType::Int64, shape: vec![1, 1], data: data.into() };
    TaskMember::new(RequestSlot(slot), 1, entry(tensor))
}

pub(crate) fn until<T>(mut act: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        match act() {
            Some(value) => return value,
            None => assert!(begun.elapsed() < PATIENCE, "it never came"),
        }
        std::thread::yield_now();
    }
}

/// A process that reports that it has loaded its model, and then follows a shell script.
fn shell(script: &str) -> ModelSource {
    let args = vec!["-c".to_owned(), format!("printf '\\0\\0\\0\\0' >&0; {script}")];
    let task_limit = Duration::from_millis(300);
    let isolation = Isolation { program: "/bin/sh".into(), args, memory_limit: None, task_limit };
    ModelSource { isolation: Some(isolation), ..files(&["mlp"]) }
}

/// Returns the failure of a task of one member.
fn failure(result: TaskResult) -> (String, Option<Loss>) {
    (result.outcome.unwrap_err().to_string(), result.lost)
}

fn ask(stand: &Stand, model: u16, members: Vec<TaskMember>) -> TaskResult {
    stand.device.submit(Task { model: ModelId(model), ..task(0, 0, members) }).unwrap();
    stand.result()
}

#[test]
fn a_model_that_takes_its_process_down_is_back_soon() {
    for (engine, source, killer, how) in killers() {
        let stand = Stand::new(&*engine, &source);
        stand.device.attach(ModelId(1), engine.load(&files(&["mlp"])).unwrap());
        for round in 0..3 {
            until(|| ask(&stand, 0, vec![number(0, 3)]).outcome.ok());
            assert_eq!((stand.model.outage(), stand.model.restarts()), (None, Some(round)));
            let (cause, lost) = failure(ask(&stand, 0, vec![number(0, killer)]));
            assert!(lost.unwrap().inside && cause.contains("the process of the model's engine ended"), "{cause}");
            assert!(cause.contains(how), "{cause}");
            // The neighbour is not affected.
            let row = numbers(4, 7);
            let beside = ask(&stand, 1, vec![request(1, &row)]);
            assert_close(&floats(&beside.outcome.unwrap()[0].outputs[0]), &mlp(&row));
        }
        until(|| ask(&stand, 0, vec![number(0, 3)]).outcome.ok());
    }
}

#[test]
fn all_members_are_lost_with_the_batch_and_none_is_run_again() {
    for (engine, source, killer, how) in killers() {
        let stand = Stand::new(&*engine, &source);
        assert!(stand.model.batched());
        let members = (0..4).map(|slot| number(slot, if slot == 2 { killer } else { 7 })).collect();
        let result = ask(&stand, 0, members);
        assert!(result.rerun.is_none());
        let (cause, lost) = failure(result);
        assert!(lost.unwrap().inside && cause.contains(how), "{cause}");
        // A request that arrives before the process is back is not suspected.
        let next = ask(&stand, 0, vec![number(0, 3)]);
        if next.outcome.is_err() {
            let (cause, lost) = failure(next);
            assert!(!lost.unwrap().inside && cause.contains("it is being started again"), "{cause}");
        }
        until(|| ask(&stand, 0, vec![number(0, 3)]).outcome.ok());
    }
}

#[test]
fn a_process_that_says_nothing_or_nonsense_is_killed() {
    let scripts = [
        ("exec sleep 1000", "killed after 300ms without an answer"),
        ("printf '\\005\\0\\0\\0hello' >&0; exec sleep 1000", "killed for an answer that is none"),
        ("printf '\\0\\0\\0\\0' >&0; exec sleep 1000", "killed for an answer that is none: to batch 0"),
        ("printf '\\377\\377\\377\\377' >&0; exec sleep 1000", "killed for an answer that is none"),
        // The frame of an error, 26 letters long, in answer to batch 1.
        (
            "printf '\\036\\0\\0\\0\\n\\032CUDA failure 700: it broke\\030\\001' >&0; exec sleep 1000",
            "killed after a failure of its device: CUDA failure 700: it broke",
        ),
        ("exec sleep 1000 <&-", "signal: 9"),
        ("exit 3", "exit status: 3"),
    ];
    for (script, expected) in scripts {
        let engine = cpu().engine;
        let model = match engine.load(&shell(script)) {
            Ok(model) => model,
            // The process may close the connection before it receives the model.
            Err(cause) => {
                assert!(
                    !script.contains("&0") && cause.to_string().contains("ended while it loaded"),
                    "{script}: {cause}"
                );
                continue;
            }
        };
        let stand = Stand::of_model(&*engine, model, 1);
        let (cause, lost) = failure(ask(&stand, 0, vec![request(0, &numbers(4, 1))]));
        // A process that ends by itself may end before the batch arrives.
        assert!(cause.contains(expected) && lost.is_some(), "{script}: {cause}");
    }
}

#[test]
fn lanes_share_the_processes_that_are_left() {
    let folder = Folder::new();
    // The first process serves, the second one never answers, and all others end immediately.
    let program = std::env::current_exe().unwrap();
    let serve = format!("exec '{}' {}", program.display(), isolation().args.join(" "));
    let script = format!(
        "cd {}; mkdir first 2>/dev/null && {{ {serve}; }}; mkdir second 2>/dev/null && \
         {{ printf '\\0\\0\\0\\0' >&0; exec sleep 1000; }}; exit 3",
        folder.0.display()
    );
    let args = vec!["-c".to_owned(), script];
    let isolation = Isolation { program: "/bin/sh".into(), args, task_limit: Duration::from_secs(2), ..isolation() };
    let source = ModelSource { isolation: Some(isolation), ..files(&["mlp"]) };
    let stand = Stand::of_lanes(&*cpu().engine, &source, 2);
    // Once the second one is detected, both lanes use the one that is left.
    let row = numbers(4, 1);
    let answers: Vec<_> = (0..8).map(|_| stand.run(0, vec![request(0, &row)])).collect();
    let bad = answers.iter().filter(|answer| answer.is_err()).count();
    assert!(bad <= 1, "{answers:?}");
    answers.into_iter().flatten().for_each(|answer| assert_close(&floats(&answer[0].outputs[0]), &mlp(&row)));
    assert_eq!(stand.model.outage(), None);
}

#[test]
fn an_error_of_the_engine_is_no_outage() {
    let stand = Stand::new(&Isolating(cpu().engine), &files(&["gather"]));
    let spec = stand.model.inputs()[0].clone();
    let data = 1_000_000_i64.to_le_bytes().to_vec();
    let tensor =
        Tensor { name: spec.name.as_str().into(), datatype: DataType::Int64, shape: vec![1, 1], data: data.into() };
    stand.device.submit(task(0, 0, vec![TaskMember::new(RequestSlot(0), 1, entry(tensor))])).unwrap();
    let result = stand.result();
    assert!(result.outcome.is_err() && result.lost.is_none(), "{result:?}");
}

#[test]
fn what_cannot_be_loaded_or_started_says_so() {
    let engine = cpu().engine;
    let refused = |isolation: Isolation, file: &str| {
        let source = ModelSource { isolation: Some(isolation), ..files(&[file]) };
        engine.load(&source).map(|_| ()).unwrap_err().to_string()
    };
    let nowhere = Isolation { program: Path::new("/no/such/program").to_owned(), ..isolation() };
    assert!(refused(nowhere, "mlp").contains("/no/such/program cannot be started"));
    let other = Isolation { program: "/bin/true".into(), ..isolation() };
    let error = refused(other, "mlp");
    assert!(error.contains("ended while it loaded the model"), "{error}");
    let tight = Isolation { memory_limit: Some(1 << 20), ..isolation() };
    assert!(refused(tight, "mlp").contains("model 'mlp'"));
    assert!(refused(isolation(), "unknown_operator").contains("rten cannot load it"));
}

/// A temporary folder, deleted when dropped.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new() -> Folder {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("ripieno-isolated-{}-{number}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_process_goes_with_its_model_even_if_it_is_stopped() {
    for stopped in [false, true] {
        let folder = Folder::new();
        let stop = if stopped { "kill -STOP $$; " } else { "" };
        let script = format!("echo $$ >{}/pid; printf '\\0\\0\\0\\0' >&0; {stop}exec sleep 1000", folder.0.display());
        let isolation = Isolation { program: "/bin/sh".into(), args: vec!["-c".to_owned(), script], ..isolation() };
        let source = ModelSource { isolation: Some(isolation), ..files(&["mlp"]) };
        let stand = Stand::new(&*cpu().engine, &source);
        let pid = std::fs::read_to_string(folder.0.join("pid")).unwrap();
        let process = Path::new("/proc").join(pid.trim());
        assert!(process.exists());
        drop(stand);
        until(|| (!process.exists()).then_some(()));
    }
}

#[test]
fn a_model_that_is_attached_again_and_again_keeps_its_process() {
    let engine = Isolating(cpu().engine);
    let model = engine.load(&files(&["mlp"])).unwrap();
    for _ in 0..3 {
        let stand = Stand::of_model(&engine, Arc::clone(&model), 2);
        let row = numbers(4, 1);
        assert_close(&floats(&stand.ask(fp32("x", &[1, 4], &row)).unwrap()[0]), &mlp(&row));
    }
    assert_eq!((model.outage(), model.restarts()), (None, Some(0)));
}

#[test]
fn large_batches_keep_their_answers_while_others_run() {
    for fixture in [isolated_cpu(), isolated_onnxruntime_of_two_lanes()] {
        let stand = fixture.stand(&fixture.any_width);
        // The first is too small for shared memory, and the memory grows with the others.
        let widths = [10, 20_000, 600_000, 50_000, 900_000, 20_000];
        let rows: Vec<Vec<f32>> = (0..).zip(widths).map(|(seed, width)| numbers(width, seed)).collect();
        let ask = |row: &Vec<f32>| stand.run(0, vec![wide_request(0, row, row.len())]).unwrap().remove(0).outputs;
        let answers: Vec<Vec<Tensor>> = rows.iter().map(ask).collect();
        for (row, outputs) in rows.iter().zip(&answers) {
            let doubled: Vec<f32> = row.iter().map(|x| 2.0 * x).collect();
            assert!(floats(&outputs[0]) == doubled, "a row of {}", row.len());
        }
    }
}

#[test]
fn a_process_that_starts_again_runs_each_size_before_it_gets_work() {
    let folder = Folder::new();
    // The second process says that it has loaded the model, and answers three batches.
    let serve = format!("exec '{}' {}", std::env::current_exe().unwrap().display(), isolation().args.join(" "));
    let answers = "\\0\\0\\0\\0".repeat(4);
    let script = format!(
        "mkdir {}/first 2>/dev/null && {{ {serve}; }}; printf '{answers}' >&0; exec sleep 1000",
        folder.0.display()
    );
    let args = vec!["-c".to_owned(), script];
    let isolation = Isolation { program: "/bin/sh".into(), args, task_limit: Duration::from_secs(2), ..isolation() };
    let source = ModelSource { isolation: Some(isolation), ..files(&["quotient"]) };
    let stand = Stand::new(&*onnxruntime().engine, &ModelSource { batch_sizes: vec![1, 3, MAX_BATCH], ..source });
    ask(&stand, 0, vec![number(0, 3)]).outcome.unwrap();
    let (cause, _) = failure(ask(&stand, 0, vec![number(0, -1)]));
    assert!(cause.contains("signal: 8"), "{cause}");
    until(|| (stand.model.restarts() == Some(1)).then_some(()));
    // Had it not run the three sizes, one of those answers would be taken for this batch's.
    let (cause, _) = failure(ask(&stand, 0, vec![number(0, 3)]));
    assert!(cause.contains("killed after 2s without an answer"), "{cause}");
}

#[test]
fn a_model_with_sizes_is_back_after_its_process_ended() {
    for engine in [onnxruntime().engine, onnxruntime_bound().engine] {
        let source = ModelSource { isolation: Some(isolation()), ..files(&["quotient"]) };
        let stand = Stand::new(&*engine, &ModelSource { batch_sizes: vec![1, 3, MAX_BATCH], ..source });
        ask(&stand, 0, vec![number(0, 3)]).outcome.unwrap();
        let (cause, _) = failure(ask(&stand, 0, vec![number(0, -1)]));
        assert!(cause.contains("signal: 8"), "{cause}");
        until(|| ask(&stand, 0, vec![number(0, 3)]).outcome.ok());
    }
}

/// Requests of one row each, and batches of four of them.
struct WideRows(Vec<Vec<f32>>, Vec<Arc<RequestEntry>>);

impl WideRows {
    fn new(width: usize) -> WideRows {
        let rows: Vec<Vec<f32>> = (0..6).map(|seed| numbers(width, seed)).collect();
        let entries = rows.iter().map(|row| wide_request(0, row, width).entry.unwrap()).collect();
        WideRows(rows, entries)
    }

    /// Returns the number of the row that a member of a task has.
    fn row(&self, task: usize, member: usize) -> usize {
        (task + member * member) % self.0.len()
    }

    fn task(&self, number: usize) -> Task {
        let member =
            |at: usize| TaskMember::new(RequestSlot(at as u32), 1, Some(Arc::clone(&self.1[self.row(number, at)])));
        Task { id: TaskId(number as u32), ..task(0, 0, (0..4).map(member).collect()) }
    }

    /// Runs tasks on a lane that holds two all the time. Returns how many were lost.
    fn run(&self, stand: &Stand, tasks: usize, after_submit: impl Fn(usize)) -> usize {
        let mut lost = 0;
        stand.device.submit(self.task(0)).unwrap();
        for next in 1..=tasks {
            if next < tasks {
                stand.device.submit(self.task(next)).unwrap();
            }
            after_submit(next);
            let TaskResult { id, outcome, lost: loss, .. } = stand.result();
            assert_eq!(id, TaskId(next as u32 - 1));
            let Ok(progress) = outcome else {
                assert!(loss.is_some(), "{outcome:?}");
                lost += 1;
                continue;
            };
            for (at, one) in progress.iter().enumerate() {
                let row = &self.0[self.row(next - 1, at)];
                assert!(floats(&one.outputs[0]).iter().zip(row).all(|(answer, x)| *answer == 2.0 * x), "task {next}");
            }
        }
        lost
    }
}

/// Batches of some megabytes take long to gather. So the next one is gathered and sent to the
/// process while one runs, and the answers of the one before are fetched.
#[test]
fn batches_that_were_sent_ahead_are_answered_as_any_others() {
    for fixture in [isolated_cpu(), isolated_onnxruntime_of_two_lanes()] {
        let stand = fixture.stand(&fixture.any_width);
        for width in [300_000, 500_000, 150_000] {
            let (rows, device) = (WideRows::new(width), &stand.device);
            let before = (device.tasks_gathered_ahead(), device.tasks_answered_beside());
            until(|| {
                assert_eq!(rows.run(&stand, 10, |_| ()), 0);
                let (ahead, beside) = (device.tasks_gathered_ahead(), device.tasks_answered_beside());
                (ahead >= before.0 + 5 && beside >= before.1 + 5).then_some(())
            });
        }
    }
}

#[test]
fn a_process_that_ends_with_a_batch_sent_ahead_loses_no_other() {
    let folder = Folder::new();
    let serve = format!("exec '{}' {}", std::env::current_exe().unwrap().display(), isolation().args.join(" "));
    let args = vec!["-c".to_owned(), format!("echo $$ >>{}/pids; {serve}", folder.0.display())];
    let isolation = Isolation { program: "/bin/sh".into(), args, ..isolation() };
    let fixture = cpu();
    let source = ModelSource { isolation: Some(isolation), ..fixture.any_width.clone() };
    let stand = fixture.stand(&source);
    let kill = |next: usize| {
        if next < 50 && next.is_multiple_of(10) {
            let pids = std::fs::read_to_string(folder.0.join("pids")).unwrap();
            let last = pids.lines().last().unwrap().parse().unwrap();
            kill_process(Pid::from_raw(last).unwrap(), Signal::KILL).unwrap();
            until(|| (stand.model.restarts() == Some(next as u64 / 10)).then_some(()));
        }
    };
    let lost = WideRows::new(400_000).run(&stand, 50, kill);
    // Each of four kills may cost the batch that runs and the one behind it, for want of a process.
    assert!(lost <= 8, "{lost} lost");
}
