//! `ripieno why`: the cause of each late, refused or failed request of a recording, or of the last
//! minutes of a running server.

use crate::output::{self, print_json};
use anyhow::{Context, bail};
use clap::Args;
use http_body_util::BodyExt;
use hyper::{Method, StatusCode};
use ripieno_base::{Nanos, Time};
use ripieno_bench::target::call::call;
use ripieno_bench::target::tls::ClientTlsArgs;
use ripieno_report::{Format, Table};
use ripieno_runtime::history::causes::{Cause, Explained, Explainer};
use ripieno_runtime::history::{History, TaskRecord};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longest time for a server to send its last minutes.
const PATIENCE: Duration = Duration::from_secs(120);
/// Width of a drawn timeline in characters.
const WIDTH: usize = 60;
/// Time before and after a request that a timeline shows, as a part of its life.
const MARGIN: i64 = 4;

/// Name one cause for each late, refused or failed request, and the setting to change.
///
/// Reads a recording of `ripieno serve --record FILE` or of POST /v2/recording/dump, or asks a
/// running server for its last minutes.
#[derive(Args, Debug)]
pub(crate) struct WhyArgs {
    /// The recording.
    #[arg(value_name = "FILE", required_unless_present = "url", conflicts_with = "url")]
    recording: Option<PathBuf>,

    /// A running server instead: the address of its HTTP port, `http[s]://HOST:PORT`, for which a
    /// token needs the scope admin; or of its metrics port, with the scope metrics. Of a cluster
    /// the metrics port of the primary scheduler.
    #[arg(long, value_name = "URL")]
    url: Option<String>,

    #[command(flatten)]
    tls: ClientTlsArgs,

    /// Only requests of this model.
    #[arg(long, value_name = "NAME")]
    model: Option<String>,

    /// List every request, not only totals.
    #[arg(long)]
    all: bool,

    /// Output format.
    #[arg(long, default_value_t, value_name = "table|json")]
    format: Format,
}

pub(crate) fn run(args: &WhyArgs) -> anyhow::Result<()> {
    let (history, status) = match (&args.recording, &args.url) {
        (Some(file), _) => (History::read(file)?, None),
        (None, Some(url)) => of_server(url, &args.tls, args.format)?,
        (None, None) => bail!("there is nothing to explain; give a recording or --url"),
    };
    let mut explained = Explainer::new(&history).all();
    if let Some(name) = &args.model {
        let Some(model) = history.model_named(name) else {
            let known: Vec<_> = history.models().iter().map(|model| model.model.name.as_str()).collect();
            bail!("no model {name:?} is in the recording, only: {}", known.join(", "));
        };
        explained.retain(|each| each.model == model);
    }
    match args.format {
        Format::Json => {
            let mut printed = json(&history, &explained, args.all);
            if let Some(status) = status {
                printed["server"] = status;
            }
            print_json(&printed)
        }
        Format::Table => print(&history, &explained, args.all),
    }
}

/// Causes with their requests.
type ByCause<'a> = BTreeMap<(Cause, usize), Vec<&'a Explained>>;

/// Returns the causes, the most frequent first.
fn by_cause(explained: &[Explained]) -> Vec<((Cause, usize), Vec<&Explained>)> {
    let mut each = ByCause::new();
    explained.iter().for_each(|one| each.entry((one.cause, one.model)).or_default().push(one));
    let mut each: Vec<_> = each.into_iter().collect();
    each.sort_by_key(|(_, requests)| std::cmp::Reverse(requests.len()));
    each
}

fn print(history: &History, explained: &[Explained], all: bool) -> anyhow::Result<()> {
    let (count, ended) = (explained.len(), history.calls().filter(|call| call.ended.is_some()).count());
    let requests = ended + history.refusals().count();
    let span = (history.now() - history.from()).as_secs_f64();
    if let Some(stalls) = stalls(history, explained) {
        output::print(stalls)?;
    }
    if count == 0 {
        return output::print(if requests == 0 {
            "no request has ended in the last ten minutes".to_owned()
        } else {
            format!("none of {requests} requests in {span:.1} s was late, refused or failed")
        });
    }
    output::print(format!("{count} of {requests} requests in {span:.1} s were late, refused or failed:\n"))?;
    let name = |model: usize| history.models()[model].model.name.clone();
    let causes = by_cause(explained);
    let mut table = Table::new(["cause", "model", "requests", "first s", "last s"]);
    for ((cause, model), requests) in &causes {
        let times = || requests.iter().map(|each| each.arrived.as_millis_f64() / 1e3);
        let (first, last) = (times().fold(f64::MAX, f64::min), times().fold(0.0, f64::max));
        let cells = [cause.name().to_owned(), name(*model), requests.len().to_string(), format!("{first:.2}")];
        table.row(cells.into_iter().chain([format!("{last:.2}")]));
    }
    output::print(&table)?;
    for ((cause, model), requests) in &causes {
        let example = requests[requests.len() / 2];
        let at = example.arrived.as_millis_f64() / 1e3;
        output::print(format!("\n{} ({}): {}", cause.name(), name(*model), cause.change()))?;
        output::print(format!("  e.g. at {at:.4} s: {} after {}: {}", word(example), ms(example), example.detail))?;
        for line in timeline(history, example) {
            output::print(format!("  {line}"))?;
        }
    }
    let reasons = reasons(history);
    if !reasons.is_empty() {
        let mut table = Table::new(["decision of the scheduler", "model", "times"]);
        for ((model, why), count) in &reasons {
            table.row([why.clone(), name(*model), count.to_string()]);
        }
        output::print(format!("\n{table}"))?;
    }
    if all { print_all(history, explained) } else { Ok(()) }
}

