//! The documents against what they are about. Nothing is run.

fn read(name: &str) -> String {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn every_item_has_its_place_among_the_papers() {
    let text = read("papers.md");
    let missing: Vec<_> = super::items().map(|item| item.id).filter(|id| !text.contains(&format!("`{id}`"))).collect();
    assert!(missing.is_empty(), "docs/papers.md does not name {missing:?}");
    let named = text.split('`').skip(1).step_by(2).filter(|word| {
        let paper = word.split_once('/').map(|(paper, _)| paper);
        paper.is_some_and(|paper| super::items().any(|item| item.id.starts_with(&format!("{paper}/"))))
    });
    let unknown: Vec<_> = named.filter(|word| !super::items().any(|item| item.id == *word)).collect();
    assert!(unknown.is_empty(), "docs/papers.md names {unknown:?}, which nothing reproduces");
}
