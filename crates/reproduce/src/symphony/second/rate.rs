//! The rate of a model's requests, by the public code: the mean of samples of 50 ms over 5 s.

use ripieno_base::{Nanos, Time};
use std::collections::VecDeque;

const SAMPLE: Nanos = Nanos::from_millis(50);
const SAMPLES: usize = 100;

/// Counts requests from the first one on. The first sample is left out, and the current one.
#[derive(Debug, Default)]
pub(super) struct SampledRate {
    /// End of the current sample; `None` before the first request.
    end: Option<Time>,
    count: u32,
    is_first: bool,
    samples: VecDeque<u32>,
    sum: u32,
}

impl SampledRate {
    pub(super) fn record(&mut self, now: Time) {
        if self.end.is_none() {
            (self.end, self.is_first) = (Some(now + SAMPLE), true);
        }
        self.advance(now);
        self.count += 1;
    }

    fn advance(&mut self, now: Time) {
        while let Some(end) = self.end.filter(|&end| end <= now) {
            let count = std::mem::take(&mut self.count);
            if !std::mem::take(&mut self.is_first) {
                self.samples.push_back(count);
                self.sum += count;
            }
            if self.samples.len() > SAMPLES {
                self.sum -= self.samples.pop_front().unwrap_or(0);
            }
            self.end = Some(end + SAMPLE);
        }
    }

    /// Returns the mean rate in requests per millisecond, as of the last request's sample.
    pub(super) fn per_ms(&self) -> Option<f64> {
        (!self.samples.is_empty()).then(|| f64::from(self.sum) / (self.samples.len() as f64 * SAMPLE.as_millis_f64()))
    }
}
