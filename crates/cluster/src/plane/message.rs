//! The messages, and their layout.
//!
//! One type for all that roles say, so that a layout is in one place; whoever reads takes those that it expects and
//! ends the connection at any other. Those of each request are one record: [`Ask`], [`End`], and of each batch [`Run`]
//! with a record a member and [`Ended`] with eight bytes a member.

use super::ended::{Ended, MEMBER_END};
use super::frame::{Garbled, Get, MOST_TEXT, Put, RECORD, head, set_tail, text, write_text};
use super::report::{HELD, MOST_HELD, Report};
use super::tensors::{read_tensors, write_tensors};
use crate::handover::{Epoch, Process, Stamp};
use bytes::Bytes;
use ripieno_base::{BlockId, LaneId, ModelId, RequestSlot, TaskId};
use ripieno_executor::{Origin, Tensor};
use ripieno_runtime::{Answer, OpenSizes};

/// Bounds of tails.
const MOST_MODELS: usize = 64 << 20;
const MOST_MEMBERS: usize = 1 << 16;
const MOST_TENSOR_BYTES: usize = 1 << 30;

/// What roles say to each other.
#[derive(Debug)]
pub enum Message {
    /// Any: I am still here.
    Here,
    /// A scheduler: I cannot take you, for this reason.
    Refused(String),
    /// A backend: each of my lanes holds so many tasks, and these are my models, in JSON.
    Offer {
        /// Tasks a lane.
        depth: u32,
        /// The models.
        models: String,
    },
    /// A backend: I begin nothing new.
    Leave,
    /// A backend: a task has ended.
    Ended(Ended),
    /// To a backend: open a device with so many lanes.
    Open(u32),
    /// To a backend: this id is your model of that position.
    Attach(ModelId, u32),
    /// To a backend: this id is nothing any more.
    Detach(ModelId),
    /// To a backend: run a task.
    Run(Run),
    /// To a backend: stop a task, if you can.
    Cancel(TaskId),
    /// To a backend: obey me, and say what you run of earlier epochs.
    Claim {
        /// Greater than that of each claim before.
        stamp: Stamp,
        /// Whose epoch it is.
        holder: Process,
    },
    /// A backend: what I run of earlier epochs.
    Report(Report),
    /// A scheduler to schedulers and front ends: this is my epoch, and I am the primary.
    Heartbeat(Epoch, Process),
    /// To a scheduler: a later epoch is known.
    Fenced(Epoch),
    /// A scheduler to another: I listen to you.
    Peer(Process),
    /// To a backend: a front end has come, whose inputs are at this address.
    Frontend(u32, String),
    /// To a backend: it has gone.
    FrontendGone(u32),
    /// A front end: this is my number, the same for each scheduler, and my inputs are at this address.
    DataAt(u32, String),
    /// A front end: a request.
    Ask(Ask),
    /// A front end: nobody waits for this request any more.
    Withdraw(u64),
    /// To a front end: these are the models, in JSON.
    Models(String),
    /// To a front end: so many devices serve.
    Devices(u32),
    /// To a front end: a request has ended.
    End(End),
    /// A backend to a front end: send me these rows.
    Pull {
        /// Comes back with them.
        tag: u64,
        /// The request.
        request: u64,
        /// The first row.
        first_row: u32,
        /// How many.
        rows: u32,
    },
    /// To a backend: the rows; none if nobody waits for the request any more.
    Rows {
        /// That of the pull.
        tag: u64,
        /// Their inputs.
        inputs: Option<Vec<Tensor>>,
    },
    /// A backend to a front end: outputs.
    Outputs {
        /// The request.
        request: u64,
        /// The first row that they are of.
        first_row: u32,
        /// How many.
        rows: u32,
        /// The outputs; or what is wrong with the request's values.
        outputs: Result<Vec<Tensor>, String>,
    },
}

/// What a scheduler is to know of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// The front end's number of it.
    pub request: u64,
    /// The model, by the scheduler's id.
    pub model: ModelId,
    /// As in [`Job`](ripieno_runtime::Job).
    pub client: u16,
    /// Likewise.
    pub priority: u8,
    /// Rows, at least one.
    pub rows: u32,
    /// Its length.
    pub length: u32,
    /// Bytes of its inputs.
    pub bytes: u64,
    /// Nanoseconds until its own limit, if it has one.
    pub left_ns: Option<u64>,
    /// The sizes of its open dimensions.
    pub sizes: OpenSizes,
}

