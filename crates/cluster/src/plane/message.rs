//! The messages of the protocol between roles, and their layout.
//!
//! All roles share one enum, so that each layout is written in one place; a reader matches the
//! messages that it expects and ends the connection at any other. The messages of a request are one
//! record each: [`RequestHeader`] and [`RequestEnd`]. A batch takes one [`RunTask`] with a record a
//! member, and one [`TaskEnd`] with eight bytes a member.

use super::frame::{
    DecodeError, MAX_TEXT, RECORD, RecordReader, RecordWriter, header, read_text, set_tail, write_text,
};
use super::graph::{MAX_GRAPH, read_graph, write_graph};
use super::report::{HELD, MAX_HELD, RunningReport};
use super::request_result::RequestEnd;
use super::task_end::{MEMBER_END, TaskEnd};
use super::tensors::{read_tensors, write_tensors};
use crate::handover::{Epoch, ProcessId, ReachedRoles, Stamp};
use bytes::Bytes;
use ripieno_base::{BlockId, LaneId, ModelId, RequestSlot, TaskId};
use ripieno_executor::{RemoteRows, Tensor};
use ripieno_model::Graph;
use ripieno_runtime::OpenSizes;
use std::sync::Arc;
use std::time::Duration;

/// The largest number of bytes or members in a tail.
const MAX_MODELS: usize = 64 << 20;
const MAX_MEMBERS: usize = 1 << 16;
const MAX_TENSOR_BYTES: usize = 1 << 30;

/// A message from one role to another. The sender is named where only one role sends it.
#[derive(Debug)]
pub enum Message {
    /// Any role: the connection is alive.
    KeepAlive,
    /// Scheduler: the peer is refused, for this reason.
    Refused(String),
    /// Backend: registers with the models that it has loaded.
    RegisterBackend {
        /// Number of tasks that each lane holds.
        depth: u32,
        /// The models, as [`encode_offers`](crate::encode_offers) writes them.
        models: Bytes,
    },
    /// Backend: the models that it offers from now on.
    Offer(Bytes),
    /// Backend: it will start no further task.
    Leave,
    /// Backend: a task has ended.
    TaskEnd(TaskEnd),
    /// To a backend: open a device with this number of lanes. Its tasks wait this long for their
    /// inputs, in nanoseconds; 0: without a limit.
    OpenDevice(u32, u64),
    /// To a backend: the id names the backend's model of this number.
    Attach(ModelId, u32),
    /// To a backend: the id no longer names a model.
    Detach(ModelId),
    /// To a backend: run a task.
    RunTask(RunTask),
    /// To a backend: stop a task, if that is still possible.
    CancelTask(TaskId),
    /// To a backend: follow this scheduler, and report the tasks that still run from earlier
    /// epochs.
    Claim {
        /// Greater than the stamp of every earlier claim.
        stamp: Stamp,
        /// The primary of that epoch.
        holder: ProcessId,
    },
    /// Backend: the rows that still run from earlier epochs.
    Report(RunningReport),
    /// Scheduler, to schedulers and frontends: it is the primary, and the roles that it reaches.
    Heartbeat(Epoch, ProcessId, Option<ReachedRoles>),
    /// To a scheduler: the sender knows of a later epoch.
    Fenced(Epoch),
    /// Scheduler, to another: the sender's id, on a connection for heartbeats.
    Peer(ProcessId),
    /// To a backend: a frontend has connected; the address serves its inputs.
    AddFrontend(u32, String),
    /// To a backend: a frontend has disconnected.
    RemoveFrontend(u32),
    /// Frontend: its id, the same for every scheduler, and the address that serves its inputs.
    RegisterFrontend(u32, String),
    /// Frontend: submits a request.
    Submit(RequestHeader),
    /// Frontend: the client no longer waits for a request.
    CancelRequest(u64),
    /// To a frontend: the models.
    Models(Bytes),
    /// To a frontend: number of devices that serve.
    Devices(u32),
    /// To a frontend: a request has ended.
    RequestEnd(RequestEnd),
    /// Frontend, and scheduler to backends: load or unload a model.
    LoadCall(LoadCall),
    /// Backend, and scheduler to a frontend: a call has ended; the text says why it failed, and is
    /// empty if it succeeded.
    LoadCallEnd(u64, String),
    /// Backend, to a frontend: asks for rows of a request.
    Pull {
        /// Number that the reply repeats.
        tag: u64,
        /// The request.
        request: u64,
        /// The first row.
        first_row: u32,
        /// Number of rows.
        rows: u32,
    },
    /// To a backend: the rows; `None` if the request no longer waits.
    Rows {
        /// Number of the pull.
        tag: u64,
        /// Inputs of the rows.
        inputs: Option<Vec<Tensor>>,
    },
    /// Backend, to a frontend: outputs.
    Outputs {
        /// The request.
        request: u64,
        /// The first row that the outputs belong to.
        first_row: u32,
        /// Number of rows.
        rows: u32,
        /// Microseconds that the pull of their inputs took; 0 if that is unknown.
        pulled_us: u32,
        /// The outputs, or the reason why the request's values are invalid.
        outputs: Result<Vec<Tensor>, String>,
    },
    /// To a backend that follows a plan: its sub-cluster, and the names of the models to have.
    Place(u32, Bytes),
    /// Frontend: submits a request that brings a graph of cells.
    SubmitGraph(RequestHeader, Arc<Graph>),
    /// Backend, to a frontend: a step of an answer that is streamed.
    Step {
        /// The request.
        request: u64,
        /// Whether no further step follows.
        last: bool,
        /// The step's part of each streamed output.
        outputs: Vec<Tensor>,
    },
}

