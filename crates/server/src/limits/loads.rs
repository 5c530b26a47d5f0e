//! Scheduling of repository changes: one at a time per model, few concurrently, and none that no
//! client waits for.
//!
//! A queued load is shared by all clients that request the same. A running one is not, because it
//! may have read the files before the client changed them. Each model therefore has at most one
//! running change and one queued change of each kind.

use crate::problem::{Problem, ProblemKind};
use parking_lot::Mutex;
use ripieno_repository::registry::{Repository, Upload};
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};

/// A change of a model.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum RepositoryChange {
    Load { upload: Option<Arc<Upload>> },
    Unload,
}

type ChangeOutcome = Result<(), String>;
type WaitingChanges = BTreeMap<(String, RepositoryChange), Weak<watch::Sender<Option<ChangeOutcome>>>>;

pub(crate) struct RepositoryChanges {
    repository: Arc<dyn Repository>,
    permits: Arc<Semaphore>,
    /// Runtime that runs the changes; `None` uses the caller's.
    runs_on: Option<Handle>,
    /// Queued changes.
    waiting: Arc<Mutex<WaitingChanges>>,
    /// Per-model locks; removed with the model's last change.
    models: Mutex<BTreeMap<String, Weak<Semaphore>>>,
}

impl RepositoryChanges {
    pub(crate) fn new(repository: Arc<dyn Repository>, permits: usize, runs_on: Option<Handle>) -> RepositoryChanges {
        let permits = Arc::new(Semaphore::new(permits.max(1)));
        RepositoryChanges { repository, permits, runs_on, waiting: Arc::default(), models: Mutex::default() }
    }

    /// Applies a change, or joins an identical queued one. When all waiting clients have left, a
    /// queued change is cancelled.
    pub(crate) async fn apply(&self, model: String, change: RepositoryChange) -> Result<ChangeOutcome, Problem> {
        let key = (model, change);
        let mut outcome = self.join_or_begin(key);
        let done = outcome.wait_for(Option::is_some).await.map(|outcome| outcome.clone());
        let lost = || Problem::new(ProblemKind::Internal, "the model repository failed");
        done.ok().flatten().ok_or_else(lost)
    }

    /// Runs a read-only repository operation.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&dyn Repository) -> T + Send + 'static,
    ) -> Result<T, Problem> {
        let permit = self.permits.clone().acquire_owned().await;
        let repository = self.repository.clone();
        let done = tokio::task::spawn_blocking(move || {
            let _turn = permit;
            work(repository.as_ref())
        });
        done.await.map_err(|error| Problem::new(ProblemKind::Internal, format!("the model repository failed: {error}")))
    }

    /// Runs work that starts engine threads, which must inherit the priority of the loader threads.
    pub(crate) async fn run_on_loader<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Problem> {
        let permit = self.permits.clone().acquire_owned().await;
        let runs_on = self.runs_on.clone().unwrap_or_else(Handle::current);
        let done = runs_on.spawn_blocking(move || {
            let _turn = permit;
            work()
        });
        done.await
            .map_err(|error| Problem::new(ProblemKind::Internal, format!("the devices cannot be changed: {error}")))
    }

    fn join_or_begin(&self, key: (String, RepositoryChange)) -> watch::Receiver<Option<ChangeOutcome>> {
        let mut waiting = self.waiting.lock();
        if let Some(sender) = waiting.get(&key).and_then(Weak::upgrade) {
            return sender.subscribe();
        }
        let (sender, outcome) = watch::channel(None);
        let sender = Arc::new(sender);
        waiting.insert(key.clone(), Arc::downgrade(&sender));
        drop(waiting);
        let (model, permits) = (self.model(&key.0), self.permits.clone());
        let (repository, waiting) = (self.repository.clone(), self.waiting.clone());
        let runs_on = self.runs_on.clone().unwrap_or_else(Handle::current);
        runs_on.spawn(async move {
            let permit = async { (model.acquire_owned().await, permits.acquire_owned().await) };
            tokio::pin!(permit);
            let permit = loop {
                tokio::select! {
                    permit = &mut permit => break Some(permit),
                    () = sender.closed() => if remove_if_abandoned(&waiting, &key, &sender) { break None },
                }
            };
            let wanted = permit.is_some() && !remove_if_abandoned(&waiting, &key, &sender);
            let Some(permit) = permit.filter(|_| wanted) else { return };
            // From here on, clients with the same request start a new change.
            waiting.lock().remove(&key);
            tokio::task::spawn_blocking(move || {
                let (name, change) = key;
                let outcome = match change {
                    RepositoryChange::Load { upload } => repository.load(&name, upload.as_deref()),
                    RepositoryChange::Unload => repository.unload(&name),
                };
                drop(permit);
                sender.send_replace(Some(outcome));
            });
        });
        outcome
    }

    fn model(&self, name: &str) -> Arc<Semaphore> {
        let mut models = self.models.lock();
        models.retain(|_, permit| permit.strong_count() > 0);
        if let Some(permit) = models.get(name).and_then(Weak::upgrade) {
            return permit;
        }
        let permit = Arc::new(Semaphore::new(1));
        models.insert(name.to_owned(), Arc::downgrade(&permit));
        permit
    }
}

