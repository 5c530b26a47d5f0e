//! The verdict: is the server well, and if not, what is wrong and what to change.
//!
//! Each problem has a name for programs and a sentence for people. The page shows all of them, `GET
//! /v2/health/status` returns them, and `ripieno why --url` prints them. What ends all service
//! stands first.

use super::causes::{self, CauseCount};
use super::format::{self, count, percent, rate};
use super::samples::{ModelView, WINDOW_S};
use super::shared::ServerProblem;
use crate::observe::starvation;
use crate::state::ServerState;
use maud::{Markup, html};
use ripieno_repository::registry::FailedModel;
use ripieno_repository::slo::SloOrigin;
use ripieno_runtime::DeviceState;
use ripieno_runtime::history::causes::Cause;
use std::time::{Duration, Instant, SystemTime};

/// Share of requests in time from which on a model counts as healthy.
pub(super) const HEALTHY: f64 = 0.99;
/// Fewest requests of a model that were not in time from which on they are a problem.
const MIN_BAD: u64 = 3;
/// Number of elections of one scheduler in ten minutes from which on the lead flaps.
const FLAPS: u64 = 3;
/// Time before the end of a certificate from which on it is a problem.
const RENEWAL: Duration = Duration::from_secs(6 * 3_600);
/// Number of models that are named.
const MOST_MODELS: usize = 8;

/// Returns all problems, the gravest first.
pub(super) fn problems(state: &ServerState, models: &[ModelView], causes: &[CauseCount]) -> Vec<ServerProblem> {
    let mut found: Vec<ServerProblem> = Vec::new();
    found.extend(missing(state));
    let (own, of_peers) = (state.access.certificate_expiry_s(), state.access.peer_certificate_expiry_s());
    found.extend(own.and_then(|ends_s| certificate(ends_s, "TLS certificate", "--tls-cert and --tls-key")));
    found.extend(
        of_peers.and_then(|ends_s| certificate(ends_s, "certificate between the roles", "--peer-cert and --peer-key")),
    );
    found.extend(starved());
    let lost = state.backend.devices().into_iter().filter(|device| device.state == DeviceState::Lost);
    found.extend(lost.map(|device| {
        let says = format!("Device {} is lost: it failed, hangs, or its process ended. The log says which.", device.id);
        ServerProblem { name: "device_lost", says }
    }));
    found.extend(fewer_devices(state));
    let refused = state.backend.refused().into_iter().take(MOST_MODELS);
    found.extend(refused.map(|says| ServerProblem { name: "backend_refused", says: upper(&says) }));
    let slow = state.backend.slow_links().into_iter().take(MOST_MODELS);
    found.extend(slow.map(|says| ServerProblem { name: "slow_link", says: upper(&says) + "." }));
    found.extend(leadership(state));
    found.extend(named(state.registry.stale(), |FailedModel { name, version, reason }| {
        let version = if version.is_empty() { String::new() } else { format!(" version {version}") };
        format!("{name} serves as it was loaded before; loading{version} failed: {reason}")
    }));
    if state.is_ready() {
        let says = |FailedModel { name, reason, .. }: &FailedModel| format!("{name} cannot be served: {reason}");
        found.extend(named(state.registry.failed(), says));
    }
    found.extend(short_slos(state));
    if state.backend.is_primary() && state.backend.serving_devices() == 0 {
        // The lack of a device explains what is late.
        return found;
    }
    let is_troubled = |model: &ModelView| model.bad.iter().map(|(_, count)| count).sum::<u64>() >= MIN_BAD;
    let share = |model: &ModelView| model.share.filter(|share| *share < HEALTHY && is_troubled(model));
    let mut late: Vec<(&ModelView, f64)> = models.iter().filter_map(|model| Some((model, share(model)?))).collect();
    late.sort_by(|a, b| a.1.total_cmp(&b.1));
    found.extend(late.into_iter().take(MOST_MODELS).map(|(model, share)| late_model(state, model, share, causes)));
    found
}

/// Returns the problems of the last sample, with the causes that the flight recorder shows.
pub(super) fn explained(state: &ServerState) -> Vec<ServerProblem> {
    let known = state.ui.problems();
    if !known.iter().any(ServerProblem::has_cause) {
        return known;
    }
    let models = state.ui.samples.lock().models();
    let causes = state.ui.watch.view(state.backend.flight(), causes::totals).unwrap_or_default();
    problems(state, &models, &causes)
}

