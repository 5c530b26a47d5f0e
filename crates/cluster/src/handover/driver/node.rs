//! The loop of a process: what came, what is due, what is to be said.

use super::link::Link;
use crate::handover::ids::{Epoch, Process, Role};
use crate::handover::message::{Body, Message};
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token, Waker};
use ripieno_base::{Nanos, Time};
use slab::Slab;
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

/// A machine with its host, as a node drives it.
pub trait Machine {
    /// What other threads tell it.
    type Order: Send + 'static;

    /// What it is.
    const ROLE: Role;

    /// The latest reign that it knows of.
    fn epoch(&self) -> Epoch;

    /// Somebody says something.
    fn on_message(&mut self, now: Time, from: Process, message: &Message, post: &mut Post);

    /// The connection to somebody broke.
    fn on_lost(&mut self, now: Time, who: Process, post: &mut Post);

    /// Another thread says something.
    fn on_order(&mut self, now: Time, order: Self::Order, post: &mut Post);

    /// It is later now.
    fn on_timer(&mut self, now: Time, post: &mut Post);

    /// The time is wanted then.
    fn next_wakeup(&self) -> Time;
}

/// What a machine has to say.
#[derive(Debug, Default)]
pub struct Post(Vec<(Option<Process>, Message)>);

impl Post {
    /// To one.
    pub fn send(&mut self, to: Process, message: Message) {
        self.0.push((Some(to), message));
    }

    /// To every scheduler.
    pub fn greet(&mut self, message: Message) {
        self.0.push((None, message));
    }
}

/// Who a node is, and whom it speaks to.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Itself.
    pub me: Process,
    /// Where others dial it, if they do; port 0 takes a free one.
    pub listen: Option<SocketAddr>,
    /// Whom it dials: all schedulers; a backend the frontends, too.
    pub dial: Vec<SocketAddr>,
    /// Whom it does not reach it dials again so often.
    pub redial: Nanos,
    /// It has no more connections than that.
    pub connections: usize,
}

/// What reaches a node from other threads.
#[derive(Debug)]
enum Command<O> {
    Order(O),
    Dial(Vec<SocketAddr>),
    Stop,
}

/// Speaks to a node from any thread.
#[derive(Debug)]
pub struct Handle<O> {
    commands: SyncSender<Command<O>>,
    waker: Arc<Waker>,
}

impl<O> Clone for Handle<O> {
    fn clone(&self) -> Handle<O> {
        Handle { commands: self.commands.clone(), waker: self.waker.clone() }
    }
}

impl<O> Handle<O> {
    /// Tells its machine something; waits while the node has too much to hear. Nothing happens if it has ended.
    pub fn order(&self, order: O) {
        self.command(Command::Order(order));
    }

    /// Whom it dials from now on. Connections that it has stay.
    pub fn dial(&self, addresses: Vec<SocketAddr>) {
        self.command(Command::Dial(addresses));
    }

    /// Ends it.
    pub fn stop(&self) {
        self.command(Command::Stop);
    }

    fn command(&self, command: Command<O>) {
        if self.commands.send(command).is_ok() {
            // A node that cannot be woken hears of it at its next timer.
            let _ = self.waker.wake();
        }
    }
}

const LISTENER: Token = Token(usize::MAX - 1);
const WAKER: Token = Token(usize::MAX - 2);
/// So many orders wait at most.
const MOST_ORDERS: usize = 4_096;

/// A process of the cluster: a machine, its connections, and its clock.
#[derive(Debug)]
pub struct Node<M: Machine> {
    settings: Settings,
    machine: M,
    began: Instant,
    poll: Poll,
    listener: Option<TcpListener>,
    links: Slab<Link>,
    /// The latest connection to each.
    peers: BTreeMap<Process, usize>,
    commands: Receiver<Command<M::Order>>,
    next_dial: Time,
    post: Post,
    running: bool,
}

impl<M: Machine> Node<M> {
    /// A node whose machine is made with a handle to it, and begins at [`Time::ORIGIN`].
    pub fn new(
        settings: Settings,
        machine: impl FnOnce(Handle<M::Order>) -> M,
    ) -> io::Result<(Node<M>, Handle<M::Order>)> {
        let poll = Poll::new()?;
        let mut listener = settings.listen.map(TcpListener::bind).transpose()?;
        if let Some(listener) = &mut listener {
            poll.registry().register(listener, LISTENER, Interest::READABLE)?;
        }
        let waker = Arc::new(Waker::new(poll.registry(), WAKER)?);
        let (sender, commands) = sync_channel(MOST_ORDERS);
        let handle = Handle { commands: sender, waker };
        let node = Node {
            settings,
            machine: machine(handle.clone()),
            began: Instant::now(),
            poll,
            listener,
            links: Slab::new(),
            peers: BTreeMap::new(),
            commands,
            next_dial: Time::ORIGIN,
            post: Post::default(),
            running: true,
        };
        Ok((node, handle))
    }

    /// Where others dial it.
    pub fn address(&self) -> Option<SocketAddr> {
        self.listener.as_ref().and_then(|listener| listener.local_addr().ok())
    }

