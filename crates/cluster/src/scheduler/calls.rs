//! Calls to load and unload models: from a frontend to all backends and back.

use super::SchedulerShared;
use super::backends::BackendPeer;
use crate::handover::ProcessId;
use crate::plane::{LoadCall, Message, PeerLink};
use crate::random_id;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The largest number of calls at a time.
const MAX_CALLS: usize = 256;

/// The calls that some backend has not answered, by the scheduler's number.
#[derive(Default)]
pub(super) struct ModelCallTable(BTreeMap<u64, PendingCall>);

struct PendingCall {
    /// The frontend, and its number of the call.
    from: (Arc<PeerLink>, u64),
    unload: bool,
    name: String,
    waiting: BTreeSet<ProcessId>,
    backends: usize,
    failures: Vec<String>,
}

impl SchedulerShared {
    /// Sends a call to the backends that have the model, or may have it.
    pub(super) fn begin_call(&self, link: &Arc<PeerLink>, asked: LoadCall) {
        let LoadCall { call, unload, name } = asked;
        let refuse = |cause: &str| link.send(&Message::LoadCallEnd(call, cause.to_owned()));
        if !self.leadership.is_primary() {
            return refuse("this scheduler is not the primary any more; call again");
        }
        let peers = self.peers.lock();
        let place = peers.place_of(&name);
        if place.is_none() {
            return refuse("the plan has no such model; write a plan with it");
        }
        let asked =
            |backend: &BackendPeer| !backend.follows || [backend.member_of, Some(backend.place)].contains(&place);
        let waiting: BTreeSet<ProcessId> =
            peers.backends.iter().filter(|(_, backend)| asked(backend)).map(|(&process, _)| process).collect();
        if waiting.is_empty() {
            return refuse("no backend is there");
        }
        let mut calls = self.calls.lock();
        if calls.0.len() >= MAX_CALLS {
            return refuse("too many models are being loaded; call again later");
        }
        let own = random_id();
        let message = Message::LoadCall(LoadCall { call: own, unload, name: name.clone() });
        let from = (Arc::clone(link), call);
        let backends = waiting.len();
        waiting.iter().for_each(|process| peers.backends[process].link.send(&message));
        calls.0.insert(own, PendingCall { from, unload, name, waiting, backends, failures: Vec::new() });
    }

    /// Handles a backend's answer; `failure` is empty if it has succeeded.
    pub(super) fn on_call_end(&self, process: ProcessId, call: u64, failure: String) {
        let mut calls = self.calls.lock();
        let Some(pending) = calls.0.get_mut(&call) else { return };
        if pending.waiting.remove(&process) && !failure.is_empty() {
            pending.failures.push(failure);
        }
        let ended = pending.waiting.is_empty().then(|| calls.0.remove(&call)).flatten();
        drop(calls);
        self.finish_calls(ended.into_iter().collect());
    }

    /// Handles the loss of a backend: when it comes again it reads its repository anew.
    pub(super) fn drop_from_calls(&self, process: ProcessId) {
        let mut calls = self.calls.lock();
        for call in calls.0.values_mut() {
            call.waiting.remove(&process);
        }
        let ended: Vec<u64> =
            calls.0.iter().filter(|(_, call)| call.waiting.is_empty()).map(|(&call, _)| call).collect();
        let ended = ended.iter().filter_map(|call| calls.0.remove(call)).collect();
        drop(calls);
        self.finish_calls(ended);
    }

    fn finish_calls(&self, ended: Vec<PendingCall>) {
        for PendingCall { from: (link, call), unload, name, backends, failures, .. } in ended {
            let text = match failures.first() {
                Some(first) => format!("{} of {backends} backends: {first}", failures.len()),
                None if unload => String::new(),
                None => {
                    let peers = self.peers.lock();
                    let part = peers.place_of(&name).and_then(|place| peers.sub_clusters.get(place));
                    let fault = part.and_then(|part| part.models.lock().fault_of(&name, &peers.offers(part.place)));
                    fault.unwrap_or_default()
                }
            };
            link.send(&Message::LoadCallEnd(call, text));
        }
    }
}
