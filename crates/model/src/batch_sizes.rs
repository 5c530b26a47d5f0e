//! Batch sizes that batches are padded to.

/// Returns 1, 2, 4, … and `max_batch`, which counts as 1 if it is 0.
pub fn doubling_sizes(max_batch: usize) -> Vec<usize> {
    let max_batch = max_batch.max(1);
    let doubled = std::iter::successors(Some(1usize), |size| size.checked_mul(2));
    doubled.take_while(|&size| size < max_batch).chain([max_batch]).collect()
}

/// Returns [`doubling_sizes`], and the size midway between two of them from 32 on: 48, 96, 192, …
pub fn finer_sizes(max_batch: usize) -> Vec<usize> {
    let doubling = doubling_sizes(max_batch);
    let midway = |pair: &[usize]| (pair[0] >= 32 && pair[1] == 2 * pair[0]).then_some(pair[0] / 2 * 3);
    let mut sizes: Vec<usize> = doubling.windows(2).filter_map(midway).chain(doubling.iter().copied()).collect();
    sizes.sort_unstable();
    sizes
}

/// Returns whether `sizes` ascend from at least 1.
pub fn ascends(sizes: &[usize]) -> bool {
    sizes.windows(2).all(|pair| pair[0] < pair[1]) && sizes.first() != Some(&0)
}

/// Returns the first of the ascending `sizes` that holds `rows`, or `rows` if none does.
pub fn padded_size(sizes: &[usize], rows: usize) -> usize {
    sizes.get(sizes.partition_point(|&size| size < rows)).copied().unwrap_or(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_double_up_to_the_largest() {
        assert_eq!(doubling_sizes(0), [1]);
        assert_eq!(doubling_sizes(1), [1]);
        assert_eq!(doubling_sizes(6), [1, 2, 4, 6]);
        assert_eq!(doubling_sizes(8), [1, 2, 4, 8]);
        assert_eq!(finer_sizes(32), doubling_sizes(32));
        assert_eq!(finer_sizes(64)[5..], [32, 48, 64]);
        assert_eq!(finer_sizes(200)[5..], [32, 48, 64, 96, 128, 200]);
    }

    #[test]
    fn sizes_ascend_from_one() {
        assert!(ascends(&[]) && ascends(&[1]) && ascends(&[2, 3]));
        assert!(!ascends(&[0, 1]) && !ascends(&[1, 1]) && !ascends(&[2, 1]));
    }

    #[test]
    fn rows_are_padded_to_the_next_size() {
        let padded = |sizes: &[usize]| (1..=7).map(|rows| padded_size(sizes, rows)).collect::<Vec<_>>();
        assert_eq!(padded(&[1, 4, 6]), [1, 4, 4, 4, 6, 6, 7]);
        assert_eq!(padded(&[]), [1, 2, 3, 4, 5, 6, 7]);
    }
}
