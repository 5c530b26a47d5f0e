//! Tests of the page's files; what it shows is tested over HTTP in `tests/protocol/ui.rs`.

use super::{SCRIPT, STYLE, has};

#[test]
fn the_script_is_small_and_nothing_is_loaded_from_elsewhere() {
    assert!(SCRIPT.lines().count() <= 400);
    for text in [SCRIPT, STYLE] {
        assert!(
            !text.contains("//cdn") && !text.contains("http:") && !text.contains("https:") && !text.contains("@import")
        );
    }
}

#[test]
fn only_its_own_paths_are_the_page_s() {
    let paths = ["/ui", "/ui/", "/ui/devices", "/uid", "/metrics", "/"];
    assert_eq!(paths.map(has), [true, true, true, false, false, false]);
}
