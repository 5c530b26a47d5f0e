use super::context::{Context, Effort};
use super::item::{Item, Report, Row};
use super::queue::Queue;
use crate::devices::EngineName;
use std::path::PathBuf;

/// A folder of this test alone, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("ripieno-reproduce-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn context(&self) -> Context {
        Context::new(Effort::Tiny, None, Queue::new(self.0.join("cache"), 2).unwrap())
    }

    /// The same with real models measured on the built-in engine.
    fn measuring(&self, one_of_many: bool) -> Context {
        self.context().measuring(Some(EngineName::Cpu)).with_models(Some(self.0.join("models")), one_of_many)
    }

    /// A model of one block, or of several in a chain, from the executor's tiny files.
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

    fn kept(&self) -> usize {
        std::fs::read_dir(self.0.join("cache")).unwrap().count()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn item(id: &str) -> &'static Item {
    super::items().find(|item| item.id == id).unwrap()
}

fn check(report: &Report) {
    assert!(!report.rows.is_empty());
    let names: std::collections::BTreeSet<_> = report.rows.iter().map(|row| &row.name).collect();
    assert_eq!(names.len(), report.rows.len(), "two rows have one name");
    let svg = report.figure.svg();
    assert!(svg.starts_with("<svg ") && !svg.contains("NaN"), "{}", report.figure.title);
    assert!(!report.figure.note.is_empty() && !report.figure.panels.is_empty());
}

#[test]
fn the_worked_example_is_exact() {
    let report = (item("symphony/example").run)(&Folder::new("example").context()).unwrap();
    check(&report);
    for row in &report.rows {
        assert_eq!(row.paper.unwrap_or(row.ours), row.ours, "{}", row.name);
    }
    assert!(report.rows.iter().filter(|row| row.paper.is_some()).count() >= 15);
}

#[test]
fn the_examples_of_cellular_batching_are_exact() {
    for (id, stated) in [("batchmaker/figure5", 25), ("late-batching/figure1", 25)] {
        let report = (item(id).run)(&Folder::new("cells").context()).unwrap();
        check(&report);
        for row in &report.rows {
            assert_eq!(row.paper.unwrap_or(row.ours), row.ours, "{id}, {}", row.name);
        }
        assert_eq!(report.rows.iter().filter(|row| row.paper.is_some()).count(), stated, "{id}");
    }
}

#[test]
fn figures_of_cells_have_their_rows() {
    let folder = Folder::new("figures-of-cells");
    for id in [
        "batchmaker/figure3",
        "batchmaker/figure9",
        "batchmaker/figure10",
        "batchmaker/figure15",
        "late-batching/figure6",
    ] {
        check(&(item(id).run)(&folder.context()).unwrap());
    }
}

#[test]
fn what_lazybatching_says_of_its_examples_is_exact() {
    let folder = Folder::new("lazybatching");
    for id in ["lazybatching/figure4", "lazybatching/figure6", "lazybatching/figure8", "lazybatching/figure10"] {
        let report = (item(id).run)(&folder.context()).unwrap();
        check(&report);
        assert!(report.rows.iter().any(|row| row.paper.is_some()), "{id}");
        for row in &report.rows {
            assert_eq!(row.paper.unwrap_or(row.ours), row.ours, "{id}, {}", row.name);
        }
    }
}

#[test]
fn figures_of_lazybatching_have_their_rows() {
    let folder = Folder::new("figures-of-lazybatching");
    for id in ["lazybatching/figure3", "lazybatching/figure5", "lazybatching/figure11"] {
        check(&(item(id).run)(&folder.context()).unwrap());
    }
}

#[test]
fn what_dvabatch_says_of_its_examples_is_exact() {
    let report = (item("dvabatch/figure3").run)(&Folder::new("dvabatch").context()).unwrap();
    check(&report);
    assert_eq!(
        report.rows.iter().map(|row| row.ours).collect::<Vec<_>>(),
        [4.0, 4.0, 2.5, 4.0, 4.0, 2.875, 8.0, 8.0, 5.25]
    );
    assert!(report.rows.iter().all(|row| row.paper == Some(row.ours)));
}

#[test]
fn figures_of_dvabatch_have_their_rows() {
    let folder = Folder::new("figures-of-dvabatch");
    for id in ["figure4", "figure5", "figure6", "figure18", "figure21"] {
        check(&(item(&format!("dvabatch/{id}")).run)(&folder.context()).unwrap());
    }
}

