use super::*;
use crate::handover::ProcessId;
use crate::plane::{Listener, MessageReader, Tcp, Transport};
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

/// A generous timeout: only a hang takes so long.
const SAFETY: Duration = Duration::from_secs(60);

/// An event of a connection that its handler reports.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Seen {
    /// The number of a cancelled request; true if the event loop has handled it.
    Number(u64, bool),
    Pause,
    End(io::ErrorKind),
}

/// Reports what it sees. Numbers below `SLOW` are handled by the event loop; the other ones wait at
/// the gate. Every number is sent back.
struct Reporter {
    link: Arc<PeerLink>,
    to: Sender<(usize, Seen)>,
    at: usize,
    gate: Arc<Gate>,
}

const SLOW: u64 = 1 << 32;

/// Permits for slow messages.
struct Gate {
    reached: Sender<()>,
    open: parking_lot::Mutex<Receiver<()>>,
}

impl ConnectionHandler for Reporter {
    fn try_handle(&mut self, message: Message, _: bool) -> io::Result<Option<Message>> {
        match message {
            Message::CancelRequest(number) if number < SLOW => {
                self.link.send(&Message::CancelRequest(number));
                self.to.send((self.at, Seen::Number(number, true))).unwrap();
                Ok(None)
            }
            Message::Leave => panic!("a fault of a handler"),
            other => Ok(Some(other)),
        }
    }

    fn handle(&mut self, message: Message, _: bool) -> io::Result<()> {
        let Message::CancelRequest(number) = message else { return Err(io::ErrorKind::InvalidInput.into()) };
        if number >= SLOW {
            self.gate.reached.send(()).unwrap();
            self.gate.open.lock().recv().unwrap();
        }
        self.link.send(&Message::CancelRequest(number));
        self.to.send((self.at, Seen::Number(number, false))).unwrap();
        Ok(())
    }

    fn on_pause(&mut self) {
        self.to.send((self.at, Seen::Pause)).unwrap();
    }

    fn on_end(self: Box<Self>, error: io::Error) {
        self.to.send((self.at, Seen::End(error.kind()))).unwrap();
    }
}

/// Event loops with a queue, and the events of their connections.
struct Loops {
    pollers: Pollers,
    queue: Arc<HandlerQueue>,
    listener: Arc<dyn Listener>,
    transport: Arc<dyn Transport>,
    events: Receiver<(usize, Seen)>,
    to: Sender<(usize, Seen)>,
    gate: Arc<Gate>,
    reached: Receiver<()>,
    open: Sender<()>,
    thread: Option<thread::JoinHandle<()>>,
    connections: usize,
}

impl Loops {
    fn start(transport: Arc<dyn Transport>, threads: usize) -> Loops {
        let pollers = Pollers::start_threads("test-poll", threads).unwrap();
        let (queue, (to, events)) = (Arc::<HandlerQueue>::default(), channel());
        let (own, listener) = (Arc::clone(&queue), transport.listen("127.0.0.1:0".parse().unwrap()).unwrap());
        let thread = Some(thread::spawn(move || own.run()));
        let ((reached_to, reached), (open, opened)) = (channel(), channel());
        let gate = Arc::new(Gate { reached: reached_to, open: parking_lot::Mutex::new(opened) });
        Loops { pollers, queue, listener, transport, events, to, gate, reached, open, thread, connections: 0 }
    }

    /// Connects a peer, whose other end the event loops serve.
    fn connect(&mut self, bounds: LinkBounds) -> Arc<dyn ByteStream> {
        let (peer, connection) = self.connected(bounds);
        let handler = self.handler(connection.link());
        connection.serve(&self.queue, handler);
        peer
    }

    /// Connects a peer, and returns the sending side to it, too.
    fn connect_link(&mut self) -> (Arc<dyn ByteStream>, Arc<PeerLink>) {
        let (peer, connection) = self.connected(LinkBounds::CONTROL);
        let link = Arc::clone(connection.link());
        let handler = self.handler(&link);
        connection.serve(&self.queue, handler);
        (peer, link)
    }

    /// Connects a peer, and returns its queue, too.
    fn connect_queued(&mut self, bounds: LinkBounds) -> (Arc<dyn ByteStream>, Arc<QueuedConnection>) {
        let (peer, NewConnection { number, stream, link, poller }) = self.connected(bounds);
        let handler = self.handler(&link);
        let queued = QueuedConnection::new(&self.queue, handler, (poller.clone(), number));
        let queued = queued.ok().unwrap();
        poller.add(number, stream, link, Arc::clone(&queued));
        (peer, queued)
    }