/// Returns the models whose latency target is shorter than a request alone takes.
fn short_slos(state: &ServerState) -> impl Iterator<Item = ServerProblem> {
    let entries = state.registry.ready_entries().into_iter();
    entries.filter(|entry| matches!(entry.slo.origin, SloOrigin::Given | SloOrigin::Owner)).filter_map(|entry| {
        let alone = entry.one_row.filter(|alone| *alone > entry.slo.span)?;
        let says = format!(
            "{}: a request alone takes {}, its SLO is {}. Raise slo_ms in model.toml.",
            entry.name,
            format::ms(alone.as_millis_f64()),
            format::ms(entry.slo.span.as_millis_f64())
        );
        Some(ServerProblem { name: "short_slo", says })
    })
}

/// Returns a line for each model that could not be loaded.
fn named(failed: Vec<FailedModel>, says: fn(&FailedModel) -> String) -> impl Iterator<Item = ServerProblem> {
    failed.into_iter().take(MOST_MODELS).map(move |failed| ServerProblem { name: "load_failed", says: says(&failed) })
}

/// Returns what is wrong with a model of which too many requests are not in time.
fn late_model(state: &ServerState, model: &ModelView, share: f64, causes: &[CauseCount]) -> ServerProblem {
    let name = &model.entry.name;
    let cause = causes.iter().find(|cause| cause.model == *name);
    let why =
        cause.map_or(String::new(), |top| format!(" Most often: {}. {}.", top.cause.name(), upper(top.cause.change())));
    let overload = load(state, model).filter(|(offered, can)| offered > can);
    let beside = overload.map_or(String::new(), |(offered, can)| {
        format!(" It is offered {}, the devices can do {}.", rate(offered), rate(can))
    });
    let says = format!("{} of {name}'s requests are in time.{beside}{why}", percent(share));
    ServerProblem { name: if overload.is_some() { "overload" } else { "late" }, says }
}

/// Returns what keeps the server from answering, and what to do.
fn missing(state: &ServerState) -> Option<ServerProblem> {
    let problem = |name, says: &str| Some(ServerProblem { name, says: says.to_owned() });
    if state.is_draining() {
        return problem("shutting_down", "The server is shutting down.");
    }
    if state.backend.is_primary() && state.backend.serving_devices() == 0 {
        let change = upper(Cause::NoDevice.change());
        let says = format!("No device serves: each request is answered with 503. {change}.");
        return Some(ServerProblem { name: "no_device", says });
    }
    if state.is_ready() {
        return None;
    }
    let failed = state.registry.failed();
    match (state.has_clients(), state.backend.is_primary()) {
        _ if state.registry.is_loading() => problem("loading", "The server is not ready: a model loads."),
        _ if !failed.is_empty() => {
            let each: Vec<_> =
                failed.iter().take(MOST_MODELS).map(|failed| format!("{} ({})", failed.name, failed.reason)).collect();
            let says = format!("The server is not ready: it cannot serve {}.", each.join(", "));
            Some(ServerProblem { name: "load_failed", says })
        }
        (true, false) => problem(
            "no_scheduler",
            "The server is not ready: no scheduler with a device is there. Look at the schedulers' pages and logs.",
        ),
        (false, false) => match state.backend.waits_for() {
            Some(cause) => {
                Some(ServerProblem { name: "no_scheduler", says: format!("No scheduler has this backend: {cause}") })
            }
            None => {
                problem("no_primary", "This scheduler follows no primary, and is none. Look at the store of the epoch.")
            }
        },
        (_, true) => problem("no_model", "The server is not ready: no model serves. Load one."),
    }
}

/// Returns the loss of a device that has left no trace, as a backend that went away.
fn fewer_devices(state: &ServerState) -> Option<ServerProblem> {
    let (now, most) = (state.backend.serving_devices(), state.ui.most_devices());
    (now > 0 && now < most && state.backend.is_primary()).then(|| {
        let says = format!("{now} of {most} devices serve; the others were lost, hang or left in the last 15 minutes.");
        ServerProblem { name: "device_lost", says }
    })
}

