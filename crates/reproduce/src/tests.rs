use super::item::ResultRow;
use super::{
    ClusterSetup, Effort, ExperimentItem, Incast, ItemReport, JobQueue, LiveCluster, LiveMachine, Maker, PolicyResult,
    ReproduceContext, ResultsFile, StressLoad, StressResult,
};
use std::path::{Path, PathBuf};

/// None of these tests measures; the tests of the binary, which has the live driver, do.
#[derive(Debug)]
struct NoMachine;

impl LiveMachine for NoMachine {
    fn compare(&self, _: &Path, words: &[String]) -> anyhow::Result<Vec<PolicyResult>> {
        anyhow::bail!("no test may measure {words:?}")
    }

    fn costs(&self, _: &Path, words: &[String]) -> anyhow::Result<Vec<f64>> {
        anyhow::bail!("no test may measure {words:?}")
    }

    fn stress(&self, stress: StressLoad) -> anyhow::Result<StressResult> {
        anyhow::bail!("no test may measure {stress:?}")
    }

    fn cluster(&self, setup: &ClusterSetup) -> anyhow::Result<Box<dyn LiveCluster>> {
        anyhow::bail!("no test may start {setup:?}")
    }

    fn incast(&self, incast: Incast) -> anyhow::Result<Vec<f64>> {
        anyhow::bail!("no test may measure {incast:?}")
    }
}

/// A folder of this test alone, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("ripieno-reproduce-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn context(&self) -> ReproduceContext {
        ReproduceContext::new(Effort::Tiny, None, JobQueue::new(self.0.join("cache"), 2).unwrap(), Box::new(NoMachine))
    }

    /// The same with a repository of real models, which is empty.
    fn measuring(&self, one_of_many: bool) -> ReproduceContext {
        self.context().measuring(Some("cpu".to_owned())).with_models(Some(self.0.join("models")), one_of_many)
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

fn item(id: &str) -> &'static ExperimentItem {
    super::items().find(|item| item.id == id).unwrap()
}

