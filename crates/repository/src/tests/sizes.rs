//! Models whose batches are padded to certain sizes.

use super::*;

/// Returns the profile of a model as a table in milliseconds.
fn table(report: &ModelReport) -> Vec<f64> {
    report.profile.as_ref().unwrap().latency_ms.clone()
}

#[test]
fn a_measured_profile_has_steps_and_a_cache_entry_of_its_own() {
    let folder = TempRepository::new();
    folder.write("m/1/model.onnx", onnx("mlp.onnx"));
    folder.write("m/model.toml", "batch_sizes = [1, 3, 8]\n");
    let padded = kept_profile(folder.path(), cpu);
    assert_eq!((padded.error.as_deref(), padded.max_batch, &padded.batch_sizes[..]), (None, Some(8), &[1, 3, 8][..]));
    let steps = table(&padded);
    assert!(steps[1] == steps[2] && steps[3..].iter().all(|step| *step == steps[7]), "{steps:?}");
    let again = one(inspect(folder.path(), cpu()));
    assert_eq!((again.profile.unwrap().origin, again.warnings), ("cached", vec![]));
    folder.write("m/model.toml", "max_batch = 8\n");
    let free = one(inspect(folder.path(), cpu()));
    assert!(free.profile.is_none() && free.batch_sizes.is_empty(), "a profile with steps is not of this model");
}

#[test]
fn given_latencies_get_steps_on_every_engine() {
    let given = "batch_sizes = [2, 4]\nlatency_ms = [1, 2, 3, 4, 5]\n";
    let folder = TempRepository::new();
    folder.write("m/1/model.onnx", onnx("mlp.onnx"));
    folder.write("m/model.toml", given);
    for target in [cpu(), emulated()] {
        assert_eq!(table(&one(inspect(folder.path(), target))), [2.0, 2.0, 4.0, 4.0]);
    }
    let chain =
        "[[block]]\nname = \"a\"\nalpha_ms = 1\nbeta_ms = 4\n[[block]]\nname = \"b\"\nalpha_ms = 2\nbeta_ms = 0\n";
    folder.write("m/model.toml", format!("batch_sizes = [1, 4]\n{chain}"));
    assert_eq!(table(&one(inspect(folder.path(), emulated()))), [7.0, 16.0, 16.0, 16.0]);
}

#[test]
fn sizes_are_left_out_where_requests_share_no_batch() {
    let mixed = report("softmax_of_batch.onnx", "batch_sizes = [1, 4]\n");
    assert_eq!((mixed.error.as_deref(), mixed.max_batch), (None, Some(1)));
    assert!(mixed.batch_sizes.is_empty() && mixed.unbatched.is_some());
}

#[test]
fn a_wrong_size_names_its_key() {
    for (toml, expected) in [
        ("batch_sizes = [4, 2]", "batch_sizes = [4, 2]: must be ascending whole numbers from 1"),
        ("batch_sizes = [0, 2]", "batch_sizes = [0, 2]: must be ascending whole numbers from 1"),
        ("batch_sizes = [1, 65537]", "batch_sizes = [1, 65537]: must be ascending whole numbers from 1"),
        ("batch_sizes = 8", "batch_sizes = 8: must be a list of whole numbers"),
        ("max_batch = 6\nbatch_sizes = [1, 4]", "batch_sizes = [1, 4]: must end with max_batch = 6"),
        ("batching = \"off\"\nbatch_sizes = [1, 4]", "batch_sizes = [1, 4]: contradicts batching = \"off\""),
        ("batch_sizes = [1, 4]\nlatency_ms = [1, 2]", "batch_sizes = [1, 4]: latency_ms has 2 numbers"),
        ("batch_sizes = [1, 4]\ngranularity = \"cells\"", "batch_sizes = [1, 4]: is for whole models and chains"),
        (
            "[[block]]\nname = \"a\"\nfile = \"model.onnx\"\nbatch_sizes = [1, 4]",
            "batch_sizes = [1, 4]: holds for all blocks of a chain; write it once, above",
        ),
        (
            "batch_sizes = [1, 4]\nwalk = \"repeat\"\n[[block]]\nname = \"a\"\n[[output]]\nname = \"y\"\nfrom = \"a.y\"",
            "batch_sizes = [1, 4]: belongs into each [[block]] of a walk of cells",
        ),
    ] {
        let error = report("mlp.onnx", toml).error.unwrap();
        assert!(error.contains("m/model.toml:") && error.contains(expected), "{toml}: {error}");
    }
}

/// The built-in engine, which pads batches by default and notes the rows of each answer.
struct Padding {
    own: CpuEngine,
    rows: Arc<Mutex<Vec<i64>>>,
    /// Duration of a batch of this number of rows; `None` if it is as long as it takes.
    takes: Option<fn(i64) -> Duration>,
}

