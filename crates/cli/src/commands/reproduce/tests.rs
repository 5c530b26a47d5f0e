use super::ThisMachine;
use ripieno_reproduce::{Effort, ItemReport, JobQueue, ReproduceContext, chosen};
use std::path::PathBuf;

/// A folder of this test alone, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("ripieno-measured-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    /// Returns a context that measures real models on the built-in engine.
    fn context(&self) -> ReproduceContext {
        ReproduceContext::new(
            Effort::Tiny,
            None,
            JobQueue::new(self.0.join("cache"), 2).unwrap(),
            Box::new(ThisMachine),
        )
        .measuring(Some("cpu".to_owned()))
        .with_models(Some(self.0.join("models")), false)
    }

    /// Writes a model of one block, or of several in a chain, from the executor's tiny files.
    fn model(&self, name: &str, toml: &str, blocks: &[&str]) {
        let folder = self.0.join("models").join(name);
        std::fs::create_dir_all(folder.join("1")).unwrap();
        let files = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../executor/tests/models");
        let mut toml = format!("slo_ms = 60000\nlate = \"answer\"\nmax_batch = 4\n{toml}");
        match blocks {
            [whole] => drop(std::fs::copy(files.join(whole), folder.join("1/model.onnx")).unwrap()),
            several => {
                for file in several {
                    toml += &format!("[[block]]\nname = \"{file}\"\nfile = \"{file}\"\n");
                    std::fs::copy(files.join(file), folder.join("1").join(file)).unwrap();
                }
            }
        }
        std::fs::write(folder.join("model.toml"), toml).unwrap();
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs an item, and checks that its rows have unique names.
fn report(id: &str, folder: &Folder) -> ItemReport {
    let report = (chosen(id, false).unwrap()[0].run)(&folder.context()).unwrap();
    let names: std::collections::BTreeSet<_> = report.rows.iter().map(|row| &row.name).collect();
    assert!(!names.is_empty() && names.len() == report.rows.len(), "two rows have one name");
    report
}

/// Checks that there is a figure, not its value, which depends on the machine.
#[test]
fn dvabatch_is_measured_beside_delay_batch() {
    let folder = Folder::new("measured-dvabatch");
    let input = |kind: &str, name: &str| format!("[[{kind}]]\nname = \"{name}\"\nlength_dim = 1\n");
    let lengths = [("input", "ids"), ("input", "mask"), ("output", "tokens")].map(|(kind, name)| input(kind, name));
    folder.model("bert", &format!("max_length = 256\n{}", lengths.concat()), &["pool.onnx"]);
    for name in ["unet", "resnet"] {
        folder.model(name, "", &["mlp.onnx"]);
        folder.model(&format!("{name}-4"), "", &["mlp_first.onnx", "mlp_second.onnx"]);
    }
    let measured =
        |id: &str| report(id, &folder).rows.into_iter().filter(|row| row.measured.is_some()).collect::<Vec<_>>();
    let by_load = measured("dvabatch/figure14");
    // ZeroBatch, DelayBatch and DVABatch at three loads for three networks; then DVABatch against
    // the two.
    assert_eq!(by_load.len(), 3 * 3 * 3 + 2 * 3);
    let note = |name: &str| by_load.iter().find(|row| row.name == name).unwrap().note.clone();
    let told = note("BertBase, high load: DVABatch, no window, no stretch");
    assert!(told.contains(
        "--model bert --policy delay-batch --policy delay-batch,window_ms=20 --policy dva,buffers=1,window_ms=0 "
    ));
    assert!(told.contains("--lengths 3.986,0.557,8,256") && told.matches("--rate").count() == 3, "{told}");
    let told = note("Unet, low load: DVABatch, no window, no stretch");
    assert!(told.contains("--policy dva,buffers=1,window_ms=0,model=unet-4") && !told.contains("--lengths"), "{told}");
    assert!(
        note("no window, no stretch: less than ZeroBatch, free, low load, mean of networks")
            .ends_with("Unet, BertBase, ResNet152.")
    );
    // RTE, SST-2 and log-normal distributions; there is none for CoLA's lengths.
    let by_lengths = measured("dvabatch/figure17");
    assert!(by_lengths.iter().all(|row| row.name.starts_with("BertBase, ") && row.name.ends_with(", free")));
    assert_eq!((by_lengths.len(), by_lengths.iter().any(|row| row.name.contains("cola"))), (2 * 5, false));
}

#[test]
fn a_step_of_a_cell_is_measured() {
    let rows = report("batchmaker/figure3", &Folder::new("measured-step")).rows;
    let measured = |name: &str| rows.iter().find(|row| row.name == name).unwrap().measured;
    assert!(measured("one step, 64 rows").is_some_and(|us| us > 0.0));
    assert!(measured("throughput of 64 rows over 1").is_some_and(|gain| gain > 1.0));
    assert_eq!(measured("one step, 512 rows"), None, "a quick call measures less");
}

/// Checks the form only: on a slow machine the carried rate may be 0.
#[test]
fn the_scheduler_alone_is_measured() {
    let report = report("symphony/figure13-left", &Folder::new("scheduler"));
    assert!(report.rows.iter().any(|row| row.paper == Some(12e6)) && report.rows.iter().all(|row| row.ours >= 0.0));
}
