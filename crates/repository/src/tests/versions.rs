//! Several served versions of a model, and polling of repositories.

use super::{Fixture, cpu, onnx};
use crate::fixture::TempRepository;
use crate::live::RepositoryPoll;
use crate::registry::Repository;

fn version(folder: &TempRepository, number: u64) {
    folder.write(&format!("m/{number}/model.onnx"), onnx("mlp.onnx"));
}

#[test]
fn versions_come_and_go_by_themselves() {
    let fixture = Fixture::new();
    fixture.folder.write("m/config.pbtxt", "max_batch_size: 8 version_policy { latest { num_versions: 2 } }");
    (1..=2).for_each(|number| version(&fixture.folder, number));
    let repository = fixture.repository(cpu());
    let reports = repository.load_all().unwrap();
    let shown: Vec<_> = reports.iter().map(|report| (report.name.as_str(), report.version.as_str())).collect();
    assert_eq!(shown, [("m", "1"), ("m", "2")]);
    assert_eq!(fixture.registry.versions("m"), ["1", "2"]);
    let first = fixture.registry.get("m", "1").unwrap();
    let second = fixture.registry.get("m", "2").unwrap();
    assert_ne!(first.id, second.id, "each is a model of its own to the scheduler");
    assert_eq!(fixture.registry.get("m", "").unwrap().version, "2");
    fixture.notes();
    // The third replaces the first, and the second is unchanged.
    version(&fixture.folder, 3);
    let loaded: Vec<String> = repository.reload().unwrap().into_iter().map(|report| report.version).collect();
    assert_eq!((loaded, fixture.registry.versions("m")), (vec!["3".to_owned()], vec!["2".to_owned(), "3".to_owned()]));
    assert_eq!(fixture.registry.get("m", "2").unwrap().id, second.id);
    let notes = fixture.notes();
    assert_eq!(notes.len(), 2, "{notes:?}");
    assert!(notes[1].starts_with(&format!("unload {} while [m/2=", first.id.unwrap().0)), "{notes:?}");
    // A version that fails is reported and affects no other.
    fixture.folder.write("m/4/model.onnx", "no model");
    assert!(repository.reload().unwrap()[0].error.is_some());
    assert_eq!(fixture.registry.versions("m"), ["2", "3"]);
    let failed = fixture.registry.index().into_iter().find(|row| row.version == "4").unwrap();
    assert_eq!(failed.state, "UNAVAILABLE");
    std::fs::remove_dir_all(fixture.folder.path().join("m/4")).unwrap();
    assert_eq!(repository.reload().unwrap(), []);
    repository.load("m", None).unwrap();
    assert!(fixture.registry.index().iter().all(|row| row.state == "READY"), "{:?}", fixture.registry.index());
    repository.unload("m").unwrap();
    assert!(fixture.registry.versions("m").is_empty());
    assert_eq!(fixture.registry.index().len(), 2);
}

#[test]
fn looks_load_what_came_between_the_start_and_the_first_look() {
    let fixture = Fixture::new();
    fixture.folder.write("late/1/model.pt", "no model");
    let repository = fixture.repository(cpu());
    assert!(repository.load_all().unwrap()[0].error.is_some());
    fixture.folder.write("late/1/model.onnx", onnx("mlp.onnx"));
    fixture.folder.write("new/1/model.onnx", onnx("mlp.onnx"));
    let mut looks = RepositoryPoll::default();
    assert_eq!(repository.poll(&mut looks).unwrap(), []);
    let loaded = repository.poll(&mut looks).unwrap();
    let served: Vec<&str> = loaded.iter().filter(|model| model.error.is_none()).map(|model| &*model.name).collect();
    assert_eq!(served, ["late", "new"]);
}

