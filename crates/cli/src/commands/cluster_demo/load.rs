//! Clients of the demo: requests at a steady rate, with the outcome of each.

use anyhow::Context;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{Request, StatusCode};
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use serde_json::Value;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

/// Timeout of a client, twice the model's SLO.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(10);
/// Largest number of requests in flight; further ones are not sent.
const MAX_IN_FLIGHT: usize = 2_000;

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ClientOutcome {
    /// The request's own answer.
    Right,
    /// 503 with a time to retry.
    Retry,
    /// Another error.
    Failed,
    /// The answer of another request.
    Duplicated,
    /// The request's connection broke, since its frontend was killed.
    Disconnected,
    /// No answer.
    Lost,
}

impl ClientOutcome {
    pub(super) fn name(self) -> &'static str {
        match self {
            ClientOutcome::Right => "right",
            ClientOutcome::Retry => "told to try again",
            ClientOutcome::Failed => "failed",
            ClientOutcome::Duplicated => "answered as another",
            ClientOutcome::Disconnected => "frontend killed",
            ClientOutcome::Lost => "lost",
        }
    }
}

/// The frontends, and the outcomes of requests.
pub(super) struct ClientLoad {
    frontends: Vec<SocketAddr>,
    /// Number of models, which receive the requests in turn.
    models: u64,
    /// True for a frontend whose connections may break.
    pub(super) killed: Vec<AtomicBool>,
    pub(super) over: AtomicBool,
    pub(super) sent: AtomicU64,
    counts: Mutex<Counts>,
}

#[derive(Default)]
struct Counts {
    outcomes: BTreeMap<ClientOutcome, u64>,
    last: Option<Instant>,
    /// The longest time without a right answer.
    gap: Duration,
}

type DemoHttp = Client<HttpConnector, Full<Bytes>>;

impl ClientLoad {
    pub(super) fn new(frontends: Vec<SocketAddr>, models: u16) -> ClientLoad {
        let killed = frontends.iter().map(|_| AtomicBool::new(false)).collect();
        let (over, sent) = (AtomicBool::new(false), AtomicU64::new(0));
        ClientLoad { frontends, models: models.into(), killed, over, sent, counts: Mutex::default() }
    }

    /// Sends `rate` requests per second until it is stopped, and waits for their outcomes.
    pub(super) async fn run(self: Arc<ClientLoad>, rate: u32) {
        let http: DemoHttp = Client::builder(TokioExecutor::new()).build_http();
        let mut every = tokio::time::interval(Duration::from_secs(1) / rate);
        every.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut under_way = JoinSet::new();
        while !self.over.load(Ordering::Relaxed) {
            every.tick().await;
            while under_way.try_join_next().is_some() {}
            if under_way.len() < MAX_IN_FLIGHT {
                let (load, http) = (Arc::clone(&self), http.clone());
                let number = self.sent.fetch_add(1, Ordering::Relaxed);
                under_way.spawn(async move { load.ask(&http, number).await });
            }
        }
        under_way.join_all().await;
    }

    async fn ask(&self, http: &DemoHttp, number: u64) {
        let at = number as usize % self.frontends.len();
        let outcome =
            match tokio::time::timeout(CLIENT_TIMEOUT, infer(http, self.frontends[at], number % self.models, number))
                .await
            {
                Ok(Ok(outcome)) => outcome,
                Ok(Err(_)) if self.killed[at].load(Ordering::Relaxed) => ClientOutcome::Disconnected,
                Ok(Err(_)) | Err(_) => ClientOutcome::Lost,
            };
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        *counts.outcomes.entry(outcome).or_default() += 1;
        if outcome == ClientOutcome::Right {
            let now = Instant::now();
            let gap = counts.last.replace(now).map_or(Duration::ZERO, |last| now - last);
            counts.gap = counts.gap.max(gap);
        }
    }

    pub(super) fn count(&self, outcome: ClientOutcome) -> u64 {
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.outcomes.get(&outcome).copied().unwrap_or(0)
    }

    /// Returns the number of each outcome.
    pub(super) fn outcomes(&self) -> BTreeMap<&'static str, u64> {
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.outcomes.iter().map(|(outcome, &count)| (outcome.name(), count)).collect()
    }

    /// Returns the longest time without a right answer since the last call.
    pub(super) fn take_gap(&self) -> Duration {
        std::mem::take(&mut self.counts.lock().unwrap_or_else(PoisonError::into_inner).gap)
    }
}

/// Sends a request with its number, which the answer must repeat. Returns an error only if there is
/// no answer.
async fn infer(http: &DemoHttp, frontend: SocketAddr, model: u64, number: u64) -> anyhow::Result<ClientOutcome> {
    let body = format!(r#"{{"inputs":[{{"name":"x","datatype":"INT64","shape":[1,1],"data":[{number}]}}]}}"#);
    let url = format!("http://{frontend}/v2/models/echo{model}/infer");
    let request = Request::post(url).body(Full::new(body.into()))?;
    let answer = http.request(request).await?;
    let (status, again) = (answer.status(), answer.headers().contains_key("retry-after"));
    let body = answer.into_body().collect().await?.to_bytes();
    Ok(match status {
        StatusCode::OK => {
            let answer: Value = serde_json::from_slice(&body).context("the answer is no JSON")?;
            if answer["outputs"][0]["data"][0] == number { ClientOutcome::Right } else { ClientOutcome::Duplicated }
        }
        status => {
            tracing::debug!(number, %status, "{}", String::from_utf8_lossy(&body));
            if status == StatusCode::SERVICE_UNAVAILABLE && again {
                ClientOutcome::Retry
            } else {
                ClientOutcome::Failed
            }
        }
    })
}
