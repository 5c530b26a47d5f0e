//! Ratios and their means.

/// Lower bound on a ratio in the geometric mean, so that one failure does not hide everything else.
const LEAST: f64 = 0.05;
/// Ratio above which a difference is chance.
const NEAR: f64 = 0.98;

/// Returns the geometric mean.
pub(super) fn geometric_mean(ratios: &[f64]) -> f64 {
    let sum: f64 = ratios.iter().map(|ratio| ratio.max(LEAST).ln()).sum();
    (sum / ratios.len() as f64).exp()
}

/// Returns the fraction of ratios that are as good as the best but for chance.
pub(super) fn near(ratios: &[f64]) -> f64 {
    at_least(ratios, NEAR)
}

/// Returns the fraction of ratios of at least this.
pub(super) fn at_least(ratios: &[f64], least: f64) -> f64 {
    ratios.iter().filter(|&&ratio| ratio >= least).count() as f64 / ratios.len() as f64
}

/// Returns a ratio for a table.
pub(super) fn text(ratio: Option<f64>) -> String {
    ratio.map_or("–".to_owned(), |ratio| format!("{ratio:.3}"))
}
