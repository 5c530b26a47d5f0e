//! Changes to the repository: one at a time for a model, few at once, and none that nobody waits for any more.
//!
//! A load that waits for its turn is shared by all who ask for the same meanwhile; one that has begun is not, because it may
//! have read the files before the caller changed them. So a model has at most one change under way and one of each kind waiting.

use crate::problem::{Kind, Problem};
use parking_lot::Mutex;
use ripieno_repository::registry::{Brought, Repository};
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};

/// What can be asked of the repository for a model.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Change {
    Load { brought: Option<Arc<Brought>> },
    Unload,
}

type Outcome = Result<(), String>;
type Waiting = BTreeMap<(String, Change), Weak<watch::Sender<Option<Outcome>>>>;

pub(crate) struct Loads {
    repository: Arc<dyn Repository>,
    at_once: Arc<Semaphore>,
    /// Where changes run; none: where they are asked for.
    runs_on: Option<Handle>,
    /// Changes that wait for their turn.
    waiting: Arc<Mutex<Waiting>>,
    /// Models with changes, and the right to change each. Gone with the last change.
    models: Mutex<BTreeMap<String, Weak<Semaphore>>>,
}

impl Loads {
    pub(crate) fn new(repository: Arc<dyn Repository>, at_once: usize, runs_on: Option<Handle>) -> Loads {
        let at_once = Arc::new(Semaphore::new(at_once.max(1)));
        Loads { repository, at_once, runs_on, waiting: Arc::default(), models: Mutex::default() }
    }

    /// Carries a change out, or joins the same one that waits. Callers that leave give up; the last one takes a change that has
    /// not begun with it.
    pub(crate) async fn change(&self, model: String, change: Change) -> Result<Outcome, Problem> {
        let key = (model, change);
        let mut outcome = self.join_or_begin(key);
        let done = outcome.wait_for(Option::is_some).await.map(|outcome| outcome.clone());
        let lost = || Problem::new(Kind::Internal, "the model repository failed");
        done.ok().flatten().ok_or_else(lost)
    }

    /// Runs work that only looks.
    pub(crate) async fn look<T: Send + 'static>(
        &self,
        work: impl FnOnce(&dyn Repository) -> T + Send + 'static,
    ) -> Result<T, Problem> {
        let turn = self.at_once.clone().acquire_owned().await;
        let repository = self.repository.clone();
        let done = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            work(repository.as_ref())
        });
        done.await.map_err(|error| Problem::new(Kind::Internal, format!("the model repository failed: {error}")))
    }

    /// Runs work that starts threads of engines, which inherit the priority of those that models are loaded on.
    pub(crate) async fn begin<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Problem> {
        let turn = self.at_once.clone().acquire_owned().await;
        let runs_on = self.runs_on.clone().unwrap_or_else(Handle::current);
        let done = runs_on.spawn_blocking(move || {
            let _turn = turn;
            work()
        });
        done.await.map_err(|error| Problem::new(Kind::Internal, format!("the devices cannot be changed: {error}")))
    }

    fn join_or_begin(&self, key: (String, Change)) -> watch::Receiver<Option<Outcome>> {
        let mut waiting = self.waiting.lock();
        if let Some(tell) = waiting.get(&key).and_then(Weak::upgrade) {
            return tell.subscribe();
        }
        let (tell, outcome) = watch::channel(None);
        let tell = Arc::new(tell);
        waiting.insert(key.clone(), Arc::downgrade(&tell));
        drop(waiting);
        let (model, at_once) = (self.model(&key.0), self.at_once.clone());
        let (repository, waiting) = (self.repository.clone(), self.waiting.clone());
        let runs_on = self.runs_on.clone().unwrap_or_else(Handle::current);
        runs_on.spawn(async move {
            let turn = async { (model.acquire_owned().await, at_once.acquire_owned().await) };
            tokio::pin!(turn);
            let turn = loop {
                tokio::select! {
                    turn = &mut turn => break Some(turn),
                    () = tell.closed() => if give_up(&waiting, &key, &tell) { break None },
                }
            };
            let wanted = turn.is_some() && !give_up(&waiting, &key, &tell);
            let Some(turn) = turn.filter(|_| wanted) else { return };
            // From here on others begin a change of their own.
            waiting.lock().remove(&key);
            tokio::task::spawn_blocking(move || {
                let (name, change) = key;
                let outcome = match change {
                    Change::Load { brought } => repository.load(&name, brought.as_deref()),
                    Change::Unload => repository.unload(&name),
                };
                drop(turn);
                tell.send_replace(Some(outcome));
            });
        });
        outcome
    }

    fn model(&self, name: &str) -> Arc<Semaphore> {
        let mut models = self.models.lock();
        models.retain(|_, turn| turn.strong_count() > 0);
        if let Some(turn) = models.get(name).and_then(Weak::upgrade) {
            return turn;
        }
        let turn = Arc::new(Semaphore::new(1));
        models.insert(name.to_owned(), Arc::downgrade(&turn));
        turn
    }
}

