//! Readings where a paper leaves a rule of cells open, instant by instant; and Late Batching with
//! one half switched off.

use crate::cellular_examples::{FIGURE_5, chain};
use expect_test::expect;

/// Four of one bucket and one of another wait: a turn of one batch passes on, a turn that drains
/// stays while whole batches are left.
#[test]
fn a_turn_of_the_buckets_is_a_batch_or_lasts_until_no_batch_is_full() {
    let waiting = [(0.0, 1), (0.5, 1), (0.5, 1), (0.5, 1), (0.5, 1), (0.5, 2)];
    chain(
        "bucketed",
        "width=1 turn=one",
        2,
        &waiting,
        expect![[r#"
        0 1 w0 ct0 [1]
        1 2 w0 ct0 [6]
        2 3 w0 ct0 [6]
        3 4 w0 ct0 [2, 3]
        4 5 w0 ct0 [4, 5]
        done r1 1, r2 4, r3 4, r4 5, r5 5, r6 3
        average 3.25
    "#]],
    );
    chain(
        "bucketed",
        "width=1 turn=drain",
        2,
        &waiting,
        expect![[r#"
        0 1 w0 ct0 [1]
        1 2 w0 ct0 [2, 3]
        2 3 w0 ct0 [4, 5]
        3 4 w0 ct0 [6]
        4 5 w0 ct0 [6]
        done r1 1, r2 2, r3 2, r4 3, r5 3, r6 5
        average 2.25
    "#]],
    );
}

#[test]
fn late_batching_without_early_start_takes_the_next_set_when_the_last_has_ended() {
    chain(
        "late",
        "early_start=false",
        4,
        &FIGURE_5,
        expect![[r#"
        0 1 w0 ct0 [1, 2, 3, 4]
        1 2 w0 ct0 [1, 2, 3, 4]
        2 3 w0 ct0 [2, 3, 4]
        3 4 w0 ct0 [4]
        4 5 w0 ct0 [4]
        5 6 w0 ct0 [5, 6, 7, 8]
        6 7 w0 ct0 [5, 6, 7, 8]
        7 8 w0 ct0 [5, 6, 7]
        8 9 w0 ct0 [6, 7]
        9 10 w0 ct0 [6]
        10 11 w0 ct0 [6]
        11 12 w0 ct0 [6]
        done r1 2, r2 3, r3 3, r4 5, r5 8, r6 12, r7 9, r8 7
        average 4.875
    "#]],
    );
}

#[test]
fn late_batching_without_early_leave_keeps_the_rows_of_those_that_began_together() {
    chain(
        "late",
        "early_leave=false",
        4,
        &FIGURE_5,
        expect![[r#"
        0 1 w0 ct0 [1, 2, 3, 4]
        1 2 w0 ct0 [1, 2, 3, 4]
        2 3 w0 ct0 [1, 2, 3, 4]
        3 4 w0 ct0 [1, 2, 3, 4]
        4 5 w0 ct0 [1, 2, 3, 4]
        5 6 w0 ct0 [5, 6, 7, 8]
        6 7 w0 ct0 [5, 6, 7, 8]
        7 8 w0 ct0 [5, 6, 7, 8]
        8 9 w0 ct0 [5, 6, 7, 8]
        9 10 w0 ct0 [5, 6, 7, 8]
        10 11 w0 ct0 [5, 6, 7, 8]
        11 12 w0 ct0 [5, 6, 7, 8]
        done r1 5, r2 5, r3 5, r4 5, r5 12, r6 12, r7 12, r8 12
        average 7.25
    "#]],
    );
}
