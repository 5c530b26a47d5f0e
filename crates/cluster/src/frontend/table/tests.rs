use super::*;
use crate::frontend::FrontendConfig;
use crate::frontend::counters::ModelCounters;
use crate::plane::{ByteStream, LinkBounds, PeerLink};
use bytes::Bytes;
use ripieno_base::{ModelId, Nanos};
use ripieno_model::DataType;
use ripieno_runtime::StreamedStep;
use std::io;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, channel};

/// A stream that goes nowhere.
struct Nowhere;

impl ByteStream for Nowhere {
    fn read(&self, _: &mut [u8], _: Duration) -> io::Result<usize> {
        Ok(0)
    }
    fn write_all(&self, _: &[u8]) -> io::Result<()> {
        Ok(())
    }
    fn close(&self) {}
    fn peer(&self) -> Option<SocketAddr> {
        None
    }
}

fn table(most: u32) -> RequestTable {
    let mut table = RequestTable::new(most, FrontendConfig::SCHEDULER_TIMEOUT);
    follow_primary(&mut table, &link(), 1);
    table
}

/// Passes a heartbeat, and returns the number of requests completed by it and the requests to send
/// again.
fn follow_primary(table: &mut RequestTable, link: &Arc<PeerLink>, epoch: u64) -> (usize, Vec<u64>) {
    match table.on_heartbeat(link, (Epoch(epoch), ProcessId(epoch)), Instant::now()) {
        HeartbeatOutcome::Primary { completed: due, resend: again } => {
            (due.into_iter().map(CompletedRequest::answer).count(), again.iter().map(|(ask, _)| ask.request).collect())
        }
        HeartbeatOutcome::Stale(known) => panic!("{known:?} is known"),
    }
}

fn link() -> Arc<PeerLink> {
    PeerLink::start(Arc::new(Nowhere), LinkBounds::CONTROL, "test").unwrap()
}

fn insert(table: &mut RequestTable, pending: PendingRequest) -> Result<u64, Failure> {
    table.insert(pending, Instant::now()).map(|(header, _)| header.request)
}

fn tensor(rows: i64, first: u8) -> Vec<Tensor> {
    let data: Vec<u8> = (0..rows as u8).map(|row| first + row).collect();
    vec![Tensor { name: "x".into(), datatype: DataType::Uint8, shape: vec![rows, 1], data: Bytes::from(data) }]
}

fn pending(rows: u32, expires: Option<Instant>) -> (PendingRequest, Receiver<JobResult>) {
    let (send, answers) = channel();
    let on_answer = Box::new(move |answer| send.send(answer).unwrap());
    let (inputs, live, came) = (tensor(i64::from(rows), 0).into(), ModelCounters::new().enter(), Instant::now());
    let ask = RequestHeader {
        request: 0,
        model: ripieno_base::ModelId(0),
        client: 0,
        priority: 0,
        rows,
        length: 1,
        bytes: 1,
        left_ns: None,
        way: 0,
        age_ms: 0,
        sizes: None,
        stream: false,
    };
    let (ended, pieces, orphan) = (None, Vec::new(), false);
    let (graph, steps, streamed) = (None, None, false);
    let pending = PendingRequest {
        header: ask,
        inputs,
        graph,
        steps,
        streamed,
        whole: true,
        came,
        limits: AnswerLimits { due: expires, expires },
        live,
        on_answer,
        ended,
        pieces,
        orphaned: orphan,
    };
    (pending, answers)
}

fn ok() -> JobResult {
    Ok(JobOutput { outputs: Vec::new(), queued: Nanos(1), executed: Nanos(2), batch: 3, late: false })
}

fn answer(due: Option<CompletedRequest>) -> bool {
    due.map(CompletedRequest::answer).is_some()
}

