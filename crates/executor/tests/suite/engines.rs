//! Properties of single engines: datatypes, load errors, and emulated time.

use crate::common::*;
use bytes::Bytes;
use ripieno_base::{ModelId, Nanos, TaskId};
use ripieno_executor::*;
use ripieno_model::{DataType, Profile, TensorSpec};
use std::path::Path;

fn strings(elements: &[&[u8]]) -> Bytes {
    let parts = elements.iter().flat_map(|element| [&(element.len() as u32).to_le_bytes()[..], element].concat());
    parts.collect::<Vec<u8>>().into()
}

/// Returns six elements that a wrong conversion would change.
fn sample(datatype: DataType) -> Bytes {
    match datatype {
        DataType::Bool => Bytes::from_static(&[1, 0, 0, 1, 1, 0]),
        DataType::Int64 => [1i64, -2, 0, 1 << 30, -(1 << 31), 77].iter().flat_map(|id| id.to_le_bytes()).collect(),
        DataType::Bytes => strings(&[b"a", b"", "d\u{e8}j\u{e0}".as_bytes(), b"bc", b"x", b"yz"]),
        DataType::Fp32 => numbers(6, 5).iter().flat_map(|number| number.to_le_bytes()).collect(),
        other => (0..6 * other.size().unwrap_or(0)).map(|at| (at * 37 % 120) as u8).collect(),
    }
}

fn check_identity(engine: &dyn Executor, datatype: DataType) {
    let stand = Stand::new(engine, &files(&[&format!("identity_{}", datatype.name().to_lowercase())]));
    assert_eq!(stand.model.inputs()[0].datatype, datatype);
    let tensor = Tensor { name: "x".into(), datatype, shape: vec![2, 3], data: sample(datatype) };
    let output = stand.ask(tensor.clone()).unwrap().remove(0);
    assert_eq!(output, Tensor { name: "y".into(), ..tensor }, "{datatype}");
}

#[test]
fn cpu_carries_its_datatypes_and_names_the_others() {
    let engine = cpu().engine;
    use DataType::{Bool, Fp32, Int8, Int32, Int64, Uint8};
    for datatype in DataType::ALL {
        if [Bool, Fp32, Int8, Int32, Int64, Uint8].contains(&datatype) {
            check_identity(&*engine, datatype);
            continue;
        }
        let file = format!("identity_{}", datatype.name().to_lowercase());
        let error = load_error(&*engine, &files(&[&file]));
        let expected = format!(
            "input 'x' of {} is {datatype}, which engine 'cpu' cannot carry: use --engine onnxruntime",
            model_path(&file).display()
        );
        assert_eq!(error, expected);
    }
}

#[test]
fn onnxruntime_carries_every_datatype() {
    let engine = onnxruntime_engine();
    for datatype in DataType::ALL {
        check_identity(&engine, datatype);
    }
}

#[test]
fn strings_from_several_requests_share_a_batch() {
    let stand = Stand::new(&onnxruntime_engine(), &files(&["identity_bytes"]));
    let texts: [&[&[u8]]; 2] = [&[b"one", b"", b"three"], &[b"4", b"5", b"6", b"7", b"8", b"nine"]];
    let member = |(slot, texts): (usize, &&[&[u8]])| {
        let rows = texts.len() / 3;
        let shape = vec![rows as i64, 3];
        let tensor = Tensor { name: "x".into(), datatype: DataType::Bytes, shape, data: strings(texts) };
        TaskMember { rows, entry: entry(tensor), ..request(slot as u32, &[]) }
    };
    let answers = stand.run(0, texts.iter().enumerate().map(member).collect()).unwrap();
    for (texts, answer) in texts.iter().zip(answers) {
        assert_eq!(answer.outputs[0].data, strings(texts));
    }
}

#[test]
fn what_onnxruntime_cannot_carry_is_named() {
    let engine = onnxruntime_engine();
    let ask = |datatype: DataType, data: Bytes| {
        let stand = Stand::new(&engine, &files(&[&format!("identity_{}", datatype.name().to_lowercase())]));
        stand.ask(Tensor { name: "x".into(), datatype, shape: vec![1, 3], data }).unwrap_err().0
    };
    let text = ask(DataType::Bytes, strings(&[b"a", b"\xff\xfe", b"c"]));
    assert_eq!(
        text,
        "input 'x': BYTES element 1 of the batch is not UTF-8 text without zero bytes, as ONNX strings must be"
    );
    assert_eq!(ask(DataType::Bool, Bytes::from_static(&[0, 1, 2])), "input 'x': a BOOL element is neither 0 nor 1");
}

