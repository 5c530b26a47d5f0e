//! The time that a batch needs to reach a device in another process.

use super::knobs::{BuildError, Knob, Knobs};
use ripieno_base::Nanos;

/// An estimate of the time that a batch needs to reach a device: a message, then the inputs, which
/// the device fetches row by row ("Symphony: Optimized DNN Model Serving using Deferred Batch
/// Scheduling", Appendix D). Too low an estimate makes batches late, too high a one makes them
/// small.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct NetworkDelay {
    /// Time of a message, and of what a batch's inputs take however many rows it has.
    pub control: Nanos,
    /// Time of the inputs of a row.
    pub data_per_row: Nanos,
}

/// Option for [`NetworkDelay::control`].
pub const CONTROL_US: Knob = Knob {
    name: "control_us",
    default: "0",
    help: "estimated latency of a message to a device, in us: a high percentile, since a batch that arrives late ends \
           late; `ripieno scheduler` measures it",
};

/// Option for [`NetworkDelay::data_per_row`].
pub const DATA_US: Knob = Knob {
    name: "data_us_per_row",
    default: "0",
    help: "estimated time in which a device fetches the inputs of a row, in us; `ripieno scheduler` measures it",
};

impl NetworkDelay {
    /// Reads the options.
    pub fn read(knobs: &Knobs<'_>) -> Result<NetworkDelay, BuildError> {
        let micros = |knob: &str| Ok(Nanos::from_millis_f64(knobs.number(knob, None)?.unwrap_or(0.0) / 1e3));
        Ok(NetworkDelay { control: micros(CONTROL_US.name)?, data_per_row: micros(DATA_US.name)? })
    }

    /// Returns the time from the decision until a device can begin a batch of `rows` rows.
    pub fn lead(&self, rows: usize) -> Nanos {
        self.control + self.data_per_row * rows as i64
    }

    /// Returns the sum of two delays.
    pub fn with(self, other: NetworkDelay) -> NetworkDelay {
        let data_per_row = self.data_per_row + other.data_per_row;
        NetworkDelay { control: self.control + other.control, data_per_row }
    }

    /// Returns whether batches arrive without delay.
    pub fn is_none(&self) -> bool {
        self.lead(1) <= Nanos::ZERO
    }

    /// Returns the delay, reduced so that `rows` rows arrive within `span`.
    pub fn within(self, span: Nanos, rows: usize) -> NetworkDelay {
        let (lead, span) = (self.lead(rows), span.max(Nanos::ZERO));
        if lead <= span {
            return self;
        }
        let part = |delay: Nanos| delay.scale(span.0.cast_unsigned(), lead.0.cast_unsigned());
        NetworkDelay { control: part(self.control), data_per_row: part(self.data_per_row) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_is_reduced_in_proportion() {
        let delay = NetworkDelay { control: Nanos(100), data_per_row: Nanos(10) };
        assert_eq!((delay.lead(10), delay.within(Nanos(200), 10)), (Nanos(200), delay));
        let half = delay.within(Nanos(100), 10);
        assert_eq!(half, NetworkDelay { control: Nanos(50), data_per_row: Nanos(5) });
        assert!(delay.within(Nanos(-1), 10).is_none() && !half.is_none());
    }
}
