use super::super::{ByteStream, MemberEnd, MessageReader};
use super::*;
use crate::handover::{RequestId, RunningRows};
use ripieno_base::Nanos;
use ripieno_model::DataType;
use ripieno_runtime::{Failure, JobOutput, JobResult};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A stream that delivers bytes in pieces of a given size.
struct Pieces(Mutex<Vec<u8>>, usize);

impl ByteStream for Pieces {
    fn read(&self, into: &mut [u8], _: Duration) -> io::Result<usize> {
        let mut bytes = self.0.lock().unwrap();
        let read = into.len().min(bytes.len()).min(self.1);
        into[..read].copy_from_slice(&bytes[..read]);
        bytes.drain(..read);
        Ok(read)
    }
    fn write_all(&self, _: &[u8]) -> io::Result<()> {
        Ok(())
    }
    fn close(&self) {}
    fn peer(&self) -> Option<SocketAddr> {
        None
    }
}

fn reader(bytes: Vec<u8>, pieces: usize) -> MessageReader {
    MessageReader::new(Arc::new(Pieces(Mutex::new(bytes), pieces)), Duration::ZERO)
}

fn answers() -> Vec<JobResult> {
    let after = Duration::from_nanos(1_500_000_001);
    let cause = || "a cause, in words: é".to_owned();
    let failures = [
        Failure::QueueFull { bound: 7, retry_after: after },
        Failure::TooLarge { asked: "9 rows".to_owned(), most: 8 },
        Failure::NodesFull { held: 3, bound: 4, retry_after: after },
        Failure::Invalid(cause()),
        Failure::NotLoaded,
        Failure::Expired,
        Failure::Hopeless,
        Failure::TooLate { expected: Duration::from_millis(340), retry_after: Duration::from_millis(240) },
        Failure::TooLong { needed: Duration::from_millis(340) },
        Failure::Overload(after),
        Failure::Share(after),
        Failure::Cancelled,
        Failure::Failed(cause()),
        Failure::Outage { cause: cause(), retry_after: after },
        Failure::Unloaded,
        Failure::ShuttingDown,
    ];
    let answered = JobOutput { outputs: vec![], queued: Nanos(-1), executed: Nanos::MAX, batch: 64, late: true };
    std::iter::once(Ok(answered)).chain(failures.into_iter().map(Err)).collect()
}

/// Returns the messages about leadership.
fn leadership_messages() -> Vec<Message> {
    let stamp = Stamp { epoch: Epoch(u64::MAX), number: 2 };
    let request = RequestId { frontend: ProcessId(6), number: u64::MAX };
    let held = RunningRows { request, rows: u32::MAX, failed: false };
    vec![
        Message::Claim { stamp, holder: ProcessId(7) },
        Message::Report(RunningReport { stamp, revision: 3, held: vec![held, RunningRows { failed: true, ..held }] }),
        Message::Heartbeat(Epoch(8), ProcessId(9), None),
        Message::Heartbeat(Epoch(8), ProcessId(9), Some(ReachedRoles { backends: true, frontends: false })),
        Message::Heartbeat(Epoch(8), ProcessId(9), Some(ReachedRoles { backends: false, frontends: true })),
        Message::Fenced(Epoch(10)),
        Message::Peer(ProcessId(11)),
    ]
}

fn request_header() -> RequestHeader {
    RequestHeader {
        request: u64::MAX,
        model: ModelId(9),
        client: 3,
        priority: 5,
        rows: 1 << 20,
        length: 77,
        bytes: u64::MAX,
        left_ns: Some(1),
        way: u16::MAX,
        age_ms: 4,
        sizes: Some([1, 2, 3, u32::MAX]),
        stream: true,
    }
}

/// Returns the messages about requests that run cell by cell.
fn walk_messages() -> [Message; 2] {
    let graph = Graph::from_sorted([(BlockId(0), &[][..]), (BlockId(1), &[0])].into_iter()).unwrap();
    let ask = RequestHeader { stream: false, ..request_header() };
    [Message::SubmitGraph(ask, Arc::new(graph)), Message::Step { request: 5, last: true, outputs: Vec::new() }]
}

/// Returns the ends of a task that ran and of one that failed.
fn task_ends() -> [TaskEnd; 2] {
    let ends = vec![
        MemberEnd::Continues(None),
        MemberEnd::Continues(Some(BlockId(2))),
        MemberEnd::Ended,
        MemberEnd::Failed("text".to_owned()),
        MemberEnd::Lost(String::new()),
        MemberEnd::Late(u16::MAX),
        MemberEnd::Refused("text".to_owned()),
    ];
    let ended = TaskEnd {
        ago_ns: 1,
        took_ns: 2,
        held_ns: 3,
        fetched_ns: 4,
        reruns: 5,
        ..TaskEnd::without_run(TaskId(8), Ok(ends))
    };
    let failed = TaskEnd { lost: Some((5, true)), members: Err("text".to_owned()), ..ended.clone() };
    [ended, failed]
}

