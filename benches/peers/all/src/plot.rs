//! Draws plots as SVG.

use anyhow::Result;
use bench_figures::number::short;
use bench_figures::{Axis, Plot, Scale, Series};
use plotters::coord::Shift;
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use std::ops::Range;

const SIZE: (u32, u32) = (960, 480);
/// Width of the legend, right of the plot, where it hides no line.
const LEGEND_WIDTH: u32 = 200;
const LEGEND_TOP: i32 = 60;
const LEGEND_ROW: i32 = 26;
const TITLE_SIZE: u32 = 23;
const LABEL_SIZE: u32 = 17;
const FONT: &str = "sans-serif";
const COLOURS: [RGBColor; 8] = [
    RGBColor(0xd1, 0x49, 0x2f),
    RGBColor(0x1f, 0x6f, 0xb4),
    RGBColor(0x2e, 0x8b, 0x57),
    RGBColor(0x8a, 0x5f, 0xbf),
    RGBColor(0xc7, 0x8a, 0x12),
    RGBColor(0x4a, 0x4a, 0x4a),
    RGBColor(0x17, 0xa2, 0xa2),
    RGBColor(0xd0, 0x5c, 0x9d),
];
/// Maximum number of ticks on an axis.
const TICKS: usize = 8;
/// Width of a group's bars together, relative to the distance between groups.
const GROUP_WIDTH: f64 = 0.8;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// A drawn series: its positions along the axes, and its colour.
struct Drawn<'a> {
    name: &'a str,
    points: Vec<(f64, f64)>,
    colour: RGBColor,
}

/// A drawn axis: its range of positions, and the ticks with labels.
struct Ruler<'a> {
    axis: &'a Axis,
    groups: &'a [String],
    range: Range<f64>,
    ticks: Vec<f64>,
}

/// Draws a plot.
pub(crate) fn svg(plot: &Plot) -> Result<String> {
    let mut text = String::new();
    let root = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let (left, right) = root.split_horizontally(SIZE.0 - LEGEND_WIDTH);
    let series = plot.series.iter().zip(COLOURS.into_iter().cycle());
    let series: Vec<Drawn<'_>> =
        series.map(|(series, colour)| Drawn::new(plot, series, colour)).collect();
    draw(&left, plot, &series)?;
    legend(&right, &series)?;
    root.present()?;
    drop((left, right, root));
    Ok(text)
}

fn draw(area: &Area<'_>, plot: &Plot, series: &[Drawn<'_>]) -> Result<()> {
    let all = || series.iter().flat_map(|drawn| &drawn.points);
    let x = range(all().map(|point| point.0), false);
    let x = Ruler::new(&plot.x, x).with_groups(&plot.groups);
    let from_zero = plot.y.scale == Scale::Linear;
    let y = Ruler::new(&plot.y, range(all().map(|point| point.1), from_zero));
    let bottom = y.range.start;
    let mut chart = ChartBuilder::on(area)
        .caption(&plot.title, (FONT, TITLE_SIZE))
        .margin(14)
        .x_label_area_size(52)
        .y_label_area_size(86)
        .build_cartesian_2d(x, y)?;
    let mut mesh = chart.configure_mesh();
    mesh.x_desc(&plot.x.label).y_desc(&plot.y.label).label_style((FONT, LABEL_SIZE)).draw()?;
    let width = GROUP_WIDTH / series.len().max(1) as f64;
    for (number, Drawn { points, colour, .. }) in series.iter().enumerate() {
        let bar = |&(group, value): &(f64, f64)| {
            let left = group - GROUP_WIDTH / 2.0 + width * number as f64;
            Rectangle::new([(left, bottom), (left + width * 0.92, value)], colour.filled())
        };
        if plot.groups.is_empty() {
            let style = colour.filled().stroke_width(2);
            chart.draw_series(LineSeries::new(points.iter().copied(), style).point_size(3))?;
        } else {
            chart.draw_series(points.iter().map(bar))?;
        }
    }
    Ok(())
}

fn legend(area: &Area<'_>, series: &[Drawn<'_>]) -> Result<()> {
    for (row, Drawn { name, colour, .. }) in (0..).zip(series) {
        let top = LEGEND_TOP + LEGEND_ROW * row;
        area.draw(&Rectangle::new([(0, top), (14, top + 14)], colour.filled()))?;
        area.draw(&Text::new(*name, (22, top), (FONT, LABEL_SIZE)))?;
    }
    Ok(())
}

impl<'a> Drawn<'a> {
    /// Leaves out points without a position on an axis.
    fn new(plot: &Plot, series: &'a Series, colour: RGBColor) -> Self {
        let point = |&(x, y): &(f64, f64)| Some((place(&plot.x, x)?, place(&plot.y, y)?));
        Self {
            name: &series.name,
            points: series.points.iter().filter_map(point).collect(),
            colour,
        }
    }
}

