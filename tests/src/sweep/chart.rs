//! Draws a line chart with confidence intervals, as SVG text.

use std::fmt::Write as _;

const WIDTH: f64 = 800.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 230.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 50.0;
/// Horizontal offset between lines, so that their intervals do not hide each other.
const SHIFT: f64 = 3.0;
/// Number of marks on the y axis.
const MARKS: usize = 5;
/// Colours that people with colour blindness can distinguish (Okabe and Ito).
const COLOURS: [&str; 8] =
    ["#0072b2", "#56b4e9", "#009e73", "#d55e00", "#e69f00", "#cc79a7", "#999999", "#000000"];

/// A line chart.
#[derive(Debug, Clone, PartialEq)]
pub struct Chart {
    /// Label of the x axis, with the unit.
    pub x: &'static str,
    /// Label of the y axis, which starts at 0, with the unit.
    pub y: &'static str,
    /// Lines of the chart.
    pub lines: Vec<Line>,
}

/// One line.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// Name of the line.
    pub name: String,
    /// Points of the line: x, y, and half of the interval's height.
    pub points: Vec<(f64, f64, f64)>,
}

/// Coordinates of the plot area.
#[derive(Debug, Clone, Copy)]
struct Frame {
    low: f64,
    high: f64,
    top: f64,
}

/// Content of the SVG file.
#[must_use]
pub fn svg(chart: &Chart) -> String {
    let frame = Frame::around(chart);
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n"
    );
    write_label(&mut text, (LEFT, 24.0), "start", chart.y);
    write_label(&mut text, ((LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 12.0), "middle", chart.x);
    for mark in 0..=MARKS {
        let value = frame.top * mark as f64 / MARKS as f64;
        let y = frame.y(value);
        write_stroke(&mut text, &[(LEFT, y), (WIDTH - RIGHT, y)], ("#dddddd", ""));
        write_label(&mut text, (LEFT - 8.0, y + 4.0), "end", &format!("{value:.2}"));
    }
    for x in chart.lines.iter().take(1).flat_map(|line| &line.points).map(|point| point.0) {
        write_label(&mut text, (frame.x(x), HEIGHT - BOTTOM + 18.0), "middle", &x.to_string());
    }
    for (number, (line, colour)) in chart.lines.iter().zip(COLOURS.iter().cycle()).enumerate() {
        // Side by side, so that intervals do not hide each other.
        let beside = (number as f64 - chart.lines.len() as f64 / 2.0) * SHIFT;
        let dashes = if number < COLOURS.len() { "" } else { " stroke-dasharray=\"5 3\"" };
        let at = |&(x, y, _): &(f64, f64, f64)| (frame.x(x) + beside, frame.y(y));
        let points: Vec<_> = line.points.iter().map(at).collect();
        write_stroke(&mut text, &points, (colour, dashes));
        for (&(_, y, half), &(x, middle)) in line.points.iter().zip(&points) {
            let ends = [y - half, y + half].map(|y| (x, frame.y(y.max(0.0))));
            write_stroke(&mut text, &ends, (colour, ""));
            let _written = writeln!(
                text,
                "<circle cx=\"{x:.1}\" cy=\"{middle:.1}\" r=\"3\" fill=\"{colour}\"/>"
            );
        }
        let y = TOP + 20.0 * number as f64;
        let x = WIDTH - RIGHT + 15.0;
        write_stroke(&mut text, &[(x, y), (x + 20.0, y)], (colour, dashes));
        write_label(&mut text, (x + 26.0, y + 4.0), "start", &line.name);
    }
    text + "</svg>\n"
}

/// Writes a stroke. Writing to a string does not fail.
fn write_stroke(text: &mut String, points: &[(f64, f64)], (colour, dashes): (&str, &str)) {
    let points: Vec<_> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let points = points.join(" ");
    let _written = writeln!(
        text,
        "<polyline points=\"{points}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\"{dashes}/>"
    );
}

fn write_label(text: &mut String, (x, y): (f64, f64), anchor: &str, label: &str) {
    let label = label.replace('&', "&amp;").replace('<', "&lt;");
    let _written =
        writeln!(text, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{label}</text>");
}

// === impl Frame ===

impl Frame {
    fn around(chart: &Chart) -> Self {
        let points = || chart.lines.iter().flat_map(|line| &line.points);
        let low = points().map(|point| point.0).fold(f64::INFINITY, f64::min);
        let high = points().map(|point| point.0).fold(f64::NEG_INFINITY, f64::max);
        let top = points().map(|point| point.1 + point.2).fold(0.0, f64::max);
        Self { low, high, top: if top > 0.0 { top } else { 1.0 } }
    }

    fn x(&self, value: f64) -> f64 {
        let share =
            if self.high > self.low { (value - self.low) / (self.high - self.low) } else { 0.5 };
        LEFT + 15.0 + share * (WIDTH - LEFT - RIGHT - 30.0)
    }

    fn y(&self, value: f64) -> f64 {
        HEIGHT - BOTTOM - value / self.top * (HEIGHT - TOP - BOTTOM)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plot_has_a_line_and_a_name_for_each_policy() {
        let line = |name: &str| Line {
            name: name.to_owned(),
            points: vec![(30.0, 1.0, 0.1), (50.0, 2.0, 0.0)],
        };
        let chart = Chart { x: "load", y: "time", lines: vec![line("a & b"), line("c")] };
        let text = svg(&chart);
        assert!(text.starts_with("<svg") && text.ends_with("</svg>\n"));
        assert!(text.contains(">a &amp; b<") && text.contains(">c<"));
        assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
        assert_eq!(text.matches("<polyline").count(), MARKS + 1 + 2 * 4);
    }
}