/// A call to load or unload a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadCall {
    /// The sender's number of the call.
    pub call: u64,
    /// Whether the model goes out of service.
    pub unload: bool,
    /// Name of the model.
    pub name: String,
}

/// All that the scheduler needs to know of a request; the inputs stay with the frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestHeader {
    /// The frontend's number for the request.
    pub request: u64,
    /// The model, by the scheduler's id.
    pub model: ModelId,
    /// Client number, as in [`Job`](ripieno_runtime::Job).
    pub client: u16,
    /// Priority, as in [`Job`](ripieno_runtime::Job).
    pub priority: u8,
    /// Number of rows, at least one.
    pub rows: u32,
    /// Length of the request.
    pub length: u32,
    /// Size of the inputs, in bytes.
    pub bytes: u64,
    /// Nanoseconds until the request's own timeout, if it has one.
    pub left_ns: Option<u64>,
    /// Estimate of the time from the frontend to the scheduler and back, in units of 16 µs.
    pub way: u16,
    /// Milliseconds since the request came to the frontend, if it is sent again; else 0.
    pub age_ms: u16,
    /// The sizes of its open dimensions.
    pub sizes: OpenSizes,
    /// Whether the client reads the answer step by step; only if the model's requests run cell by
    /// cell.
    pub stream: bool,
}

/// A batch to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunTask {
    /// The task.
    pub task: TaskId,
    /// The model.
    pub model: ModelId,
    /// The block.
    pub block: BlockId,
    /// The lane.
    pub lane: LaneId,
    /// The length that its members are padded to.
    pub length: u32,
    /// Nanoseconds before which the task must not start.
    pub wait_ns: u64,
    /// Requests of the task, in order.
    pub members: Vec<RunMember>,
}

/// A request of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunMember {
    /// Slot of the request, under which a chain keeps its state.
    pub slot: RequestSlot,
    /// Number of rows.
    pub rows: u32,
    /// Length of the request.
    pub length: u32,
    /// Step or node that it runs, if requests run cell by cell.
    pub node: u32,
    /// Whether the frontend receives the steps of the answer.
    pub stream: bool,
    /// Walk of the request.
    pub walk: u64,
    /// Nanoseconds for which its client still waits; `None` if without limit.
    pub left_ns: Option<u64>,
    /// The frontend that holds its inputs, if the device does not have them.
    pub origin: Option<RemoteRows>,
}

