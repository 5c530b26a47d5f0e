//! Models that cannot share batches, and the `batching` settings.

use super::*;
use crate::load::{Loader, Profiling};
use crate::scan::scan;
use ripieno_base::{BlockId, LaneId, RequestSlot, TaskId};
use ripieno_executor::{RequestEntry, Task, TaskMember, TaskResult, Tensor};
use ripieno_model::DataType;
use std::time::Instant;

#[test]
fn a_file_without_a_batch_is_served_one_request_at_a_time() {
    let report = |toml: &str| super::report("two_rows.onnx", toml);
    let apart = report("max_batch = 8\n");
    assert_eq!((apart.error, apart.max_batch, &*apart.inputs[0]), (None, Some(1), "x FP32 [2, 3]"));
    let why = apart.unbatched.unwrap();
    assert!(
        why.starts_with("its tensors have no dynamic first dimension, and one made for it is not right: "),
        "{why}"
    );
    assert!(why.contains("input 'x' has a fixed first dimension 2") && why.contains("dynamic_axes"), "{why}");
    assert!(apart.warnings[0].contains("m/1/model.onnx: one request at a time"), "{:?}", apart.warnings);
    let declared = "[[input]]\nname = \"x\"\ndatatype = \"FP32\"\nshape = [2, 3]\n";
    assert_eq!(report(declared).error, None);
    assert!(report(&declared.replace("[2, 3]", "[-1, 2, 3]")).error.unwrap().contains("the model has [2, 3]"));
    let cut = report("granularity = \"layers\"\n");
    assert!(cut.error.is_none() && cut.warnings.iter().any(|warning| warning.contains("is served whole")), "{cut:?}");
}

#[test]
fn the_tensor_without_a_batch_is_named() {
    let why = report("declared_scalar.onnx", "max_batch = 8\n").unbatched.unwrap();
    assert!(why.starts_with("the file declares no dynamic first dimension for 'y' []"), "{why}");
}

#[test]
fn a_batch_of_one_is_opened_where_rows_are_answered_as_before() {
    let opened = report("mlp_fixed_batch.onnx", "max_batch = 8\n");
    assert_eq!((opened.error, opened.unbatched, opened.max_batch), (None, None, Some(8)));
    assert_eq!(&*opened.inputs[0], "x FP32 [-1, 4]");
    assert!(opened.warnings[0].contains("m/1/model.onnx: its first dimension is fixed to 1"), "{:?}", opened.warnings);
    let off = report("mlp_fixed_batch.onnx", "batching = \"off\"\n");
    assert_eq!((off.error, off.max_batch, &*off.inputs[0]), (None, Some(1), "x FP32 [1, 4]"));
    let declared = "[[input]]\nname = \"x\"\ndatatype = \"FP32\"\nshape = [1, 4]\n";
    let declared = report("mlp_fixed_batch.onnx", declared);
    assert_eq!((declared.error, &*declared.inputs[0]), (None, "x FP32 [1, 4]"));
    assert!(declared.unbatched.unwrap().contains("declares the shape [1, 4] of 'x'"));
    // A sum over the batch is the same for one row, and another for several.
    let mixed = report("one_row_summed.onnx", "max_batch = 8\n");
    assert_eq!((mixed.error, mixed.max_batch, &*mixed.inputs[0]), (None, Some(1), "x FP32 [1, 3]"));
    let why = mixed.unbatched.unwrap();
    assert!(
        why.contains("one made for it is not right: rows would depend on each other (ReduceSum 'sum': it"),
        "{why}"
    );
}