/// Prints a line for each request.
fn print_all(history: &History, explained: &[Explained]) -> anyhow::Result<()> {
    let mut table = Table::new(["request", "arrived s", "model", "end", "after ms", "cause", "evidence"]);
    for each in explained {
        table.row([
            each.call.map_or("–".to_owned(), |call| call.to_string()),
            format!("{:.4}", each.arrived.as_millis_f64() / 1e3),
            history.models()[each.model].model.name.clone(),
            word(each).to_owned(),
            format!("{:.2}", (each.ended - each.arrived).as_millis_f64()),
            each.cause.name().to_owned(),
            each.detail.clone(),
        ]);
    }
    output::print(format!("\n{table}"))
}

/// Share of the time without a processor from which on it has a line by itself, as on the page.
const NOTABLE_STALLS: f64 = 0.02;

/// Returns how long the process did not run, if that is in the recording. Requests that came
/// meanwhile were read late, so that the server counts no lateness of theirs.
fn stalls(history: &History, explained: &[Explained]) -> Option<String> {
    let spans: Vec<Nanos> = history.stalls().map(|(from, to)| to - from).collect();
    let longest = spans.iter().max()?;
    let all: Nanos = spans.iter().copied().sum();
    let share = all.as_secs_f64() / (history.now() - history.from()).as_secs_f64().max(1e-9);
    if share < NOTABLE_STALLS && !explained.iter().any(|each| each.cause == Cause::Stalled) {
        return None;
    }
    Some(format!(
        "{}: the process did not run for {:.2} s in all, in {} gaps of at most {:.0} ms; requests that came \
         meanwhile waited unseen.\n  {}\n",
        Cause::Stalled.name(),
        all.as_secs_f64(),
        spans.len(),
        longest.as_millis_f64(),
        Cause::Stalled.change()
    ))
}

/// Counts the reasons of decisions by model.
fn reasons(history: &History) -> BTreeMap<(usize, String), usize> {
    let mut each = BTreeMap::new();
    for reason in history.reasons() {
        *each.entry((reason.model, history.reason_text(reason.why))).or_default() += 1;
    }
    each
}

fn word(each: &Explained) -> &'static str {
    each.ending.name()
}

fn ms(each: &Explained) -> String {
    format!("{:.2} ms", (each.ended - each.arrived).as_millis_f64())
}

/// Draws the devices around a request: a letter for each model, capital where its own batches ran.
fn timeline(history: &History, each: &Explained) -> Vec<String> {
    let call = each.call.and_then(|number| history.call(number));
    let deadline = call.map_or(each.ended, |call| call.deadline);
    let life = (each.ended.max(deadline) - each.arrived).0.max(1_000);
    let (from, to) = (each.arrived - Nanos(life / MARGIN), each.ended.max(deadline) + Nanos(life / MARGIN));
    let place = |at: Time| ((at - from).0 * WIDTH as i64 / (to - from).0).clamp(0, WIDTH as i64 - 1) as usize;
    let inside = |task: &&TaskRecord| task.started < to && task.finished.is_some_and(|end| end > from);
    let mut lanes: BTreeMap<(u16, u16), Vec<u8>> = BTreeMap::new();
    for task in history.tasks().filter(inside) {
        let line = lanes.entry((task.device.0, task.lane.0)).or_insert_with(|| vec![b'.'; WIDTH]);
        let letter = b'a' + (task.model % 26) as u8;
        let own = call.is_some_and(|call| task.calls.contains(&call.number));
        let letter = if own { letter.to_ascii_uppercase() } else { letter };
        line[place(task.started)..=place(task.finished.unwrap_or(to))].fill(letter);
    }
    if lanes.is_empty() {
        return Vec::new();
    }
    let mut marks = vec![b' '; WIDTH];
    for (at, mark) in [(deadline, b'D'), (each.ended, b'E'), (each.arrived, b'A')] {
        marks[place(at)] = mark;
    }
    let text = |line: &[u8]| String::from_utf8_lossy(line).into_owned();
    let mut lines = vec![format!("            {}", text(&marks))];
    for ((device, lane), line) in &lanes {
        lines.push(format!("{:<12}{}", format!("device {device}.{lane}"), text(line)));
    }
    let models = history.models().iter().take(26).enumerate();
    let names = models.map(|(at, model)| format!("{} {}", char::from(b'a' + at as u8), model.model.name));
    let names = names.collect::<Vec<_>>().join(", ");
    lines.push(format!("            A arrival, D deadline, E end; capital: its own batches; {names}"));
    lines
}