/// Removes a change without waiting clients, so that it can no longer be joined; returns true if it
/// did.
fn remove_if_abandoned(
    waiting: &Mutex<WaitingChanges>,
    key: &(String, RepositoryChange),
    sender: &watch::Sender<Option<ChangeOutcome>>,
) -> bool {
    let mut waiting = waiting.lock();
    let abandoned = sender.receiver_count() == 0;
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

    /// Reports each load that begins, and ends it when permitted.
    struct Gated {
        begun: Mutex<Sender<String>>,
        gate: Arc<Gate>,
    }

    /// Number of loads of each model that may still end.
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
        fn load(&self, name: &str, _: Option<&Upload>) -> Result<(), String> {
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

    fn gated(permits: usize) -> (Arc<RepositoryChanges>, Receiver<String>, Arc<Gate>) {
        let ((begun, told), gate) = (channel(), Arc::new(Gate::default()));
        let repository = Arc::new(Gated { begun: Mutex::new(begun), gate: gate.clone() });
        (Arc::new(RepositoryChanges::new(repository, permits, None)), told, gate)
    }

    fn ask(loads: &Arc<RepositoryChanges>, model: &str) -> tokio::task::JoinHandle<Result<ChangeOutcome, Problem>> {
        let (loads, model) = (loads.clone(), model.to_owned());
        tokio::spawn(async move { loads.apply(model, RepositoryChange::Load { upload: None }).await })
    }

    async fn until(done: impl Fn() -> bool) {
        while !done() {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn clients_share_a_queued_load_and_the_last_to_leave_cancels_it() {
        let (loads, begun, gate) = gated(4);
        let first = ask(&loads, "m");
        until(|| begun.try_recv().is_ok()).await;
        // These clients may want files that the first load did not see.
        let sharing: Vec<_> = (0..100).map(|_| ask(&loads, "m")).collect();
        let waiting = || -> usize {
            loads.waiting.lock().values().filter_map(Weak::upgrade).map(|sender| sender.receiver_count()).sum()
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
        assert!(begun.try_recv().is_err(), "a load that no call waits for began");
    }

    #[tokio::test]
    async fn few_models_are_loaded_concurrently() {
        let (loads, begun, gate) = gated(2);
        let calls: Vec<_> = (0..5).map(|at| ask(&loads, &format!("m{at}"))).collect();
        for _ in 0..2 {
            until(|| begun.try_recv().is_ok()).await;
        }
        until(|| loads.permits.available_permits() == 0).await;
        assert!(begun.try_recv().is_err());
        for at in 0..5 {
            gate.end(&format!("m{at}"));
        }
        for call in calls {
            assert_eq!(call.await.unwrap(), Ok(Ok(())));
        }
        assert_eq!(begun.try_iter().count(), 3);
    }

    /// Engine threads inherit the priority of the thread that starts them, which must not be a
    /// serving thread.
    #[tokio::test]
    async fn what_starts_engines_runs_where_models_are_loaded() {
        let models = tokio::runtime::Builder::new_current_thread().thread_name("models").build().unwrap();
        let repository = Gated { begun: Mutex::new(channel().0), gate: Arc::default() };
        let loads = RepositoryChanges::new(Arc::new(repository), 1, Some(models.handle().clone()));
        let name = loads.run_on_loader(|| std::thread::current().name().map(str::to_owned)).await.unwrap();
        assert_eq!(name.as_deref(), Some("models"));
        models.shutdown_background();
    }
}