#[test]
fn a_batch_that_is_not_first_is_declared() {
    let guessed = report("batch_second.onnx", "max_batch = 8\n");
    let why = guessed.unbatched.unwrap();
    assert!(why.contains("(ReduceMean 'mean': it combines the rows of the batch)"), "{why}");
    assert!(why.ends_with("declare batch_dim = 1 at [[input]] x, batch_dim = 1 at [[output]] y"), "{why}");
    let declared = "max_batch = 8\n[[input]]\nname = \"x\"\nbatch_dim = 1\n[[output]]\nname = \"y\"\nbatch_dim = 1\n";
    let right = report("batch_second.onnx", declared);
    assert_eq!((right.error, right.unbatched, right.max_batch), (None, None, Some(8)));
    assert_eq!((&*right.inputs[0], &*right.outputs[0]), ("x FP32 [-1, -1, 3]", "y FP32 [-1, -1, 4]"));
    // The mean begins with the batch, and a shape is declared as it is served.
    let timed = declared
        .replace("batch_dim = 1\n[[output]]", "batch_dim = 1\ndatatype = \"FP32\"\nshape = [-1, 5, 3]\n[[output]]");
    assert_eq!(report("batch_second.onnx", &timed).measured_at.as_deref(), Some("x [1, 5, 3]"));
    let wrong = report("batch_second.onnx", &declared.replace("name = \"y\"", "name = \"mean\""));
    assert!(wrong.error.is_some() || wrong.unbatched.is_some(), "features are no batch: {wrong:?}");
    let none = report("batch_second.onnx", &declared.replace("name = \"x\"", "name = \"w\"")).error.unwrap();
    assert!(none.contains("model.toml: batch_dim stands at 'w', which is no input or output"), "{none}");
    let far = report("batch_second.onnx", &declared.replace("batch_dim = 1\n[[output]]", "batch_dim = 3\n[[output]]"));
    assert!(far.error.unwrap().contains("batch_dim = 3: 'x' has 3 dimensions"));
}

#[test]
fn rows_that_depend_on_each_other_are_kept_apart_refused_or_trusted() {
    for file in ["softmax_of_batch.onnx", "running_sum.onnx", "centred.onnx", "turned.onnx"] {
        let apart = report(file, "max_batch = 8\n");
        assert_eq!((apart.error, apart.max_batch), (None, Some(1)), "{file}");
        assert!(apart.unbatched.unwrap().contains("its rows depend on each other"), "{file}");
        let refused = report(file, "batching = \"require\"\n").error.unwrap();
        assert!(refused.contains("m/1/model.onnx: its rows depend") && refused.contains("remove the key"), "{refused}");
    }
    let trusted = report("centred.onnx", "batching = \"trust\"\nmax_batch = 8\n");
    assert_eq!((trusted.unbatched, trusted.max_batch), (None, Some(8)));
    let good = report("mlp.onnx", "batching = \"require\"\nmax_batch = 8\n");
    assert_eq!((good.error, good.unbatched, good.max_batch), (None, None, Some(8)));
    let off = report("mlp.onnx", "batching = \"off\"\n");
    assert_eq!((off.error, off.max_batch, &*off.inputs[0], off.warnings.len()), (None, Some(1), "x FP32 [-1, 4]", 0));
    let both = report("mlp.onnx", "batching = \"off\"\nmax_batch = 8\n").error.unwrap();
    assert!(both.contains("batching = \"off\": contradicts max_batch"), "{both}");
}

#[test]
fn rows_that_cannot_be_tried_share_no_batch_until_they_are_declared() {
    const GIVEN: &str = "max_batch = 8\nlatency_ms = [1, 1, 1, 1, 1, 1, 1, 1]\nwarm_up = false\n";
    const SEVEN: &str = "[[input]]\nname = \"x\"\ndatatype = \"FP32\"\nshape = [-1, 7]\n";
    let untried = report("seven_wide.onnx", GIVEN);
    assert_eq!((untried.error, untried.max_batch), (None, Some(1)));
    let why = untried.unbatched.unwrap();
    assert!(why.starts_with("whether its rows are independent cannot be tried ("), "{why}");
    assert!(why.contains("[[input]] shape") && why.contains("batching = \"trust\""), "{why}");
    assert!(untried.warnings.iter().any(|warning| warning.contains("one request at a time")));
    let required = report("seven_wide.onnx", &format!("batching = \"require\"\n{GIVEN}")).error.unwrap();
    assert!(required.contains("cannot be tried") && required.contains("batching = \"trust\""), "{required}");
    for file in ["seven_wide.onnx", "seven_wide_centred.onnx"] {
        let trusted = report(file, &format!("batching = \"trust\"\n{GIVEN}"));
        assert_eq!((trusted.error, trusted.unbatched, trusted.max_batch), (None, None, Some(8)), "{file}");
    }
    // No row is needed to see that rows meet.
    let centred = report("seven_wide_centred.onnx", GIVEN).unbatched.unwrap();
    assert!(centred.starts_with("its rows depend on each other (ReduceMean 'mean'"), "{centred}");
    let declared = report("seven_wide.onnx", &format!("{GIVEN}{SEVEN}"));
    assert_eq!((declared.error, declared.unbatched, declared.max_batch), (None, None, Some(8)));
    let declared = report("seven_wide_centred.onnx", &format!("{GIVEN}{SEVEN}"));
    let why = declared.unbatched.unwrap();
    assert!(why.contains("its rows depend on each other (") && why.contains("batching = \"trust\""), "{why}");
}