fn check(report: &ItemReport) {
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
    for (id, stated) in [("batchmaker/figure5", 25), ("late-batching/figure1", 26)] {
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
fn rows_that_hang_on_fitted_costs_are_marked() {
    let folder = Folder::new("fitted");
    let rows = |id: &str| (item(id).run)(&folder.context()).unwrap().rows;
    assert!(rows("batchmaker/figure15").iter().all(|row| row.fitted));
    for row in rows("batchmaker/figure9") {
        assert_eq!(row.fitted, row.name.starts_with("cellular"), "{}", row.name);
    }
    assert!(rows("symphony/example").iter().all(|row| !row.fitted));
    let text = item("batchmaker/figure9").reproduce(&folder.context(), &folder.0).unwrap().to_string();
    let marked = |name: &str| text.lines().any(|line| line.contains(name) && line.contains("fitted"));
    assert!(marked("cellular: p99 of queueing") && !marked("bucketed, width 10: p99 of queueing"), "{text}");
}

/// Quick runs do not report what few requests cannot show.
#[test]
fn a_quick_call_prints_no_peak() {
    let report = (item("batchmaker/figure15").run)(&Folder::new("no-peak").context()).unwrap();
    check(&report);
    let peaks = |row: &&ResultRow| row.name.ends_with("sustained") || row.name.ends_with("saturated");
    assert_eq!(report.rows.iter().filter(peaks).count(), 8);
    assert!(report.rows.iter().filter(peaks).all(|row| row.ours.is_nan()));
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
    for id in ["lazybatching/figure3", "lazybatching/figure5", "lazybatching/figure7", "lazybatching/figure11"] {
        check(&(item(id).run)(&folder.context()).unwrap());
    }
}

#[test]
fn what_dvabatch_says_of_its_examples_is_exact() {
    let report = (item("dvabatch/figure3").run)(&Folder::new("dvabatch").context()).unwrap();
    check(&report);
    assert_eq!(
        report.rows.iter().map(|row| row.ours).collect::<Vec<_>>(),
        [4.0, 4.0, 2.625, 4.0, 4.0, 2.875, 8.0, 8.0, 5.25]
    );
    // One executor a stage begins the second group when the first has left the first stage.
    assert!(report.rows.iter().all(|row| row.paper == Some(row.ours) || row.name.starts_with("case I, by length")));
}

#[test]
fn figures_of_dvabatch_have_their_rows() {
    let folder = Folder::new("figures-of-dvabatch");
    for id in ["figure4", "figure5", "figure6", "figure18", "figure21", "buffers"] {
        check(&(item(&format!("dvabatch/{id}")).run)(&folder.context()).unwrap());
    }
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

/// Items that run in little time, and how far a row of a quick call may be from the file's: as a
/// share of its value, or in ranges of the file's seeds. Without a share nothing is random, and the
/// row is equal.
const HELD: [(&str, f64, f64); 20] = [
    ("symphony/example", 0.0, 0.0),
    ("symphony/figure6a", 0.05, 0.0),
    ("batchmaker/figure3", 0.0, 0.0),
    ("batchmaker/figure5", 0.0, 0.0),
    ("batchmaker/figure9", 0.1, 0.0),
    ("batchmaker/figure10", 0.0, 0.0),
    ("late-batching/figure1", 0.0, 0.0),
    ("late-batching/figure6", 0.05, 0.0),
    ("lazybatching/figure3", 0.0, 0.0),
    ("lazybatching/figure4", 0.0, 0.0),
    ("lazybatching/figure5", 0.05, 2.0),
    ("lazybatching/figure7", 0.0, 0.0),
    ("lazybatching/figure10", 0.0, 0.0),
    ("lazybatching/figure11", 0.0, 0.0),
    ("dvabatch/figure3", 0.0, 0.0),
    ("dvabatch/figure4", 0.0, 0.0),
    ("dvabatch/figure6", 0.0, 0.0),
    ("dvabatch/figure18", 0.05, 2.0),
    ("dvabatch/figure21", 0.0, 0.0),
    ("dvabatch/buffers", 0.0, 0.0),
];

/// Returns the range of the seeds of a row of the file, from its note.
fn range(row: &serde_json::Value) -> f64 {
    let note = row["note"].as_str().unwrap_or_default();
    let seeds = note.split_once(" seeds: ").and_then(|(_, rest)| rest.split_once(" to "));
    let number = |text: &str| text.replace(',', "").parse::<f64>().ok();
    let ends =
        seeds.and_then(|(low, rest)| Some((number(low)?, number(rest.split(". ").next()?.trim_end_matches('.'))?)));
    ends.map_or(0.0, |(low, high)| high - low)
}

/// The code as it is gives the documented results.
#[test]
fn quick_calls_give_the_rows_of_the_file() {
    let (folder, kept) = (Folder::new("held"), super::docs::results());
    let queue = JobQueue::new(folder.0.join("cache"), 2).unwrap();
    let context = ReproduceContext::new(Effort::Quick, None, queue, Box::new(NoMachine));
    let mut wrong = Vec::new();
    for (id, share, ranges) in HELD {
        let kept = &kept[id];
        // A quick call chooses DelayBatch's window among fewer.
        let rows = (item(id).run)(&context).unwrap().rows.into_iter().filter(|row| !row.name.contains("DelayBatch"));
        for row in rows {
            let Some(kept) = kept.iter().find(|kept| kept["name"] == *row.name) else {
                wrong.push(format!("{id}: the file has no row {:?}", row.name));
                continue;
            };
            let (ours, known) = (row.ours, kept["ours"].as_f64().unwrap_or(f64::NAN));
            let allowed = (share * known.abs()).max(ranges * range(kept)).max(1e-9 * known.abs());
            if ours.is_nan() != known.is_nan() || (ours - known).abs() > allowed {
                wrong.push(format!("{id}, {}: {ours}, and {known} in the file", row.name));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
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
fn results_of_the_same_program_are_not_made_again() {
    let folder = Folder::new("results");
    let file = folder.0.join("results.jsonl");
    let maker = |program: &str| Maker { commit: None, program: program.to_owned(), effort: "usual", seeds: None };
    let (first, second) = (item("symphony/example"), item("batchmaker/figure5"));
    let mut results = ResultsFile::open(file.clone(), &maker("a")).unwrap();
    for item in [second, first] {
        assert!(results.line(item).is_none());
        results.put(&item.reproduce(&folder.context(), &folder.0).unwrap()).unwrap();
    }
    let text = std::fs::read_to_string(&file).unwrap();
    assert_eq!(text.lines().count(), 2, "{text}");
    assert!(text.find(first.id) < text.find(second.id), "in the order of the list");
    let line = ResultsFile::open(file.clone(), &maker("a")).unwrap().line(first).cloned().unwrap();
    assert_eq!(line["rows"][0]["paper"], 2.25);
    assert!(ResultsFile::open(file.clone(), &maker("b")).unwrap().line(first).is_none(), "another program's");
    std::fs::write(&file, text + "half a li").unwrap();
    let error = ResultsFile::open(file, &maker("a")).unwrap_err().to_string();
    assert!(error.starts_with("line 3 of ") && error.contains("run again"), "{error}");
}

/// The lines of other items keep their text, to the last digit.
#[test]
fn a_line_that_is_not_made_again_is_copied_as_text() {
    let folder = Folder::new("copied");
    let file = folder.0.join("results.jsonl");
    let kept = "{\"rows\": [{\"ours\": 0.30000000000000004000}],  \"item\": \"symphony/table2\"}";
    std::fs::write(&file, format!("{kept}\n")).unwrap();
    let maker = Maker { commit: None, program: "a".to_owned(), effort: "usual", seeds: None };
    let mut results = ResultsFile::open(file.clone(), &maker).unwrap();
    results.put(&item("symphony/example").reproduce(&folder.context(), &folder.0).unwrap()).unwrap();
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.lines().any(|line| line == kept), "{text}");
    assert!(text.lines().any(|line| line.contains("\"sources\":")), "{text}");
}

#[test]
fn distributions_and_curves_have_their_rows() {
    let folder = Folder::new("curves");
    for id in ["symphony/figure1", "symphony/figure12", "symphony/figure2", "symphony/figure10"] {
        check(&(item(id).run)(&folder.context()).unwrap());
    }
}

#[test]
fn ids_are_unique_and_say_their_paper() {
    let ids: std::collections::BTreeSet<_> = super::items().map(|item| item.id).collect();
    assert_eq!(ids.len(), super::items().count());
    assert!(ids.iter().all(|id| id.split_once('/').is_some()));
}

#[test]
fn a_row_prints_as_the_contract_says() {
    let row =
        |paper: Option<f64>| serde_json::to_value(ResultRow::new("a", "ms", 3.0).paper(paper).note("so")).unwrap();
    let expected = serde_json::json!(
        { "name": "a", "unit": "ms", "paper": 2.0, "ours": 3.0, "ratio": 1.5, "fitted": false, "note": "so" }
    );
    assert_eq!(row(Some(2.0)), expected);
    assert_eq!(row(None)["ratio"], serde_json::Value::Null);
    assert_eq!(serde_json::to_value(ResultRow::new("a", "ms", f64::NAN)).unwrap()["ours"], serde_json::Value::Null);
}
