//! Models are released while requests run: nothing is lost, and the earlier one serves until the
//! newer one is ready on every backend.

use crate::common::*;
use ripieno_cluster::{BackendModels, ModelCalls};
use ripieno_executor::{EmulatedEngine, EmulatedOptions, Executor};
use ripieno_runtime::HangBound;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// A backend's process whose repository a test changes.
struct Process {
    backend: RunningBackend,
    models: Arc<BackendModels>,
    /// The contents of the model's files.
    files: Arc<Mutex<String>>,
    loads: Arc<AtomicUsize>,
    /// Loads wait while it is set.
    slow: Arc<AtomicBool>,
}

fn process(schedulers: Vec<String>) -> Process {
    let executor: Arc<dyn Executor> = Arc::new(EmulatedEngine::new(EmulatedOptions::default()).with_depth(DEPTH));
    let models = Arc::new(BackendModels::default());
    models.add(0, whole().loaded(&*executor, "a")).unwrap();
    let (files, loads) = (Arc::new(Mutex::new("a".to_owned())), Arc::<AtomicUsize>::default());
    let (slow, last) = (Arc::<AtomicBool>::default(), AtomicU32::new(0));
    let (engine, offered) = (Arc::clone(&executor), Arc::clone(&models));
    let (read, counted, waits) = (Arc::clone(&files), Arc::clone(&loads), Arc::clone(&slow));
    let change = move |name: &str, unload: bool| {
        assert_eq!(name, "whole");
        counted.fetch_add(1, Ordering::SeqCst);
        while waits.load(Ordering::SeqCst) {
            std::thread::park_timeout(std::time::Duration::from_millis(1));
        }
        let before = last.load(Ordering::SeqCst);
        if !unload {
            let digest = read.lock().unwrap().clone();
            if digest == "broken" {
                return Err("the file is no model".to_owned());
            }
            let next = last.fetch_add(1, Ordering::SeqCst) + 1;
            offered.add(next, whole().loaded(&*engine, &digest))?;
        }
        offered.withdraw(before);
        Ok(())
    };
    let calls = Arc::new(ModelCalls::new(Box::new(change)));
    let backend = backend_of(schedulers, Arc::clone(&models), executor, None, Some(calls));
    Process { backend, models, files, loads, slow }
}

impl Process {
    fn write(&self, digest: &str) {
        *self.files.lock().unwrap() = digest.to_owned();
    }

    fn stop(self) {
        self.backend.abort();
    }
}

/// Returns the contents of the model that a frontend knows.
fn served(known: &Known) -> Option<String> {
    known.lock().unwrap().iter().find(|(_, model)| model.name == "whole").map(|(_, model)| model.digest.clone())
}