/// Numbers of the message kinds. They are part of the protocol: a new message gets a new number.
mod kind {
    pub(super) const KEEP_ALIVE: u16 = 1;
    pub(super) const REFUSED: u16 = 2;
    pub(super) const REGISTER_BACKEND: u16 = 3;
    pub(super) const LEAVE: u16 = 4;
    pub(super) const TASK_END: u16 = 5;
    pub(super) const OPEN_DEVICE: u16 = 6;
    pub(super) const ATTACH: u16 = 7;
    pub(super) const DETACH: u16 = 8;
    pub(super) const RUN_TASK: u16 = 9;
    pub(super) const CANCEL_TASK: u16 = 10;
    pub(super) const ADD_FRONTEND: u16 = 11;
    pub(super) const REMOVE_FRONTEND: u16 = 12;
    pub(super) const REGISTER_FRONTEND: u16 = 13;
    pub(super) const SUBMIT: u16 = 14;
    pub(super) const CANCEL_REQUEST: u16 = 15;
    pub(super) const MODELS: u16 = 16;
    pub(super) const DEVICES: u16 = 17;
    pub(super) const REQUEST_END: u16 = 18;
    pub(super) const PULL: u16 = 19;
    pub(super) const ROWS: u16 = 20;
    pub(super) const NO_ROWS: u16 = 21;
    pub(super) const OUTPUTS: u16 = 22;
    pub(super) const INVALID: u16 = 23;
    pub(super) const CLAIM: u16 = 24;
    pub(super) const REPORT: u16 = 25;
    pub(super) const HEARTBEAT: u16 = 26;
    pub(super) const FENCED: u16 = 27;
    pub(super) const PEER: u16 = 28;
    pub(super) const OFFER: u16 = 29;
    pub(super) const MODEL_CALL: u16 = 30;
    pub(super) const MODEL_CALL_END: u16 = 31;
    pub(super) const PLACE: u16 = 32;
    pub(super) const SUBMIT_GRAPH: u16 = 40;
    pub(super) const STEP: u16 = 41;
}

/// Returns the longest tail of a kind, in bytes; `None` if there is no such kind.
pub(super) fn max_tail(kind: u16) -> Option<usize> {
    Some(match kind {
        kind::REGISTER_BACKEND | kind::MODELS | kind::OFFER | kind::PLACE => MAX_MODELS,
        kind::MODEL_CALL | kind::MODEL_CALL_END => MAX_TEXT,
        kind::REFUSED | kind::ADD_FRONTEND | kind::REGISTER_FRONTEND | kind::REQUEST_END | kind::INVALID => MAX_TEXT,
        kind::RUN_TASK => MAX_MEMBERS * RECORD,
        kind::TASK_END => MAX_MEMBERS * MEMBER_END + MAX_TEXT,
        kind::ROWS | kind::OUTPUTS | kind::STEP => MAX_TENSOR_BYTES,
        kind::SUBMIT_GRAPH => MAX_GRAPH,
        kind::REPORT => MAX_HELD * HELD,
        kind::KEEP_ALIVE..=kind::PEER => 0,
        _ => return None,
    })
}

impl Message {
    /// Appends the message to a buffer.
    pub fn encode(&self, into: &mut Vec<u8>) {
        let at = into.len();
        let record = self.record();
        into.extend_from_slice(&record);
        self.write_tail(into);
        let tail = into.len() - at - RECORD;
        set_tail(&mut into[at..at + RECORD], tail);
    }

