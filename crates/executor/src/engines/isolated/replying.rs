//! The end of a process that replies to the server.
//!
//! The outputs of a large batch may follow its reply. Another thread then copies them for the
//! server while the next batch runs.

use super::protocol::{MAX_SHARED, PackedTensor, RunReply, RunRequest, fits, number, send};
use super::transfer::{MIN_SHARED, OutboundTensors, OutgoingTensor};
use crate::Tensor;
use bytes::Bytes;
use parking_lot::Mutex;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// The end that replies.
pub(super) struct ReplyEnd {
    shared: Arc<SharedReplyEnd>,
    /// Outputs that follow, of one batch at a time.
    following: SyncSender<(u64, Vec<Tensor>)>,
}

struct SharedReplyEnd {
    /// The socket, and the memory of outputs.
    state: Mutex<ReplyState>,
    /// Used bytes of the shared memory.
    bytes: AtomicUsize,
}

struct ReplyState {
    /// Connection to the server.
    socket: UnixStream,
    /// Memory of outputs.
    outbound: OutboundTensors,
    /// Whether the outputs of the last batch follow, so that the server may not have read them.
    is_unread: bool,
}

impl ReplyEnd {
    pub(super) fn new(socket: UnixStream, outbound: OutboundTensors) -> io::Result<ReplyEnd> {
        let state = Mutex::new(ReplyState { socket, outbound, is_unread: false });
        let shared = Arc::new(SharedReplyEnd { state, bytes: AtomicUsize::new(0) });
        let (following, received) = sync_channel(0);
        let other = Arc::clone(&shared);
        std::thread::Builder::new().name("outputs".to_owned()).spawn(move || other.follow(&received))?;
        Ok(ReplyEnd { shared, following })
    }

    /// Returns the used bytes of the shared memory.
    pub(super) fn shared_bytes(&self) -> usize {
        self.shared.bytes.load(Ordering::Relaxed)
    }

    /// Replies to a batch.
    pub(super) fn answer(&self, batch: &RunRequest, outputs: Result<Vec<Tensor>, String>, kept: u64) -> io::Result<()> {
        let number = batch.number;
        let reply = RunReply { number, kept, ..RunReply::default() };
        let outputs = match outputs {
            Ok(outputs) => outputs,
            Err(cause) => return send(&mut self.shared.state.lock().socket, &failed(number, cause)),
        };
        let bytes: usize = outputs.iter().map(|output| output.data.len()).sum();
        // Batches beyond the shared memory may be too large, and then run again in parts.
        if !batch.may_follow || !(MIN_SHARED..=MAX_SHARED).contains(&bytes) {
            return self.shared.send_outputs(reply, &outputs, false);
        }
        let reply = RunReply { outputs: outputs.iter().map(without_data).collect(), follows: true, ..reply };
        let mut state = self.shared.state.lock();
        state.is_unread = true;
        send(&mut state.socket, &reply)?;
        drop(state);
        self.following.send((number, outputs)).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

impl SharedReplyEnd {
    /// Sends outputs that follow, until there are no more.
    fn follow(&self, following: &Receiver<(u64, Vec<Tensor>)>) {
        while let Ok((number, outputs)) = following.recv() {
            let reply = RunReply { number, ..RunReply::default() };
            if self.send_outputs(reply, &outputs, true).is_err() {
                return;
            }
        }
    }

    /// Sends the outputs of a batch. The server may read them after the next batch if they
    /// `follow`.
    fn send_outputs(&self, reply: RunReply, outputs: &[Tensor], follow: bool) -> io::Result<()> {
        let outputs: Vec<OutgoingTensor<'_>> = outputs.iter().map(outgoing).collect();
        let mut state = self.state.lock();
        let beside = follow || std::mem::take(&mut state.is_unread);
        let (number, packed) = (reply.number, state.outbound.pack(&outputs, beside));
        self.bytes.store(state.outbound.shared_bytes(), Ordering::Relaxed);
        let reply = packed.map(|outputs| RunReply { outputs, ..reply });
        let reply = reply.and_then(|reply| fits(&reply).map(|()| reply));
        send(&mut state.socket, &reply.unwrap_or_else(|cause| failed(number, cause)))
    }
}

/// Returns the reply to a batch that failed.
pub(super) fn failed(number: u64, cause: String) -> RunReply {
    RunReply { error: Some(cause), number, ..RunReply::default() }
}

fn without_data(tensor: &Tensor) -> PackedTensor {
    let Tensor { name, datatype, shape, .. } = tensor;
    let (name, datatype, shape) = (name.to_string(), number(*datatype), shape.clone());
    PackedTensor { name, datatype, shape, data: Bytes::new(), shared: None }
}

fn outgoing(tensor: &Tensor) -> OutgoingTensor<'_> {
    let Tensor { name, datatype, shape, data } = tensor;
    OutgoingTensor { name, datatype: *datatype, shape: shape.clone(), data }
}

#[cfg(test)]
mod tests {
    use super::super::life::Life;
    use super::super::protocol::receive;
    use super::super::receiving::{FollowingOutputs, ReceivingEnd};
    use super::super::transfer::{accept, offer};
    use super::*;
    use ripieno_base::Lcg;
    use ripieno_model::DataType;
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command};
    use std::time::{Duration, Instant};

