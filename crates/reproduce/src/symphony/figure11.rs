//! Figure 11: SLO, popularity and burstiness.

use super::SOURCE;
use super::workload::{axis, case, lines, resnets, series, systems};
use crate::case::{CaseLoad, Contender, ScenarioCase};
use crate::context::{ReproduceContext, Spread};
use crate::item::{ExperimentItem, ItemReport, ResultRow};
use ripieno_report::number;
use ripieno_report::plot::{Figure, Panel};

pub(super) const ITEM: ExperimentItem = ExperimentItem {
    id: "symphony/figure11",
    title: "Figure 11: goodput by SLO, popularity and burstiness",
    says: "Symphony leads at tight SLOs in all four settings; Nexus does not work well with bursts; at loose SLOs all systems \
           come close.",
    run,
};

const DEVICES: usize = 32;
const MODELS: usize = 20;
const REQUESTS: u64 = 200_000;
/// Fraction of the run in which Nexus learns the popularity of the models, which the figure is not
/// about.
const WARMUP: f64 = 0.25;
const SLOS_MS: [f64; 7] = [15.0, 20.0, 25.0, 30.0, 50.0, 75.0, 100.0];
/// Exponent s of the models' popularity: the i-th gets 1/i^s of the rate.
const ZIPF: f64 = 0.9;
const BURSTY: f64 = 0.05;

/// One of the figure's four settings.
struct LoadSetting {
    name: &'static str,
    zipf: f64,
    shape: Option<f64>,
}

const SETTINGS: [LoadSetting; 4] = [
    LoadSetting { name: "Equal popularity, Poisson", zipf: 0.0, shape: None },
    LoadSetting { name: "Equal popularity, bursty: Gamma(0.05)", zipf: 0.0, shape: Some(BURSTY) },
    LoadSetting { name: "Zipf 0.9, Poisson", zipf: ZIPF, shape: None },
    LoadSetting { name: "Zipf 0.9, bursty: Gamma(0.05)", zipf: ZIPF, shape: Some(BURSTY) },
];

impl LoadSetting {
    fn loads(&self, slo_ms: f64) -> Vec<CaseLoad> {
        let popular = |(index, load): (i32, CaseLoad)| load.share(f64::from(index).powf(-self.zipf)).shape(self.shape);
        (1..).zip(resnets(MODELS, slo_ms)).map(popular).collect()
    }
}

fn run(context: &ReproduceContext) -> anyhow::Result<ItemReport> {
    let (contenders, slos) = (systems(), context.points(&SLOS_MS, 4));
    let requests = context.requests(REQUESTS);
    let mut cases = Vec::new();
    for setting in &SETTINGS {
        for contender in &contenders {
            let of = |&slo_ms: &f64| ScenarioCase {
                warmup: WARMUP,
                ..case(contender, DEVICES, setting.loads(slo_ms), requests)
            };
            cases.extend(slos.iter().map(of));
        }
    }
    let found = context.goodputs(&cases, 1)?;
    let (mut rows, mut panels) = (Vec::new(), Vec::new());
    for (setting, goodputs) in SETTINGS.iter().zip(found.chunks(contenders.len() * slos.len())) {
        let curves: Vec<_> = contenders.iter().zip(goodputs.chunks(slos.len())).collect();
        rows.extend(setting_rows(setting, &slos, &curves));
        panels.push(panel(setting, &slos, &curves));
    }
    let figure = Figure {
        title: "Goodput by SLO, popularity and burstiness".to_owned(),
        subtitle: format!(
            "{MODELS} models like ResNet50, {DEVICES} devices, {} requests a run, 1 seed",
            number(requests as f64)
        ),
        panels,
        columns: 2,
        note: SOURCE.to_owned(),
    };
    Ok(ItemReport { rows, figure })
}

fn setting_rows(setting: &LoadSetting, slos: &[f64], curves: &[(&Contender, &[Spread])]) -> Vec<ResultRow> {
    let mut rows = Vec::new();
    for (contender, goodputs) in curves {
        for (slo_ms, spread) in slos.iter().zip(*goodputs) {
            let name = format!("{}, SLO {slo_ms} ms: {}", setting.name, contender.name);
            rows.push(ResultRow::new(name, "requests/s", spread.mean).note(match contender.name.as_str() {
                "eager, prefix" => {
                    "The paper has no such system. An ideal central eager policy trails at tight SLOs and leads by a few \
                     percent at loose ones and under bursts."
                }
                _ => "",
            }));
        }
    }
    rows
}

fn panel(setting: &LoadSetting, slos: &[f64], curves: &[(&Contender, &[Spread])]) -> Panel {
    let points = |goodputs: &[Spread]| slos.iter().copied().zip(goodputs.iter().map(|spread| spread.mean)).collect();
    let shown = curves.iter().map(|(contender, goodputs)| series(contender, points(goodputs))).collect();
    lines(setting.name, axis("SLO, ms"), axis("goodput, requests/s"), shown)
}
