//! Draws a bar chart with confidence intervals, as SVG text.

use std::fmt::Write as _;

const WIDTH: f64 = 800.0;
const ROW: f64 = 28.0;
const LEFT: f64 = 300.0;
const RIGHT: f64 = 90.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 12.0;

/// A bar chart.
#[derive(Debug, Clone, PartialEq)]
pub struct Bars {
    /// Label of the values, with the unit.
    pub label: &'static str,
    /// Bars from top to bottom. The first is the baseline.
    pub bars: Vec<Bar>,
}

/// One bar.
#[derive(Debug, Clone, PartialEq)]
pub struct Bar {
    /// Name of the bar.
    pub name: String,
    /// Length of the bar.
    pub value: f64,
    /// Half of the confidence interval's width.
    pub half: f64,
}

/// Content of the SVG file.
#[must_use]
pub fn svg(plot: &Bars) -> String {
    let most = plot.bars.iter().map(|bar| bar.value + bar.half).fold(0.0, f64::max);
    let most = if most > 0.0 { most } else { 1.0 };
    let x = |value: f64| LEFT + value.max(0.0) / most * (WIDTH - LEFT - RIGHT);
    let height = TOP + BOTTOM + ROW * plot.bars.len() as f64;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"26\">{}</text>\n",
        escaped(plot.label)
    );
    for (number, bar) in plot.bars.iter().enumerate() {
        let y = TOP + ROW * number as f64;
        let middle = y + ROW / 2.0;
        let colour = if number == 0 { "#999999" } else { "#0072b2" };
        let end = x(bar.value);
        let low = x(bar.value - bar.half);
        let high = x(bar.value + bar.half);
        let width = end - LEFT;
        let tall = ROW - 8.0;
        let baseline = middle + 4.0;
        let name_end = LEFT - 8.0;
        let value_start = high + 8.0;
        // Writing to a string does not fail.
        let _written = writeln!(
            text,
            "<text x=\"{name_end}\" y=\"{baseline}\" text-anchor=\"end\">{}</text>\n\
             <rect x=\"{LEFT}\" y=\"{}\" width=\"{width:.1}\" height=\"{tall}\" fill=\"{colour}\"/>\n\
             <path d=\"M{low:.1} {middle}H{high:.1}\" stroke=\"black\" stroke-width=\"1.5\"/>\n\
             <text x=\"{value_start:.1}\" y=\"{baseline}\">{:.3}</text>",
            escaped(&bar.name),
            y + 4.0,
            bar.value
        );
    }
    text + "</svg>\n"
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_as_long_as_its_value() {
        let bar = |name: &str, value| Bar { name: name.to_owned(), value, half: 0.0 };
        let text = svg(&Bars { label: "s", bars: vec![bar("a<b", 2.0), bar("c", 1.0)] });
        let full = WIDTH - LEFT - RIGHT;
        assert!(text.contains(&format!("width=\"{full:.1}\"")), "{text}");
        assert!(text.contains(&format!("width=\"{:.1}\"", full / 2.0)), "{text}");
        assert!(text.contains(">a&lt;b<") && text.ends_with("</svg>\n"));
        assert!(!svg(&Bars { label: "s", bars: Vec::new() }).contains("NaN"));
    }
}