#[test]
fn ids_address_rows_and_a_wrong_one_fails_alone() {
    for engine in [cpu().engine, onnxruntime().engine, onnxruntime_bound().engine] {
        let stand = Stand::new(&*engine, &files(&["gather"]));
        let ids = |ids: [i64; 2]| {
            let data = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
            Tensor { name: "ids".into(), datatype: DataType::Int64, shape: vec![1, 2], data }
        };
        let answer = stand.ask(ids([3, 9])).unwrap();
        assert_eq!((floats(&answer[0]), &answer[0].shape[..]), (vec![3.0, -3.0, 9.0, -9.0], &[1, 2, 2][..]));
        assert!(!stand.ask(ids([3, 10])).unwrap_err().0.is_empty());
        if engine.name() == "cpu" {
            assert!(stand.ask(ids([3, 1 << 40])).unwrap_err().0.contains("use --engine onnxruntime"));
        }
        stand.ask(ids([0, 1])).unwrap();
    }
}

fn load_error(engine: &dyn Executor, source: &ModelSource) -> String {
    engine.load(source).err().expect("it must not load").to_string()
}

#[test]
fn every_mistake_in_a_file_gives_one_clear_error() {
    let missing = |file: &str| format!("cannot read {}", model_path(file).display());
    for engine in [cpu().engine, onnxruntime().engine, onnxruntime_bound().engine] {
        let cases = [
            ("no_such_file", missing("no_such_file"), "put the model's ONNX file there"),
            ("unknown_operator", model_path("unknown_operator").display().to_string(), "Ripieno"),
        ];
        for (file, begin, cause) in cases {
            let error = load_error(&*engine, &files(&[file]));
            assert!(error.starts_with(&begin) && error.contains(cause), "{error}");
        }
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
        let mut source = files(&["mlp"]);
        source.blocks[0].path = Some(path);
        assert!(load_error(&*engine, &source).ends_with(": not an ONNX model: export the model to ONNX anew"));
        source.blocks[0].path = None;
        assert!(load_error(&*engine, &source).contains("has no ONNX file"));
        let crossed = load_error(&*engine, &files(&["mlp", "handed_through", "det"]));
        assert!(crossed.contains("declares 'x' as FP32 [-1, 2, 2], but block 'handed_through' ("), "{crossed}");
    }
}

#[test]
fn an_operator_that_only_onnxruntime_has_points_there() {
    let error = load_error(&*cpu().engine, &files(&["det"]));
    assert!(error.contains("Det") && error.contains("use --engine onnxruntime"), "{error}");
    let stand = Stand::new(&onnxruntime_engine(), &files(&["det"]));
    let answer = stand.ask(fp32("x", &[1, 2, 2], &[1.0, 2.0, 3.0, 4.0])).unwrap();
    assert_close(&floats(&answer[0]), &[-2.0]);
}

#[test]
fn weights_beside_the_model_are_found_or_named() {
    for engine in [cpu().engine, onnxruntime().engine, onnxruntime_bound().engine] {
        Stand::new(&*engine, &files(&["mlp_external"])).ask(fp32("x", &[1, 4], &numbers(4, 1))).unwrap();
        let folder = std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(engine.name());
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("mlp_external.onnx");
        std::fs::copy(model_path("mlp_external"), &path).unwrap();
        let mut source = files(&["mlp_external"]);
        source.blocks[0].path = Some(path);
        let error = load_error(&*engine, &source);
        assert!(
            error.contains("the weights file 'mlp_external.onnx.data' of") && error.contains("is missing"),
            "{error}"
        );
    }
}

#[test]
fn weights_among_the_inputs_are_not_asked_of_clients() {
    for engine in [cpu().engine, onnxruntime().engine, onnxruntime_bound().engine] {
        let model = engine.load(&files(&["weights_among_inputs"])).unwrap();
        assert_eq!(model.inputs().iter().map(|spec| &*spec.name).collect::<Vec<_>>(), ["x"]);
    }
}

#[test]
fn a_scaled_product_keeps_its_factors() {
    let x = numbers(8, 2);
    let [cpu, onnxruntime] = [cpu().engine, onnxruntime().engine].map(|engine| {
        let stand = Stand::new(&*engine, &files(&["scaled"]));
        floats(&stand.ask(fp32("x", &[2, 4], &x)).unwrap()[0])
    });
    assert_close(&cpu, &onnxruntime);
}

