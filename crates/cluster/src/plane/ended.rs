//! How a batch has ended: a record, and behind it eight bytes for each member, with a text for those that did not end well.

use super::frame::{Garbled, Get, MOST_TEXT, Put, text, write_text};
use bytes::{Buf, Bytes};
use ripieno_base::{BlockId, TaskId};

/// How a batch ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The task.
    pub task: TaskId,
    /// How many nanoseconds ago it was done.
    pub ago_ns: u64,
    /// How long it took.
    pub took_ns: u64,
    /// In how many parts it was run again, if it was.
    pub again: u32,
    /// After how many nanoseconds its members may be sent again, if a process was lost with it; and whether it was
    /// inside.
    pub lost: Option<(u64, bool)>,
    /// What it did for each member, or what befell all.
    pub members: Result<Vec<MemberEnd>, String>,
}

/// What a batch did for a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberEnd {
    /// It goes on, with this block if one is named.
    GoesOn(Option<BlockId>),
    /// Its walk has ended, and its outputs are on their way.
    Ended,
    /// The engine failed on it.
    Failed(String),
    /// Its inputs could not be had.
    Lost(String),
}

/// Bytes of a member that has ended, before its text.
pub(super) const MEMBER_END: usize = 8;

impl Ended {
    pub(super) fn put(&self, put: Put) -> Put {
        let (lost, retry_after, inside) = self.lost.map_or((0, 0, 0), |(after, inside)| (1, after, u8::from(inside)));
        let put = put.u32(self.task.0).u32(self.again).u64(self.ago_ns).u64(self.took_ns).u64(retry_after);
        put.u8(lost).u8(inside).u8(u8::from(self.members.is_err()))
    }

    pub(super) fn write_members(&self, into: &mut Vec<u8>) {
        let members = match &self.members {
            Ok(members) => members,
            Err(cause) => return write_text(cause, into),
        };
        // Texts of all together fit a tail.
        let mut left = MOST_TEXT;
        for member in members {
            let (what, block, text) = match member {
                MemberEnd::GoesOn(block) => (0, block.map_or(0, |block| block.0), ""),
                MemberEnd::Ended => (1, 0, ""),
                MemberEnd::Failed(text) => (2, 0, text.as_str()),
                MemberEnd::Lost(text) => (3, 0, text.as_str()),
            };
            let named = matches!(member, MemberEnd::GoesOn(Some(_)));
            let text = &text[..text.floor_char_boundary(left)];
            left -= text.len();
            into.extend_from_slice(&[what, u8::from(named)]);
            into.extend_from_slice(&u16::to_le_bytes(block));
            into.extend_from_slice(&(text.len() as u32).to_le_bytes());
            into.extend_from_slice(text.as_bytes());
        }
    }

    pub(super) fn get(get: &mut Get<'_>, mut tail: Bytes) -> Result<Ended, Garbled> {
        let (task, again, ago_ns, took_ns) = (TaskId(get.u32()), get.u32(), get.u64(), get.u64());
        let (retry_after, lost, inside, failed) = (get.u64(), get.u8() != 0, get.u8() != 0, get.u8() != 0);
        let members = if failed {
            Err(text(&tail)?)
        } else {
            let mut members = Vec::with_capacity(tail.len() / MEMBER_END);
            while !tail.is_empty() {
                members.push(MemberEnd::read(&mut tail)?);
            }
            Ok(members)
        };
        let lost = lost.then_some((retry_after, inside));
        Ok(Ended { task, ago_ns, took_ns, again, lost, members })
    }
}

impl MemberEnd {
    fn read(bytes: &mut Bytes) -> Result<MemberEnd, Garbled> {
        let short = || Garbled("members that are longer than they are".to_owned());
        if bytes.len() < MEMBER_END {
            return Err(short());
        }
        let (what, named, block, length) = (bytes.get_u8(), bytes.get_u8(), bytes.get_u16_le(), bytes.get_u32_le());
        if bytes.len() < length as usize {
            return Err(short());
        }
        let text = if length == 0 { String::new() } else { text(&bytes.split_to(length as usize))? };
        match what {
            0 => Ok(MemberEnd::GoesOn((named != 0).then_some(BlockId(block)))),
            1 => Ok(MemberEnd::Ended),
            2 => Ok(MemberEnd::Failed(text)),
            3 => Ok(MemberEnd::Lost(text)),
            _ => Err(Garbled(format!("a member that ended as {what}"))),
        }
    }
}