#[test]
fn the_answer_waits_for_the_end_and_for_all_rows_in_whatever_order_they_come() {
    let now = Instant::now();
    for end_first in [true, false] {
        let mut table = table(4);
        table.on_backend_connected(1);
        let (pending, answers) = pending(6, None);
        let request = insert(&mut table, pending).unwrap();
        let (inputs, rows) = table.pull(request, 0, 4, 1).unwrap();
        assert_eq!((inputs.len(), rows), (1, 6));
        assert!(table.pull(request, 4, 2, 1).is_some());
        assert!(table.pull(request, 5, 2, 1).is_none() && table.pull(request, u32::MAX, 2, 1).is_none());
        if end_first {
            assert!(!answer(table.on_end(request, ok(), now)));
        }
        assert!(!answer(table.on_outputs(request, (4, 2), 1, (tensor(2, 4), 0))));
        assert!(!answer(table.on_outputs(request, (3, 2), 1, (tensor(2, 4), 0))), "rows that were not pulled");
        assert_eq!(answer(table.on_outputs(request, (0, 4), 1, (tensor(4, 0), 0))), end_first);
        assert_eq!(answer(table.on_end(request, ok(), now)), !end_first);
        let outputs = answers.try_recv().unwrap().unwrap().outputs;
        assert_eq!(outputs, tensor(6, 0));
        // Repeated messages find nothing, and the next request in the same slot has another number.
        assert!(
            !answer(table.on_end(request, ok(), now))
                && !answer(table.on_outputs(request, (0, 4), 1, (tensor(4, 0), 0)))
        );
        let other = insert(&mut table, super::tests::pending(1, None).0).unwrap();
        assert_eq!((other as u32, other == request), (request as u32, false));
        assert!(!answer(table.on_end(request, Err(Failure::Expired), now)) && table.len() == 1);
    }
}

#[test]
fn requests_of_a_lost_backend_may_be_retried_and_those_rerun_elsewhere_wait() {
    let now = Instant::now();
    let mut table = table(4);
    (1..=2).for_each(|connection| table.on_backend_connected(connection));
    let mut asked = |connection| {
        let (pending, answers) = pending(1, None);
        let request = insert(&mut table, pending).unwrap();
        table.pull(request, 0, 1, connection).unwrap();
        (request, answers)
    };
    let [(ended, told), (running, waits), (later, too_late)] = [asked(1), asked(1), asked(1)];
    assert!(!answer(table.on_end(ended, ok(), now)));
    let lost = table.on_backend_lost(1);
    lost.into_iter().for_each(CompletedRequest::answer);
    assert!(matches!(told.try_recv().unwrap(), Err(Failure::Outage { .. })));
    assert!(waits.try_recv().is_err(), "its end is not reported");
    assert!(answer(table.on_end(later, ok(), now)), "its outputs were with the one that is gone");
    assert!(matches!(too_late.try_recv().unwrap(), Err(Failure::Outage { .. })));
    // The scheduler runs it again, and the other device pulls the rows.
    assert!(table.pull(running, 0, 1, 2).is_some());
    assert!(!answer(table.on_end(running, ok(), now)));
    assert!(answer(table.on_outputs(running, (0, 1), 1, (tensor(1, 9), 0))));
    assert_eq!(waits.try_recv().unwrap().unwrap().outputs, tensor(1, 9));
}

#[test]
fn without_a_scheduler_all_that_it_had_to_end_may_be_asked_again() {
    let mut table = table(4);
    table.on_backend_connected(1);
    let ((first, told), (second, waits)) = (pending(1, None), pending(1, None));
    let (first, second) = (insert(&mut table, first).unwrap(), insert(&mut table, second).unwrap());
    assert!(table.get(first).is_some() && table.pull(second, 0, 1, 1).is_some());
    assert!(!answer(table.on_end(second, ok(), Instant::now())));
    let (asked, now) = (table.scheduler().unwrap(), Instant::now());
    assert!(table.on_scheduler_lost(&link(), now).is_empty() && table.is_primary(&asked), "a spare");
    assert!(table.on_scheduler_lost(&asked, now).is_empty() && told.try_recv().is_err(), "another one may come");
    let (third, _may_come_again) = pending(1, None);
    let third = insert(&mut table, third).unwrap();
    assert!(table.get(third).is_some() && !table.is_abandoned(now + FrontendConfig::SCHEDULER_TIMEOUT));
    assert!(table.is_abandoned(now + FrontendConfig::SCHEDULER_TIMEOUT * 2));
    table.fail_without_scheduler().into_iter().for_each(CompletedRequest::answer);
    assert!(matches!(told.try_recv().unwrap(), Err(Failure::Outage { .. })));
    assert!(answer(table.on_outputs(second, (0, 1), 1, (tensor(1, 0), 0))) && waits.try_recv().unwrap().is_ok());
    let refused = table.insert(pending(1, None).0, now + FrontendConfig::SCHEDULER_TIMEOUT * 2);
    assert!(matches!(refused, Err(Failure::Outage { .. })));
    assert!(
        matches!(
            insert(&mut RequestTable::new(4, FrontendConfig::SCHEDULER_TIMEOUT), pending(1, None).0),
            Err(Failure::Outage { .. })
        ),
        "no scheduler ever connected"
    );
}