    fn record(&self) -> [u8; RECORD] {
        let put = match self {
            Message::KeepAlive => RecordWriter::new(kind::KEEP_ALIVE),
            Message::Refused(_) => RecordWriter::new(kind::REFUSED),
            Message::RegisterBackend { depth, .. } => RecordWriter::new(kind::REGISTER_BACKEND).u32(*depth),
            Message::Leave => RecordWriter::new(kind::LEAVE),
            Message::TaskEnd(ended) => ended.put(RecordWriter::new(kind::TASK_END)),
            Message::OpenDevice(lanes, wait_ns) => RecordWriter::new(kind::OPEN_DEVICE).u32(*lanes).u64(*wait_ns),
            Message::Attach(model, at) => RecordWriter::new(kind::ATTACH).u16(model.0).u32(*at),
            Message::Detach(model) => RecordWriter::new(kind::DETACH).u16(model.0),
            Message::RunTask(run) => run.put(RecordWriter::new(kind::RUN_TASK)),
            Message::CancelTask(task) => RecordWriter::new(kind::CANCEL_TASK).u32(task.0),
            Message::AddFrontend(id, _) => RecordWriter::new(kind::ADD_FRONTEND).u32(*id),
            Message::RemoveFrontend(id) => RecordWriter::new(kind::REMOVE_FRONTEND).u32(*id),
            Message::RegisterFrontend(id, _) => RecordWriter::new(kind::REGISTER_FRONTEND).u32(*id),
            Message::Submit(ask) => ask.put(kind::SUBMIT),
            Message::SubmitGraph(ask, _) => ask.put(kind::SUBMIT_GRAPH),
            Message::CancelRequest(request) => RecordWriter::new(kind::CANCEL_REQUEST).u64(*request),
            Message::Models(_) => RecordWriter::new(kind::MODELS),
            Message::Offer(_) => RecordWriter::new(kind::OFFER),
            Message::LoadCall(LoadCall { call, unload, .. }) => {
                RecordWriter::new(kind::MODEL_CALL).u64(*call).u8(u8::from(*unload))
            }
            Message::LoadCallEnd(call, _) => RecordWriter::new(kind::MODEL_CALL_END).u64(*call),
            Message::Devices(serving) => RecordWriter::new(kind::DEVICES).u32(*serving),
            Message::RequestEnd(end) => end.put(RecordWriter::new(kind::REQUEST_END)),
            Message::Pull { tag, request, first_row, rows } => {
                RecordWriter::new(kind::PULL).u64(*tag).u64(*request).u32(*first_row).u32(*rows)
            }
            Message::Rows { tag, inputs } => {
                RecordWriter::new(if inputs.is_some() { kind::ROWS } else { kind::NO_ROWS }).u64(*tag)
            }
            Message::Claim { stamp, holder } => {
                RecordWriter::new(kind::CLAIM).u64(stamp.epoch.0).u64(stamp.number).u64(holder.0)
            }
            Message::Report(report) => report.put(RecordWriter::new(kind::REPORT)),
            Message::Heartbeat(epoch, holder, reach) => {
                RecordWriter::new(kind::HEARTBEAT).u64(epoch.0).u64(holder.0).u8(reach.map_or(0, ReachedRoles::flags))
            }
            Message::Fenced(epoch) => RecordWriter::new(kind::FENCED).u64(epoch.0),
            Message::Peer(process) => RecordWriter::new(kind::PEER).u64(process.0),
            Message::Outputs { request, first_row, rows, pulled_us, outputs } => {
                let kind = if outputs.is_ok() { kind::OUTPUTS } else { kind::INVALID };
                RecordWriter::new(kind).u64(*request).u32(*first_row).u32(*rows).u32(*pulled_us)
            }
            Message::Place(place, _) => RecordWriter::new(kind::PLACE).u32(*place),
            Message::Step { request, last, .. } => RecordWriter::new(kind::STEP).u64(*request).u8((*last).into()),
        };
        put.record()
    }

    fn write_tail(&self, into: &mut Vec<u8>) {
        match self {
            Message::RegisterBackend { models: bytes, .. }
            | Message::Models(bytes)
            | Message::Offer(bytes)
            | Message::Place(_, bytes) => into.extend_from_slice(bytes),
            Message::LoadCall(LoadCall { name: text, .. }) | Message::LoadCallEnd(_, text) => write_text(text, into),
            Message::Refused(text) | Message::AddFrontend(_, text) | Message::RegisterFrontend(_, text) => {
                write_text(text, into)
            }
            Message::Outputs { outputs: Err(text), .. } => write_text(text, into),
            Message::Rows { inputs: Some(tensors), .. } | Message::Outputs { outputs: Ok(tensors), .. } => {
                write_tensors(tensors, into);
            }
            Message::Step { outputs, .. } => write_tensors(outputs, into),
            Message::SubmitGraph(_, graph) => write_graph(graph, into),
            Message::RunTask(run) => run.members.iter().for_each(|member| into.extend_from_slice(&member.record())),
            Message::TaskEnd(ended) => ended.write_members(into),
            Message::Report(report) => report.write_held(into),
            Message::RequestEnd(RequestEnd { answer: Err(failure), .. }) => write_text(failure.text(), into),
            _ => {}
        }
    }

