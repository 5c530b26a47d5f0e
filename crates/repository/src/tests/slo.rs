//! Models with and without a configured latency target.

use super::*;
use crate::load::{Loader, Profiling};
use crate::registry::ServedEntry;
use crate::scan::scan;
use crate::slo::SloOrigin;

/// Returns the entry of a model with these settings, and its report.
fn served(toml: &str) -> (Arc<ServedEntry>, ModelReport) {
    let fixture = Fixture::new();
    fixture.folder.write("m/model.toml", toml);
    let reports = fixture.repository(emulated()).load_all();
    (fixture.registry.get("m", "").unwrap(), one(reports))
}

#[test]
fn without_a_target_none_is_enforced_and_one_is_derived() {
    // At 178 ms per row, a default target of 100 ms would refuse every request.
    let (entry, report) = served("max_batch = 4\nalpha_ms = 170\nbeta_ms = 8\n");
    assert_eq!(
        (entry.slo.origin, entry.slo.answer_late, entry.one_row),
        (SloOrigin::Profile, true, Some(Nanos::from_millis(178)))
    );
    assert_eq!((report.slo_ms, report.slo_is_derived, report.late), (Some(534.0), Some(true), Some("answer")));
    assert_eq!(report.warnings, [""; 0]);
}

#[test]
fn a_target_that_is_named_is_enforced() {
    let (entry, report) = served("slo_ms = 100\nmax_batch = 4\nalpha_ms = 170\nbeta_ms = 8\n");
    assert_eq!((entry.slo.origin, entry.slo.answer_late), (SloOrigin::Owner, false));
    assert_eq!((report.slo_ms, report.slo_is_derived, report.late), (Some(100.0), Some(false), Some("refuse")));
    assert!(report.warnings[0].contains("below the latency of one row, 178 ms"));
    let (entry, report) = served("queue_timeout_ms = 20\nmax_batch = 4\nalpha_ms = 10\nbeta_ms = 8\n");
    assert_eq!((entry.slo.origin, entry.slo.answer_late), (SloOrigin::QueueTimeout, false));
    assert_eq!((report.slo_ms, report.slo_is_derived), (Some(68.0), Some(false)));
}

#[test]
fn late_requests_keep_their_place_only_where_the_target_is_our_own() {
    let in_order = |toml: &str| {
        let folder = TempRepository::new();
        folder.write("m/model.toml", toml);
        let found = scan(folder.path()).unwrap().remove(0).found.unwrap();
        let prepared = Loader::new(emulated(), silent()).prepare(&found, Profiling::IfMissing).unwrap();
        prepared.model().unwrap().in_arrival_order
    };
    let costs = "max_batch = 4\nalpha_ms = 10\nbeta_ms = 8\n";
    let settings = ["", "late = \"answer\"\n", "slo_ms = 100\nlate = \"answer\"\n", "drop = \"never\"\n"];
    let ordered = settings.map(|setting| in_order(&format!("{setting}{costs}")));
    assert_eq!(ordered, [true, true, false, false]);
}

#[test]
fn a_target_that_follows_from_a_profile_is_not_shown_before_there_is_one() {
    let folder = TempRepository::new();
    folder.write("m/1/model.onnx", onnx("mlp.onnx"));
    let report = one(inspect(folder.path(), cpu()));
    assert_eq!((report.slo_ms, report.slo_is_derived, report.late), (None, None, None));
    let report = one(profile(folder.path(), cpu(), None, silent()));
    assert!(report.slo_ms.is_some_and(|slo| slo >= 10.0) && report.slo_is_derived == Some(true), "{report:?}");
}