    fn handler(&mut self, link: &Arc<PeerLink>) -> Box<Reporter> {
        let (to, gate, at) = (self.to.clone(), Arc::clone(&self.gate), self.connections);
        self.connections += 1;
        Box::new(Reporter { link: Arc::clone(link), to, at, gate })
    }

    fn connected(&self, bounds: LinkBounds) -> (Arc<dyn ByteStream>, NewConnection) {
        let (transport, address) = (Arc::clone(&self.transport), self.listener.address().to_string());
        // The handshake of TLS needs both ends.
        let connecting = thread::spawn(move || {
            let stream = transport.connect(&address, SAFETY).unwrap();
            stream.write_all(b"greeting").unwrap();
            stream
        });
        let accepted = self.listener.accept().unwrap().unwrap();
        let mut greeting = [0; 8];
        assert_eq!(accepted.read(&mut greeting, SAFETY).unwrap(), 8);
        (connecting.join().unwrap(), self.pollers.prepare(accepted, bounds))
    }

    /// Returns the next event that is no pause.
    fn next(&self) -> (usize, Seen) {
        loop {
            match self.events.recv_timeout(SAFETY).unwrap() {
                (_, Seen::Pause) => {}
                event => return event,
            }
        }
    }

    fn end(mut self) {
        self.pollers.close();
        self.queue.close();
        self.thread.take().unwrap().join().unwrap();
    }
}

fn bytes(messages: impl IntoIterator<Item = Message>) -> Vec<u8> {
    let mut bytes = Vec::new();
    messages.into_iter().for_each(|message| message.encode(&mut bytes));
    bytes
}

fn numbers(numbers: impl IntoIterator<Item = u64>) -> Vec<u8> {
    bytes(numbers.into_iter().map(Message::CancelRequest))
}

/// Reads the number that comes back next.
fn back(reader: &mut MessageReader) -> u64 {
    loop {
        match reader.read().unwrap() {
            Message::KeepAlive => {}
            Message::CancelRequest(number) => return number,
            other => panic!("{other:?}"),
        }
    }
}

fn tls() -> (tempfile::TempDir, Arc<dyn Transport>) {
    let folder = tempfile::tempdir().unwrap();
    let tls = crate::plane::tls::tests::transport(folder.path());
    (folder, Arc::new(tls))
}

#[test]
fn many_connections_are_served_in_order() {
    const CONNECTIONS: usize = 300;
    const NUMBERS: u64 = 100;
    for threads in [1, 3] {
        let mut loops = Loops::start(Arc::new(Tcp), threads);
        let peers: Vec<_> = (0..CONNECTIONS).map(|_| loops.connect(LinkBounds::CONTROL)).collect();
        for part in 0..2 {
            peers.iter().for_each(|peer| {
                peer.write_all(&numbers(part * NUMBERS / 2..(part + 1) * NUMBERS / 2)).unwrap();
            });
        }
        for peer in &peers {
            let mut reader = MessageReader::new(Arc::clone(peer), SAFETY);
            (0..NUMBERS).for_each(|number| assert_eq!(back(&mut reader), number));
            peer.close();
        }
        let mut seen: BTreeMap<usize, Vec<Seen>> = BTreeMap::new();
        let mut ends = 0;
        while ends < CONNECTIONS {
            let (at, event) = loops.next();
            ends += usize::from(matches!(event, Seen::End(_)));
            seen.entry(at).or_default().push(event);
        }
        for events in seen.values() {
            let expected = (0..NUMBERS).map(|number| Seen::Number(number, true));
            assert!(expected.chain([Seen::End(io::ErrorKind::UnexpectedEof)]).eq(events.iter().copied()));
        }
        loops.end();
    }
}

