//! The example of a policy made of DVABatch's operations works, and keeps every promise of a
//! scheduler.

use super::meta_operations::{main, run};

const SPLIT: Option<(usize, usize)> = Some((2, 4));

#[test]
fn a_custom_policy_does_each_operation_at_its_condition() {
    let (new, _) = run(None, None);
    assert!(new.new > 0 && new.stretch == 0 && new.split == 0, "{new:?}");
    let (stretched, _) = run(Some(1), None);
    assert!(stretched.new < new.new && stretched.stretch > 100 && stretched.split == 0, "{stretched:?}");
    let (halved, _) = run(None, SPLIT);
    assert!(halved.new > 0 && halved.stretch == 0 && halved.split > 100, "{halved:?}");
    let (all, mean_ms) = run(Some(1), SPLIT);
    assert!(all.stretch > 100 && all.split > 100 && mean_ms > 9.5, "no request is faster than the stages: {all:?}");
    main();
}