    /// The server's end of a connection, and a thread that answers each batch with as many bytes as
    /// it has rows.
    struct Ends {
        socket: UnixStream,
        receiving: Arc<ReceivingEnd>,
        life: Arc<Life>,
        child: Child,
    }

    impl Ends {
        fn new() -> Ends {
            let (socket, theirs) = UnixStream::pair().unwrap();
            let (_, inbound) = offer(&socket).unwrap();
            let child = Command::new("sleep").arg("600").process_group(0).spawn().unwrap();
            let life = Life::of(&child);
            let limit = Duration::from_secs(60);
            let receiving = ReceivingEnd::new(socket.try_clone().unwrap(), inbound, Arc::clone(&life), limit);
            std::thread::spawn(move || {
                let (outbound, _) = accept(&theirs).unwrap();
                let (mut from, replies) = (theirs.try_clone().unwrap(), ReplyEnd::new(theirs, outbound).unwrap());
                while let Ok(batch) = receive::<RunRequest>(&mut from) {
                    if batch.block == 9 {
                        break;
                    }
                    let data = Bytes::from(content(batch.number, batch.rows as usize));
                    let shape = vec![1, data.len() as i64];
                    let output = Tensor { name: "y".into(), datatype: DataType::Uint8, shape, data };
                    let outputs = if batch.alone { Err("as told".to_owned()) } else { Ok(vec![output]) };
                    replies.answer(&batch, outputs, 7).unwrap();
                }
            });
            Ends { socket, receiving, life, child }
        }

        /// Runs a batch. Returns its outputs, or those that follow.
        fn run(&mut self, batch: &RunRequest) -> io::Result<Result<RunReply, FollowingOutputs>> {
            let until = Instant::now() + Duration::from_secs(60);
            self.receiving.expect(batch.number, until)?;
            send(&mut self.socket, batch)?;
            let reply = self.receiving.reply(batch.number, until)?;
            Ok(if reply.follows { Err(FollowingOutputs::new(&self.receiving, &reply)) } else { Ok(reply) })
        }
    }

    impl Drop for Ends {
        fn drop(&mut self) {
            self.life.kill(None);
            self.life.wait(&mut self.child);
        }
    }

    fn content(number: u64, bytes: usize) -> Vec<u8> {
        (0..bytes).map(|at| (at as u64 % 251 + number) as u8).collect()
    }

    #[test]
    fn outputs_that_follow_are_not_written_over_by_the_next_ones() {
        let mut ends = Ends::new();
        let (mut rng, mut followed) = (Lcg::new(3), 0);
        let mut before: Option<(FollowingOutputs, u64, usize)> = None;
        for number in 1..200 {
            let rows = [10, MIN_SHARED, 3 * MIN_SHARED, 900_000][rng.below(4) as usize];
            let (may_follow, alone) = (rng.below(4) > 0, rng.below(8) == 0);
            let batch = RunRequest { number, rows: rows as u64, may_follow, alone, ..RunRequest::default() };
            let ran = ends.run(&batch).unwrap();
            // The outputs of the batch before are read only now.
            if let Some((outputs, number, rows)) = before.take() {
                assert_eq!(outputs.shapes(), [[1, rows as i64]]);
                let outputs = outputs.receive().unwrap().unwrap();
                assert!(outputs[0].data == content(number, rows), "batch {number}");
            }
            match ran {
                Err(outputs) => {
                    assert!(may_follow && !alone && rows >= MIN_SHARED);
                    followed += 1;
                    // Outputs that no request takes are in no other's way.
                    before = (rng.below(8) > 0).then_some((outputs, number, rows));
                }
                Ok(reply) if alone => assert_eq!(reply.error.as_deref(), Some("as told")),
                Ok(reply) => assert!(reply.outputs[0].data == content(number, rows), "batch {number}"),
            }
        }
        assert!(followed > 50);
    }

    #[test]
    fn a_connection_that_ends_while_outputs_follow_fails_them_and_the_next_batch() {
        let mut ends = Ends::new();
        let batch = RunRequest { number: 1, rows: 900_000, may_follow: true, ..RunRequest::default() };
        let Err(outputs) = ends.run(&batch).unwrap() else { panic!("they follow") };
        // The thread ends before it replies to this one. The outputs may have been sent.
        assert!(ends.run(&RunRequest { number: 2, block: 9, ..batch.clone() }).is_err());
        let received = outputs.receive();
        assert!(received.is_err() || received.is_ok_and(|outputs| outputs.is_ok()));
        assert!(ends.run(&RunRequest { number: 3, ..batch }).is_err(), "it stays broken");
    }
}
