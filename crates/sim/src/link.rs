//! The network between scheduler, frontends and devices, as far as it delays a batch: a message to
//! the device, then the inputs, which the device fetches row by row.
//!
//! The true delay of a batch is drawn here; the scheduler plans with its own estimate, a high
//! percentile ("Symphony: Optimized DNN Model Serving using Deferred Batch Scheduling", sections
//! 4.3 and 5.6, Appendix D). The difference is the cost of an unpredictable network.

use ripieno_base::Nanos;
use ripieno_workload::{SeededRng, stream, unit};

/// The delays of a network.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Network {
    /// Delay of the message to the device.
    pub control: Delay,
    /// Delay of the inputs of one row.
    pub data_per_row: Nanos,
    /// The scheduler's estimate of `control`.
    pub estimate: Nanos,
}

/// The delay of a message.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Delay {
    /// A constant delay.
    Fixed(Nanos),
    /// RDMA as the paper measured it: at least 24 µs and, in 99.99 % of cases, at most 33 µs; an
    /// exponential tail between.
    Rdma,
    /// TCP as the paper measured it: median 3,034 µs, 99.99th percentile 12 times as much;
    /// log-normal.
    Tcp,
}

impl Network {
    /// No delay at all.
    pub const NONE: Network =
        Network { control: Delay::Fixed(Nanos::ZERO), data_per_row: Nanos::ZERO, estimate: Nanos::ZERO };

    /// Returns whether batches arrive without delay.
    pub fn is_none(&self) -> bool {
        *self == Network::NONE
    }
}

impl Delay {
    /// Returns the 99.99th percentile, which the paper's scheduler uses as its estimate.
    pub fn high_percentile(self) -> Nanos {
        match self {
            Delay::Fixed(delay) => delay,
            Delay::Rdma => Nanos::from_micros(33),
            Delay::Tcp => Nanos::from_micros(12 * 3_034),
        }
    }

    /// Returns this number of delays, drawn by a seed.
    pub fn drawn(self, seed: u64, count: usize) -> impl Iterator<Item = Nanos> {
        let mut random = stream(seed, 2);
        (0..count).map(move |_| self.draw(&mut random))
    }

    fn draw(self, random: &mut SeededRng) -> Nanos {
        let micros = match self {
            Delay::Fixed(delay) => return delay,
            // The 99.99th percentile of an exponential is 9.21 times its mean.
            Delay::Rdma => 24.0 - (1.0 - unit(random)).ln() * 9.0 / 9.210_34,
            // The standard normal's is 3.719.
            Delay::Tcp => 3_034.0 * (normal(random) * 12f64.ln() / 3.719).exp(),
        };
        Nanos::from_millis_f64(micros / 1e3)
    }
}

/// Draws a standard normal number, by Box and Muller.
fn normal(random: &mut SeededRng) -> f64 {
    let radius = (-2.0 * (1.0 - unit(random)).ln()).sqrt();
    radius * (2.0 * std::f64::consts::PI * unit(random)).cos()
}

/// A network with its random numbers.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    network: Network,
    random: SeededRng,
}

impl Link {
    pub(crate) fn new(network: Network, seed: u64) -> Link {
        // A separate stream, so that arrivals are the same with and without delays.
        Link { network, random: stream(seed, u64::MAX - 1) }
    }

    /// Draws the delay of a batch.
    pub(crate) fn way(&mut self, rows: usize) -> Nanos {
        self.network.control.draw(&mut self.random) + self.network.data_per_row * rows as i64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn percentile(delay: Delay, share: f64) -> f64 {
        let mut drawn: Vec<_> = delay.drawn(1, 200_000).collect();
        drawn.sort_unstable();
        drawn[(share * drawn.len() as f64) as usize].as_millis_f64() * 1e3
    }

    #[test]
    fn delays_have_the_published_percentiles() {
        assert!((24.0..24.7).contains(&percentile(Delay::Rdma, 0.4)));
        assert!((31.0..36.0).contains(&percentile(Delay::Rdma, 0.9999)));
        assert!((2_980.0..3_090.0).contains(&percentile(Delay::Tcp, 0.5)));
        assert!((30_000.0..44_000.0).contains(&percentile(Delay::Tcp, 0.9999)));
    }
}