    /// Decodes a message from its record and its tail.
    pub fn decode(record: &[u8; RECORD], tail: Bytes) -> Result<Message, DecodeError> {
        let (kind, mut get) = (header(record).0, RecordReader::new(record));
        Ok(match kind {
            kind::KEEP_ALIVE => Message::KeepAlive,
            kind::REFUSED => Message::Refused(read_text(&tail)?),
            kind::REGISTER_BACKEND => Message::RegisterBackend { depth: get.u32(), models: tail },
            kind::OFFER => Message::Offer(tail),
            kind::MODEL_CALL => {
                let (call, unload) = (get.u64(), get.u8() != 0);
                Message::LoadCall(LoadCall { call, unload, name: read_text(&tail)? })
            }
            kind::MODEL_CALL_END => Message::LoadCallEnd(get.u64(), read_text(&tail)?),
            kind::LEAVE => Message::Leave,
            kind::TASK_END => Message::TaskEnd(TaskEnd::get(&mut get, tail)?),
            kind::OPEN_DEVICE => Message::OpenDevice(get.u32(), get.u64()),
            kind::ATTACH => Message::Attach(ModelId(get.u16()), get.u32()),
            kind::DETACH => Message::Detach(ModelId(get.u16())),
            kind::RUN_TASK => Message::RunTask(RunTask::get(&mut get, &tail)?),
            kind::CANCEL_TASK => Message::CancelTask(TaskId(get.u32())),
            kind::ADD_FRONTEND => Message::AddFrontend(get.u32(), read_text(&tail)?),
            kind::REMOVE_FRONTEND => Message::RemoveFrontend(get.u32()),
            kind::REGISTER_FRONTEND => Message::RegisterFrontend(get.u32(), read_text(&tail)?),
            kind::SUBMIT => Message::Submit(RequestHeader::get(&mut get)?),
            kind::CANCEL_REQUEST => Message::CancelRequest(get.u64()),
            kind::MODELS => Message::Models(tail),
            kind::DEVICES => Message::Devices(get.u32()),
            kind::REQUEST_END => Message::RequestEnd(RequestEnd::get(&mut get, read_text(&tail)?)?),
            kind::PULL => Message::Pull { tag: get.u64(), request: get.u64(), first_row: get.u32(), rows: get.u32() },
            kind::ROWS => Message::Rows { tag: get.u64(), inputs: Some(read_tensors(tail)?) },
            kind::NO_ROWS => Message::Rows { tag: get.u64(), inputs: None },
            kind::CLAIM => Message::Claim { stamp: read_stamp(&mut get), holder: ProcessId(get.u64()) },
            kind::REPORT => Message::Report(RunningReport::get(&mut get, &tail)?),
            kind::HEARTBEAT => Message::Heartbeat(Epoch(get.u64()), ProcessId(get.u64()), ReachedRoles::of(get.u8())),
            kind::FENCED => Message::Fenced(Epoch(get.u64())),
            kind::PEER => Message::Peer(ProcessId(get.u64())),
            kind::OUTPUTS | kind::INVALID => {
                let (request, first_row, rows, pulled_us) = (get.u64(), get.u32(), get.u32(), get.u32());
                let outputs = if kind == kind::OUTPUTS { Ok(read_tensors(tail)?) } else { Err(read_text(&tail)?) };
                Message::Outputs { request, first_row, rows, pulled_us, outputs }
            }
            kind::PLACE => Message::Place(get.u32(), tail),
            kind::SUBMIT_GRAPH => Message::SubmitGraph(RequestHeader::get(&mut get)?, Arc::new(read_graph(&tail)?)),
            kind::STEP => {
                let (request, last) = (get.u64(), get.u8() != 0);
                Message::Step { request, last, outputs: read_tensors(tail)? }
            }
            _ => return Err(DecodeError(format!("a record of kind {kind}"))),
        })
    }
}

fn read_stamp(get: &mut RecordReader<'_>) -> Stamp {
    Stamp { epoch: Epoch(get.u64()), number: get.u64() }
}

/// Flags of a record: the fields that may be left out are there, and the answer is streamed.
const HAS_MORE: u8 = 1;
const STREAMS: u8 = 2;

fn flags(of: [(u8, bool); 2]) -> u8 {
    of.into_iter().filter(|(_, is)| *is).fold(0, |flags, (flag, _)| flags | flag)
}

/// Stands for "no limit" where a time is left out.
const NO_LIMIT: u64 = u64::MAX;

fn put_left(put: RecordWriter, left: Option<u64>) -> RecordWriter {
    put.u64(left.map_or(NO_LIMIT, |left| left.min(NO_LIMIT - 1)))
}

fn get_left(get: &mut RecordReader<'_>) -> Option<u64> {
    Some(get.u64()).filter(|&left| left != NO_LIMIT)
}

/// Unit of [`RequestHeader::way`], in nanoseconds.
const WAY_UNIT: u64 = 16_000;

impl RequestHeader {
    /// Returns a time as [`RequestHeader::way`], rounded up; at most about a second.
    pub fn way_of(time: Duration) -> u16 {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        u16::try_from(nanos.div_ceil(WAY_UNIT)).unwrap_or(u16::MAX)
    }

