//! The example of a policy made of DVABatch's operations does what it says, with every promise of a scheduler kept.

use super::meta_operations::{main, run};

const SPLIT: Option<(usize, u16)> = Some((2, 4));

#[test]
fn a_policy_of_ones_own_does_each_operation_where_it_is_told_to() {
    let (new, alone) = run(false, None);
    assert!(new.new > 0 && new.stretch == 0 && new.split == 0, "{new:?}");
    let (all, together) = run(true, SPLIT);
    assert!(all.new > 0 && all.stretch > 100 && all.split > 100, "{all:?}");
    assert!(together < alone, "joining and splitting pay on these stages: {together} ms against {alone}");
    main();
}