/// Whether nobody waits for this change, which then is no longer there to join.
fn give_up(waiting: &Mutex<Waiting>, key: &(String, Change), tell: &watch::Sender<Option<Outcome>>) -> bool {
    let mut waiting = waiting.lock();
    let abandoned = tell.receiver_count() == 0;
    if abandoned {
        waiting.remove(key);
    }
    abandoned
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Condvar;
    use ripieno_repository::registry::IndexRow;
    use std::sync::mpsc::{Receiver, Sender, channel};

    /// Says what begins, and ends it when told.
    struct Gated {
        begun: Mutex<Sender<String>>,
        gate: Arc<Gate>,
    }

    /// How many loads of each model may still end.
    #[derive(Default)]
    struct Gate {
        open: Mutex<BTreeMap<String, usize>>,
        changed: Condvar,
    }

    impl Gate {
        fn end(&self, name: &str) {
            *self.open.lock().entry(name.to_owned()).or_default() += 1;
            self.changed.notify_all();
        }

        fn wait(&self, name: &str) {
            let mut open = self.open.lock();
            while open.get(name).is_none_or(|&loads| loads == 0) {
                self.changed.wait(&mut open);
            }
            *open.entry(name.to_owned()).or_default() -= 1;
        }
    }

    impl Repository for Gated {
        fn load(&self, name: &str, _: Option<&Brought>) -> Result<(), String> {
            self.begun.lock().send(name.to_owned()).unwrap();
            self.gate.wait(name);
            Ok(())
        }

        fn unload(&self, _: &str) -> Result<(), String> {
            Ok(())
        }

        fn index(&self) -> Vec<IndexRow> {
            Vec::new()
        }
    }

    fn gated(at_once: usize) -> (Arc<Loads>, Receiver<String>, Arc<Gate>) {
        let ((begun, told), gate) = (channel(), Arc::new(Gate::default()));
        let repository = Arc::new(Gated { begun: Mutex::new(begun), gate: gate.clone() });
        (Arc::new(Loads::new(repository, at_once, None)), told, gate)
    }

    fn ask(loads: &Arc<Loads>, model: &str) -> tokio::task::JoinHandle<Result<Outcome, Problem>> {
        let (loads, model) = (loads.clone(), model.to_owned());
        tokio::spawn(async move { loads.change(model, Change::Load { brought: None }).await })
    }

    async fn until(done: impl Fn() -> bool) {
        while !done() {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn who_waits_for_the_same_load_shares_it_and_who_leaves_takes_it_along() {
        let (loads, begun, gate) = gated(4);
        let first = ask(&loads, "m");
        until(|| begun.try_recv().is_ok()).await;
        // These may want files that the first load did not see.
        let sharing: Vec<_> = (0..100).map(|_| ask(&loads, "m")).collect();
        let waiting = || -> usize {
            loads.waiting.lock().values().filter_map(Weak::upgrade).map(|tell| tell.receiver_count()).sum()
        };
        until(|| waiting() == 100).await;
        let other = ask(&loads, "n");
        until(|| begun.try_recv().is_ok()).await;
        for call in &sharing[1..] {
            call.abort();
        }
        until(|| waiting() == 1).await;
        gate.end("m");
        gate.end("n");
        assert_eq!((first.await.unwrap(), other.await.unwrap()), (Ok(Ok(())), Ok(Ok(()))));
        until(|| begun.try_recv().is_ok()).await;
        let abandoned = ask(&loads, "m");
        until(|| waiting() == 1).await;
        abandoned.abort();
        until(|| loads.waiting.lock().is_empty()).await;
        gate.end("m");
        assert_eq!(sharing.into_iter().next().unwrap().await.unwrap(), Ok(Ok(())));
        assert!(begun.try_recv().is_err(), "a load that nobody waits for began");
    }

    #[tokio::test]
    async fn few_models_are_loaded_at_once() {
        let (loads, begun, gate) = gated(2);
        let calls: Vec<_> = (0..5).map(|at| ask(&loads, &format!("m{at}"))).collect();
        for _ in 0..2 {
            until(|| begun.try_recv().is_ok()).await;
        }
        until(|| loads.at_once.available_permits() == 0).await;
        assert!(begun.try_recv().is_err());
        for at in 0..5 {
            gate.end(&format!("m{at}"));
        }
        for call in calls {
            assert_eq!(call.await.unwrap(), Ok(Ok(())));
        }
        assert_eq!(begun.try_iter().count(), 3);
    }

    /// Threads of an engine inherit the priority of the thread that starts them, which must not be one of the front end's.
    #[tokio::test]
    async fn what_starts_engines_runs_where_models_are_loaded() {
        let models = tokio::runtime::Builder::new_current_thread().thread_name("models").build().unwrap();
        let repository = Gated { begun: Mutex::new(channel().0), gate: Arc::default() };
        let loads = Loads::new(Arc::new(repository), 1, Some(models.handle().clone()));
        let name = loads.begin(|| std::thread::current().name().map(str::to_owned)).await.unwrap();
        assert_eq!(name.as_deref(), Some("models"));
        models.shutdown_background();
    }
}