impl<'a> Ruler<'a> {
    /// Creates an axis with ticks at round values.
    fn new(axis: &'a Axis, range: Range<f64>) -> Self {
        let ticks = match axis.scale {
            Scale::Logarithmic => logarithmic_ticks(&range),
            Scale::Linear => linear_ticks(&range),
        };
        Self { axis, groups: &[], range, ticks }
    }

    /// Adds a tick for each group of bars, if there are groups.
    fn with_groups(self, groups: &'a [String]) -> Self {
        if groups.is_empty() {
            return self;
        }
        let range = -0.5..groups.len() as f64 - 0.5;
        let ticks = (0..groups.len()).map(|group| group as f64).collect();
        Self { groups, range, ticks, ..self }
    }
}

impl Ranged for Ruler<'_> {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, place: &f64, (first, last): (i32, i32)) -> i32 {
        let share = (place - self.range.start) / (self.range.end - self.range.start);
        first + (share * f64::from(last - first)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.ticks.clone()
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

impl ValueFormatter<f64> for Ruler<'_> {
    fn format_ext(&self, place: &f64) -> String {
        match self.groups.get(*place as usize) {
            Some(group) => group.clone(),
            None => label(self.axis, *place),
        }
    }
}

/// Position of a value along an axis.
fn place(axis: &Axis, value: f64) -> Option<f64> {
    let place = match axis.scale {
        Scale::Linear => value,
        Scale::Logarithmic => value.log10(),
    };
    place.is_finite().then_some(place)
}

/// The value at a position, without trailing zeros.
fn label(axis: &Axis, place: f64) -> String {
    let value = match axis.scale {
        Scale::Linear => place,
        Scale::Logarithmic => 10_f64.powf(place),
    };
    let (value, unit) = if value >= 1e6 { (value / 1e6, " M") } else { (value, "") };
    let text = short(value);
    let text = match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.'),
        false => &text,
    };
    format!("{text}{unit}")
}

/// The range from the smallest position, or from 0, to the largest, with a margin.
fn range(places: impl Iterator<Item = f64>, from_zero: bool) -> Range<f64> {
    let (min, max) = places.fold((f64::MAX, f64::MIN), |(min, max), at| (min.min(at), max.max(at)));
    if min > max {
        return 0.0..1.0;
    }
    let min = if from_zero { min.min(0.0) } else { min };
    let room = if max > min { (max - min) * 0.04 } else { 1.0 };
    min..max + room
}

fn linear_ticks(range: &Range<f64>) -> Vec<f64> {
    RangedCoordf64::from(range.clone()).key_points(TICKS)
}

/// Ticks at powers of 10, and at 2 and 5 times these if there is room.
fn logarithmic_ticks(range: &Range<f64>) -> Vec<f64> {
    let decades = range.start.floor() as i32..=range.end.ceil() as i32;
    let factors: &[f64] = if range.end - range.start > 3.0 { &[1.0] } else { &[1.0, 2.0, 5.0] };
    let ticks = decades
        .flat_map(|decade| factors.iter().map(move |factor| f64::from(decade) + factor.log10()));
    let ticks: Vec<f64> = ticks.filter(|place| range.contains(place)).collect();
    if ticks.len() > 1 { ticks } else { linear_ticks(range) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_short() {
        for (axis, place, text) in [
            (Axis::linear(""), 0.25, "0.25"),
            (Axis::linear(""), 2_000_000.0, "2 M"),
            (Axis::logarithmic(""), 3.0, "1,000"),
            (Axis::logarithmic(""), 200_f64.log10(), "200"),
        ] {
            assert_eq!(label(&axis, place), text);
        }
    }

    #[test]
    fn plots_have_their_lines_bars_and_labels() {
        let axes = || (Axis::logarithmic("pairs"), Axis::linear("bytes per pair"));
        let (x, y) = axes();
        let plot = Plot::lines("memory-pairs", "Memory & pairs", x, y)
            .with_line("ours", [(2e6, 38.0), (1e7, 36.0), (5e7, 37.0), (0.0, 1.0)])
            .with_line("peer", [(2e6, 56.0)]);
        let lines = svg(&plot).expect("a plot");
        for text in ["<svg", "Memory &amp; pairs", "ours", "peer", "10 M", "bytes per pair"] {
            assert!(lines.contains(text), "{text}: {lines}");
        }
        assert_eq!(lines.matches("<circle").count(), 4, "a point at 0 has no place: {lines}");
        let bars = Plot::bars("memory", "Memory", ["distinct", "shared8"], axes().1)
            .with_bars("ours", [Some(38.0), Some(5.4)])
            .with_bars("peer", [Some(56.0), None]);
        let bars = svg(&bars).expect("a plot");
        assert!(bars.contains("distinct") && bars.contains("shared8"), "{bars}");
        assert!(svg(&Plot::lines("none", "None", axes().0, axes().1)).is_ok());
    }
}