/// A folder that is no model, put into a repository by mistake and taken out again.
#[test]
fn a_failure_ends_with_the_files_at_fault() {
    let fixture = Fixture::new();
    version(&fixture.folder, 1);
    let repository = fixture.repository(cpu());
    repository.load_all().unwrap();
    let (path, mut looks) = (fixture.folder.path(), RepositoryPoll::default());
    let mut look = || drop(repository.poll(&mut looks).unwrap());
    let failed = || fixture.registry.failed().len() + fixture.registry.stale().len();
    look();
    type Break = fn(&std::path::Path);
    let breaks: [(&str, Break); 3] = [
        ("a folder without a model", |path| std::fs::create_dir(path.join("empty")).unwrap()),
        ("a version without a model", |path| std::fs::create_dir(path.join("m/7")).unwrap()),
        ("a key that is none", |path| {
            std::fs::rename(path.join("m/model.toml"), path.join(".kept")).unwrap();
            std::fs::write(path.join("m/model.toml"), "slo = 3").unwrap();
        }),
    ];
    fixture.folder.write("m/model.toml", "slo_ms = 50");
    look();
    look();
    for (name, broken) in breaks {
        for polled in [true, false] {
            let mut see = || {
                if polled {
                    look();
                    look();
                } else {
                    drop(repository.reload().unwrap());
                }
            };
            broken(path);
            see();
            assert_eq!(failed(), 1, "{name}, polled {polled}");
            let _ = (std::fs::remove_dir(path.join("empty")), std::fs::remove_dir(path.join("m/7")));
            let _ = std::fs::rename(path.join(".kept"), path.join("m/model.toml"));
            see();
            assert_eq!(failed(), 0, "{name}, polled {polled}");
            assert_eq!(fixture.registry.versions("m"), ["1"]);
        }
    }
    std::fs::create_dir(path.join("empty")).unwrap();
    repository.reload().unwrap();
    repository.unload("empty").unwrap();
    assert_eq!(failed(), 0, "a call takes it out of service");
}

#[test]
fn looks_load_what_has_changed_and_is_whole() {
    let fixture = Fixture::new();
    version(&fixture.folder, 1);
    let repository = fixture.repository(cpu());
    repository.load_all().unwrap();
    let mut looks = RepositoryPoll::default();
    let mut look = || -> Vec<(String, bool)> {
        let reports = repository.poll(&mut looks).unwrap();
        reports.into_iter().map(|report| (report.version, report.error.is_none())).collect()
    };
    assert_eq!([look(), look()], [vec![], vec![]], "what serves is left alone");
    // A partially written file is not loaded: it grows until the next poll.
    let whole = onnx("mlp.onnx");
    fixture.folder.write("m/2/model.onnx", &whole[..whole.len() / 2]);
    assert_eq!(look(), []);
    fixture.folder.write("m/2/model.onnx", &whole);
    assert_eq!([look(), look(), look()], [vec![], vec![("2".to_owned(), true)], vec![]]);
    assert_eq!(fixture.registry.versions("m"), ["2"]);
    // A failed model is tried once.
    fixture.folder.write("m/3/model.onnx", "no model");
    assert_eq!([look(), look(), look()], [vec![], vec![("3".to_owned(), false)], vec![]]);
    assert_eq!(fixture.registry.versions("m"), ["2"], "what served goes on");
    // A model unloaded by a call stays unloaded until it changes.
    assert_eq!(fixture.registry.stale().len(), 1);
    std::fs::remove_dir_all(fixture.folder.path().join("m/3")).unwrap();
    assert_eq!([look(), look()], [vec![], vec![]]);
    assert_eq!(fixture.registry.stale(), [], "what could not be loaded is gone");
    repository.unload("m").unwrap();
    assert_eq!([look(), look()], [vec![], vec![]]);
    fixture.folder.write("m/model.toml", "max_batch = 2");
    assert_eq!([look(), look()], [vec![], vec![("2".to_owned(), true)]]);
    // A folder that is moved away and back between polls is not unloaded.
    let (folder, aside) = (fixture.folder.path().join("m"), fixture.folder.path().join(".aside"));
    std::fs::rename(&folder, &aside).unwrap();
    assert_eq!(look(), []);
    assert_eq!(fixture.registry.versions("m"), ["2"]);
    std::fs::rename(&aside, &folder).unwrap();
    assert_eq!([look(), look()], [vec![], vec![]]);
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!([look(), look()], [vec![], vec![]]);
    assert!(fixture.registry.versions("m").is_empty());
}