#[test]
fn a_request_is_sent_again_with_its_age() {
    let mut table = table(2);
    let (pending, _answers) = pending(1, None);
    let came = pending.came;
    let (first, _) = table.insert(pending, came).unwrap();
    assert_eq!(first.age_ms, 0);
    for (epoch, age_ms) in [(2, 0), (3, 1_500), (4, u64::from(u16::MAX)), (5, 1 << 20)] {
        let outcome =
            table.on_heartbeat(&link(), (Epoch(epoch), ProcessId(epoch)), came + Duration::from_millis(age_ms));
        let HeartbeatOutcome::Primary { resend, .. } = outcome else { panic!("the epoch is new") };
        assert_eq!(u64::from(resend[0].0.age_ms), age_ms.min(u16::MAX.into()));
    }
}

#[test]
fn the_next_primary_receives_all_unanswered_requests_and_complete_outputs_are_enough() {
    let now = Instant::now();
    let mut table = table(4);
    table.on_backend_connected(1);
    let mut asked = |rows| {
        let (pending, answers) = pending(rows, None);
        (insert(&mut table, pending).unwrap(), answers)
    };
    let [(here, told), (runs, later), (waits, last), (ended, well)] = [asked(1), asked(2), asked(4), asked(1)];
    for (request, rows) in [(here, 1), (runs, 2), (waits, 3), (ended, 1)] {
        table.pull(request, 0, rows, 1).unwrap();
    }
    assert!(!answer(table.on_end(ended, ok(), now)));
    assert!(!answer(table.on_outputs(here, (0, 1), 1, (tensor(1, 0), 0))), "its scheduler has not said how it ended");
    let first = table.scheduler().unwrap();
    let next = link();
    assert_eq!(follow_primary(&mut table, &next, 2), (1, vec![runs, waits]));
    assert_eq!(follow_primary(&mut table, &next, 2), (0, vec![]), "once");
    assert!(told.try_recv().unwrap().is_ok() && table.is_primary(&next));
    assert!(matches!(table.on_heartbeat(&first, (Epoch(1), ProcessId(1)), now), HeartbeatOutcome::Stale(Epoch(2))));
    let due = table.on_outputs(runs, (0, 2), 1, (tensor(2, 0), 0)).unwrap();
    assert_eq!(due.orphaned_id(), Some(runs), "the primary is to be told");
    due.answer();
    assert!(later.try_recv().unwrap().is_ok());
    // The new scheduler splits differently: rows of the old split do not count.
    [(0, 2), (2, 2)].iter().for_each(|&(first, rows)| assert!(table.pull(waits, first, rows, 1).is_some()));
    assert!(
        !answer(table.on_outputs(waits, (0, 3), 1, (tensor(3, 0), 0)))
            && !answer(table.on_outputs(waits, (0, 2), 7, (tensor(2, 0), 0)))
    );
    assert!(answer(table.on_outputs(waits, (2, 2), 1, (tensor(2, 2), 0))));
    assert_eq!(last.try_recv().unwrap().unwrap().outputs, tensor(4, 0));
    let due = table.on_outputs(ended, (0, 1), 1, (tensor(1, 0), 0)).unwrap();
    assert_eq!(due.orphaned_id(), None);
    due.answer();
    assert!(well.try_recv().unwrap().is_ok());
}

#[test]
fn the_clock_of_the_frontend_decides_whether_an_answer_is_late() {
    let now = Instant::now();
    let (came, past) = (now - Duration::from_millis(2), now.checked_sub(Duration::from_millis(1)));
    let future = now.checked_add(Duration::from_secs(1 << 20));
    let (gives, refuses) = (|due| AnswerLimits { due, expires: None }, |due| AnswerLimits { due, expires: due });
    for (limits, reported, told) in [
        (gives(past), false, Some(true)),
        (gives(future), true, Some(false)),
        (refuses(future), true, Some(false)),
        (refuses(past), false, None),
        (AnswerLimits { due: past, expires: future }, false, Some(true)),
    ] {
        let mut table = table(1);
        table.on_backend_connected(1);
        let (pending, answers) = pending(1, None);
        let request = insert(&mut table, PendingRequest { came, limits, ..pending }).unwrap();
        table.pull(request, 0, 1, 1).unwrap();
        assert!(!answer(table.on_outputs(request, (0, 1), 1, (tensor(1, 0), 0))));
        let end = ok().map(|output| JobOutput { late: reported, ..output });
        assert!(answer(table.on_end(request, end, now)));
        match (answers.try_recv().unwrap(), told) {
            (Ok(answered), Some(late)) => assert_eq!(answered.late, late, "{limits:?}"),
            (Err(Failure::Expired), None) => {}
            other => panic!("{limits:?}: {other:?}"),
        }
    }
}

