//! A plan carried out: backends load what the plan says and hold nothing else, models and backends
//! move while requests run, and nothing is lost.

use crate::common::*;
use crate::connections::bare_frontend;
use crate::hanging::Gate;
use ripieno_base::ModelId;
use ripieno_cluster::plane::{Message, Tcp};
use ripieno_cluster::{
    BackendModels, ClusterScheduler, Frontend, FrontendConfig, InitialPlan, ModelDescription, PlacementPlan,
    PlannedModels, PlannedSubCluster, StartEngine, StartedEngine,
};
use ripieno_executor::{EmulatedEngine, EmulatedOptions, Executor};
use ripieno_policies::{build_shards, find};
use ripieno_runtime::{DeviceState, Engine, EngineConfig, HangBound};
use ripieno_sched::{Limits, Options, Setup};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// The names that a process has loaded, the most that it had at a time, and its number of loads.
type Held = Arc<Mutex<(BTreeMap<String, u32>, usize, usize)>>;

/// A backend's process that follows the plan. Its repository has the models "a" to "f".
struct Planned {
    backend: RunningBackend,
    held: Held,
    /// Loads of this model fail while it is set.
    broken: Arc<Mutex<Option<String>>>,
    /// Each load of the model "f" passes it.
    gate: Arc<Gate>,
}

const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

fn planned(schedulers: Vec<String>) -> Planned {
    let executor: Arc<dyn Executor> = Arc::new(EmulatedEngine::new(EmulatedOptions::default()).with_depth(DEPTH));
    let models = Arc::new(BackendModels::default());
    let (held, broken, next) = (Held::default(), Arc::<Mutex<Option<String>>>::default(), AtomicU32::new(0));
    let gate = Arc::new(Gate::default());
    let (engine, offered, names, fails, waits) =
        (Arc::clone(&executor), Arc::clone(&models), Arc::clone(&held), Arc::clone(&broken), Arc::clone(&gate));
    let change = move |name: &str, unload: bool| {
        if unload {
            let number = names.lock().unwrap().0.remove(name).expect("it is loaded");
            offered.withdraw(number);
            return Ok(());
        }
        if fails.lock().unwrap().as_deref() == Some(name) {
            return Err("the file is no model".to_owned());
        }
        let name = NAMES.into_iter().find(|known| *known == name).ok_or("there is no such model")?;
        if name == "f" {
            waits.pass();
        }
        let number = next.fetch_add(1, Ordering::SeqCst);
        offered.add(number, Served { name, ..whole() }.loaded(&*engine, name))?;
        let mut names = names.lock().unwrap();
        names.0.insert(name.to_owned(), number);
        names.1 = names.1.max(names.0.len());
        names.2 += 1;
        Ok(())
    };
    let sizes = NAMES.iter().map(|name| ((*name).to_owned(), 1_000_000)).collect();
    let follows = PlannedModels::start(Arc::clone(&models), sizes, Box::new(change)).unwrap();
    Planned { backend: backend_following(schedulers, models, executor, follows), held, broken, gate }
}

impl Planned {
    fn holds(&self) -> String {
        self.held.lock().unwrap().0.keys().map(String::as_str).collect()
    }

    fn stop(self) {
        self.backend.abort();
    }
}

/// Returns a plan from lines like "ab:2", which are the models of a sub-cluster and its devices.
fn plan(parts: &[&str]) -> PlacementPlan {
    let part = |text: &&str| {
        let (models, devices) = text.split_once(':').unwrap();
        PlannedSubCluster { models: models.chars().map(String::from).collect(), devices: devices.parse().unwrap() }
    };
    PlacementPlan { sub_clusters: parts.iter().map(part).collect(), ..PlacementPlan::default() }
}

fn scheduler_with(plan: PlacementPlan) -> ClusterScheduler {
    scheduler_of(1, anywhere(), "unified", HangBound::default(), InitialPlan::Given(plan))
}

/// Returns the number of devices that serve in each sub-cluster.
fn devices(scheduler: &ClusterScheduler) -> Vec<usize> {
    let serving =
        |engine: &Engine| engine.device_metrics().iter().filter(|device| device.state == DeviceState::Serving).count();
    scheduler.engines().iter().map(serving).collect()
}

