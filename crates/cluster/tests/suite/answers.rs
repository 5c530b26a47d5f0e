//! A cluster gives the same answers as one process: whole models, chains, padded lengths, requests
//! larger than a batch.

use crate::common::{
    Client, MAX_BATCH, RunningBackend, SAFETY, Served, anywhere, backend, client, local, rows, scheduler, whole,
};
use ripieno_model::Walk;
use ripieno_runtime::{Engine, Failure, HangBound, Job};
use std::collections::BTreeMap;
use std::sync::mpsc::channel;

fn models() -> [Served; 3] {
    [
        whole(),
        Served { name: "chain", walk: Walk::Chain, blocks: 3, ..whole() },
        Served { name: "padded", longest: Some(16), ..whole() },
    ]
}

/// Returns the requests of each model: their rows and their width.
fn asked(model: &Served) -> Vec<(usize, usize)> {
    let width = |at: usize| model.longest.map_or(2, |longest| 1 + at % longest as usize);
    (0..60).map(|at| (1 + at % (3 * MAX_BATCH), width(at))).collect()
}

type Answers = BTreeMap<usize, Vec<u8>>;

fn of_cluster(client: &Client, model: &Served) -> Answers {
    let id = client.model(model.name);
    for (number, (count, width)) in asked(model).into_iter().enumerate() {
        client.submit(number, id, rows(number, count, width)).unwrap();
    }
    let answers = asked(model).into_iter().map(|_| client.answers.recv_timeout(SAFETY).unwrap());
    answers.map(|(number, answer)| (number, answer.unwrap().outputs[0].data.to_vec())).collect()
}

fn of_one_process(engine: &Engine, id: ripieno_base::ModelId, model: &Served) -> Answers {
    let (send, answers) = channel();
    for (number, (count, width)) in asked(model).into_iter().enumerate() {
        let (inputs, send) = (rows(number, count, width), send.clone());
        let on_answer = Box::new(move |answer| send.send((number, answer)).unwrap());
        let (timeout, client, priority, on_step) = (None, 0, 0, None);
        engine
            .submit(Job { model: id, inputs, rows: count, timeout, stage: None, client, priority, on_step, on_answer })
            .unwrap();
    }
    let answers = asked(model).into_iter().map(|_| answers.recv_timeout(SAFETY).unwrap());
    answers.map(|(number, answer)| (number, answer.unwrap().outputs[0].data.to_vec())).collect()
}

fn answers_are_those_of_one_process(policy: &'static str) {
    let models = models();
    let (engine, ids) = local(&models, policy);
    let scheduler = scheduler(1, anywhere(), policy, HangBound::default());
    let backends = [backend(scheduler.address(), &models), backend(scheduler.address(), &models)];
    let client = client(scheduler.address());
    client.ready();
    for (model, id) in models.iter().zip(ids) {
        let (cluster, one) = (of_cluster(&client, model), of_one_process(&engine, id, model));
        assert_eq!(cluster, one, "{} under {policy}", model.name);
        let expected: Answers = asked(model)
            .iter()
            .enumerate()
            .map(|(at, &(count, width))| (at, rows(at, count, width)[0].data.to_vec()))
            .collect();
        assert_eq!(one, expected, "an emulated device answers with its input");
        let counted = client.frontend.model(client.model(model.name)).unwrap();
        assert_eq!((counted.success.count, counted.live), (60, 0));
    }
    client.frontend.close();
    backends.into_iter().for_each(RunningBackend::abort);
}

#[test]
fn answers_are_those_of_one_process_under_deferred() {
    answers_are_those_of_one_process("deferred");
}

#[test]
fn answers_are_those_of_one_process_under_delay_batch() {
    answers_are_those_of_one_process("delay-batch");
}

#[test]
fn answers_are_those_of_one_process_under_dva() {
    answers_are_those_of_one_process("dva");
}

#[test]
fn what_a_model_does_not_take_is_refused_as_by_one_process() {
    let models = [Served { name: "padded", longest: Some(4), ..whole() }];
    let (engine, ids) = local(&models, "deferred");
    let scheduler = scheduler(1, anywhere(), "deferred", HangBound::default());
    let backend = backend(scheduler.address(), &models);
    let client = client(scheduler.address());
    let id = client.ready().model("padded");
    let refused = client.submit(0, id, rows(0, 1, 5)).unwrap_err();
    let (inputs, on_answer, on_step) = (rows(0, 1, 5), Box::new(|_| {}), None);
    let alone = engine.submit(Job {
        model: ids[0],
        inputs,
        rows: 1,
        timeout: None,
        stage: None,
        client: 0,
        priority: 0,
        on_step,
        on_answer,
    });
    assert_eq!(Some(refused), alone.err());
    // Only the scheduler knows the queue bound.
    client.submit(1, id, rows(1, MAX_BATCH << 15, 1)).unwrap();
    let (_, answer) = client.answers.recv_timeout(SAFETY).unwrap();
    assert!(matches!(answer, Err(Failure::TooLarge { .. })));
    client.frontend.close();
    backend.abort();
}
