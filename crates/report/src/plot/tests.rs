use super::*;

fn series(name: &str, colour: usize) -> Series {
    Series { name: name.to_owned(), points: vec![(0.0, 1.0), (10.0, 2.0)], look: Look::solid(colour), markers: true }
}

fn panel(content: Content) -> Panel {
    let axis = |label: &str| PlotAxis { label: label.to_owned(), ..PlotAxis::default() };
    Panel { title: "panel".to_owned(), x: axis("x"), y: axis("y"), content }
}

fn bar(name: &str, value: f64, paper: Option<f64>) -> Bar {
    Bar { name: name.to_owned(), value, spread: Some((value - 1.0, value + 1.0)), paper, look: Look::default() }
}

fn figure() -> Figure {
    let timeline = Content::Timeline {
        lanes: vec!["device 0".to_owned()],
        spans: vec![Span { lane: 0, from: 1.0, to: 9.0, label: "a & b".to_owned(), look: Look::solid(1) }],
        moments: vec![Moment { at: 1.0, lost: false }, Moment { at: 2.0, lost: true }],
    };
    Figure {
        title: "A <title>".to_owned(),
        subtitle: "how".to_owned(),
        panels: vec![
            panel(Content::Lines(vec![series("one", 0), series("two", 1)])),
            panel(Content::Lines(vec![series("one", 0)])),
            panel(Content::Bars(vec![bar("first", 10.0, Some(12.0)), bar("second", 4.0, None)])),
            panel(timeline),
        ],
        columns: 2,
        note: "source".to_owned(),
    }
}

#[test]
fn every_part_is_drawn_and_text_is_escaped() {
    let svg = figure().svg();
    for text in ["A &lt;title&gt;", ">how<", ">source<", ">first<", "a &amp; b", ">device 0<", "what the paper says"] {
        assert!(svg.contains(text), "{text} is missing");
    }
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
    assert!(!svg.contains("NaN") && !svg.contains("inf"));
}

#[test]
fn a_name_in_two_panels_has_one_entry_in_the_legend() {
    assert_eq!(figure().svg().matches(">one<").count(), 1);
}

#[test]
fn equal_figures_give_equal_bytes() {
    assert_eq!(figure().svg(), figure().svg());
}

#[test]
fn an_empty_figure_is_still_a_picture() {
    let empty =
        Figure { panels: vec![panel(Content::Lines(Vec::new())), panel(Content::Bars(Vec::new()))], ..figure() };
    assert!(!empty.svg().contains("NaN"));
    assert!(Figure::default().svg().ends_with("</svg>\n"));
}
