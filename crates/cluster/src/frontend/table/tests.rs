use super::*;
use crate::plane::{Link, LinkBounds, Stream};
use bytes::Bytes;
use ripieno_base::Nanos;
use ripieno_model::DataType;
use std::io;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, channel};

/// A connection to nobody.
struct Nowhere;

impl Stream for Nowhere {
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

fn table(most: u32) -> Table {
    let mut table = Table::new(most);
    follow_primary(&mut table, &link(), 1);
    table
}

/// A scheduler says that it is the primary: what is answered at once, and what it is asked.
fn follow_primary(table: &mut Table, link: &Arc<Link>, epoch: u64) -> (usize, Vec<u64>) {
    match table.follow_primary(link, (Epoch(epoch), Process(epoch)), Instant::now()) {
        Followed::Asks { due, again } => {
            (due.into_iter().map(Due::answer).count(), again.iter().map(|ask| ask.request).collect())
        }
        Followed::Stale(known) => panic!("{known:?} is known"),
    }
}

fn link() -> Arc<Link> {
    Link::start(Arc::new(Nowhere), LinkBounds::CONTROL, "test").unwrap()
}

fn insert(table: &mut Table, pending: Pending) -> Result<u64, Refused> {
    table.insert(pending, Instant::now()).map(|(request, _)| request)
}

fn tensor(rows: i64, first: u8) -> Vec<Tensor> {
    let data: Vec<u8> = (0..rows as u8).map(|row| first + row).collect();
    vec![Tensor { name: "x".into(), datatype: DataType::Uint8, shape: vec![rows, 1], data: Bytes::from(data) }]
}

fn pending(rows: u32, expires: Option<Instant>) -> (Pending, Receiver<Answer>) {
    let (send, answers) = channel();
    let on_answer = Box::new(move |answer| send.send(answer).unwrap());
    let (inputs, live, came) = (tensor(i64::from(rows), 0).into(), Counts::new().enter(), Instant::now());
    let ask = Ask {
        request: 0,
        model: ripieno_base::ModelId(0),
        client: 0,
        priority: 0,
        rows,
        length: 1,
        bytes: 1,
        left_ns: None,
        sizes: None,
    };
    let (ended, pieces, orphan) = (None, Vec::new(), false);
    (Pending { ask, inputs, came, expires, live, on_answer, ended, pieces, orphan }, answers)
}

fn ok() -> Answer {
    Ok(Answered { outputs: Vec::new(), queued: Nanos(1), executed: Nanos(2), batch: 3, late: false })
}

fn answer(due: Option<Due>) -> bool {
    due.map(Due::answer).is_some()
}

#[test]
fn the_answer_waits_for_the_end_and_for_all_rows_in_whatever_order_they_come() {
    let now = Instant::now();
    for end_first in [true, false] {
        let mut table = table(4);
        table.connect(1);
        let (pending, answers) = pending(6, None);
        let request = insert(&mut table, pending).unwrap();
        let (inputs, rows) = table.pull(request, 0, 4, 1).unwrap();
        assert_eq!((inputs.len(), rows), (1, 6));
        assert!(table.pull(request, 4, 2, 1).is_some());
        assert!(table.pull(request, 5, 2, 1).is_none() && table.pull(request, u32::MAX, 2, 1).is_none());
        if end_first {
            assert!(!answer(table.end(request, ok(), now)));
        }
        assert!(!answer(table.outputs(request, 4, 2, tensor(2, 4))));
        assert!(!answer(table.outputs(request, 3, 2, tensor(2, 4))), "rows that nobody asked for");
        assert_eq!(answer(table.outputs(request, 0, 4, tensor(4, 0))), end_first);
        assert_eq!(answer(table.end(request, ok(), now)), !end_first);
        let outputs = answers.try_recv().unwrap().unwrap().outputs;
        assert_eq!(outputs, tensor(6, 0));
        // All of it once more meets nobody, and the next one in its place is another.
        assert!(!answer(table.end(request, ok(), now)) && !answer(table.outputs(request, 0, 4, tensor(4, 0))));
        let other = insert(&mut table, super::tests::pending(1, None).0).unwrap();
        assert_eq!((other as u32, other == request), (request as u32, false));
        assert!(!answer(table.end(request, Err(Failure::Expired), now)) && table.len() == 1);
    }
}

#[test]
fn who_waits_for_a_backend_that_is_gone_may_ask_again_and_who_is_run_elsewhere_waits() {
    let now = Instant::now();
    let mut table = table(4);
    (1..=2).for_each(|connection| table.connect(connection));
    let mut asked = |connection| {
        let (pending, answers) = pending(1, None);
        let request = insert(&mut table, pending).unwrap();
        table.pull(request, 0, 1, connection).unwrap();
        (request, answers)
    };
    let [(ended, told), (running, waits), (later, too_late)] = [asked(1), asked(1), asked(1)];
    assert!(!answer(table.end(ended, ok(), now)));
    let lost = table.disconnect(1);
    lost.into_iter().for_each(Due::answer);
    assert!(matches!(told.try_recv().unwrap(), Err(Failure::Outage { .. })));
    assert!(waits.try_recv().is_err(), "nobody has said that it ended");
    assert!(answer(table.end(later, ok(), now)), "its outputs were with the one that is gone");
    assert!(matches!(too_late.try_recv().unwrap(), Err(Failure::Outage { .. })));
    // The scheduler had it run again, and the other device asks for the rows.
    assert!(table.pull(running, 0, 1, 2).is_some());
    assert!(!answer(table.end(running, ok(), now)));
    assert!(answer(table.outputs(running, 0, 1, tensor(1, 9))));
    assert_eq!(waits.try_recv().unwrap().unwrap().outputs, tensor(1, 9));
}

#[test]
fn without_a_scheduler_all_that_it_had_to_end_may_be_asked_again() {
    let mut table = table(4);
    table.connect(1);
    let ((first, told), (second, waits)) = (pending(1, None), pending(1, None));
    let (first, second) = (insert(&mut table, first).unwrap(), insert(&mut table, second).unwrap());
    assert!(table.get(first).is_some() && table.pull(second, 0, 1, 1).is_some());
    assert!(!answer(table.end(second, ok(), Instant::now())));
    let (asked, now) = (table.scheduler().unwrap(), Instant::now());
    assert!(table.lose(&link(), now).is_empty() && table.asks(&asked), "a spare");
    assert!(table.lose(&asked, now).is_empty() && told.try_recv().is_err(), "another one may come");
    let (third, _may_come_again) = pending(1, None);
    let third = insert(&mut table, third).unwrap();
    assert!(table.get(third).is_some() && !table.is_abandoned(now + PATIENCE));
    assert!(table.is_abandoned(now + PATIENCE * 2));
    table.give_up().into_iter().for_each(Due::answer);
    assert!(matches!(told.try_recv().unwrap(), Err(Failure::Outage { .. })));
    assert!(answer(table.outputs(second, 0, 1, tensor(1, 0))) && waits.try_recv().unwrap().is_ok());
    let refused = table.insert(pending(1, None).0, now + PATIENCE * 2);
    assert!(matches!(refused, Err(Refused::Outage { .. })));
    assert!(matches!(insert(&mut Table::new(4), pending(1, None).0), Err(Refused::Outage { .. })), "nobody ever came");
}

#[test]
fn whoever_reigns_next_is_asked_for_all_that_is_unanswered_and_outputs_that_are_here_are_enough() {
    let now = Instant::now();
    let mut table = table(4);
    table.connect(1);
    let mut asked = |rows| {
        let (pending, answers) = pending(rows, None);
        (insert(&mut table, pending).unwrap(), answers)
    };
    let [(here, told), (runs, later), (waits, last), (ended, well)] = [asked(1), asked(2), asked(4), asked(1)];
    for (request, rows) in [(here, 1), (runs, 2), (waits, 3), (ended, 1)] {
        table.pull(request, 0, rows, 1).unwrap();
    }
    assert!(!answer(table.end(ended, ok(), now)));
    assert!(!answer(table.outputs(here, 0, 1, tensor(1, 0))), "its scheduler has not said how it ended");
    let first = table.scheduler().unwrap();
    let next = link();
    assert_eq!(follow_primary(&mut table, &next, 2), (1, vec![runs, waits]));
    assert_eq!(follow_primary(&mut table, &next, 2), (0, vec![]), "once");
    assert!(told.try_recv().unwrap().is_ok() && table.asks(&next));
    assert!(matches!(table.follow_primary(&first, (Epoch(1), Process(1)), now), Followed::Stale(Epoch(2))));
    let due = table.outputs(runs, 0, 2, tensor(2, 0)).unwrap();
    assert_eq!(due.orphan(), Some(runs), "the primary is to be told");
    due.answer();
    assert!(later.try_recv().unwrap().is_ok());
    // The new one cuts otherwise: rows of the old cut do not count.
    [(0, 2), (2, 2)].iter().for_each(|&(first, rows)| assert!(table.pull(waits, first, rows, 1).is_some()));
    assert!(!answer(table.outputs(waits, 0, 3, tensor(3, 0))) && !answer(table.outputs(waits, 0, 2, tensor(2, 0))));
    assert!(answer(table.outputs(waits, 2, 2, tensor(2, 2))));
    assert_eq!(last.try_recv().unwrap().unwrap().outputs, tensor(4, 0));
    let due = table.outputs(ended, 0, 1, tensor(1, 0)).unwrap();
    assert_eq!(due.orphan(), None);
    due.answer();
    assert!(well.try_recv().unwrap().is_ok());
}

#[test]
fn nobody_waits_for_ever_and_nobody_is_taken_beyond_the_bound() {
    let now = Instant::now();
    let mut table = table(3);
    table.connect(1);
    let soon = now.checked_add(Duration::from_millis(5));
    let [(expiring, expired), (owed, given_up), (patient, waits)] =
        [pending(1, soon), pending(1, soon), pending(1, None)];
    let [_, owed, patient] = [expiring, owed, patient].map(|pending| insert(&mut table, pending).unwrap());
    assert!(matches!(insert(&mut table, pending(1, None).0), Err(Refused::QueueFull { bound: 3, .. })));
    table.pull(owed, 0, 1, 1).unwrap();
    assert!(!answer(table.end(owed, ok(), now)));
    let expire = |table: &mut Table, after| table.expire(now + after).into_iter().map(Due::answer).count();
    assert_eq!(expire(&mut table, Duration::from_secs(1)), 0);
    assert_eq!(expire(&mut table, Duration::from_secs(2)), 1);
    assert!(matches!(expired.try_recv().unwrap(), Err(Failure::Expired)));
    assert_eq!(expire(&mut table, Duration::from_secs(11)), 1);
    assert!(matches!(given_up.try_recv().unwrap(), Err(Failure::Outage { .. })));
    assert_eq!(expire(&mut table, Duration::from_secs(1 << 20)), 0);
    table.closed = true;
    assert!(matches!(insert(&mut table, pending(1, None).0), Err(Refused::ShuttingDown)));
    table.closed = false;
    assert!(table.get(patient).is_some());
    table.dismiss().into_iter().for_each(Due::answer);
    assert!(matches!(waits.try_recv().unwrap(), Err(Failure::ShuttingDown)) && table.len() == 0);
}