#[test]
fn a_request_that_the_shortest_way_leaves_no_time_is_refused_and_one_a_second_passes() {
    let ms = Duration::from_millis;
    let (mut table, begun) = (table(64), Instant::now());
    let told = |table: &mut RequestTable, after, allowed, answers_late: bool| {
        let came = begun + ms(after);
        let due = came.checked_add(ms(allowed));
        let limits = AnswerLimits { due, expires: due.filter(|_| !answers_late) };
        let pending = PendingRequest { came, limits, on_answer: Box::new(|_| ()), ..pending(1, None).0 };
        table.insert(pending, came).map(|(header, _)| header.way())
    };
    for pulled in [960, 80, 260, 80] {
        (0..4).for_each(|_| {
            assert!(told(&mut table, 0, 100, false).unwrap() < ms(26), "too few are measured");
            table.ways.add(ModelId(0), ms(40), ms(pulled));
        });
    }
    let refused = |told| told == Err(Failure::SlowLink { link: SlowLink::Inputs, takes: ms(120) });
    assert!(told(&mut table, 0, 100, false).unwrap() < ms(26), "one is sent to measure the way");
    assert!(refused(told(&mut table, 0, 120, false)) && refused(told(&mut table, 999, 1, false)));
    assert_eq!(told(&mut table, 0, 1_000, false).unwrap(), ms(120), "less than a quarter");
    assert_eq!(told(&mut table, 0, 200, false).unwrap(), ms(120), "what is left is its time");
    assert!(told(&mut table, 0, 100, true).unwrap() < ms(26), "late answers are given");
    (0..16).for_each(|_| table.ways.add(ModelId(7), ms(1), ms(1)));
    assert!(told(&mut table, 1_000, 100, false).is_ok() && refused(told(&mut table, 1_001, 100, false)));
    table.ways.add(ModelId(0), ms(1), ms(1));
    assert!((0..16).all(|_| told(&mut table, 1_002, 100, false).is_ok()), "it has become shorter");
}

#[test]
fn a_slow_link_is_learnt_from_the_ends_of_requests_and_named() {
    let ms = Duration::from_millis;
    let (mut table, begun) = (table(64), Instant::now());
    let inputs = |takes| Failure::SlowLink { link: SlowLink::Inputs, takes };
    let ended = |table: &mut RequestTable, failure: Failure| {
        let limits = AnswerLimits { due: begun.checked_add(ms(100)), expires: begun.checked_add(ms(100)) };
        let (pending, answers) = pending(1, None);
        let pending = PendingRequest { came: begun, limits, ..pending };
        let request = table.insert(pending, begun)?.0.request;
        assert!(answer(table.on_end(request, Err(failure), begun)));
        Err::<(), Failure>(answers.try_recv().unwrap().unwrap_err())
    };
    let too_long = |ms_needed| Failure::TooLong { needed: ms(ms_needed) };
    assert_eq!(ended(&mut table, too_long(5)), Err(too_long(5)), "the way takes nothing");
    assert_eq!(table.slow_link(ModelId(0), begun), None);
    (0..15).for_each(|_| assert_eq!(ended(&mut table, inputs(ms(150))), Err(inputs(ms(150)))));
    assert_eq!(table.slow_link(ModelId(0), begun), Some((SlowLink::Inputs, ms(150))));
    assert_eq!(ended(&mut table, inputs(ms(140))), Err(inputs(ms(140))));
    assert_eq!(ended(&mut table, inputs(ms(150))), Err(inputs(ms(150))), "one is sent to measure");
    assert_eq!(ended(&mut table, Failure::Hopeless), Err(inputs(ms(140))), "refused immediately");
    let shown = |after| table.slow_link(ModelId(0), begun + after);
    assert_eq!((shown(ms(9_000)).is_some(), shown(ms(11_000))), (true, None));

    (0..16).for_each(|_| table.ways.add(ModelId(0), ms(96), ms(0)));
    assert_eq!(ended(&mut table, too_long(2)), Err(too_long(2)), "the way leaves enough");
    let way = Failure::SlowLink { link: SlowLink::Messages, takes: ms(96) };
    assert_eq!(ended(&mut table, too_long(5)), Err(way));
    assert_eq!(ended(&mut table, too_long(101)), Err(too_long(101)));
}