fn messages() -> Vec<Message> {
    let text = || "text".to_owned();
    let tensor =
        Tensor { name: "x".into(), datatype: DataType::Int8, shape: vec![1, 2], data: Bytes::from_static(b"ab") };
    let ask = request_header();
    let member = RunMember {
        slot: RequestSlot(4),
        rows: 2,
        length: 3,
        node: u32::MAX,
        stream: true,
        walk: 1 << 40,
        left_ns: None,
        origin: Some(RemoteRows { frontend: 1, request: 1 << 33, first_row: 5 }),
    };
    let members = vec![member, RunMember { origin: None, left_ns: Some(9), ..member }];
    let run = RunTask {
        task: TaskId(1),
        model: ModelId(2),
        block: BlockId(3),
        lane: LaneId(4),
        length: 5,
        wait_ns: 6,
        members,
    };
    let outputs = |outputs| Message::Outputs { request: 4, first_row: 2, rows: 1, pulled_us: 7, outputs };
    let mut all = vec![
        Message::KeepAlive,
        Message::Refused(text()),
        Message::RegisterBackend { depth: 2, models: text().into() },
        Message::Offer(text().into()),
        Message::Place(7, text().into()),
        Message::LoadCall(LoadCall { call: u64::MAX, unload: true, name: text() }),
        Message::LoadCallEnd(3, text()),
        Message::Leave,
        Message::OpenDevice(3, u64::MAX),
        Message::Attach(ModelId(1), 2),
        Message::Detach(ModelId(1)),
        Message::RunTask(run),
        Message::CancelTask(TaskId(5)),
        Message::AddFrontend(6, text()),
        Message::RemoveFrontend(6),
        Message::RegisterFrontend(6, text()),
        Message::Submit(ask),
        Message::Submit(RequestHeader { left_ns: None, sizes: None, ..ask }),
        Message::CancelRequest(11),
        Message::Models(text().into()),
        Message::Devices(12),
        Message::Pull { tag: 1, request: 2, first_row: 3, rows: 4 },
        Message::Rows { tag: 1, inputs: Some(vec![tensor.clone()]) },
        Message::Rows { tag: 1, inputs: None },
        outputs(Ok(vec![tensor])),
        outputs(Err(text())),
    ];
    all.extend(leadership_messages());
    all.extend(walk_messages());
    all.extend(task_ends().map(Message::TaskEnd));
    all.extend(answers().into_iter().map(|answer| Message::RequestEnd(RequestEnd { request: 13, answer })));
    all
}

#[test]
fn every_message_survives_however_its_bytes_come() {
    let all = messages();
    let mut bytes = Vec::new();
    all.iter().for_each(|message| message.encode(&mut bytes));
    for pieces in [1, 7, 64, 65, usize::MAX] {
        let mut reader = reader(bytes.clone(), pieces);
        for message in &all {
            assert_eq!(format!("{:?}", reader.read().unwrap()), format!("{message:?}"));
        }
        assert_eq!(reader.read().unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}

#[test]
fn a_request_and_its_end_are_one_record_each() {
    for message in messages() {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        if matches!(message, Message::Submit(_) | Message::RequestEnd(RequestEnd { answer: Ok(_), .. })) {
            assert_eq!(bytes.len(), RECORD);
        }
    }
}

#[test]
fn what_is_no_message_is_an_error() {
    let read = |bytes: &[u8]| reader(bytes.to_vec(), usize::MAX).read().unwrap_err();
    for message in messages() {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        let cut = &bytes[..bytes.len() - 1];
        assert_eq!(read(cut).kind(), io::ErrorKind::UnexpectedEof, "{message:?}");
        let mut long = bytes.clone();
        long[4..8].fill(u8::MAX);
        assert_eq!(read(&long).kind(), io::ErrorKind::InvalidData, "a tail without end: {message:?}");
    }
    assert!(read(&[255; RECORD]).to_string().contains("kind 65535"));
    let mut bytes = Vec::new();
    Message::Refused("é".to_owned()).encode(&mut bytes);
    *bytes.last_mut().unwrap() = 0;
    assert!(read(&bytes).to_string().contains("text"));
}

#[test]
fn long_texts_are_cut_and_not_refused() {
    let long = "é".repeat(MAX_TEXT);
    let members = Ok(vec![MemberEnd::Failed(long.clone()), MemberEnd::Lost(long.clone())]);
    let ended = TaskEnd::without_run(TaskId(0), members);
    let all = [
        Message::Refused(long.clone()),
        Message::TaskEnd(ended),
        Message::RequestEnd(RequestEnd { request: 0, answer: Err(Failure::Failed(long)) }),
    ];
    let mut bytes = Vec::new();
    all.iter().for_each(|message| message.encode(&mut bytes));
    let mut reader = reader(bytes, usize::MAX);
    assert!(all.iter().all(|_| reader.read().is_ok()));
}