/// How a request ended.
#[derive(Debug)]
pub struct End {
    /// The front end's number of it.
    pub request: u64,
    /// Without outputs, which come from backends.
    pub answer: Answer,
}

/// A batch to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// The task.
    pub task: TaskId,
    /// The model.
    pub model: ModelId,
    /// The block.
    pub block: BlockId,
    /// The lane.
    pub lane: LaneId,
    /// What its members are padded to.
    pub length: u32,
    /// Not to begin before so many nanoseconds have passed.
    pub wait_ns: u64,
    /// Its requests, in order.
    pub members: Vec<RunMember>,
}

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunMember {
    /// Its slot, under which a chain keeps its state.
    pub slot: RequestSlot,
    /// Its rows.
    pub rows: u32,
    /// Its length.
    pub length: u32,
    /// Its walk.
    pub walk: u64,
    /// For how many nanoseconds somebody still waits for it; for ever if none.
    pub left_ns: Option<u64>,
    /// Where its inputs lie, if the device does not have it.
    pub origin: Option<Origin>,
}

/// Kinds as numbers. They are the protocol: a new message gets a new one.
mod kind {
    pub(super) const HERE: u16 = 1;
    pub(super) const REFUSED: u16 = 2;
    pub(super) const OFFER: u16 = 3;
    pub(super) const LEAVE: u16 = 4;
    pub(super) const ENDED: u16 = 5;
    pub(super) const OPEN: u16 = 6;
    pub(super) const ATTACH: u16 = 7;
    pub(super) const DETACH: u16 = 8;
    pub(super) const RUN: u16 = 9;
    pub(super) const CANCEL: u16 = 10;
    pub(super) const FRONTEND: u16 = 11;
    pub(super) const FRONTEND_GONE: u16 = 12;
    pub(super) const DATA_AT: u16 = 13;
    pub(super) const ASK: u16 = 14;
    pub(super) const WITHDRAW: u16 = 15;
    pub(super) const MODELS: u16 = 16;
    pub(super) const DEVICES: u16 = 17;
    pub(super) const END: u16 = 18;
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
}

/// The longest tail of a kind; none of no kind.
pub(super) fn most_tail(kind: u16) -> Option<usize> {
    Some(match kind {
        kind::OFFER | kind::MODELS => MOST_MODELS,
        kind::REFUSED | kind::FRONTEND | kind::DATA_AT | kind::END | kind::INVALID => MOST_TEXT,
        kind::RUN => MOST_MEMBERS * RECORD,
        kind::ENDED => MOST_MEMBERS * MEMBER_END + MOST_TEXT,
        kind::ROWS | kind::OUTPUTS => MOST_TENSOR_BYTES,
        kind::REPORT => MOST_HELD * HELD,
        kind::HERE..=kind::PEER => 0,
        _ => return None,
    })
}