#[test]
fn a_handler_that_waits_stops_neither_keep_alives_nor_other_connections() {
    let mut loops = Loops::start(Arc::new(Tcp), 1);
    let (waits, other) = (loops.connect(LinkBounds::CONTROL), loops.connect(LinkBounds::CONTROL));
    waits.write_all(&numbers([1, SLOW, 2])).unwrap();
    loops.reached.recv_timeout(SAFETY).unwrap();
    other.write_all(&numbers([3])).unwrap();
    assert_eq!(back(&mut MessageReader::new(other, SAFETY)), 3);
    let mut reader = MessageReader::new(Arc::clone(&waits), SAFETY);
    assert_eq!(back(&mut reader), 1);
    for _ in 0..3 {
        assert!(matches!(reader.read().unwrap(), Message::KeepAlive), "nothing else may come");
    }
    loops.open.send(()).unwrap();
    assert_eq!((back(&mut reader), back(&mut reader)), (SLOW, 2), "the order of a connection is kept");
    waits.write_all(&numbers([4])).unwrap();
    assert_eq!(back(&mut reader), 4);
    let of_first: Vec<Seen> =
        std::iter::from_fn(|| loops.events.try_recv().ok()).filter(|(at, _)| *at == 0).map(|(_, seen)| seen).collect();
    let numbers: Vec<&Seen> = of_first.iter().filter(|seen| **seen != Seen::Pause).collect();
    let expected = [(1, true), (SLOW, false), (2, false), (4, true)].map(|(number, now)| Seen::Number(number, now));
    assert!(numbers.into_iter().eq(&expected), "{of_first:?}");
    assert_eq!(of_first.last(), Some(&Seen::Pause), "the handler learns that nothing is left");
    loops.end();
}

#[test]
fn a_connection_whose_queue_is_full_is_not_read_and_no_message_is_lost() {
    let mut loops = Loops::start(Arc::new(Tcp), 1);
    let (peer, queued) = loops.connect_queued(LinkBounds::CONTROL);
    let all = (32 * queue::MAX_QUEUED_BYTES / crate::plane::RECORD) as u64;
    let writing = Arc::clone(&peer);
    let writer = thread::spawn(move || writing.write_all(&numbers([SLOW].into_iter().chain(1..all))).unwrap());
    loops.reached.recv_timeout(SAFETY).unwrap();
    while queued.queued_bytes() < queue::MAX_QUEUED_BYTES {
        thread::yield_now();
    }
    // A read later it is paused, and takes nothing more.
    let bound = queue::MAX_QUEUED_BYTES + poller::CHUNK;
    while !queued.pauses() {
        thread::yield_now();
    }
    assert!(queued.queued_bytes() <= bound, "{} bytes wait", queued.queued_bytes());
    loops.open.send(()).unwrap();
    let mut reader = MessageReader::new(peer, SAFETY);
    assert_eq!(back(&mut reader), SLOW);
    (1..all).for_each(|number| assert_eq!(back(&mut reader), number));
    assert!(queued.queued_bytes() <= bound);
    writer.join().unwrap();
    loops.end();
}

#[test]
fn a_peer_that_reads_nothing_is_given_up_and_fast_ones_do_not_notice() {
    let (_folder, tls) = tls();
    for transport in [Arc::new(Tcp), tls] {
        let mut loops = Loops::start(transport, 1);
        let slow = loops.connect(LinkBounds { bytes: 1 << 20 });
        let fast: Vec<_> = (0..10).map(|_| loops.connect(LinkBounds { bytes: 1 << 20 })).collect();
        let writer = thread::spawn(move || {
            let some = numbers(0..1024);
            while slow.write_all(&some).is_ok() {}
        });
        let mut readers: Vec<_> = fast.iter().map(|peer| MessageReader::new(Arc::clone(peer), SAFETY)).collect();
        let (mut number, mut given_up) = (0, false);
        while !given_up {
            fast.iter().for_each(|peer| peer.write_all(&numbers([number])).unwrap());
            readers.iter_mut().for_each(|reader| assert_eq!(back(reader), number));
            number += 1;
            let events = std::iter::from_fn(|| loops.events.try_recv().ok());
            given_up = events.into_iter().any(|(at, seen)| {
                let ended = matches!(seen, Seen::End(_));
                assert!(!ended || (at, seen) == (0, Seen::End(io::ErrorKind::ConnectionAborted)));
                ended
            });
        }
        writer.join().unwrap();
        loops.end();
    }
}

