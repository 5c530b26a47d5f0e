//! The GPU of LazyBatching's section VI-C, an NVIDIA Titan Xp, as an analytic cost model.
//!
//! Published: 12.15 TFLOP/s of single precision and 547.6 GB/s. **Chosen, not fitted:** a layer
//! reaches 60 % of the arithmetic or 80 % of the bandwidth, whichever is the limit, and costs 10 us
//! more, about two launches: a roofline with an overhead. No value was measured on such a device.

use super::Layer;
use ripieno_base::Nanos;

const LAUNCHES: Nanos = Nanos::from_micros(10);
/// 60 % of 6,075 multiply-adds per nanosecond.
const PRODUCTS_PER_NANO: u64 = 3_645;
/// 80 % of 547 bytes per nanosecond.
const BYTES_PER_NANO: u64 = 438;
const BYTES_PER_NUMBER: u64 = 4;

impl Layer {
    /// Returns the duration of a batch on the GPU.
    pub(super) fn on_titan_xp(&self, batch: u64) -> Nanos {
        let products = self.weights * self.rows * batch;
        let bytes = BYTES_PER_NUMBER * (self.weights + (self.inputs + self.rows * self.columns) * batch);
        let nanos = products.div_ceil(PRODUCTS_PER_NANO).max(bytes.div_ceil(BYTES_PER_NANO));
        LAUNCHES + Nanos(nanos.cast_signed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_is_bound_by_bandwidth_until_the_batch_is_large() {
        let layer = Layer::dense(1, 1024, 1024, 1024);
        let bytes: u64 = 4 * (1024 * 1024 + 2048);
        assert_eq!(layer.on_titan_xp(1), LAUNCHES + Nanos(bytes.div_ceil(438) as i64));
        assert!(layer.on_titan_xp(16) < layer.on_titan_xp(1).scale(5, 4), "weights are read once");
        let (half, full) = (layer.on_titan_xp(1024), layer.on_titan_xp(2048));
        assert!(full - half > (half - LAUNCHES).scale(9, 10), "arithmetic grows with the batch");
    }
}