impl Executor for Padding {
    fn name(&self) -> &'static str {
        self.own.name()
    }

    fn device_key(&self) -> String {
        self.own.device_key()
    }

    fn pads_batches(&self) -> bool {
        true
    }

    fn load(&self, source: &ModelSource) -> Result<Arc<dyn LoadedModel>, LoadError> {
        self.own.load(source)
    }

    fn open(&self, lanes: usize, sink: Sink) -> Result<Box<dyn Device>, LoadError> {
        let (rows, takes) = (Arc::clone(&self.rows), self.takes);
        let noting: Sink = Arc::new(move |result| {
            let outputs = result.outcome.iter().flatten().flat_map(|member| &member.outputs);
            let ran: Vec<i64> = outputs.map(|output| output.shape[0]).collect();
            rows.lock().extend(&ran);
            let took = takes.map(|takes| takes(ran.iter().sum()));
            let finished = took.map_or(result.finished, |took| result.started + took);
            sink(TaskResult { finished, ..result });
        });
        self.own.open(lanes, noting)
    }
}

#[test]
fn sizes_midway_stay_if_they_cost_less_than_the_next() {
    let (rows, own) = (Arc::default(), CpuEngine::new(CpuOptions::default()));
    let engine = Arc::new(Padding { own, rows, takes: None });
    let load = |latency: &dyn Fn(usize) -> f64, more: &str| {
        let fixture = Fixture::new();
        fixture.folder.write("m/1/model.onnx", onnx("mlp.onnx"));
        let latencies: Vec<f64> = (1..=128).map(latency).collect();
        fixture.folder.write("m/model.toml", format!("latency_ms = {latencies:?}\n{more}"));
        let report = one(fixture.repository(LoadTarget::new(engine.clone())).load_all());
        assert_eq!(report.error, None);
        (report.batch_sizes.clone(), table(&report))
    };
    let (sizes, costs) = load(&|rows| 2.0 + rows as f64, "");
    assert_eq!(sizes[5..], [32, 48, 64, 96, 128]);
    assert_eq!((costs[32], costs[47], costs[48], costs[127]), (50.0, 50.0, 66.0, 130.0));
    // A cost in steps of the doublings.
    let (sizes, costs) = load(&|rows| rows.next_power_of_two() as f64, "");
    assert_eq!(sizes[5..], [32, 64, 128]);
    assert_eq!((costs[32], costs[47], costs[48], costs[64]), (64.0, 64.0, 64.0, 128.0));
    // One of the two is worth it, and sizes that are configured stay.
    let steps = |rows: usize| if rows <= 64 { rows.next_power_of_two() as f64 } else { rows as f64 };
    assert_eq!(load(&steps, "").0[5..], [32, 64, 96, 128]);
    assert_eq!(load(&steps, "batch_sizes = [32, 48, 128]\n").0, [32, 48, 128]);
}

#[test]
fn an_engine_may_pad_by_default_and_each_size_is_warmed() {
    let rows = Arc::<Mutex<Vec<i64>>>::default();
    let own = CpuEngine::new(CpuOptions::default());
    let engine = Arc::new(Padding { own, rows: Arc::clone(&rows), takes: None });
    let load = |toml: &str| {
        let fixture = Fixture::new();
        fixture.folder.write("m/1/model.onnx", onnx("mlp.onnx"));
        fixture.folder.write("m/model.toml", format!("latency_ms = [1, 1, 1, 1, 1, 1]\n{toml}"));
        rows.lock().clear();
        let report = one(fixture.repository(LoadTarget::new(engine.clone())).load_all());
        assert_eq!(report.error, None);
        (report.batch_sizes, std::mem::take(&mut *rows.lock()))
    };
    // Two more batches try whether rows are independent, before the warm-up.
    let (sizes, run) = load("");
    assert_eq!((sizes, &run[run.len() - 4..]), (vec![1, 2, 4, 6], &[6, 4, 2, 1][..]));
    let (sizes, run) = load("warm_up = 3\nbatch_sizes = [3, 6]\n");
    assert_eq!((sizes, &run[run.len() - 4..]), (vec![3, 6], &[6, 3, 6, 3][..]));
    let (sizes, run) = load("batch_sizes = []\n");
    assert_eq!((sizes, &run[run.len() - 2..]), (vec![], &[6, 1][..]));
}

#[test]
fn sizes_that_a_measurement_has_chosen_are_warmed_as_the_model_is_loaded_again() {
    let steps = |rows: i64| Duration::from_millis(rows.unsigned_abs().next_power_of_two());
    let even = |rows: i64| Duration::from_millis(rows.unsigned_abs());
    let load = |takes: fn(i64) -> Duration| {
        let (rows, own) = (Arc::<Mutex<Vec<i64>>>::default(), CpuEngine::new(CpuOptions::default()));
        let engine = Arc::new(Padding { own, rows: Arc::clone(&rows), takes: Some(takes) });
        let fixture = Fixture::new();
        fixture.folder.write("m/1/model.onnx", onnx("mlp.onnx"));
        fixture.folder.write("m/model.toml", "max_batch = 64\n");
        let report = one(fixture.repository(LoadTarget::new(engine)).load_all());
        assert_eq!((report.error, report.profile.unwrap().origin), (None, "measured"));
        (report.batch_sizes, std::mem::take(&mut *rows.lock()))
    };
    let (sizes, run) = load(steps);
    assert_eq!(sizes, [1, 2, 4, 8, 16, 32, 64]);
    assert_eq!(run[run.len() - 7..], [64, 32, 16, 8, 4, 2, 1], "the last that ran");
    let (sizes, run) = load(even);
    assert!(sizes.contains(&48) && run[run.len() - 8..] != [64, 48, 32, 16, 8, 4, 2, 1], "once is enough");
}