#[test]
fn a_connection_that_dies_within_a_message_ends_alone() {
    let mut loops = Loops::start(Arc::new(Tcp), 1);
    let offer = bytes([Message::Offer(vec![7; 10_000].into())]);
    let stays = loops.connect(LinkBounds::CONTROL);
    for (at, cut) in [1, 63, 64, 5_000, offer.len() - 1].into_iter().enumerate() {
        let dies = loops.connect(LinkBounds::CONTROL);
        dies.write_all(&[&numbers([5]), &offer[..cut]].concat()).unwrap();
        assert_eq!(loops.next(), (at + 1, Seen::Number(5, true)));
        dies.close();
        assert_eq!(loops.next(), (at + 1, Seen::End(io::ErrorKind::UnexpectedEof)));
    }
    let malformed = loops.connect(LinkBounds::CONTROL);
    malformed.write_all(&[0xff; 64]).unwrap();
    assert_eq!(loops.next(), (6, Seen::End(io::ErrorKind::InvalidData)));
    let panics = loops.connect(LinkBounds::CONTROL);
    panics.write_all(&bytes([Message::Leave])).unwrap();
    assert_eq!(loops.next(), (7, Seen::End(io::ErrorKind::Other)));
    let fails = loops.connect(LinkBounds::CONTROL);
    fails.write_all(&bytes([Message::Peer(ProcessId(1)), Message::CancelRequest(9)])).unwrap();
    assert_eq!(loops.next(), (8, Seen::End(io::ErrorKind::InvalidInput)), "what follows is not handled");
    stays.write_all(&numbers([6])).unwrap();
    assert_eq!(back(&mut MessageReader::new(stays, SAFETY)), 6);
    loops.end();
}

#[test]
fn a_silent_peer_is_given_up() {
    let mut loops = Loops::start(Arc::new(Tcp), 1);
    let silent = loops.connect(LinkBounds::CONTROL);
    assert_eq!(loops.next(), (0, Seen::End(io::ErrorKind::TimedOut)));
    let mut reader = MessageReader::new(silent, SAFETY);
    while reader.read().is_ok() {}
    loops.end();
}

#[test]
fn large_messages_go_both_ways_under_tls() {
    let (_folder, tls) = tls();
    let mut loops = Loops::start(tls, 2);
    let peers: Vec<_> = (0..3).map(|_| loops.connect(LinkBounds::CONTROL)).collect();
    const NUMBERS: u64 = 60_000;
    let threads = peers.into_iter().map(|peer| {
        let writing = Arc::clone(&peer);
        let writer = thread::spawn(move || {
            (0..NUMBERS).step_by(1000).for_each(|from| writing.write_all(&numbers(from..from + 1000)).unwrap());
        });
        let reader = thread::spawn(move || {
            let mut reader = MessageReader::new(Arc::clone(&peer), SAFETY);
            (0..NUMBERS).for_each(|number| assert_eq!(back(&mut reader), number));
            peer.close();
        });
        [writer, reader]
    });
    threads.collect::<Vec<_>>().into_iter().flatten().for_each(|thread| thread.join().unwrap());
    let ends = (0..).map(|_| loops.next().1).filter(|seen| matches!(seen, Seen::End(_)));
    assert_eq!(ends.take(3).count(), 3);
    loops.end();
}

#[test]
fn a_link_that_finishes_sends_what_waits_and_all_end_with_the_loops() {
    let mut loops = Loops::start(Arc::new(Tcp), 1);
    let (peer, link) = loops.connect_link();
    (0..10_000).for_each(|number| link.send(&Message::CancelRequest(number)));
    link.finish();
    link.send(&Message::Leave);
    let mut reader = MessageReader::new(peer, SAFETY);
    (0..10_000).for_each(|number| assert_eq!(back(&mut reader), number));
    assert_eq!(reader.read().unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    link.wait_closed(std::time::Instant::now() + SAFETY);
    assert!(link.is_closed());
    assert_eq!(loops.next().1, Seen::End(io::ErrorKind::ConnectionAborted));
    let open: Vec<_> = (0..20).map(|_| loops.connect(LinkBounds::CONTROL)).collect();
    loops.pollers.close();
    loops.queue.close();
    loops.thread.take().unwrap().join().unwrap();
    let late = loops.connect(LinkBounds::CONTROL);
    for _ in 0..=open.len() {
        assert!(matches!(loops.next().1, Seen::End(io::ErrorKind::ConnectionAborted)));
    }
    for peer in open.into_iter().chain([late]) {
        assert!(MessageReader::new(peer, SAFETY).read().is_err());
    }
}