/// The output may be in the very buffer that the next batch is gathered into.
#[test]
fn an_output_that_is_an_input_outlives_its_batch() {
    for engine in [cpu().engine, onnxruntime().engine, onnxruntime_bound().engine] {
        let stand = Stand::new(&*engine, &files(&["handed_through"]));
        let batch = |seed: usize| [0, 1].map(|at| wide_request(at as u32, &numbers(3, seed + at), 3)).to_vec();
        let first = stand.run(0, batch(1)).unwrap();
        stand.run(0, batch(5)).unwrap();
        for (at, progress) in first.iter().enumerate() {
            let x = numbers(3, 1 + at);
            assert_eq!((&*progress.outputs[0].name, floats(&progress.outputs[0])), ("x", x.clone()));
            assert_eq!(floats(&progress.outputs[1]), x.iter().map(|x| 2.0 * x).collect::<Vec<_>>());
        }
    }
}

#[test]
fn an_output_that_mixes_the_batch_makes_each_request_run_alone() {
    for engine in [cpu().engine, onnxruntime().engine, onnxruntime_bound().engine] {
        let stand = Stand::new(&*engine, &files(&["sum_of_all"]));
        let x = numbers(6, 1);
        let answers = stand.run(0, vec![wide_request(0, &x, 3), wide_request(1, &x[..3], 3)]).unwrap();
        for (answer, x) in answers.iter().zip([&x[..], &x[..3]]) {
            assert_eq!(answer.outputs[0].shape, [1, 1]);
            assert_close(&floats(&answer.outputs[0]), &[x.iter().sum()]);
        }
        assert!(stand.model.batches_stopped().unwrap().contains("has 1 rows for a batch of 3"));
    }
}

#[test]
fn a_model_stays_with_its_engine() {
    let (cpu, emulated) = (cpu(), emulated());
    let stand = Stand::new(&*cpu.engine, &cpu.whole);
    stand.device.attach(ModelId(0), emulated.engine.load(&emulated.whole).unwrap());
    let error = stand.run(0, vec![request(0, &numbers(4, 1))]).unwrap_err();
    assert!(error.0.contains("cannot run on a device of 'cpu'"), "{error}");
}

#[test]
fn emulated_models_need_a_profile_and_a_batch() {
    let fixture = emulated();
    let mut source = fixture.whole.clone();
    source.blocks[0].profile = None;
    assert!(
        load_error(&*fixture.engine, &source)
            .contains("block 'whole' has no latency profile to emulate: give latency_ms")
    );
    source.blocks[0].profile = Some(Profile::from_table(&[Nanos::from_millis(1)]).unwrap());
    assert!(load_error(&*fixture.engine, &source).contains("ends at a batch of 1, before max_batch = 16"));
    source = ModelSource { inputs: vec![], outputs: vec![], ..fixture.whole.clone() };
    let model = fixture.engine.load(&source).unwrap();
    assert_eq!((&*model.inputs()[0].name, &*model.outputs()[0].name), ("input", "output"));
    assert_eq!((&model.inputs()[0].shape[..], model.outputs()[0].datatype), (&[-1, 1][..], DataType::Fp32));
    source.outputs = vec![TensorSpec { name: "y".to_owned(), datatype: DataType::Fp32, shape: vec![1, 2] }];
    assert!(load_error(&*fixture.engine, &source).contains("outputs in its model.toml declares 'y'"));
}

#[test]
fn emulated_outputs_without_a_like_input_are_zeros() {
    let fixture = emulated();
    let spec =
        |name: &str, datatype, shape: &[i64]| TensorSpec { name: name.to_owned(), datatype, shape: shape.to_vec() };
    let mut source = fixture.whole.clone();
    source.outputs = vec![
        spec("x", DataType::Fp32, &[-1, 4]),
        spec("label", DataType::Bytes, &[-1, 2]),
        spec("scores", DataType::Fp16, &[-1, -1, 3]),
    ];
    let stand = Stand::new(&*fixture.engine, &source);
    let x = fp32("x", &[2, 4], &numbers(8, 1));
    let outputs = stand.ask(x.clone()).unwrap();
    assert_eq!(outputs[0], x);
    assert_eq!((&outputs[1].shape[..], &outputs[1].data), (&[2, 2][..], &Bytes::from(vec![0; 4 * 4])));
    assert_eq!((&outputs[2].shape[..], &outputs[2].data[..]), (&[2, 1, 3][..], &[0; 12][..]));
}