    /// Runs until it is stopped.
    pub fn run(mut self) -> io::Result<M> {
        let mut events = Events::with_capacity(1_024);
        while self.running {
            self.dial();
            let due = self.machine.next_wakeup().min(self.next_dial);
            let left = Duration::from_nanos(u64::try_from((due - self.now()).0).unwrap_or(0));
            match self.poll.poll(&mut events, Some(left)) {
                Err(error) if error.kind() != ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
            for event in &events {
                match event.token() {
                    LISTENER => self.accept(),
                    WAKER => self.obey(),
                    Token(link) => self.on_link(link),
                }
            }
            let now = self.now();
            if now >= self.machine.next_wakeup() {
                self.machine.on_timer(now, &mut self.post);
                self.say();
            }
        }
        Ok(self.machine)
    }

    fn now(&self) -> Time {
        Time(i64::try_from(self.began.elapsed().as_nanos()).unwrap_or(i64::MAX))
    }

    fn obey(&mut self) {
        while let Ok(command) = self.commands.try_recv() {
            match command {
                Command::Order(order) => self.machine.on_order(self.now(), order, &mut self.post),
                Command::Dial(addresses) => {
                    self.settings.dial = addresses;
                    self.next_dial = Time::ORIGIN;
                }
                Command::Stop => self.running = false,
            }
            self.say();
        }
    }

    fn accept(&mut self) {
        // Whatever fails here fails for one who dials, and who will dial again.
        while let Some(Ok((stream, _))) = self.listener.as_ref().map(TcpListener::accept) {
            self.add(stream, None);
        }
    }

    fn dial(&mut self) {
        let now = self.now();
        if now < self.next_dial {
            return;
        }
        self.next_dial = now + self.settings.redial;
        for address in self.settings.dial.clone() {
            let connected = self.links.iter().any(|(_, link)| link.dialled == Some(address));
            if !connected && let Ok(stream) = TcpStream::connect(address) {
                self.add(stream, Some(address));
            }
        }
    }

    fn add(&mut self, mut stream: TcpStream, dialled: Option<SocketAddr>) {
        if self.links.len() >= self.settings.connections {
            return;
        }
        // Without it messages are later, and nothing else.
        let _ = stream.set_nodelay(true);
        let place = self.links.vacant_entry();
        let at = place.key();
        let interest = Interest::READABLE | Interest::WRITABLE;
        if self.poll.registry().register(&mut stream, Token(at), interest).is_err() {
            return;
        }
        let link = place.insert(Link::new(stream, dialled));
        let hello = Message { epoch: self.machine.epoch(), body: Body::Hello(M::ROLE) };
        if link.send(self.settings.me, &hello).is_err() {
            self.close(at);
        }
    }

    /// It can be read or written.
    fn on_link(&mut self, at: usize) {
        let Some(link) = self.links.get_mut(at) else { return };
        if link.flush().is_err() {
            return self.close(at);
        }
        loop {
            // An earlier message may have ended the connection.
            let Some(link) = self.links.get_mut(at) else { return };
            let more = link.fill();
            let Ok(messages) = link.messages() else { return self.close(at) };
            match link.peer {
                Some((peer, _)) if peer == self.settings.me => return self.close_own(at),
                Some((peer, _)) => {
                    self.peers.insert(peer, at);
                }
                None => {}
            }
            for (from, message) in messages {
                self.machine.on_message(self.now(), from, &message, &mut self.post);
                self.say();
            }
            match more {
                Ok(true) => {}
                Ok(false) => return,
                Err(_) => return self.close(at),
            }
        }
    }

    /// It dialled itself, since it stands in the list of all.
    fn close_own(&mut self, at: usize) {
        let dialled = self.links.get(at).and_then(|link| link.dialled);
        self.settings.dial.retain(|&address| Some(address) != dialled);
        self.close(at);
    }

    fn close(&mut self, at: usize) {
        let Some(mut link) = self.links.try_remove(at) else { return };
        let _ = self.poll.registry().deregister(&mut link.stream);
        if let Some((peer, _)) = link.peer
            && self.peers.get(&peer) == Some(&at)
        {
            self.peers.remove(&peer);
            self.machine.on_lost(self.now(), peer, &mut self.post);
            self.say();
        }
    }

    /// Sends what the machine has to say. Connections that break by it are closed, which may give it more to say.
    fn say(&mut self) {
        for (to, message) in std::mem::take(&mut self.post.0) {
            let links: Vec<usize> = match to {
                Some(process) => self.peers.get(&process).copied().into_iter().collect(),
                None => self.peers.values().copied().filter(|&at| self.is_scheduler(at)).collect(),
            };
            for at in links {
                if self.links.get_mut(at).is_some_and(|link| link.send(self.settings.me, &message).is_err()) {
                    self.close(at);
                }
            }
        }
    }

    fn is_scheduler(&self, at: usize) -> bool {
        self.links.get(at).is_some_and(|link| matches!(link.peer, Some((_, Role::Scheduler))))
    }
}