#[test]
fn where_the_graph_does_not_tell_a_trial_with_content_decides() {
    let tried = |file: &str| report(file, "max_batch = 8\n");
    let apart = tried("unproved.onnx");
    assert_eq!((apart.error, apart.unbatched, apart.max_batch), (None, None, Some(8)));
    // All rows of the trial are answered by zeros.
    let silent = tried("unproved_silent.onnx");
    let why = silent.unbatched.unwrap();
    assert!(why.contains("(output 'y' is empty, or the same for all rows that were tried)"), "{why}");
    assert!(
        why.contains("does not follow from the graph (SequenceConstruct 'list': the analysis has no rule"),
        "{why}"
    );
    assert!(silent.warnings.iter().any(|warning| warning.contains("one request at a time")));
    // Rows between -1 and 1 agree; larger ones change how their neighbours are answered.
    let scaled = tried("unproved_scaled.onnx").unbatched.unwrap();
    assert!(scaled.starts_with("its rows depend on each other (a row is answered differently"), "{scaled}");
    assert!(scaled.contains("a number of output 'y' differs by"), "{scaled}");
}

#[test]
fn a_cell_that_mixes_rows_is_refused() {
    let cell = "walk = \"repeat\"\n[[block]]\nname = \"centred\"\n[[output]]\nname = \"y\"\nfrom = \"centred.y\"\n";
    let folder = TempRepository::new();
    folder.write("m/1/centred.onnx", onnx("centred.onnx"));
    folder.write("m/model.toml", cell);
    let error = one(inspect(folder.path(), cpu())).error.unwrap();
    assert!(error.contains("rows of cell \"centred\" depend on each other"), "{error}");
}

#[test]
fn an_emulated_model_may_be_without_batches() {
    let folder = TempRepository::new();
    let input = "[[input]]\nname = \"x\"\ndatatype = \"FP32\"\nshape = [3, 4]\n";
    folder.write("m/model.toml", format!("batching = \"off\"\nalpha_ms = 1\nbeta_ms = 4\n{input}"));
    let report = one(inspect(folder.path(), emulated()));
    assert_eq!((report.error, report.max_batch, &*report.inputs[0]), (None, Some(1), "x FP32 [3, 4]"));
}

#[test]
fn a_cell_may_calculate_with_whole_numbers_whose_range_is_declared() {
    let cell = "walk = \"repeat\"\n[[block]]\nname = \"square\"\n[[output]]\nname = \"y\"\nfrom = \"square.y\"\n";
    let declared = "[block.inputs]\nn = \"request:ids\"\n[[input]]\nname = \"ids\"\nmin = 0\nmax = 40000\n";
    let renamed = cell.replacen("[[output]]", &format!("{declared}[[output]]"), 1);
    for (text, refused) in [(cell.to_owned(), true), (renamed, false)] {
        let folder = TempRepository::new();
        folder.write("m/1/square.onnx", onnx("square.onnx"));
        folder.write("m/model.toml", text);
        let error = one(inspect(folder.path(), cpu())).error;
        assert_eq!(error.is_some(), refused, "{error:?}");
    }
}

/// An engine with a reference that reads another file of the same tensors.
struct Compared {
    own: CpuEngine,
    reference: &'static str,
}

struct Replaced(CpuEngine, &'static str);

impl Executor for Replaced {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn device_key(&self) -> String {
        self.0.device_key()
    }

    fn load(&self, source: &ModelSource) -> Result<Arc<dyn LoadedModel>, LoadError> {
        let mut source = source.clone();
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../executor/tests/models").join(self.1);
        source.blocks[0].path = Some(file);
        self.0.load(&source)
    }

    fn open(&self, lanes: usize, sink: Sink) -> Result<Box<dyn Device>, LoadError> {
        self.0.open(lanes, sink)
    }
}

impl Executor for Compared {
    fn name(&self) -> &'static str {
        self.own.name()
    }

    fn device_key(&self) -> String {
        self.own.device_key()
    }

    fn reference(&self) -> Option<Arc<dyn Executor>> {
        Some(Arc::new(Replaced(CpuEngine::new(CpuOptions::default()), self.reference)))
    }

    fn load(&self, source: &ModelSource) -> Result<Arc<dyn LoadedModel>, LoadError> {
        self.own.load(source)
    }

    fn open(&self, lanes: usize, sink: Sink) -> Result<Box<dyn Device>, LoadError> {
        self.own.open(lanes, sink)
    }
}