impl Message {
    /// Writes it behind what is there.
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
            Message::Here => Put::new(kind::HERE),
            Message::Refused(_) => Put::new(kind::REFUSED),
            Message::Offer { depth, .. } => Put::new(kind::OFFER).u32(*depth),
            Message::Leave => Put::new(kind::LEAVE),
            Message::Ended(ended) => ended.put(Put::new(kind::ENDED)),
            Message::Open(lanes) => Put::new(kind::OPEN).u32(*lanes),
            Message::Attach(model, at) => Put::new(kind::ATTACH).u16(model.0).u32(*at),
            Message::Detach(model) => Put::new(kind::DETACH).u16(model.0),
            Message::Run(run) => run.put(Put::new(kind::RUN)),
            Message::Cancel(task) => Put::new(kind::CANCEL).u32(task.0),
            Message::Frontend(id, _) => Put::new(kind::FRONTEND).u32(*id),
            Message::FrontendGone(id) => Put::new(kind::FRONTEND_GONE).u32(*id),
            Message::DataAt(id, _) => Put::new(kind::DATA_AT).u32(*id),
            Message::Ask(ask) => ask.put(Put::new(kind::ASK)),
            Message::Withdraw(request) => Put::new(kind::WITHDRAW).u64(*request),
            Message::Models(_) => Put::new(kind::MODELS),
            Message::Devices(serving) => Put::new(kind::DEVICES).u32(*serving),
            Message::End(end) => end.put(Put::new(kind::END)),
            Message::Pull { tag, request, first_row, rows } => {
                Put::new(kind::PULL).u64(*tag).u64(*request).u32(*first_row).u32(*rows)
            }
            Message::Rows { tag, inputs: Some(_) } => Put::new(kind::ROWS).u64(*tag),
            Message::Rows { tag, inputs: None } => Put::new(kind::NO_ROWS).u64(*tag),
            Message::Claim { stamp, holder } => {
                Put::new(kind::CLAIM).u64(stamp.epoch.0).u64(stamp.number).u64(holder.0)
            }
            Message::Report(report) => report.put(Put::new(kind::REPORT)),
            Message::Heartbeat(epoch, holder) => Put::new(kind::HEARTBEAT).u64(epoch.0).u64(holder.0),
            Message::Fenced(epoch) => Put::new(kind::FENCED).u64(epoch.0),
            Message::Peer(process) => Put::new(kind::PEER).u64(process.0),
            Message::Outputs { request, first_row, rows, outputs } => {
                let kind = if outputs.is_ok() { kind::OUTPUTS } else { kind::INVALID };
                Put::new(kind).u64(*request).u32(*first_row).u32(*rows)
            }
        };
        put.record()
    }

    fn write_tail(&self, into: &mut Vec<u8>) {
        match self {
            Message::Offer { models: text, .. } | Message::Models(text) => into.extend_from_slice(text.as_bytes()),
            Message::Refused(text) | Message::Frontend(_, text) | Message::DataAt(_, text) => write_text(text, into),
            Message::Outputs { outputs: Err(text), .. } => write_text(text, into),
            Message::Rows { inputs: Some(tensors), .. } | Message::Outputs { outputs: Ok(tensors), .. } => {
                write_tensors(tensors, into);
            }
            Message::Run(run) => run.members.iter().for_each(|member| into.extend_from_slice(&member.record())),
            Message::Ended(ended) => ended.write_members(into),
            Message::Report(report) => report.write_held(into),
            Message::End(End { answer: Err(failure), .. }) => write_text(super::answers::text(failure), into),
            _ => {}
        }
    }

    /// Reads one.
    pub fn decode(record: &[u8; RECORD], tail: Bytes) -> Result<Message, Garbled> {
        let (kind, mut get) = (head(record).0, Get::new(record));
        Ok(match kind {
            kind::HERE => Message::Here,
            kind::REFUSED => Message::Refused(text(&tail)?),
            kind::OFFER => Message::Offer { depth: get.u32(), models: text(&tail)? },
            kind::LEAVE => Message::Leave,
            kind::ENDED => Message::Ended(Ended::get(&mut get, tail)?),
            kind::OPEN => Message::Open(get.u32()),
            kind::ATTACH => Message::Attach(ModelId(get.u16()), get.u32()),
            kind::DETACH => Message::Detach(ModelId(get.u16())),
            kind::RUN => Message::Run(Run::get(&mut get, &tail)?),
            kind::CANCEL => Message::Cancel(TaskId(get.u32())),
            kind::FRONTEND => Message::Frontend(get.u32(), text(&tail)?),
            kind::FRONTEND_GONE => Message::FrontendGone(get.u32()),
            kind::DATA_AT => Message::DataAt(get.u32(), text(&tail)?),
            kind::ASK => Message::Ask(Ask::get(&mut get)?),
            kind::WITHDRAW => Message::Withdraw(get.u64()),
            kind::MODELS => Message::Models(text(&tail)?),
            kind::DEVICES => Message::Devices(get.u32()),
            kind::END => Message::End(End::get(&mut get, text(&tail)?)?),
            kind::PULL => Message::Pull { tag: get.u64(), request: get.u64(), first_row: get.u32(), rows: get.u32() },
            kind::ROWS => Message::Rows { tag: get.u64(), inputs: Some(read_tensors(tail)?) },
            kind::NO_ROWS => Message::Rows { tag: get.u64(), inputs: None },
            kind::CLAIM => {
                let stamp = Stamp { epoch: Epoch(get.u64()), number: get.u64() };
                Message::Claim { stamp, holder: Process(get.u64()) }
            }
            kind::REPORT => Message::Report(Report::get(&mut get, &tail)?),
            kind::HEARTBEAT => Message::Heartbeat(Epoch(get.u64()), Process(get.u64())),
            kind::FENCED => Message::Fenced(Epoch(get.u64())),
            kind::PEER => Message::Peer(Process(get.u64())),
            kind::OUTPUTS | kind::INVALID => {
                let (request, first_row, rows) = (get.u64(), get.u32(), get.u32());
                let outputs = if kind == kind::OUTPUTS { Ok(read_tensors(tail)?) } else { Err(text(&tail)?) };
                Message::Outputs { request, first_row, rows, outputs }
            }
            _ => return Err(Garbled(format!("a record of kind {kind}"))),
        })
    }
}