    /// Returns the estimate of the time from the frontend to the scheduler and back.
    pub fn way(&self) -> Duration {
        Duration::from_nanos(u64::from(self.way) * WAY_UNIT)
    }

    fn put(&self, kind: u16) -> RecordWriter {
        let RequestHeader {
            request,
            model,
            client,
            priority,
            rows,
            length,
            bytes,
            left_ns,
            way,
            age_ms,
            sizes,
            stream,
        } = *self;
        let flags = flags([(HAS_MORE, sizes.is_some()), (STREAMS, stream)]);
        let put = RecordWriter::new(kind).extra(age_ms);
        let put = put.u64(request).u16(model.0).u16(client).u8(priority).u8(flags).u16(way);
        let put = put_left(put.u32(rows).u32(length).u64(bytes), left_ns);
        sizes.unwrap_or_default().into_iter().fold(put, RecordWriter::u32)
    }

    fn get(get: &mut RecordReader<'_>) -> Result<RequestHeader, DecodeError> {
        let age_ms = get.extra();
        let (request, model, client, priority) = (get.u64(), ModelId(get.u16()), get.u16(), get.u8());
        let (flags, way) = (get.u8(), get.u16());
        let (rows, length, bytes, left_ns) = (get.u32(), get.u32(), get.u64(), get_left(get));
        let sizes = std::array::from_fn(|_| get.u32());
        if rows == 0 {
            return Err(DecodeError("a request without rows".to_owned()));
        }
        let (sizes, stream) = ((flags & HAS_MORE != 0).then_some(sizes), flags & STREAMS != 0);
        Ok(RequestHeader { request, model, client, priority, rows, length, bytes, left_ns, way, age_ms, sizes, stream })
    }
}

impl RunTask {
    fn put(&self, put: RecordWriter) -> RecordWriter {
        let RunTask { task, model, block, lane, length, wait_ns, .. } = self;
        put.u32(task.0).u16(model.0).u16(block.0).u16(lane.0).u16(0).u32(*length).u64(*wait_ns)
    }

    fn get(get: &mut RecordReader<'_>, tail: &[u8]) -> Result<RunTask, DecodeError> {
        let (task, model, block) = (TaskId(get.u32()), ModelId(get.u16()), BlockId(get.u16()));
        let (lane, _, length, wait_ns) = (LaneId(get.u16()), get.u16(), get.u32(), get.u64());
        let (members, rest) = tail.as_chunks::<RECORD>();
        if members.is_empty() || !rest.is_empty() {
            return Err(DecodeError(format!("a task with {} bytes of members", tail.len())));
        }
        let members = members.iter().map(RunMember::from_record).collect::<Result<_, _>>()?;
        Ok(RunTask { task, model, block, lane, length, wait_ns, members })
    }
}

impl RunMember {
    fn record(&self) -> [u8; RECORD] {
        let RunMember { slot, rows, length, node, stream, walk, left_ns, origin } = *self;
        let flags = flags([(HAS_MORE, origin.is_some()), (STREAMS, stream)]);
        let put = RecordWriter::new(0).u32(slot.0).u32(rows).u32(length).u32(u32::from(flags)).u64(walk);
        let put = put_left(put, left_ns);
        let RemoteRows { frontend, request, first_row } =
            origin.unwrap_or(RemoteRows { frontend: 0, request: 0, first_row: 0 });
        put.u32(frontend).u32(first_row).u64(request).u32(node).record()
    }

    fn from_record(record: &[u8; RECORD]) -> Result<RunMember, DecodeError> {
        let mut get = RecordReader::new(record);
        let (slot, rows, length, flags) = (RequestSlot(get.u32()), get.u32(), get.u32(), get.u32() as u8);
        let (walk, left_ns) = (get.u64(), get_left(&mut get));
        let (frontend, first_row, request, node) = (get.u32(), get.u32(), get.u64(), get.u32());
        if rows == 0 {
            return Err(DecodeError("a member without rows".to_owned()));
        }
        let origin = (flags & HAS_MORE != 0).then_some(RemoteRows { frontend, request, first_row });
        Ok(RunMember { slot, rows, length, node, stream: flags & STREAMS != 0, walk, left_ns, origin })
    }
}

#[cfg(test)]
mod tests;
