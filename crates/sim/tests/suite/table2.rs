//! Goodput on the two models of Symphony's Table 2: 8 devices, 100,000 requests, gather = "window".

use ripieno_sim::{Scenario, goodput};

fn search(name: &str, alpha_ms: f64, beta_ms: f64, slo_ms: f64, arrival: &str) -> f64 {
    let text = format!(
        r#"
        seed = 1
        requests = 100000
        warmup_fraction = 0.1
        rate = 1.0
        policy = "deferred"
        policy_options = {{ gather = "window" }}
        [cluster]
        devices = 8
        [[model]]
        name = "{name}"
        alpha_ms = {alpha_ms}
        beta_ms = {beta_ms}
        slo_ms = {slo_ms}
        arrival = {{ kind = "{arrival}" }}
        "#
    );
    goodput(&Scenario::parse(&text, "table2.toml").unwrap(), |_| ()).unwrap().goodput_rps()
}

#[test]
fn poisson_arrivals_reach_the_measurement_of_the_paper() {
    let resnet = search("ResNet50", 1.053, 5.072, 25.0, "poisson");
    assert!(resnet >= 5264.0, "{resnet}");
    let inception = search("InceptionResNetV2", 5.090, 18.368, 70.0, "poisson");
    assert!(inception >= 926.0, "{inception}");
}

#[test]
fn uniform_arrivals_reach_the_analytic_bound() {
    let resnet = search("ResNet50", 1.053, 5.072, 25.0, "uniform");
    assert!((resnet / 5839.4 - 1.0).abs() <= 0.01, "{resnet}");
    let inception = search("InceptionResNetV2", 5.090, 18.368, 70.0, "uniform");
    assert!((inception / 1083.1 - 1.0).abs() <= 0.01, "{inception}");
}
