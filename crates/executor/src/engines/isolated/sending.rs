//! The end of a connection that sends batches to a process: the one to run next, and the inputs of
//! the one after it while that one runs.
//!
//! The process keeps the inputs that came last ahead, and runs them if the next request names them.
//! So nothing must be taken back: a batch that was sent ahead and does not run next is forgotten by
//! both ends, and sent again when it runs.

use super::protocol::{PackedTensor, RunRequest, fits, send};
use super::transfer::{OutboundTensors, OutgoingTensor};
use std::io;
use std::os::unix::net::UnixStream;

/// The end of a connection that sends batches.
pub(super) struct SendingEnd {
    socket: UnixStream,
    outbound: OutboundTensors,
    /// Number of the batch that was sent ahead and not run yet.
    ahead: Option<u64>,
}

impl SendingEnd {
    pub(super) fn new(socket: UnixStream, outbound: OutboundTensors) -> SendingEnd {
        SendingEnd { socket, outbound, ahead: None }
    }

    /// Whether this batch was sent ahead, and no other one since.
    pub(super) fn has(&self, number: u64) -> bool {
        self.ahead == Some(number)
    }

    /// Prepares the tensors of the batch to run next, unless they were sent ahead. A batch that was
    /// sent ahead and is not this one is forgotten.
    pub(super) fn pack(
        &mut self,
        number: u64,
        tensors: &[OutgoingTensor<'_>],
    ) -> Result<Option<Vec<PackedTensor>>, String> {
        match self.ahead.take() {
            Some(ahead) if ahead == number => Ok(None),
            ahead => self.outbound.pack(tensors, ahead.is_some()).map(Some),
        }
    }

    /// Sends a batch while another one runs. An error means that the process is of no use any more.
    pub(super) fn send_ahead(&mut self, batch: RunRequest, tensors: &[OutgoingTensor<'_>]) -> io::Result<bool> {
        // A batch that cannot be packed fails when it runs.
        let Ok(inputs) = self.outbound.pack(tensors, true) else { return Ok(false) };
        let batch = RunRequest { inputs, is_ahead: true, ..batch };
        if fits(&batch).is_err() {
            return Ok(false);
        }
        send(&mut self.socket, &batch)?;
        self.ahead = Some(batch.number);
        Ok(true)
    }

    /// Gives memory back, unless the process may still read it.
    pub(super) fn release_memory(&mut self) {
        if self.ahead.is_none() {
            self.outbound.release();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::child::BatchReader;
    use super::super::protocol::receive;
    use super::super::transfer::{accept, offer};
    use super::*;
    use ripieno_model::DataType;

    /// Size of a batch that goes through shared memory, where there is some.
    const LARGE: usize = 1 << 20;

    /// Both ends of a connection. The process reads no request before the test lets it.
    struct Ends {
        server: SendingEnd,
        process: UnixStream,
        reader: BatchReader,
    }

    impl Ends {
        fn new() -> Ends {
            let (one, two) = UnixStream::pair().unwrap();
            let (outbound, _) = offer(&one).unwrap();
            let (_, inbound) = accept(&two).unwrap();
            Ends { server: SendingEnd::new(one, outbound), process: two, reader: BatchReader::new(inbound, Vec::new()) }
        }

        fn send_ahead(&mut self, number: u64, data: &[u8]) {
            let batch = RunRequest { number, ..RunRequest::default() };
            assert!(self.server.send_ahead(batch, &[tensor(data)]).unwrap());
        }

        /// Sends a batch to run now. Returns true if its inputs had been sent.
        fn run(&mut self, number: u64, data: &[u8]) -> bool {
            let inputs = self.server.pack(number, &[tensor(data)]).unwrap();
            let was_sent = inputs.is_none();
            let run = RunRequest { number, inputs: inputs.unwrap_or_default(), was_sent, ..RunRequest::default() };
            send(&mut self.server.socket, &run).unwrap();
            was_sent
        }

        /// Returns the data of the next batch that the process runs.
        fn runs(&mut self) -> (u64, Vec<u8>) {
            loop {
                if let Some(batch) = self.reader.read(receive(&mut self.process).unwrap()) {
                    return (batch.request.number, batch.inputs.unwrap()[0].data.to_vec());
                }
            }
        }
    }

    fn tensor(data: &[u8]) -> OutgoingTensor<'_> {
        OutgoingTensor { name: "x", datatype: DataType::Uint8, shape: vec![1, data.len() as i64], data }
    }

    #[test]
    fn a_batch_that_was_sent_ahead_runs_and_one_that_was_not_named_is_forgotten() {
        for size in [10, LARGE] {
            let mut ends = Ends::new();
            let data = |number: u64| vec![number as u8; size + number as usize];
            assert!(!ends.run(1, &data(1)));
            for number in 2..9 {
                ends.send_ahead(number, &data(number));
                // The process reads the batch that runs only now: no byte of it has changed.
                assert_eq!(ends.runs(), (number - 1, data(number - 1)));
                let runs_another = number % 3 == 0;
                let next = if runs_another { data(100) } else { data(number) };
                assert_eq!(ends.run(if runs_another { 100 } else { number }, &next), !runs_another);
                if runs_another {
                    assert_eq!(ends.runs(), (100, next));
                    assert!(!ends.run(number, &data(number)), "it must be sent again");
                }
            }
        }
    }

    #[test]
    fn a_batch_whose_inputs_never_came_is_an_error() {
        let mut ends = Ends::new();
        let named = RunRequest { number: 7, was_sent: true, ..RunRequest::default() };
        assert!(ends.reader.read(named).unwrap().inputs.unwrap_err().contains("have not come"));
    }
}