/// Returns what is wrong with the lead of a cluster.
fn leadership(state: &ServerState) -> Option<ServerProblem> {
    let elections = state.ui.recent_elections();
    if elections >= FLAPS {
        let says = format!(
            "This scheduler took the lead {elections} times in ten minutes: schedulers depose each other. The log of each \
             says why; they may lack processor time."
        );
        return Some(ServerProblem { name: "leader_flaps", says });
    }
    let is_alone = state.backend.is_primary() && state.backend.spares() == Some(0);
    is_alone.then(|| {
        let says =
            "No spare scheduler hears this one: it ended, hangs or is cut off. The next end of a scheduler is an \
                    outage."
                .to_owned();
        ServerProblem { name: "no_spare", says }
    })
}

/// Returns that a certificate has ended, or soon will.
fn certificate(ends_s: u64, what: &str, flags: &str) -> Option<ServerProblem> {
    let ends = SystemTime::UNIX_EPOCH + Duration::from_secs(ends_s);
    let renew = format!("Replace the files of {flags}: they are read again without a restart.");
    let says = match ends.duration_since(SystemTime::now()) {
        Ok(left) if left > RENEWAL => return None,
        Ok(left) => {
            let left = match left.as_secs() {
                seconds if seconds < 60 => format::counted(seconds, "second"),
                seconds => format::counted(seconds / 60, "minute"),
            };
            format!("The {what} expires in {left}. {renew}")
        }
        Err(_) => format!("The {what} has expired: new connections are refused. {renew}"),
    };
    Some(ServerProblem { name: "certificate", says })
}

/// Returns how much of the window the process did not run, and what to do, if that is notable.
fn starved() -> Option<ServerProblem> {
    let window = Duration::from_secs(WINDOW_S as u64);
    let share = starvation::of_process()?.starved(Instant::now(), window)?;
    let throttled = starvation::throttling().filter(|throttling| throttling.periods > 0);
    let limit = throttled.map_or("", |_| " Its CPU limit throttles it.");
    let change = upper(Cause::Stalled.change());
    let says = format!(
        "The process got no processor for {} of the last ten seconds: requests wait before they are read, and their \
         clients see more than this page.{limit} {change}.",
        percent(share)
    );
    Some(ServerProblem { name: "starved", says })
}

/// Returns the offered load and the capacity of a model in requests per second, if they are known.
pub(super) fn load(state: &ServerState, model: &ModelView) -> Option<(f64, f64)> {
    let rows_per_s = model.entry.id.and_then(|id| state.backend.capacity(id))?;
    let answered = model.now.success.count.max(1);
    let rows = (model.now.rows as f64 / answered as f64).max(1.0);
    Some((model.rate, rows_per_s / rows))
}

fn upper(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}

/// Shows that the server is healthy, or a line for each problem.
pub(super) fn banner(models: &[ModelView], problems: &[ServerProblem]) -> Markup {
    let offered: f64 = models.iter().map(|model| model.rate).sum();
    let late: u64 = models.iter().flat_map(|model| &model.bad).map(|(_, count)| count).sum();
    let text = if offered == 0.0 {
        "No request in the last ten seconds.".to_owned()
    } else if models.iter().any(|model| model.share.is_some_and(|share| share < HEALTHY)) {
        format!("{} requests, {} not in time in the last ten seconds.", rate(offered), count(late))
    } else {
        format!("{} requests, at least {} of each model in time.", rate(offered), percent(HEALTHY))
    };
    match problems {
        [] => html! { div #health { (line(true, &text)) } },
        problems => troubles(problems),
    }
}

/// Shows a line for each problem.
pub(super) fn troubles(problems: &[ServerProblem]) -> Markup {
    html! {
        @if !problems.is_empty() {
            div #health { @for problem in problems { (line(false, &problem.says)) } }
        }
    }
}

fn line(is_healthy: bool, text: &str) -> Markup {
    html! {
        p.health.bad[!is_healthy] role="status" {
            span.dot aria-hidden="true" {}
            strong { (if is_healthy { "Healthy" } else { "Not healthy" }) }
            span { (text) }
        }
    }
}