/// Returns the names of the models that a frontend knows, in order.
fn known(client: &Known) -> String {
    let names: BTreeSet<String> = client.lock().unwrap().iter().map(|(_, model)| model.name.clone()).collect();
    names.into_iter().collect()
}

/// Requests that `load` sends however soon it is stopped.
const LEAST: usize = 101;

/// Sends requests to all models that are known until it is stopped. Returns how many had one right
/// answer, and all other results.
fn load(client: Client, stop: &Arc<AtomicBool>) -> thread::JoinHandle<(usize, Vec<String>)> {
    let stop = Arc::clone(stop);
    thread::spawn(move || {
        let (mut open, mut good, mut bad, mut next) = (BTreeSet::new(), 0, Vec::new(), 0);
        let goes_on = |next: usize| next < LEAST || !stop.load(Ordering::SeqCst);
        while goes_on(next) || !open.is_empty() {
            if goes_on(next) && open.len() < 16 {
                let models: Vec<_> = client.known.lock().unwrap().iter().map(|(id, _)| *id).collect();
                assert!(!models.is_empty(), "all are served all the time");
                match client.submit(next, models[next % models.len()], rows(next, 1, 2)) {
                    Ok(_) => drop(open.insert(next)),
                    Err(refused) => bad.push(format!("{refused:?}")),
                }
                next += 1;
            }
            match client.answers.recv_timeout(Duration::from_millis(1)) {
                Ok((number, answer)) => {
                    assert!(open.remove(&number), "request {number} is answered twice");
                    match answer {
                        Ok(answer) if answer.outputs[0].data == rows(number, 1, 2)[0].data => good += 1,
                        other => bad.push(format!("{other:?}")),
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(error) => panic!("{error}"),
            }
        }
        client.frontend.close();
        (good, bad)
    })
}

#[test]
fn backends_hold_the_models_of_their_sub_cluster_and_no_other_and_all_are_served() {
    let scheduler = scheduler_of(1, anywhere(), "unified", HangBound::default(), InitialPlan::Later);
    let at = vec![scheduler.address().to_string()];
    let backends: Vec<Planned> = (0..4).map(|_| planned(at.clone())).collect();
    until("all have come", || scheduler.holdings().len() == 4);
    assert!(backends.iter().all(|backend| backend.holds().is_empty()), "there is no plan");
    scheduler.set_plan(plan(&["ab:2", "c:1", "def:1"])).unwrap();
    let client = asking(at);
    until("all serve", || devices(&scheduler) == [2, 1, 1] && known(&client.known) == "abcdef");
    let mut held: Vec<String> = backends.iter().map(Planned::holds).collect();
    held.sort();
    assert_eq!(held, ["ab", "ab", "c", "def"]);
    assert!(backends.iter().all(|backend| backend.held.lock().unwrap().1 <= 3), "none ever held the rest");
    for (number, name) in NAMES.iter().enumerate() {
        client.submit(number, client.model(name), rows(number, 3, 2)).unwrap();
    }
    for _ in NAMES {
        let (number, answer) = client.answers.recv_timeout(SAFETY).unwrap();
        assert_eq!(answer.unwrap().outputs[0].data, rows(number, 3, 2)[0].data);
    }
    let batches = |engine: &Engine| engine.device_metrics().iter().map(|device| device.batches).sum();
    let ran: Vec<u64> = scheduler.engines().iter().map(batches).collect();
    assert!(ran.iter().all(|&batches| batches > 0), "{ran:?}");
    backends.into_iter().for_each(Planned::stop);
    client.frontend.close();
}

#[test]
fn a_changed_plan_is_carried_out_under_load_and_no_request_is_lost() {
    let scheduler = scheduler_with(plan(&["abc:2", "def:2"]));
    let at = vec![scheduler.address().to_string()];
    let backends: Vec<Planned> = (0..4).map(|_| planned(at.clone())).collect();
    let client = asking(at);
    until("all serve", || devices(&scheduler) == [2, 2] && known(&client.known) == "abcdef");
    let (known_to, stop) = (Arc::clone(&client.known), Arc::<AtomicBool>::default());
    let loading = load(client, &stop);
    let holds = |expected: &[&str]| {
        let mut held: Vec<String> = backends.iter().map(Planned::holds).collect();
        held.sort();
        held == expected
    };
    // A model goes from one sub-cluster to the other.
    scheduler.set_plan(plan(&["ab:2", "cdef:2"])).unwrap();
    until("it has moved", || {
        assert_eq!(known(&known_to), "abcdef", "all are served all the time");
        holds(&["ab", "ab", "cdef", "cdef"])
    });
    // A backend follows the load.
    scheduler.set_plan(plan(&["ab:3", "cdef:1"])).unwrap();
    until("it has moved", || devices(&scheduler) == [3, 1] && holds(&["ab", "ab", "ab", "cdef"]));
    // A sub-cluster more, and two of them less.
    scheduler.set_plan(plan(&["ab:1", "cd:2", "ef:1"])).unwrap();
    until("all serve", || {
        assert_eq!(known(&known_to), "abcdef");
        devices(&scheduler) == [1, 2, 1] && holds(&["ab", "cd", "cd", "ef"])
    });
    scheduler.set_plan(plan(&["abcdef:1"])).unwrap();
    until("one serves all", || {
        assert_eq!(known(&known_to), "abcdef");
        devices(&scheduler) == [4, 0, 0] && holds(&["abcdef"; 4])
    });
    let refused = scheduler.set_plan(plan(&["a:1", "ab:1"])).unwrap_err();
    assert!(refused.contains("\"a\" is in sub-clusters 0 and 1"), "{refused}");
    stop.store(true, Ordering::SeqCst);
    let (good, bad) = loading.join().unwrap();
    assert!(bad.is_empty() && good > 100, "{good} good answers, {bad:?}");
    backends.into_iter().for_each(Planned::stop);
}

#[test]
fn models_whose_last_backend_is_lost_are_placed_anew_and_return_when_one_comes() {
    let mut written = plan(&["abc:1", "d:1", "ef:1"]);
    written.device_memory_mb = Some(40);
    written.memory_mb = NAMES.iter().map(|name| ((*name).to_owned(), 10)).collect();
    let scheduler = scheduler_with(written);
    let at = vec![scheduler.address().to_string()];
    let mut backends: Vec<Planned> = (0..3).map(|_| planned(at.clone())).collect();
    let client = asking(at.clone());
    until("all serve", || devices(&scheduler) == [1, 1, 1] && known(&client.known) == "abcdef");
    let lost = backends.iter().position(|backend| backend.holds() == "ef").unwrap();
    backends.remove(lost).stop();
    // One of the others has memory for two more, and one for a single one.
    until("the others serve its models", || {
        let mut held: Vec<String> = backends.iter().map(Planned::holds).collect();
        held.sort();
        held == ["abcf", "de"] || held == ["abc", "def"] || held == ["abce", "df"]
    });
    until("they are routed there", || devices(&scheduler) == [1, 1, 0] && known(&client.known) == "abcdef");
    until("a request is answered", || {
        for (number, name) in NAMES.iter().enumerate() {
            client.submit(number, client.model(name), rows(number, 1, 2)).unwrap();
        }
        NAMES.iter().all(|_| client.answers.recv_timeout(SAFETY).unwrap().1.is_ok())
    });
    backends.push(planned(at));
    until("each is where the plan has it", || {
        let mut held: Vec<String> = backends.iter().map(Planned::holds).collect();
        held.sort();
        held == ["abc", "d", "ef"] && devices(&scheduler) == [1, 1, 1]
    });
    backends.into_iter().for_each(Planned::stop);
    client.frontend.close();
}

#[test]
fn a_model_that_cannot_be_loaded_keeps_no_other_from_being_served_and_is_named() {
    let scheduler = scheduler_with(plan(&["ab:1"]));
    let backend = planned(vec![scheduler.address().to_string()]);
    *backend.broken.lock().unwrap() = Some("b".to_owned());
    let client = asking(vec![scheduler.address().to_string()]);
    until("the other one serves", || known(&client.known) == "a" && devices(&scheduler) == [1]);
    let refused = scheduler.refused();
    assert!(refused.iter().any(|told| told.contains("model \"b\": the file is no model")), "{refused:?}");
    backend.stop();
    client.frontend.close();
}

/// Starts a frontend that tells the names of the models of each list, in order, and after a bar the
/// names of those that are being loaded.
fn listing(at: Vec<String>) -> (Frontend, Receiver<String>) {
    let (sender, lists) = channel();
    let (schedulers, scheduler_timeout) = (at, FrontendConfig::SCHEDULER_TIMEOUT);
    let config = FrontendConfig { schedulers, data: anywhere(), advertised: None, max_live: 8, scheduler_timeout };
    let on_models = Box::new(move |models: &[(ModelId, ModelDescription)], loading: &[String]| {
        let names: BTreeSet<&str> = models.iter().map(|(_, model)| model.name.as_str()).collect();
        // The test may have seen enough.
        drop(sender.send(format!("{}|{}", names.into_iter().collect::<String>(), loading.concat())));
    });
    (Frontend::start(Arc::new(Tcp), config, on_models).unwrap(), lists)
}

/// Waits for a list. In all lists before it, each of these models is served or being loaded.
fn await_list(lists: &Receiver<String>, list: &str, models: &[&str]) {
    loop {
        let told = lists.recv_timeout(SAFETY).unwrap();
        if told == list {
            return;
        }
        assert!(models.iter().all(|name| told.contains(name)), "{told}");
    }
}

#[test]
fn the_first_list_of_models_waits_for_the_plan_and_names_what_is_being_loaded() {
    let scheduler = scheduler_of(1, anywhere(), "unified", HangBound::default(), InitialPlan::Later);
    let at = vec![scheduler.address().to_string()];
    let backends: Vec<Planned> = (0..2).map(|_| planned(at.clone())).collect();
    backends.iter().for_each(|backend| backend.gate.set(true));
    until("both have come", || scheduler.holdings().len() == 2);
    let (_link, mut reader) = bare_frontend(&Tcp, &scheduler, 1);
    loop {
        match reader.read().unwrap() {
            Message::Devices(_) => break,
            Message::Models(list) => panic!("before there is a plan: {list:?}"),
            _ => {}
        }
    }
    let (frontend, lists) = listing(at);
    // There is no backend for "c": it moves once the backends have had time to connect.
    scheduler.set_plan(plan(&["a:2", "f:2", "c:1"])).unwrap();
    // The load of "f" hangs and holds no other model back.
    await_list(&lists, "ac|f", &["a", "c", "f"]);
    until("a device serves", || frontend.serving_devices() > 0);
    backends.iter().for_each(|backend| backend.gate.set(false));
    await_list(&lists, "acf|", &["a", "c", "f"]);
    frontend.close();
    backends.into_iter().for_each(Planned::stop);
}

#[test]
fn a_model_whose_load_has_failed_is_not_announced() {
    let scheduler = scheduler_with(plan(&["ab:1", "f:1"]));
    let at = vec![scheduler.address().to_string()];
    let backends: Vec<Planned> = (0..2).map(|_| planned(at.clone())).collect();
    backends.iter().for_each(|backend| *backend.broken.lock().unwrap() = Some("f".to_owned()));
    let (frontend, lists) = listing(at);
    await_list(&lists, "ab|", &["a", "b"]);
    frontend.close();
    backends.into_iter().for_each(Planned::stop);
}

#[test]
fn without_a_plan_a_backend_that_follows_one_is_refused_with_the_way_out() {
    let scheduler = scheduler(1, anywhere(), "unified", HangBound::default());
    let backend = planned(vec![scheduler.address().to_string()]);
    until("it is refused", || scheduler.refused().iter().any(|told| told.contains("start the scheduler with --plan")));
    backend.stop();
}

#[test]
fn a_scheduler_that_starts_anew_goes_on_where_the_backends_are_and_a_plan_may_come_later() {
    let first = scheduler_with(plan(&["ab:1", "cdef:2"]));
    let (address, at) = (first.address(), vec![first.address().to_string()]);
    let backends: Vec<Planned> = (0..3).map(|_| planned(at.clone())).collect();
    let client = asking(at);
    until("all serve", || {
        let mut held: Vec<String> = backends.iter().map(Planned::holds).collect();
        held.sort();
        devices(&first) == [1, 2] && known(&client.known) == "abcdef" && held == ["ab", "cdef", "cdef"]
    });
    let before: Vec<String> = backends.iter().map(Planned::holds).collect();
    let loads = |backend: &Planned| backend.held.lock().unwrap().2;
    let loaded: Vec<usize> = backends.iter().map(loads).collect();
    drop(first);
    let second = scheduler_of(2, address, "unified", HangBound::default(), InitialPlan::Later);
    until("all have come", || second.holdings().len() == 3);
    let mut stated: Vec<_> = second.holdings().into_iter().map(|held| (held.stated, held.loaded.len())).collect();
    stated.sort();
    assert_eq!(stated, [(Some(0), 2), (Some(1), 4), (Some(1), 4)]);
    assert!(second.holdings().iter().all(|held| held.available.len() == NAMES.len()) && second.plan().is_none());
    second.set_plan(plan(&["ab:1", "cdef:2"])).unwrap();
    until("all serve again", || devices(&second) == [1, 2] && known(&client.known) == "abcdef");
    assert_eq!(backends.iter().map(Planned::holds).collect::<Vec<_>>(), before);
    assert_eq!(backends.iter().map(loads).collect::<Vec<_>>(), loaded, "nothing was loaded again");
    backends.into_iter().for_each(Planned::stop);
    client.frontend.close();
}

/// Each hand-over is to a spare that the backends had connected to before they were placed or
/// moved.
#[test]
fn a_spare_knows_where_backends_were_placed_and_moved_since_they_connected_to_it() {
    let mut pair = SchedulerPair::start(HangBound::default(), InitialPlan::Later);
    let backends: Vec<Planned> = (0..4).map(|_| planned(pair.addresses())).collect();
    let both_hold = |pair: &SchedulerPair| (0..2).all(|at| pair.get(at).holdings().len() == 4);
    until("both have all", || both_hold(&pair));
    let client = asking_for(pair.addresses(), SAFETY);
    let (known_to, stop) = (Arc::clone(&client.known), Arc::<AtomicBool>::default());
    let mut client = Some(client);
    let mut loading = None;
    let places = |scheduler: &ClusterScheduler| {
        let mut stated: Vec<_> = scheduler.holdings().into_iter().map(|held| (held.stated, held.loaded)).collect();
        stated.sort();
        stated
    };
    let loads = || backends.iter().map(|backend| backend.held.lock().unwrap().2).sum::<usize>();
    let rounds = [(["ab:2", "c:1", "def:1"], [2, 1, 1]), (["a:1", "bc:2", "def:1"], [1, 2, 1])];
    for (written, serving) in rounds {
        pair.settled();
        (0..2).for_each(|at| pair.get(at).set_plan(plan(&written)).unwrap());
        let held: Vec<String> = written.iter().map(|part| part.split_once(':').unwrap().0.to_owned()).collect();
        until("it is carried out", || {
            // A pause of this machine may make the other one the primary meanwhile.
            pair.primary().is_some_and(|primary| devices(pair.get(primary)) == serving)
                && known(&known_to) == "abcdef"
                && backends.iter().all(|backend| held.contains(&backend.holds()))
        });
        loading = loading.or_else(|| Some(load(client.take()?, &stop)));
        until("the spare knows", || places(pair.get(0)) == places(pair.get(1)));
        let primary = pair.settled();
        let before = loads();
        drop(pair.take(primary));
        until("the spare serves", || {
            assert_eq!(known(&known_to), "abcdef", "all are served all the time");
            devices(pair.get(1 - primary)) == serving
        });
        assert_eq!(loads(), before, "nothing was loaded again");
        pair.start_again(primary, InitialPlan::Given(plan(&written)));
        until("both have all", || both_hold(&pair));
    }
    // A hand-over in the middle of a change, whose end the next primary brings about.
    let primary = pair.settled();
    (0..2).for_each(|at| pair.get(at).set_plan(plan(&["abc:1", "d:1", "ef:2"])).unwrap());
    let before = loads();
    until("loads have begun", || loads() > before);
    drop(pair.take(primary));
    until("the spare carries it out", || {
        assert_eq!(known(&known_to), "abcdef", "all are served all the time");
        devices(pair.get(1 - primary)) == [1, 1, 2]
            && backends.iter().all(|backend| ["abc", "d", "ef"].contains(&backend.holds().as_str()))
    });
    stop.store(true, Ordering::SeqCst);
    let (good, bad) = loading.unwrap().join().unwrap();
    assert!(bad.is_empty() && good > 100, "{good} good answers, {bad:?}");
    backends.into_iter().for_each(Planned::stop);
}

#[test]
fn several_threads_decide_over_remote_devices_and_lose_nothing() {
    let start: StartEngine = Box::new(|| {
        let (options, shards) = (Options::new(), 3);
        let limits = find("deferred").map_err(|error| error.to_string())?.needs(&options).served(8, 4096);
        let setup = Setup { models: Vec::new(), devices: 0, limits: Limits { nodes: 0, ..limits } };
        let scheduler = build_shards("deferred", &setup, &options, shards).map_err(|error| error.to_string())?;
        let engine =
            Engine::start(EngineConfig::new(scheduler, setup, Vec::new())).map_err(|error| error.to_string())?;
        Ok(StartedEngine { engine, depth: limits.depth, delay_permille: None })
    });
    let scheduler = scheduler_starting(anywhere(), start);
    let all = || NAMES.map(|name| Served { name, ..whole() });
    let backends: Vec<RunningBackend> = (0..3).map(|_| backend(scheduler.address(), &all())).collect();
    let client = client(scheduler.address());
    until("all serve", || devices(&scheduler) == [3] && known(&client.known) == "abcdef");
    let stop = Arc::<AtomicBool>::default();
    let loading = load(client, &stop);
    let engine = scheduler.engine().unwrap();
    let answered = || engine.all_metrics().iter().map(|(.., model)| model.success.count).sum::<u64>();
    until("many are answered", || answered() > 500);
    backends[0].stop.leave();
    until("one has left", || devices(&scheduler) == [2]);
    let before = answered();
    until("many more are answered", || answered() > before + 500);
    stop.store(true, Ordering::SeqCst);
    let (good, bad) = loading.join().unwrap();
    assert!(bad.is_empty() && good > 1_000, "{good} good answers, {bad:?}");
    backends.into_iter().for_each(RunningBackend::abort);
}

#[test]
fn backends_that_hold_all_models_are_divided_too() {
    let scheduler = scheduler_with(plan(&["ab:1", "c:2"]));
    let at = scheduler.address();
    let all = || ["a", "b", "c"].map(|name| Served { name, ..whole() });
    let backends: Vec<RunningBackend> = (0..3).map(|_| backend(at, &all())).collect();
    let client = client(at);
    until("all serve", || devices(&scheduler) == [1, 2] && known(&client.known) == "abc");
    let (known_to, stop) = (Arc::clone(&client.known), Arc::<AtomicBool>::default());
    let loading = load(client, &stop);
    scheduler.set_plan(plan(&["a:2", "bc:1"])).unwrap();
    until("they are divided anew", || {
        assert_eq!(known(&known_to), "abc");
        devices(&scheduler) == [2, 1]
    });
    stop.store(true, Ordering::SeqCst);
    let (good, bad) = loading.join().unwrap();
    assert!(bad.is_empty() && good > 0, "{good} good answers, {bad:?}");
    backends.into_iter().for_each(RunningBackend::abort);
}

#[test]
fn backends_join_and_leave_under_load_and_nothing_is_lost() {
    for written in [vec!["abcdef:1"], vec!["abc:1", "def:1"]] {
        let scheduler = scheduler_with(plan(&written));
        let at = vec![scheduler.address().to_string()];
        let mut backends: Vec<Planned> = written.iter().map(|_| planned(at.clone())).collect();
        let client = asking(at.clone());
        until("all serve", || devices(&scheduler).iter().sum::<usize>() == written.len());
        until("all models serve", || known(&client.known) == "abcdef");
        let stop = Arc::<AtomicBool>::default();
        let loading = load(client, &stop);
        // The load steps up and down: each time the number of backends follows.
        for wanted in [4, 6, 3, 5, written.len() + 1] {
            while backends.len() < wanted {
                backends.push(planned(at.clone()));
            }
            let leaving: Vec<Planned> = backends.drain(wanted..).collect();
            leaving.iter().for_each(|backend| backend.backend.stop.leave());
            leaving.into_iter().for_each(|backend| backend.backend.leave());
            until("the others serve", || devices(&scheduler).iter().sum::<usize>() == wanted);
        }
        // Also the last one of a sub-cluster: it stays until another one has its models.
        while backends.len() > 1 {
            backends.remove(0).backend.leave();
        }
        until("one serves all", || backends[0].holds() == "abcdef" && devices(&scheduler).iter().sum::<usize>() == 1);
        stop.store(true, Ordering::SeqCst);
        let (good, bad) = loading.join().unwrap();
        assert!(bad.is_empty() && good > 50, "{good} good answers, {bad:?}");
        backends.into_iter().for_each(Planned::stop);
    }
}