/// Stands for "for ever".
const NEVER: u64 = u64::MAX;

fn put_left(put: Put, left: Option<u64>) -> Put {
    put.u64(left.map_or(NEVER, |left| left.min(NEVER - 1)))
}

fn get_left(get: &mut Get<'_>) -> Option<u64> {
    Some(get.u64()).filter(|&left| left != NEVER)
}

impl Ask {
    fn put(&self, put: Put) -> Put {
        let Ask { request, model, client, priority, rows, length, bytes, left_ns, sizes } = *self;
        let put = put.u64(request).u16(model.0).u16(client).u8(priority).u8(u8::from(sizes.is_some())).u16(0);
        let put = put_left(put.u32(rows).u32(length).u64(bytes), left_ns);
        sizes.unwrap_or_default().into_iter().fold(put, Put::u32)
    }

    fn get(get: &mut Get<'_>) -> Result<Ask, Garbled> {
        let (request, model, client, priority) = (get.u64(), ModelId(get.u16()), get.u16(), get.u8());
        let (has_sizes, _) = (get.u8() != 0, get.u16());
        let (rows, length, bytes, left_ns) = (get.u32(), get.u32(), get.u64(), get_left(get));
        let sizes = std::array::from_fn(|_| get.u32());
        if rows == 0 {
            return Err(Garbled("a request without rows".to_owned()));
        }
        let sizes = has_sizes.then_some(sizes);
        Ok(Ask { request, model, client, priority, rows, length, bytes, left_ns, sizes })
    }
}

impl Run {
    fn put(&self, put: Put) -> Put {
        let Run { task, model, block, lane, length, wait_ns, .. } = self;
        put.u32(task.0).u16(model.0).u16(block.0).u16(lane.0).u16(0).u32(*length).u64(*wait_ns)
    }

    fn get(get: &mut Get<'_>, tail: &[u8]) -> Result<Run, Garbled> {
        let (task, model, block) = (TaskId(get.u32()), ModelId(get.u16()), BlockId(get.u16()));
        let (lane, _, length, wait_ns) = (LaneId(get.u16()), get.u16(), get.u32(), get.u64());
        let (members, rest) = tail.as_chunks::<RECORD>();
        if members.is_empty() || !rest.is_empty() {
            return Err(Garbled(format!("a task with {} bytes of members", tail.len())));
        }
        let members = members.iter().map(RunMember::of_record).collect::<Result<_, _>>()?;
        Ok(Run { task, model, block, lane, length, wait_ns, members })
    }
}

impl RunMember {
    fn record(&self) -> [u8; RECORD] {
        let RunMember { slot, rows, length, walk, left_ns, origin } = *self;
        let put =
            put_left(Put::new(0).u32(slot.0).u32(rows).u32(length).u32(u32::from(origin.is_some())).u64(walk), left_ns);
        let Origin { frontend, request, first_row } =
            origin.unwrap_or(Origin { frontend: 0, request: 0, first_row: 0 });
        put.u32(frontend).u32(first_row).u64(request).record()
    }

    fn of_record(record: &[u8; RECORD]) -> Result<RunMember, Garbled> {
        let mut get = Get::new(record);
        let (slot, rows, length, brings) = (RequestSlot(get.u32()), get.u32(), get.u32(), get.u32() != 0);
        let (walk, left_ns) = (get.u64(), get_left(&mut get));
        let (frontend, first_row, request) = (get.u32(), get.u32(), get.u64());
        if rows == 0 {
            return Err(Garbled("a member without rows".to_owned()));
        }
        let origin = brings.then_some(Origin { frontend, request, first_row });
        Ok(RunMember { slot, rows, length, walk, left_ns, origin })
    }
}

impl End {
    fn put(&self, put: Put) -> Put {
        super::answers::put(&self.answer, put.u64(self.request))
    }

    fn get(get: &mut Get<'_>, text: String) -> Result<End, Garbled> {
        Ok(End { request: get.u64(), answer: super::answers::get(get, text)? })
    }
}

#[cfg(test)]
mod tests;