fn json(history: &History, explained: &[Explained], all: bool) -> Value {
    let name = |model: usize| &history.models()[model].model.name;
    let cause = |((cause, model), requests): &((Cause, usize), Vec<&Explained>)| {
        let example = requests[requests.len() / 2];
        serde_json::json!({
            "cause": cause, "says": cause.name(), "model": name(*model), "requests": requests.len(),
            "change": cause.change(), "example": one(history, example),
        })
    };
    let causes: Vec<_> = by_cause(explained).iter().map(cause).collect();
    let ended = history.calls().filter(|call| call.ended.is_some()).count() + history.refusals().count();
    let reason = |((model, why), count): ((usize, String), usize)| serde_json::json!({"decision": why, "model": name(model), "times": count});
    let reasons: Vec<_> = reasons(history).into_iter().map(reason).collect();
    let mut value =
        serde_json::json!({"requests": ended, "bad": explained.len(), "causes": causes, "decisions": reasons});
    if all {
        value["all"] = explained.iter().map(|each| one(history, each)).collect();
    }
    value
}

fn one(history: &History, each: &Explained) -> Value {
    serde_json::json!({
        "request": each.call, "model": history.models()[each.model].model.name,
        "arrived_s": each.arrived.as_millis_f64() / 1e3, "after_ms": (each.ended - each.arrived).as_millis_f64(),
        "end": each.ending, "cause": each.cause, "evidence": each.detail,
    })
}

/// Reads what a server says of itself, and its last minutes. Problems are printed first: a server
/// without a recorder, as a frontend is, has no more to tell.
fn of_server(url: &str, tls: &ClientTlsArgs, format: Format) -> anyhow::Result<(History, Option<Value>)> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let in_time = || "the server took longer than two minutes";
    let status =
        runtime.block_on(async { tokio::time::timeout(PATIENCE, status(url, tls)).await.with_context(in_time) })??;
    if let (Some(status), Format::Table) = (&status, format) {
        for problem in status["problems"].as_array().into_iter().flatten() {
            output::print(format!("not healthy: {}\n", problem["says"].as_str().unwrap_or_default()))?;
        }
    }
    let path = std::env::temp_dir().join(format!("ripieno-why-{}.jsonl", std::process::id()));
    let fetched = runtime
        .block_on(async { tokio::time::timeout(PATIENCE, fetch(url, tls, &path)).await.with_context(in_time) })
        .flatten();
    let history = fetched.and_then(|()| Ok(History::read(&path)?));
    // There is no file if it could not be made.
    drop(std::fs::remove_file(&path));
    match (history, status) {
        (Ok(history), status) => Ok((history, status)),
        (Err(error), Some(status)) if format == Format::Json => {
            print_json(&serde_json::json!({ "server": status }))?;
            Err(error)
        }
        (Err(error), _) => Err(error),
    }
}

/// Returns what is wrong with a server; `None` if it does not say.
async fn status(url: &str, tls: &ClientTlsArgs) -> anyhow::Result<Option<Value>> {
    let answer = call(Method::GET, url, "/v2/health/status", tls).await?;
    let is_there = answer.status() == StatusCode::OK;
    let body = answer.into_body().collect().await?.to_bytes();
    Ok(is_there.then(|| serde_json::from_slice(&body).ok()).flatten())
}

async fn fetch(url: &str, tls: &ClientTlsArgs, to: &Path) -> anyhow::Result<()> {
    let answer = call(Method::POST, url, "/v2/recording/dump", tls).await?;
    let (status, mut body) = (answer.status(), answer.into_body());
    if status != StatusCode::OK {
        let text = body.collect().await?.to_bytes();
        bail!("{url} answers {status}: {}", String::from_utf8_lossy(&text));
    }
    let mut file = BufWriter::new(File::create(to).with_context(|| format!("cannot write {}", to.display()))?);
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame.context("the server ended the recording early")?.into_data() {
            file.write_all(&data)?;
        }
    }
    Ok(file.flush()?)
}