/// Submits requests until it is stopped; returns how many had one good answer, and the others.
fn load(client: Client, stop: &Arc<AtomicBool>) -> thread::JoinHandle<(usize, Vec<String>)> {
    let stop = Arc::clone(stop);
    thread::spawn(move || {
        let (mut open, mut good, mut bad): (BTreeMap<usize, ()>, usize, Vec<String>) = Default::default();
        let mut next = 0;
        while !stop.load(Ordering::SeqCst) || !open.is_empty() {
            if !stop.load(Ordering::SeqCst) && open.len() < 16 {
                let model =
                    client.known.lock().unwrap().iter().find(|(_, model)| model.name == "whole").map(|(id, _)| *id);
                match model.map(|model| client.submit(next, model, rows(next, 1, 2))) {
                    Some(Ok(_)) => drop(open.insert(next, ())),
                    Some(Err(refused)) => bad.push(format!("{refused:?}")),
                    None => bad.push("no model".to_owned()),
                }
                next += 1;
            }
            match client.answers.recv_timeout(Duration::from_millis(1)) {
                Ok((number, answer)) => {
                    assert!(open.remove(&number).is_some(), "request {number} is answered twice");
                    match answer {
                        Ok(_) => good += 1,
                        Err(failure) => bad.push(format!("{failure:?}")),
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(error) => panic!("{error}"),
            }
        }
        (good, bad)
    })
}

#[test]
fn the_earlier_model_serves_until_the_newer_one_is_ready_everywhere_and_no_request_is_lost() {
    let scheduler = scheduler(1, anywhere(), "deferred", HangBound::default());
    let at = vec![scheduler.address().to_string()];
    let (first, second) = (process(at.clone()), process(at.clone()));
    let client = asking(at);
    client.ready();
    let (frontend, known) = (client.frontend.clone(), Arc::clone(&client.known));
    until("both serve", || scheduler.engine().is_some_and(|engine| engine.device_metrics().len() == 2));
    let stop = Arc::<AtomicBool>::default();
    let loading = load(client, &stop);
    first.write("b");
    second.write("b");
    second.slow.store(true, Ordering::SeqCst);
    let asks = frontend.clone();
    let called = thread::spawn(move || asks.change_model("whole", false));
    until("one has loaded it", || first.models.offers(1));
    for _ in 0..10_000 {
        assert_eq!(served(&known).as_deref(), Some("a"), "the other one has not");
        std::thread::park_timeout(std::time::Duration::from_millis(1));
    }
    second.slow.store(false, Ordering::SeqCst);
    assert_eq!(called.join().unwrap(), Ok(()));
    assert_eq!(served(&known).as_deref(), Some("b"));
    // A file that cannot be loaded leaves everything as it is, and the caller hears of it.
    first.write("broken");
    let failed = frontend.change_model("whole", false).unwrap_err();
    assert!(failed.contains("1 of 2 backends: the file is no model"), "{failed}");
    // Files that differ are not served.
    first.write("c");
    let differs = frontend.change_model("whole", false).unwrap_err();
    assert!(differs.contains("differ between backends") && served(&known).as_deref() == Some("b"), "{differs}");
    second.write("c");
    assert_eq!(frontend.change_model("whole", false), Ok(()));
    assert_eq!(served(&known).as_deref(), Some("c"));
    let engine = scheduler.engine().unwrap();
    until("earlier ones are unloaded", || engine.all_metrics().len() == 1);
    stop.store(true, Ordering::SeqCst);
    let (good, bad) = loading.join().unwrap();
    assert!(bad.is_empty() && good > 100, "{good} good answers, {bad:?}");
    assert_eq!((first.loads.load(Ordering::SeqCst), second.loads.load(Ordering::SeqCst)), (4, 4));
    // Out of service, and into it again.
    assert_eq!(frontend.change_model("whole", true), Ok(()));
    until("it is out of service", || served(&known).is_none());
    first.stop();
    second.stop();
    frontend.close();
}

#[test]
fn a_backend_that_comes_with_other_files_waits_until_the_release_reaches_the_others() {
    let scheduler = scheduler(1, anywhere(), "deferred", HangBound::default());
    let at = vec![scheduler.address().to_string()];
    let first = process(at.clone());
    let client = asking(at.clone());
    client.ready();
    let executor: Arc<dyn Executor> = Arc::new(EmulatedEngine::new(EmulatedOptions::default()).with_depth(DEPTH));
    let models = Arc::new(BackendModels::default());
    models.add(0, whole().loaded(&*executor, "b")).unwrap();
    let newer = backend_of(at, models, executor, None, None);
    let engine = scheduler.engine().unwrap();
    for _ in 0..10_000 {
        assert_eq!((served(&client.known).as_deref(), engine.device_metrics().len()), (Some("a"), 1));
        std::thread::park_timeout(std::time::Duration::from_millis(1));
    }
    first.write("b");
    assert_eq!(client.frontend.change_model("whole", false), Ok(()));
    assert_eq!(served(&client.known).as_deref(), Some("b"));
    until("the other one is taken", || engine.device_metrics().len() == 2);
    newer.abort();
    first.stop();
    client.frontend.close();
}
