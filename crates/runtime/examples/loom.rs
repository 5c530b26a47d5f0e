//! The parts of the runtime that share memory without locks, under every order of their steps:
//! parking, the mailbox, and the table of offers. `cargo xtask test` runs it.
//!
//! The files are the runtime's own. In `sync` they find the atomics and threads of the model
//! checker `loom`, which runs each model once for each order.

#[expect(dead_code, reason = "the models need a part of the file")]
#[path = "../src/shards/offers.rs"]
mod offers;

/// In place of the runtime's module of this name.
#[path = "../src/event_loop"]
mod event_loop {
    pub(crate) mod mail_queue;
    pub(crate) mod parking;

    pub(crate) trait Inbox {
        fn is_empty(&self) -> bool;
        fn parking(&self) -> &parking::Parking;
        fn wake(&self);
        fn close(&self);
    }
}

/// In place of the runtime's `sync.rs`.
mod sync {
    use std::collections::VecDeque;

    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
    pub(crate) use loom::thread::{Thread, current, park};

    /// A queue with a lock in place of the lock-free one, which the checker cannot see into.
    pub(crate) struct ArrayQueue<T>(loom::sync::Mutex<VecDeque<T>>, usize);

    impl<T> ArrayQueue<T> {
        pub(crate) fn new(capacity: usize) -> ArrayQueue<T> {
            ArrayQueue(loom::sync::Mutex::new(VecDeque::new()), capacity)
        }

        pub(crate) fn push(&self, value: T) -> Result<(), T> {
            let mut queue = self.0.lock().unwrap();
            if queue.len() == self.1 {
                return Err(value);
            }
            queue.push_back(value);
            Ok(())
        }

        pub(crate) fn pop(&self) -> Option<T> {
            self.0.lock().unwrap().pop_front()
        }

        pub(crate) fn is_empty(&self) -> bool {
            self.0.lock().unwrap().is_empty()
        }
    }

    /// Parks without a limit: a model has no clock.
    pub(crate) fn park_timeout(_: std::time::Duration) {
        park();
    }
}

use event_loop::Inbox;
use event_loop::mail_queue::MailQueue;
use event_loop::parking::{Parking, Sleeper};
use loom::model::Builder;
use loom::thread;
use offers::{OfferTable, OfferWriter};
use ripieno_base::ModelId;
use ripieno_policies::grants::Offer;
use std::sync::Arc;
use sync::{AtomicBool, Ordering};

fn main() {
    one_producer_wakes_the_sleeper();
    two_producers_wake_the_sleeper();
    mail_arrives_or_is_dropped();
    no_mail_stays_in_a_closed_queue();
    an_offer_is_read_whole_and_the_last_one_arrives();
    println!("loom: 5 models hold under every order");
}

/// A lost wake-up is a deadlock of the model, which the checker reports.
fn one_producer_wakes_the_sleeper() {
    loom::model(|| wake_from(1));
}

fn two_producers_wake_the_sleeper() {
    bounded(2).check(|| wake_from(2));
}

/// Sends one letter from each of `count` threads to a sleeper that waits for all of them.
fn wake_from(count: usize) {
    let parking = Arc::new(Parking::default());
    let mut sleeper = Sleeper::new(&parking);
    let mail: Vec<_> = (0..count).map(|_| Arc::new(AtomicBool::new(false))).collect();
    let producers = mail.iter().cloned().map(|letter| {
        let place = Arc::clone(&parking);
        thread::spawn(move || {
            letter.store(true, Ordering::Release);
            place.wake();
        })
    });
    let producers: Vec<_> = producers.collect();
    sleeper.wait(&parking, None, || mail.iter().all(|letter| letter.load(Ordering::Acquire)));
    producers.into_iter().for_each(|producer| producer.join().unwrap());
}

/// Two senders post to a loop that reads, turn by turn, until both letters came.
fn mail_arrives_or_is_dropped() {
    bounded(2).check(|| {
        let queue = Arc::new(MailQueue::with_capacity(2));
        let mut sleeper = Sleeper::new(queue.parking());
        let senders = [1, 2].map(|letter| {
            let queue = Arc::clone(&queue);
            thread::spawn(move || queue.post(letter))
        });
        let mut sum = 0;
        while sum < 3 {
            sleeper.wait(queue.parking(), None, || !queue.is_empty());
            while let Some(letter) = queue.pop() {
                sum += letter;
            }
        }
        senders.into_iter().for_each(|sender| sender.join().unwrap());
    });
}

/// A letter holds a reference: one that stays in the queue is a request without an answer.
fn no_mail_stays_in_a_closed_queue() {
    bounded(3).check(|| {
        let (queue, request) = (Arc::new(MailQueue::with_capacity(2)), Arc::new(()));
        let senders = [(), ()].map(|()| {
            let (queue, letter) = (Arc::clone(&queue), Arc::clone(&request));
            thread::spawn(move || queue.post(letter))
        });
        queue.close();
        senders.into_iter().for_each(|sender| sender.join().unwrap());
        assert!(queue.is_closed() && queue.is_empty());
        assert_eq!(Arc::strong_count(&request), 1, "a letter was kept");
    });
}

fn an_offer_is_read_whole_and_the_last_one_arrives() {
    let offer = |say: u64| Offer::from_words(ModelId(0), [say; Offer::WORDS]);
    bounded(2).check(move || {
        let table = Arc::new(OfferTable::new(1));
        let mut writer = OfferWriter::new(Arc::clone(&table));
        let shard = thread::spawn(move || {
            for say in [1, 2] {
                writer.write(&offer(say));
                writer.publish();
            }
        });
        let mut latest = 0;
        let mut look = || {
            table.read(|offer| {
                let words = offer.to_words();
                assert_eq!(words, [words[0]; Offer::WORDS], "torn");
                assert!(latest <= words[0], "an older offer follows a newer one");
                latest = words[0];
            });
        };
        look();
        shard.join().unwrap();
        look();
        assert_eq!(latest, 2, "the last offer is lost");
    });
}

/// A checker of orders with at most this many switches at points where a thread could go on.
fn bounded(switches: usize) -> Builder {
    let mut model = Builder::new();
    model.preemption_bound = Some(switches);
    model
}
