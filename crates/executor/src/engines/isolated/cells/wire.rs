//! A lane between the server and the process of its cells: two regions of memory, and a socket by
//! which one end wakes the other.
//!
//! Each end counts in its region: the server the steps that it has launched, the process those that
//! have ended. Step number n has place n modulo the depth, in both regions. An end writes a place
//! first and the count afterwards, so an end that sees the count sees the place. An end that has
//! spun for a while says so in its region, and sleeps at the socket. The other end writes
//! a byte there when its count grows.

use super::super::protocol::MAX_SHARED;
use super::super::shared::SharedRegions;
use ripieno_cuda::CellModelSpec;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Place of an end's count in its region, in words.
const COUNT: usize = 0;
/// Place of the word that is 1 while an end sleeps.
const SLEEPS: usize = 16;
/// Place of the number of bytes of the reason for which the process exits, and of its text.
const EXIT_REASON: usize = 32;
/// Most bytes of that reason.
const MAX_EXIT_REASON: usize = 1 << 10;
/// Place of the first step.
const STEPS: usize = EXIT_REASON + 1 + MAX_EXIT_REASON / 4;
/// Words of a step's header.
const HEADER: usize = 2;

/// Time that an end spins before it sleeps: about two wake-ups.
const SPIN: Duration = Duration::from_micros(100);
/// Number of polls between two readings of the clock.
const POLLS: u32 = 64;

/// Most steps in flight: the stand-in for a GPU has four, a GPU two.
pub(super) const MAX_DEPTH: usize = 4;

/// Returns the number of places of a lane: a power of two, so that numbers of steps may wrap.
pub(super) fn lane_depth(depth: usize) -> usize {
    1 << depth.clamp(1, MAX_DEPTH).ilog2()
}

/// A step's cell and its number of rows.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StepHeader {
    pub(super) cell: usize,
    pub(super) rows: usize,
}

/// Places of the data of a model's steps, in words from the first step on.
#[derive(Clone, Copy, Debug)]
pub(super) struct StepLayout {
    pub(super) entries: usize,
    pub(super) staged: usize,
    pub(super) results: usize,
    pub(super) rows: usize,
}

impl StepLayout {
    pub(super) fn new(spec: &CellModelSpec) -> StepLayout {
        let programs = spec.programs.iter();
        let most = |words: fn(&ripieno_cuda::StepProgram) -> usize| programs.clone().map(words).max().unwrap_or(0);
        let rows = spec.max_rows();
        let entries = rows.saturating_mul(most(|program| program.feeds) + 2);
        let results = rows.saturating_mul(most(|program| program.results));
        StepLayout { entries, staged: most(|program| program.staged), results, rows }
    }

    /// Checks that both regions are as small as memory that is shared must be.
    pub(super) fn check(self) -> Result<(), String> {
        let most = self.bytes_out().max(self.bytes_back());
        match most <= MAX_SHARED {
            true => Ok(()),
            false => Err(format!("its steps take {} MiB of shared memory, of {}", most >> 20, MAX_SHARED >> 20)),
        }
    }

    /// Returns the bytes of the server's region.
    fn bytes_out(self) -> usize {
        let step = HEADER.saturating_add(self.entries).saturating_add(self.staged);
        STEPS.saturating_add(step.saturating_mul(MAX_DEPTH)).saturating_mul(4)
    }

    /// Returns the bytes of the process's region.
    fn bytes_back(self) -> usize {
        let step = self.results.saturating_add(self.rows);
        STEPS.saturating_add(step.saturating_mul(MAX_DEPTH)).saturating_mul(4)
    }

    /// Returns the first byte of a step in the server's region.
    fn out(self, number: u32, depth: usize) -> usize {
        (STEPS + (number as usize % depth) * (HEADER + self.entries + self.staged)) * 4
    }

    /// Returns the first byte of a step in the process's region.
    fn back(self, number: u32, depth: usize) -> usize {
        (STEPS + (number as usize % depth) * (self.results + self.rows)) * 4
    }
}

/// The reason for which an end's wait is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Woken {
    /// The other end's count is another one.
    News,
    /// The caller asked to stop, or the time has passed.
    Stopped,
    /// The other end is gone.
    Closed,
}

/// One end of a lane.
pub(super) struct CellLaneEnd {
    layout: StepLayout,
    depth: usize,
    regions: SharedRegions,
    socket: UnixStream,
}

impl CellLaneEnd {
    /// Begins at the server's end of a new socket.
    pub(super) fn offer(socket: UnixStream, layout: StepLayout) -> io::Result<CellLaneEnd> {
        let none = || io::Error::other("this system has no memory that two processes can share");
        let mut regions = SharedRegions::offer(&socket)?.ok_or_else(none)?;
        regions.outbound.reserve(layout.bytes_out())?;
        regions.inbound.reserve(layout.bytes_back())?;
        Ok(CellLaneEnd { layout, depth: 1, regions, socket })
    }

    /// Begins at the process's end. The server has reserved both regions.
    pub(super) fn accept(socket: UnixStream, layout: StepLayout, depth: usize) -> io::Result<CellLaneEnd> {
        let none = || io::Error::other("a lane without memory");
        let regions = SharedRegions::accept(&socket)?.ok_or_else(none)?;
        Ok(CellLaneEnd { layout, depth, regions, socket })
    }

    pub(super) fn set_depth(&mut self, depth: usize) {
        self.depth = depth;
    }

    /// Returns the other end's count.
    pub(super) fn count(&mut self) -> io::Result<u32> {
        self.regions.inbound.load(COUNT * 4)
    }

