use super::*;
use ripieno_model::{Block, Profile, Steps};

#[test]
fn every_list_can_be_read_and_has_its_size() {
    for (name, layers) in [
        ("resnet50", 54),
        ("gnmt", 11),
        ("transformer", 61),
        ("vgg16", 16),
        ("mobilenet", 28),
        ("las", 34),
        ("bert", 49),
    ] {
        assert_eq!(named(name).unwrap().layers(), layers, "{name}");
    }
    assert_eq!(named("alexnet"), None);
}

#[test]
fn single_inputs_have_the_latencies_of_table_2() {
    for network in NETWORKS {
        let single = |block: &Block| block.profile.latency(1) * if block.steps == Steps::Once { 1 } else { 18 };
        let total: Nanos = network.blocks().iter().map(single).sum();
        let wanted = network.single_published().unwrap_or(network.single_unscaled());
        assert!((total - wanted).0.abs() < 2_000, "{}: {total:?}, {wanted:?}", network.name);
        // Without calibration, the results of an independent implementation of the same formulas.
        let unscaled = network.single_unscaled().as_millis_f64();
        match network.name {
            "resnet50" => assert!((0.95..1.07).contains(&unscaled), "{unscaled}"),
            "gnmt" => assert!((5.8..6.9).contains(&unscaled), "{unscaled}"),
            "transformer" => assert!((2.0..2.4).contains(&unscaled), "{unscaled}"),
            _ => {}
        }
    }
}

#[test]
fn a_layer_costs_the_longer_of_computing_and_loading() {
    // One tile: 128 x 128 weights are 46 us of bandwidth at most 32 cycles.
    let layer = Layer::dense(1, 128, 128, 128);
    assert_eq!(layer.cycles(1, 0), 32 + MEMORY_CYCLES);
    assert_eq!(layer.cycles(64, 0), 64 + MEMORY_CYCLES);
    assert_eq!(layer.cycles(64, 256), 320 + MEMORY_CYCLES);
    // 16 MB of activations leave the chip.
    let wide = Layer::dense(1 << 16, 128, 128, 1 << 23);
    assert_eq!(wide.cycles(1, 0), 1 << 16 | MEMORY_CYCLES);
    assert_eq!(span(7), Nanos(10));
}

#[test]
fn batching_pays_until_the_array_is_busy() {
    let rate = |name: &str, batch: usize| {
        let blocks = named(name).unwrap().blocks();
        batch as f64 / Profile::sum(blocks.iter().map(|block| &block.profile)).latency(batch).as_secs_f64()
    };
    assert!(rate("resnet50", 16) > 1.2 * rate("resnet50", 1) && rate("resnet50", 64) < 1.3 * rate("resnet50", 16));
    assert!(rate("gnmt", 32) > 20.0 * rate("gnmt", 1));
}