/// Late wake-ups of single batches do not accumulate: the last of many ends on time or, on a busy
/// machine, later; never before.
#[test]
fn emulated_batches_take_at_least_their_time() {
    let fixture = emulated();
    let mut source = fixture.whole.clone();
    source.blocks[0].profile = Some(Profile::linear(1.0, 1.0, MAX_BATCH).unwrap());
    let stand = Stand::new(&*fixture.engine, &source);
    let batch = |id: u32| task(id, 0, (0..2).map(|slot| request(slot, &numbers(4, 1))).collect());
    let begun = std::time::Instant::now();
    let (mut submitted, mut last) = (0, None);
    while last != Some(TaskId(9)) {
        if submitted < 10 && stand.device.submit(batch(submitted)).is_ok() {
            submitted += 1;
            continue;
        }
        last = Some(stand.result().id);
    }
    assert!(begun.elapsed() >= std::time::Duration::from_millis(10 * 3));
}

/// A batch of ten minutes, stopped, delays no other task.
#[test]
fn a_running_emulated_batch_is_stopped_immediately() {
    let fixture = emulated();
    let mut source = fixture.whole.clone();
    source.blocks[0].profile = Some(Profile::from_table(&[Nanos::from_millis(600_000); MAX_BATCH]).unwrap());
    let stand = Stand::new(&*fixture.engine, &source);
    stand.device.attach(ModelId(1), fixture.engine.load(&fixture.whole).unwrap());
    let batch = |id: u32| task(id, 0, vec![request(0, &numbers(4, 1))]);
    stand.device.submit(batch(0)).unwrap();
    stand.device.submit(batch(1)).unwrap();
    for id in [0, 1] {
        stand.device.cancel(TaskId(id));
        let result = stand.result();
        assert_eq!(result.id, TaskId(id));
        assert_eq!(result.outcome.unwrap_err().to_string(), "the task was cancelled");
    }
    stand.device.submit(Task { model: ModelId(1), ..batch(2) }).unwrap();
    assert_eq!(stand.result().outcome.unwrap().len(), 1);
}

#[test]
fn a_device_of_either_engine_runs_models_of_both() {
    let fixture = either();
    let built_in = CpuEngine::new(CpuOptions::default()).load(&fixture.whole).unwrap();
    let stand = Stand::new(&*fixture.engine, &fixture.whole);
    stand.device.attach(ModelId(1), built_in);
    for (id, row) in [(0, numbers(4, 1)), (1, numbers(4, 2))] {
        let task = Task { model: ModelId(id), ..task(u32::from(id), 0, vec![request(0, &row)]) };
        stand.device.submit(task).unwrap();
        let progress = stand.result().outcome.unwrap().remove(0);
        assert_close(&floats(&progress.outputs[0]), &(fixture.answer)(&row));
    }
    // The library carries 16-bit integers, the built-in engine does not.
    let narrow = files(&["identity_int16"]);
    assert!(fixture.engine.load(&narrow).is_ok());
    let [library, built_in] = fixture.engine.alternatives().try_into().unwrap_or_else(|_| panic!("there are two"));
    assert_eq!([library.name(), built_in.name()], ["onnxruntime", "cpu"]);
    assert!(library.load(&narrow).is_ok() && built_in.load(&narrow).is_err());
}

#[test]
fn what_a_file_may_leave_out_or_name_freely_changes_no_answer() {
    let image: Vec<f32> = numbers(16, 3);
    let mut answers = Vec::new();
    for engine in [cpu().engine, onnxruntime().engine, onnxruntime_bound().engine] {
        let whole = Stand::new(&*engine, &files(&["mlp_external"])).ask(fp32("x", &[1, 4], &numbers(4, 1))).unwrap();
        let named = Stand::new(&*engine, &files(&["mlp_bin"])).ask(fp32("x", &[1, 4], &numbers(4, 1))).unwrap();
        assert_eq!(whole, named);
        let bare = Stand::new(&*engine, &files(&["bare_windows"])).ask(fp32("x", &[1, 1, 4, 4], &image)).unwrap();
        assert_eq!(bare[0].shape, [1, 1, 2, 2]);
        answers.push(floats(&bare[0]));
    }
    assert_close(&answers[0], &answers[1]);
}