#[test]
fn no_request_waits_for_ever_and_none_is_accepted_beyond_the_bound() {
    let now = Instant::now();
    let mut table = table(3);
    table.on_backend_connected(1);
    let soon = now.checked_add(Duration::from_millis(5));
    let [(expiring, expired), (owed, given_up), (patient, waits)] =
        [pending(1, soon), pending(1, soon), pending(1, None)];
    let [_, owed, patient] = [expiring, owed, patient].map(|pending| insert(&mut table, pending).unwrap());
    assert!(matches!(insert(&mut table, pending(1, None).0), Err(Failure::QueueFull { bound: 3, .. })));
    table.pull(owed, 0, 1, 1).unwrap();
    assert!(!answer(table.on_end(owed, ok(), now)));
    let expire =
        |table: &mut RequestTable, after| table.expire(now + after).into_iter().map(CompletedRequest::answer).count();
    assert_eq!(expire(&mut table, Duration::from_secs(1)), 0);
    assert_eq!(expire(&mut table, Duration::from_secs(2)), 1);
    assert!(matches!(expired.try_recv().unwrap(), Err(Failure::Expired)));
    assert_eq!(expire(&mut table, Duration::from_secs(11)), 1);
    assert!(matches!(given_up.try_recv().unwrap(), Err(Failure::Outage { .. })));
    assert_eq!(expire(&mut table, Duration::from_secs(1 << 20)), 0);
    table.closed = true;
    assert!(matches!(insert(&mut table, pending(1, None).0), Err(Failure::ShuttingDown)));
    table.closed = false;
    assert!(table.get(patient).is_some());
    table.fail_all().into_iter().for_each(CompletedRequest::answer);
    assert!(matches!(waits.try_recv().unwrap(), Err(Failure::ShuttingDown)) && table.len() == 0);
}

/// Returns a streamed request, and the numbers of the steps that its client receives.
fn streamed() -> (PendingRequest, Receiver<JobResult>, Receiver<bool>) {
    let (pending, answers) = pending(1, None);
    let (send, steps) = channel();
    let receiver = StepReceiver::new(Box::new(move |step: StreamedStep| send.send(step.last).unwrap()));
    (PendingRequest { steps: Some(receiver), ..pending }, answers, steps)
}

fn step(table: &mut RequestTable, request: u64, connection: u64, last: bool) -> bool {
    let receiver = table.on_step(request, connection);
    receiver.map(|receiver| receiver.receive(StreamedStep { outputs: tensor(1, 0), last })).is_some()
}

#[test]
fn steps_come_from_the_run_that_answers_and_end_before_the_answer() {
    let mut table = table(4);
    let (pending, answers, steps) = streamed();
    let request = insert(&mut table, pending).unwrap();
    assert!(!step(&mut table, request, 1, false), "nothing was pulled");
    table.pull(request, 0, 1, 1).unwrap();
    // The backend is lost before its first step, and another one runs the request.
    assert!(table.end_repeated_stream(request).is_none());
    table.pull(request, 0, 1, 2).unwrap();
    assert!(!step(&mut table, request, 1, false) && step(&mut table, request, 2, false));
    assert!(!answer(table.on_outputs(request, (0, 1), 1, (tensor(1, 1), 0))), "outputs of the lost one");
    assert!(step(&mut table, request, 2, true));
    assert!(!answer(table.on_outputs(request, (0, 1), 2, (tensor(1, 2), 0))));
    assert!(answer(table.on_end(request, ok(), Instant::now())));
    assert_eq!(steps.iter().collect::<Vec<_>>(), [false, true], "the receiver is dropped");
    assert_eq!(answers.try_recv().unwrap().unwrap().outputs, tensor(1, 2));
}

#[test]
fn a_stream_that_would_begin_again_ends() {
    for (orphaned, said) in [(false, "backend that ran it was lost"), (true, "another scheduler")] {
        let mut table = table(4);
        let (pending, answers, steps) = streamed();
        let request = insert(&mut table, pending).unwrap();
        table.pull(request, 0, 1, 1).unwrap();
        assert!(step(&mut table, request, 1, false));
        if orphaned {
            assert_eq!(table.orphan_all().len(), 0);
        }
        assert!(answer(table.end_repeated_stream(request)) && table.pull(request, 0, 1, 2).is_none());
        let ended = answers.try_recv().unwrap().unwrap_err();
        assert!(matches!(&ended, Failure::Outage { cause, .. } if cause.contains(said)), "{ended}");
        assert_eq!(steps.iter().count(), 1);
    }
}
