//! The end of a task: a record, and after it eight bytes for each member, with a text for members
//! that failed.

use super::frame::{DecodeError, MAX_TEXT, RecordReader, RecordWriter, read_text, write_text};
use bytes::{Buf, Bytes};
use ripieno_base::{BlockId, TaskId};

/// The result of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskEnd {
    /// The task.
    pub task: TaskId,
    /// Nanoseconds since the task ended.
    pub ago_ns: u64,
    /// Nanoseconds that the task took.
    pub took_ns: u64,
    /// Nanoseconds from the arrival of the task until it started, or ended without a run; 0 if
    /// unknown.
    pub held_ns: u64,
    /// Nanoseconds from its arrival until its rows had been fetched; 0 if there were none to fetch.
    pub fetched_ns: u64,
    /// Number of parts in which the batch was run again; 0 if it was not.
    pub reruns: u32,
    /// Set if a process was lost with the task: nanoseconds until its members may be sent again,
    /// and whether the task was running inside that process.
    pub lost: Option<(u64, bool)>,
    /// The result for each member, or the failure of the whole batch.
    pub members: Result<Vec<MemberEnd>, String>,
}

impl TaskEnd {
    /// Returns the end of a task that did not run.
    pub fn without_run(task: TaskId, members: Result<Vec<MemberEnd>, String>) -> TaskEnd {
        TaskEnd { task, ago_ns: 0, took_ns: 0, held_ns: 0, fetched_ns: 0, reruns: 0, lost: None, members }
    }
}

/// The reason why a request was left out of a batch, for schedulers of earlier releases.
const LATE: &str = "its inputs take too long to come from its frontend";

/// The result of a task for one member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberEnd {
    /// The request continues; the block, if any, comes next.
    Continues(Option<BlockId>),
    /// The request's walk has ended, and its outputs are being sent.
    Ended,
    /// The engine failed on the request.
    Failed(String),
    /// The request's inputs could not be fetched, or its state was lost with a process.
    Lost(String),
    /// The request was left out since its inputs take this number of milliseconds, at least 1, to
    /// come from its frontend. Earlier releases read it as [`MemberEnd::Lost`].
    Late(u16),
    /// The request's values do not fit the model. Only requests that run cell by cell end so; the
    /// frontends of all others learn it from their backends.
    Refused(String),
}

/// Size of a member's result without its text, in bytes.
pub(super) const MEMBER_END: usize = 8;

impl TaskEnd {
    pub(super) fn put(&self, put: RecordWriter) -> RecordWriter {
        let (lost, retry_after, inside) = self.lost.map_or((0, 0, 0), |(after, inside)| (1, after, u8::from(inside)));
        let put = put.u32(self.task.0).u32(self.reruns).u64(self.ago_ns).u64(self.took_ns).u64(retry_after);
        let put = put.u8(lost).u8(inside).u8(u8::from(self.members.is_err()));
        put.u64(self.held_ns).u64(self.fetched_ns)
    }

    pub(super) fn write_members(&self, into: &mut Vec<u8>) {
        let members = match &self.members {
            Ok(members) => members,
            Err(cause) => return write_text(cause, into),
        };
        // All texts together must fit one tail.
        let mut left = MAX_TEXT;
        for member in members {
            let (what, block, text) = match member {
                MemberEnd::Continues(block) => (0, block.map_or(0, |block| block.0), ""),
                MemberEnd::Ended => (1, 0, ""),
                MemberEnd::Failed(text) => (2, 0, text.as_str()),
                MemberEnd::Lost(text) => (3, 0, text.as_str()),
                MemberEnd::Late(ms) => (3, *ms, LATE),
                MemberEnd::Refused(text) => (4, 0, text.as_str()),
            };
            let named = matches!(member, MemberEnd::Continues(Some(_)));
            let text = &text[..text.floor_char_boundary(left)];
            left -= text.len();
            into.extend_from_slice(&[what, u8::from(named)]);
            into.extend_from_slice(&u16::to_le_bytes(block));
            into.extend_from_slice(&(text.len() as u32).to_le_bytes());
            into.extend_from_slice(text.as_bytes());
        }
    }

    pub(super) fn get(get: &mut RecordReader<'_>, mut tail: Bytes) -> Result<TaskEnd, DecodeError> {
        let (task, again, ago_ns, took_ns) = (TaskId(get.u32()), get.u32(), get.u64(), get.u64());
        let (retry_after, lost, inside, failed) = (get.u64(), get.u8() != 0, get.u8() != 0, get.u8() != 0);
        let (held_ns, fetched_ns) = (get.u64(), get.u64());
        let members = if failed {
            Err(read_text(&tail)?)
        } else {
            let mut members = Vec::with_capacity(tail.len() / MEMBER_END);
            while !tail.is_empty() {
                members.push(MemberEnd::read(&mut tail)?);
            }
            Ok(members)
        };
        let lost = lost.then_some((retry_after, inside));
        Ok(TaskEnd { task, ago_ns, took_ns, held_ns, fetched_ns, reruns: again, lost, members })
    }
}

impl MemberEnd {
    fn read(bytes: &mut Bytes) -> Result<MemberEnd, DecodeError> {
        let short = || DecodeError("members that are longer than they are".to_owned());
        if bytes.len() < MEMBER_END {
            return Err(short());
        }
        let (what, named, block, length) = (bytes.get_u8(), bytes.get_u8(), bytes.get_u16_le(), bytes.get_u32_le());
        if bytes.len() < length as usize {
            return Err(short());
        }
        let text = if length == 0 { String::new() } else { read_text(&bytes.split_to(length as usize))? };
        match what {
            0 => Ok(MemberEnd::Continues((named != 0).then_some(BlockId(block)))),
            1 => Ok(MemberEnd::Ended),
            2 => Ok(MemberEnd::Failed(text)),
            3 if block > 0 => Ok(MemberEnd::Late(block)),
            3 => Ok(MemberEnd::Lost(text)),
            4 => Ok(MemberEnd::Refused(text)),
            _ => Err(DecodeError(format!("a member that ended as {what}"))),
        }
    }
}