/// However fast the machine: whether a figure is there is looked at, and not what it is.
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
    let measured = |id: &str| {
        let report = (item(id).run)(&folder.measuring(false)).unwrap();
        check(&report);
        report.rows.into_iter().filter(|row| row.measured.is_some()).collect::<Vec<_>>()
    };
    let by_load = measured("dvabatch/figure14");
    // ZeroBatch, DelayBatch and DVABatch at three loads for three networks; then DVABatch against the two.
    assert_eq!(by_load.len(), 3 * 3 * 3 + 2 * 3);
    let note = |name: &str| by_load.iter().find(|row| row.name == name).unwrap().note.clone();
    let told = note("BertBase, high load: DVABatch");
    assert!(
        told.contains("--model bert --policy delay-batch --policy delay-batch,window_ms=20 --policy dva,buffers=1 ")
    );
    assert!(told.contains("--lengths 3.986,0.557,8,256") && told.matches("--rate").count() == 3, "{told}");
    let told = note("Unet, low load: DVABatch");
    assert!(told.contains("--policy dva,buffers=1,model=unet-4") && !told.contains("--lengths"), "{told}");
    assert!(note("less than ZeroBatch, free, low load, mean of networks").ends_with("Unet, BertBase, ResNet152."));
    // RTE, SST-2 and log-normal laws, and no law is known of CoLA's lengths.
    let by_lengths = measured("dvabatch/figure17");
    assert!(by_lengths.iter().all(|row| row.name.starts_with("BertBase, ") && row.name.ends_with(", free")));
    assert_eq!((by_lengths.len(), by_lengths.iter().any(|row| row.name.contains("cola"))), (2 * 5, false));
}

#[test]
fn a_missing_model_is_named_unless_many_items_run() {
    let folder = Folder::new("missing-model");
    let error = (item("dvabatch/figure14").run)(&folder.measuring(false)).unwrap_err().to_string();
    assert!(error.contains("holds no model bert; python tests/python/dva_models.py "), "{error}");
    assert!(folder.measuring(true).models_by("", &["bert"]).unwrap().is_none());
    assert!(folder.context().models_by("", &["bert"]).unwrap().is_none());
}

#[test]
fn the_bounds_of_table_2_are_the_papers() {
    let folder = Folder::new("table2");
    let report = (item("symphony/table2").run)(&folder.context()).unwrap();
    check(&report);
    let bounds: Vec<_> = report.rows.iter().filter(|row| row.name.contains("bound")).collect();
    assert_eq!(bounds.len(), 8);
    for row in bounds {
        assert!((row.ratio().unwrap() - 1.0).abs() < 1e-3, "{row:?}");
    }
}

#[test]
fn finished_runs_are_used_again() {
    let folder = Folder::new("cache");
    let first = (item("symphony/figure6a").run)(&folder.context()).unwrap();
    check(&first);
    let kept = folder.kept();
    assert!(kept > 0);
    let again = (item("symphony/figure6a").run)(&folder.context()).unwrap();
    assert_eq!((folder.kept(), first.figure.svg()), (kept, again.figure.svg()));
}

#[test]
fn distributions_and_curves_have_their_rows() {
    let folder = Folder::new("curves");
    for id in ["symphony/figure1", "symphony/figure12", "symphony/figure2", "symphony/figure10"] {
        check(&(item(id).run)(&folder.context()).unwrap());
    }
}

/// However slow the machine: what was carried may be nothing, but the form is there.
#[test]
fn the_scheduler_alone_is_measured() {
    let report = (item("symphony/figure13-left").run)(&Folder::new("scheduler").context()).unwrap();
    check(&report);
    assert!(report.rows.iter().any(|row| row.paper == Some(12e6)) && report.rows.iter().all(|row| row.ours >= 0.0));
}

#[test]
fn ids_are_unique_and_say_their_paper() {
    let ids: std::collections::BTreeSet<_> = super::items().map(|item| item.id).collect();
    assert_eq!(ids.len(), super::items().count());
    assert!(ids.iter().all(|id| id.split_once('/').is_some()));
}

#[test]
fn a_row_prints_as_the_contract_says() {
    let row = |paper: Option<f64>| serde_json::to_value(Row::new("a", "ms", 3.0).paper(paper).note("so")).unwrap();
    let expected = serde_json::json!(
        { "name": "a", "unit": "ms", "paper": 2.0, "ours": 3.0, "ratio": 1.5, "note": "so" }
    );
    assert_eq!(row(Some(2.0)), expected);
    assert_eq!(row(None)["ratio"], serde_json::Value::Null);
    assert_eq!(serde_json::to_value(Row::new("a", "ms", f64::NAN)).unwrap()["ours"], serde_json::Value::Null);
}
