//! A `requests_file`: one request per line.

use super::ParseResult;
use super::walks::{Drawn, Listed, WalkSource};
use ripieno_base::{Nanos, Time};
use ripieno_model::{Graph, Model};
use ripieno_sched::RequestClass;
use serde::Deserialize;
use std::path::Path;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ListedRequest {
    arrival_ms: f64,
    model: String,
    #[serde(default)]
    rows: Option<u32>,
    #[serde(default)]
    length: Option<u32>,
    #[serde(default)]
    output_length: Option<u32>,
    #[serde(default)]
    tree: Option<String>,
    #[serde(default)]
    client: Option<u16>,
    #[serde(default)]
    priority: Option<u8>,
}

/// Upper bound on arrival times, some thirty years.
const LATEST_MS: f64 = 1e12;
/// Number of priority levels in the protocol: 1 is the most urgent, and the default is the middle
/// one.
const LEVELS: u8 = 9;

/// A reader of the file of explicit requests.
pub(super) struct Listing<'a> {
    pub(super) models: &'a [Model],
    pub(super) walks: &'a [Option<WalkSource>],
    pub(super) longest: &'a [Option<u32>],
    pub(super) graphs: &'a mut Vec<Graph>,
}

impl Listing<'_> {
    pub(super) fn read(&mut self, path: &Path) -> ParseResult<Vec<crate::Arrival>> {
        let file = path.display();
        let cannot = |error: csv::Error| format!("requests_file {file}: {error}");
        let mut reader = csv::ReaderBuilder::new().trim(csv::Trim::All).from_path(path).map_err(cannot)?;
        let columns = reader.headers().map_err(cannot)?.clone();
        let mut requests = Vec::new();
        for (line, row) in reader.deserialize::<ListedRequest>().enumerate() {
            let place = format!("requests_file {file}, line {}", line + 2);
            let row = row.map_err(|error| format!("{place}: {}", in_column(&error, &columns)))?;
            requests.push(self.arrival(&row).map_err(|problem| format!("{place}: {problem}"))?);
        }
        requests.sort_by_key(|arrival| arrival.at);
        match requests.is_empty() {
            true => Err(format!("requests_file {file} holds no request")),
            false => Ok(requests),
        }
    }

    fn arrival(&mut self, row: &ListedRequest) -> ParseResult<crate::Arrival> {
        if !(0.0..=LATEST_MS).contains(&row.arrival_ms) {
            return Err(format!("arrival_ms = {}; it must be between 0 and {LATEST_MS}", row.arrival_ms));
        }
        let priority = row.priority.unwrap_or(LEVELS.div_ceil(2));
        if !(1..=LEVELS).contains(&priority) {
            return Err(format!("priority = {priority}; it must be between 1, the most urgent, and {LEVELS}"));
        }
        let position = self.models.iter().position(|model| model.name == row.model);
        let index = position.ok_or_else(|| format!("model {:?} has no [[model]] table", row.model))?;
        let model = &self.models[index];
        let rows = row.rows.unwrap_or(1);
        let most = if model.walk.is_unfolded() { 1 } else { model.max_batch };
        if !(1..=most).contains(&(rows as usize)) {
            return Err(format!("rows = {rows}; model {:?} allows 1 to {most}", row.model));
        }
        let listed = Listed { length: row.length, output_length: row.output_length, tree: row.tree.as_deref() };
        let Drawn { extent, output, graph } =
            listed.parse(model, self.walks[index].as_ref(), self.longest[index], self.graphs)?;
        let at = Time::ORIGIN + Nanos::from_millis_f64(row.arrival_ms);
        let id = ripieno_base::ModelId(index as u16);
        let (client, priority) = (row.client.unwrap_or(0), LEVELS + 1 - priority);
        let class = RequestClass { client, priority, ..RequestClass::default() };
        Ok(crate::Arrival { rows, extent, output, graph, class, ..crate::Arrival::new(at, id, at + model.slo) })
    }
}

/// Adds the name of the column to an error, which the reader knows by its number only.
fn in_column(error: &csv::Error, columns: &csv::StringRecord) -> String {
    let csv::ErrorKind::Deserialize { err, .. } = error.kind() else { return error.to_string() };
    match err.field().and_then(|field| columns.get(usize::try_from(field).ok()?)) {
        Some(column) => format!("{column}: {}", err.kind()),
        None => err.kind().to_string(),
    }
}
