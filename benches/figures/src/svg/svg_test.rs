use super::svg;
use crate::plot::{Axis, Plot};

fn axes() -> (Axis, Axis) {
    (Axis::logarithmic("pairs"), Axis::linear("bytes per pair"))
}

fn check_numbers(text: &str) {
    assert!(text.starts_with("<svg") && text.ends_with("</svg>\n"), "{text}");
    assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
}

#[test]
fn lines_have_points_names_and_labels() {
    let (x, y) = axes();
    let plot = Plot::lines("memory-pairs", "Memory & pairs", x, y)
        .with_line("ours", [(2e6, 38.0), (1e7, 36.0), (5e7, 37.0), (0.0, 1.0)])
        .with_line("a<b", [(2e6, 56.0)]);
    let text = svg(&plot);
    check_numbers(&text);
    for part in
        ["Memory &amp; pairs", ">ours<", ">a&lt;b<", ">10 M<", ">bytes per pair<", ">pairs<"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!(text.matches("<circle").count(), 4, "a point at 0 has no place: {text}");
}

#[test]
fn lines_have_intervals() {
    let points = [(30.0, 1.0, 0.1), (50.0, 2.0, 0.0), (70.0, 0.5, 0.6)];
    let plot = || Plot::lines("load", "Time", Axis::linear("load"), Axis::linear("s"));
    let with = svg(&plot().with_estimates("a", points));
    let without = svg(&plot().with_line("a", points.map(|(x, y, _)| (x, y))));
    check_numbers(&with);
    let strokes = |text: &str| text.matches("stroke=\"#0072b2\"").count();
    assert_eq!([strokes(&without), strokes(&with)], [1, 3], "two intervals are above 0: {with}");
}

#[test]
fn many_lines_can_be_told_apart() {
    let empty = Plot::lines("many", "Many", Axis::linear("x"), Axis::linear("y"));
    let many = (0..9).fold(empty, |plot, line| {
        plot.with_line(line.to_string(), [(0.0, f64::from(line)), (1.0, 1.0)])
    });
    assert_eq!(svg(&many).matches("stroke-dasharray").count(), 1);
}

/// Widths of the bars of one colour, the legend's left out.
fn widths(text: &str, colour: &str) -> Vec<f64> {
    let bars = text.lines().filter(|line| line.starts_with("<rect") && line.contains(colour));
    let width = |line: &str| {
        let text = line.split_once("width=\"")?.1.split('"').next()?;
        text.parse().ok()
    };
    let widths: Vec<f64> = bars.filter_map(width).collect();
    widths.iter().copied().filter(|width| *width != 14.0).collect()
}

#[test]
fn bars_are_as_long_as_their_values() {
    let plot = Plot::bars("memory", "Memory", ["distinct", "a<b", "none"], axes().1)
        .with_bars("ours", [Some(40.0), Some(10.0)])
        .with_bars("peer", [Some(20.0), None]);
    let text = svg(&plot);
    check_numbers(&text);
    let [first, second] = widths(&text, "#0072b2")[..] else { panic!("{text}") };
    assert!((first / second - 4.0).abs() < 0.01, "{first} {second}");
    let [other] = widths(&text, "#d55e00")[..] else { panic!("{text}") };
    assert!((first / other - 2.0).abs() < 0.01, "{first} {other}");
    for part in [">distinct<", ">a&lt;b<", ">none<", ">40<", ">peer<", ">bytes per pair<"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn the_shortest_bar_of_a_logarithmic_axis_is_visible() {
    let plot = Plot::bars("rate", "Rate", ["a", "b"], Axis::logarithmic("s"))
        .with_bars("ours", [Some(0.01), Some(10.0)]);
    assert!(widths(&svg(&plot), "#0072b2").iter().all(|width| *width > 10.0));
}

#[test]
fn bars_have_intervals() {
    let plot = Plot::bars("what-if", "What if", ["a", "b"], Axis::linear("s"))
        .with_bar_estimates("ours", [Some((1.0, 0.5)), Some((2.0, 0.0))]);
    assert_eq!(svg(&plot).matches("stroke=\"#000000\"").count(), 1);
}

#[test]
fn empty_plots_are_drawn() {
    let (x, y) = axes();
    check_numbers(&svg(&Plot::lines("none", "None", x, y.clone())));
    check_numbers(&svg(&Plot::bars("none", "None", ["a"], y)));
}
