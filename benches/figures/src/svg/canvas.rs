//! Text of an SVG file, with title and legend.

use std::fmt::Write as _;

/// Width of a plot, in pixels.
pub(super) const WIDTH: f64 = 960.0;
/// Start of the plot area below the title.
pub(super) const TOP: f64 = 70.0;
/// Width of the legend, right of the plot area, where it hides nothing.
pub(super) const LEGEND_WIDTH: f64 = 230.0;
/// Height of the legend's lines.
const LEGEND_ROW: f64 = 22.0;
/// Colour of grid lines.
pub(super) const GRID: &str = "#dddddd";
/// Colours that people with colour blindness can distinguish (Okabe and Ito).
const COLOURS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#999999", "#000000"];

/// Where a label is aligned to its position.
#[derive(Debug, Clone, Copy)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

/// Colour and dashes of a series.
#[derive(Debug, Clone, Copy)]
pub(super) struct Style {
    pub(super) colour: &'static str,
    pub(super) is_dashed: bool,
}

impl Style {
    pub(super) const fn solid(colour: &'static str) -> Self {
        Self { colour, is_dashed: false }
    }

    /// The style of a series by its number. Series beyond the number of colours are dashed.
    pub(super) fn of_series(number: usize) -> Self {
        let colour = COLOURS.into_iter().cycle().nth(number).unwrap_or("#000000");
        Self { colour, is_dashed: number >= COLOURS.len() }
    }
}

/// A drawing. Writing to its text does not fail.
#[derive(Debug)]
pub(super) struct Canvas(String);

impl Canvas {
    /// A white canvas with a title.
    pub(super) fn new(height: f64, title: &str) -> Self {
        let mut canvas = Self(format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
             font-family=\"sans-serif\" font-size=\"14\">\n\
             <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"white\"/>\n"
        ));
        let title = escaped(title);
        let _written = writeln!(
            canvas.0,
            "<text x=\"16\" y=\"28\" font-size=\"18\" font-weight=\"bold\">{title}</text>"
        );
        canvas
    }

    pub(super) fn label(&mut self, x: f64, y: f64, anchor: Anchor, label: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let label = escaped(label);
        let _written = writeln!(
            self.0,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{label}</text>"
        );
    }

    pub(super) fn stroke(&mut self, points: &[(f64, f64)], style: Style) {
        let points: Vec<_> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let points = points.join(" ");
        let Style { colour, is_dashed } = style;
        let dashes = if is_dashed { " stroke-dasharray=\"5 3\"" } else { "" };
        let _written = writeln!(
            self.0,
            "<polyline points=\"{points}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\"{dashes}/>"
        );
    }

    pub(super) fn dot(&mut self, x: f64, y: f64, style: Style) {
        let colour = style.colour;
        let _written =
            writeln!(self.0, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>");
    }

    /// Draws a bar from `left` to `right`.
    pub(super) fn bar(&mut self, left: f64, right: f64, top: f64, height: f64, style: Style) {
        let width = (right - left).max(0.0);
        let colour = style.colour;
        let opacity = if style.is_dashed { " fill-opacity=\"0.5\"" } else { "" };
        let _written = writeln!(
            self.0,
            "<rect x=\"{left:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" \
             fill=\"{colour}\"{opacity}/>"
        );
    }

    /// Draws the legend: a line for each name.
    pub(super) fn legend<'a>(&mut self, names: impl Iterator<Item = &'a str>) {
        let x = WIDTH - LEGEND_WIDTH + 20.0;
        let mut y = TOP + 4.0;
        for (number, name) in names.enumerate() {
            let style = Style::of_series(number);
            self.bar(x, x + 14.0, y - 6.0, 12.0, style);
            self.label(x + 22.0, y + 5.0, Anchor::Start, name);
            y += LEGEND_ROW;
        }
    }

    /// Height that a legend needs.
    pub(super) fn legend_height(names: usize) -> f64 {
        LEGEND_ROW * names as f64
    }

    /// The finished text.
    pub(super) fn finish(self) -> String {
        self.0 + "</svg>\n"
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}