#[test]
fn a_model_that_answers_otherwise_than_on_the_reference_is_refused() {
    let report = |reference, keys: &str| {
        let folder = TempRepository::new();
        folder.write("m/model.toml", keys);
        folder.write("m/1/model.onnx", onnx("identity_fp32.onnx"));
        let engine = Arc::new(Compared { own: CpuEngine::new(CpuOptions::default()), reference });
        let mut reports = inspect(folder.path(), LoadTarget { engine, ..cpu() }).unwrap();
        reports.remove(0)
    };
    let equal = report("identity_fp32.onnx", "");
    assert_eq!((equal.error, equal.warnings), (None, vec![]));
    let refused = report("centred.onnx", "").error.unwrap();
    assert!(refused.contains("answers differently on the GPU than on the CPU: output 'y' differs by"), "{refused}");
    assert!(refused.contains("gpu_tolerance in ") && refused.contains("model.toml"), "{refused}");
    assert_eq!(report("centred.onnx", "gpu_tolerance = 1.0").error, None);
    let untried = report("unknown_operator.onnx", "");
    assert!(untried.error.is_none() && untried.warnings[0].contains("were not compared"), "{untried:?}");
}

/// Runs a batch of single rows on a device of its own, which it returns.
fn run_rows(target: &LoadTarget, loaded: &Arc<dyn LoadedModel>, rows: &[[f32; 4]]) -> Box<dyn Device> {
    let (sender, results) = channel();
    let device = target.engine.open(1, Arc::new(move |result: TaskResult| drop(sender.send(result)))).unwrap();
    device.attach(ModelId(0), Arc::clone(loaded));
    let member = |(slot, row): (u32, &[f32; 4])| {
        let data = row.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>().into();
        let x = Tensor { name: "x".into(), datatype: DataType::Fp32, shape: vec![1, 4], data };
        TaskMember::new(RequestSlot(slot), 1, Some(Arc::new(RequestEntry::of([x].into()))))
    };
    let (id, model, block, lane) = (TaskId(0), ModelId(0), BlockId(0), LaneId(0));
    let members = (0..).zip(rows).map(member).collect();
    device.submit(Task { id, model, block, lane, length: 1, members, not_before: None }).unwrap();
    assert!(results.recv().unwrap().whole().is_ok());
    device
}

#[test]
fn rows_that_only_a_trial_found_independent_are_watched_while_they_are_served() {
    let prepare = |file: &str, toml: &str| {
        let folder = TempRepository::new();
        folder.write("m/1/model.onnx", onnx(file));
        folder.write("m/model.toml", toml);
        let found = scan(folder.path()).unwrap().remove(0).found.unwrap();
        Loader::new(cpu(), silent()).prepare(&found, Profiling::IfMissing).unwrap()
    };
    // A number above ten million divides the whole batch by 255, which no trial shows.
    let rows = [[1.0; 4], [2e7; 4]];
    for toml in ["max_batch = 8\n", "max_batch = 8\nbatching = \"require\"\n"] {
        let prepared = prepare("unproved_rare.onnx", toml);
        assert_eq!((prepared.unbatched, prepared.loaded.batches_stopped()), (None, None));
        let _device = run_rows(&cpu(), &prepared.loaded, &rows);
        let since = Instant::now();
        while prepared.loaded.batches_stopped().is_none() {
            assert!(since.elapsed() < Duration::from_secs(60), "the rows are not compared");
            std::thread::yield_now();
        }
    }
    // Proved and trusted models are not compared: nothing is pending on the closed device.
    for (file, toml) in [("mlp.onnx", "max_batch = 8\n"), ("unproved_rare.onnx", "batching = \"trust\"\n")] {
        let prepared = prepare(file, toml);
        drop(run_rows(&cpu(), &prepared.loaded, &rows));
        assert_eq!(prepared.loaded.rows_compared(), 0, "{file}");
    }
}