    /// Publishes this end's count, and wakes the other end.
    pub(super) fn publish(&mut self, count: u32) -> io::Result<()> {
        self.regions.outbound.store(COUNT * 4, count)?;
        if self.regions.inbound.load(SLEEPS * 4)? != 0 {
            self.socket.write_all(&[1])?;
        }
        Ok(())
    }

    /// Waits until the other end's count is not `known`, or `stop` returns true. Spins and then
    /// sleeps once, for `nap` at most.
    pub(super) fn wait(&mut self, known: u32, nap: Option<Duration>, stop: &dyn Fn() -> bool) -> io::Result<Woken> {
        let begun = Instant::now();
        while begun.elapsed() < SPIN {
            for _ in 0..POLLS {
                if self.count()? != known {
                    return Ok(Woken::News);
                }
                if stop() {
                    return Ok(Woken::Stopped);
                }
                std::hint::spin_loop();
            }
            std::thread::yield_now();
        }
        self.regions.outbound.store(SLEEPS * 4, 1)?;
        // The count was published before the other end looked whether this one sleeps, or this look
        // sees it.
        let slept = match self.count()? != known {
            true => Ok(1),
            false => self.sleep(nap),
        };
        self.regions.outbound.store(SLEEPS * 4, 0)?;
        let is_closed = match slept {
            Ok(bytes) => bytes == 0,
            Err(cause) => cause.kind() != io::ErrorKind::Interrupted,
        };
        Ok(match (self.count()? != known, is_closed) {
            (true, _) => Woken::News,
            (false, true) => Woken::Closed,
            (false, false) => Woken::Stopped,
        })
    }

    /// Sleeps at the socket, for `nap` at most. Returns the number of bytes read, at least 1 if the
    /// other end is there.
    fn sleep(&mut self, nap: Option<Duration>) -> io::Result<usize> {
        if let Some(nap) = nap {
            // Unlike the timeout of a socket, this one is not rounded up to the system's ticks.
            let nap = Timespec { tv_sec: nap.as_secs() as _, tv_nsec: nap.subsec_nanos() as _ };
            if poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&nap))? == 0 {
                return Ok(1);
            }
        }
        self.socket.read(&mut [0; 64])
    }

    /// Writes a step for the process, with an entry for each row.
    pub(super) fn write_step(&mut self, number: u32, step: StepHeader, entries: &[u32]) -> io::Result<()> {
        let at = self.layout.out(number, self.depth);
        self.regions.outbound.write(at, &[step.cell as u32, step.rows as u32])?;
        self.regions.outbound.write(at + HEADER * 4, entries)
    }

    /// Writes words of staged feeds at their place.
    pub(super) fn write_staged(&mut self, number: u32, place: usize, words: &[u32]) -> io::Result<()> {
        let first = self.layout.out(number, self.depth) + (HEADER + self.layout.entries) * 4;
        self.regions.outbound.write(first + place * 4, words)
    }

    /// Reads the header of a step.
    pub(super) fn read_step(&mut self, number: u32) -> io::Result<StepHeader> {
        let mut header = [0u32; HEADER];
        self.regions.inbound.read(self.layout.out(number, self.depth), &mut header)?;
        let [cell, rows] = header.map(|word| word as usize);
        Ok(StepHeader { cell, rows })
    }

    /// Reads the entries of a step.
    pub(super) fn read_entries(&mut self, number: u32, entries: &mut [u32]) -> io::Result<()> {
        let at = self.layout.out(number, self.depth) + HEADER * 4;
        self.regions.inbound.read(at, &mut entries[..])
    }

    /// Reads words of staged feeds at their place.
    pub(super) fn read_staged(&mut self, number: u32, place: usize, words: &mut [u32]) -> io::Result<()> {
        let first = self.layout.out(number, self.depth) + (HEADER + self.layout.entries) * 4;
        self.regions.inbound.read(first + place * 4, words)
    }

    /// Writes what a step has computed for the host.
    pub(super) fn write_outputs(&mut self, number: u32, results: &[u32], faults: &[u32]) -> io::Result<()> {
        let at = self.layout.back(number, self.depth);
        self.regions.outbound.write(at, results)?;
        self.regions.outbound.write(at + self.layout.results * 4, faults)
    }

    /// Reads what a step has computed for the host.
    pub(super) fn read_outputs(&mut self, number: u32, results: &mut [u32], faults: &mut [u32]) -> io::Result<()> {
        let at = self.layout.back(number, self.depth);
        self.regions.inbound.read(at, results)?;
        self.regions.inbound.read(at + self.layout.results * 4, faults)
    }

    /// Leaves the reason for which this process exits.
    pub(super) fn write_exit_reason(&mut self, text: &str) -> io::Result<()> {
        let bytes = &text.as_bytes()[..text.len().min(MAX_EXIT_REASON)];
        self.regions.outbound.write((EXIT_REASON + 1) * 4, bytes)?;
        self.regions.outbound.store(EXIT_REASON * 4, bytes.len() as u32)
    }

    /// Returns the reason for which the process ended, if it has left one.
    pub(super) fn exit_reason(&mut self) -> Option<String> {
        let length = self.regions.inbound.load(EXIT_REASON * 4).ok()? as usize;
        let mut bytes = vec![0; length.min(MAX_EXIT_REASON)];
        self.regions.inbound.read((EXIT_REASON + 1) * 4, &mut bytes).ok()?;
        let text = String::from_utf8_lossy(&bytes).into_owned();
        (!text.is_empty()).then_some(text)
    }
}
