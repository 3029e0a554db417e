//! Plots, as SVG files.

use plotters::coord::Shift;
use plotters::coord::ranged1d::{Ranged, ValueFormatter};
use plotters::prelude::*;
use std::ops::Range;
use std::path::{Path, PathBuf};

const SIZE: (u32, u32) = (860, 480);
const TITLE_SIZE: u32 = 23;
const LABEL_SIZE: u32 = 17;
/// Room above bars, for the legend.
const ABOVE_BARS: f64 = 1.25;
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
/// Width that the bars of one group share, of the distance between groups.
const GROUP_WIDTH: f64 = 0.8;

/// Why a plot cannot be drawn.
#[derive(Debug, thiserror::Error)]
#[error("cannot draw {path}: {reason}")]
pub struct PlotError {
    path: PathBuf,
    reason: String,
}

/// How values are laid out along an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// Equal distances for equal differences.
    Linear,
    /// Equal distances for equal ratios; values must be above 0.
    Logarithmic,
}

impl Scale {
    fn place(self, value: f64) -> f64 {
        match self {
            Self::Linear => value,
            Self::Logarithmic => value.max(f64::MIN_POSITIVE).log10(),
        }
    }

    fn label(self, place: f64) -> String {
        let value = match self {
            Self::Linear => place,
            Self::Logarithmic => 10_f64.powf(place),
        };
        match value {
            value if value >= 1e6 => format!("{} M", round(value / 1e6)),
            value if value >= 1e4 => format!("{} k", round(value / 1e3)),
            value => round(value),
        }
    }
}

fn round(value: f64) -> String {
    let text = match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    };
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

/// What stands around a plot.
#[derive(Debug, Clone)]
pub struct Axes<'a> {
    /// Above it.
    pub title: &'a str,
    /// Below it, with the unit.
    pub x: &'a str,
    /// Left of it, with the unit.
    pub y: &'a str,
    /// Along the x axis.
    pub x_scale: Scale,
}

/// One line, or one bar of each group.
#[derive(Debug, Clone, PartialEq)]
pub struct Series<T> {
    /// In the legend.
    pub name: String,
    /// Its values.
    pub values: Vec<T>,
}

/// Draws lines through (x, y) points.
///
/// # Errors
/// If the file cannot be written, or there is nothing to draw.
pub fn lines(path: &Path, axes: &Axes<'_>, series: &[Series<(f64, f64)>]) -> Result<(), PlotError> {
    let placed: Vec<Series<(f64, f64)>> = series
        .iter()
        .map(|line| Series {
            name: line.name.clone(),
            values: line.values.iter().map(|&(x, y)| (axes.x_scale.place(x), y)).collect(),
        })
        .collect();
    let all = || placed.iter().flat_map(|line| &line.values);
    let x = range(all().map(|point| point.0), false);
    let y = range(all().map(|point| point.1), true);
    draw(path, x.zip(y), |root, (x, y)| draw_lines(root, axes, &placed, x, y))
}

/// Draws groups of bars: one value per group and series.
///
/// # Errors
/// If the file cannot be written, or there is nothing to draw.
pub fn bars(
    path: &Path,
    axes: &Axes<'_>,
    groups: &[String],
    series: &[Series<f64>],
) -> Result<(), PlotError> {
    let y = range(series.iter().flat_map(|bars| &bars.values).copied(), true);
    let y = y.map(|y| y.start..y.end * ABOVE_BARS);
    draw(path, y, |root, y| draw_bars(root, axes, groups, series, y))
}

type Root<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), Box<dyn std::error::Error>>;

fn draw<T>(
    path: &Path,
    range: Option<T>,
    drawing: impl FnOnce(&Root<'_>, T) -> Drawn,
) -> Result<(), PlotError> {
    let error = |reason: String| PlotError { path: path.to_owned(), reason };
    let range = range.ok_or_else(|| error("there is nothing to draw".to_owned()))?;
    let root = SVGBackend::new(path, SIZE).into_drawing_area();
    let drawn = root.fill(&WHITE).map_err(Into::into).and_then(|()| drawing(&root, range));
    let drawn = drawn.and_then(|()| root.present().map_err(Into::into));
    drawn.map_err(|reason| error(reason.to_string()))
}

/// Smallest and largest value with some room; from 0 if asked.
fn range(values: impl Iterator<Item = f64>, from_zero: bool) -> Option<Range<f64>> {
    let finite = values.filter(|value| value.is_finite());
    let (min, max) = finite.fold((f64::MAX, f64::MIN), |(min, max), at| (min.min(at), max.max(at)));
    if min > max {
        return None;
    }
    let min = if from_zero { min.min(0.0) } else { min };
    let room = if max > min { (max - min) * 0.04 } else { 1.0 };
    Some(min..max + room)
}

fn draw_lines(
    root: &Root<'_>,
    axes: &Axes<'_>,
    series: &[Series<(f64, f64)>],
    x: Range<f64>,
    y: Range<f64>,
) -> Drawn {
    let mut chart = ChartBuilder::on(root);
    let mut chart = margins(&mut chart, axes).build_cartesian_2d(x, y)?;
    let mut mesh = chart.configure_mesh();
    let x_label = |place: &f64| axes.x_scale.label(*place);
    let y_label = |place: &f64| Scale::Linear.label(*place);
    mesh.x_desc(axes.x).y_desc(axes.y).x_label_formatter(&x_label).y_label_formatter(&y_label);
    mesh.light_line_style(TRANSPARENT).label_style(("sans-serif", LABEL_SIZE)).draw()?;
    for (line, &colour) in series.iter().zip(COLOURS.iter().cycle()) {
        let drawn = LineSeries::new(line.values.iter().copied(), colour.stroke_width(2));
        let key = move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2));
        chart.draw_series(drawn)?.label(&line.name).legend(key);
    }
    legend(&mut chart, SeriesLabelPosition::LowerRight)
}

fn draw_bars(
    root: &Root<'_>,
    axes: &Axes<'_>,
    groups: &[String],
    series: &[Series<f64>],
    y: Range<f64>,
) -> Drawn {
    let mut chart = ChartBuilder::on(root);
    let x = -0.5..groups.len() as f64 - 0.5;
    let mut chart = margins(&mut chart, axes).build_cartesian_2d(x, y)?;
    let mut mesh = chart.configure_mesh();
    let x_label = |place: &f64| match place.fract() == 0.0 && *place >= 0.0 {
        true => groups.get(*place as usize).cloned().unwrap_or_default(),
        false => String::new(),
    };
    let y_label = |place: &f64| Scale::Linear.label(*place);
    mesh.x_desc(axes.x).y_desc(axes.y).x_labels(groups.len() * 2 + 1);
    mesh.x_label_formatter(&x_label).y_label_formatter(&y_label);
    mesh.disable_x_mesh().light_line_style(TRANSPARENT);
    mesh.label_style(("sans-serif", LABEL_SIZE)).draw()?;
    let width = GROUP_WIDTH / series.len().max(1) as f64;
    for (number, (bars, &colour)) in series.iter().zip(COLOURS.iter().cycle()).enumerate() {
        let bar = |(group, &value): (usize, &f64)| {
            let left = group as f64 - GROUP_WIDTH / 2.0 + width * number as f64;
            Rectangle::new([(left, 0.0), (left + width * 0.92, value)], colour.filled())
        };
        let drawn = bars.values.iter().enumerate().map(bar);
        let key = move |(x, y)| Rectangle::new([(x, y - 5), (x + 12, y + 5)], colour.filled());
        chart.draw_series(drawn)?.label(&bars.name).legend(key);
    }
    legend(&mut chart, SeriesLabelPosition::UpperRight)
}

fn margins<'a, 'b, 'c>(
    chart: &'c mut ChartBuilder<'a, 'b, SVGBackend<'b>>,
    axes: &Axes<'_>,
) -> &'c mut ChartBuilder<'a, 'b, SVGBackend<'b>> {
    chart
        .caption(axes.title, ("sans-serif", TITLE_SIZE))
        .margin(14)
        .x_label_area_size(52)
        .y_label_area_size(80)
}

fn legend<'a, 'b: 'a, X, Y>(
    chart: &mut ChartContext<'a, SVGBackend<'b>, Cartesian2d<X, Y>>,
    position: SeriesLabelPosition,
) -> Drawn
where
    X: Ranged<ValueType = f64> + ValueFormatter<f64>,
    Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    chart
        .configure_series_labels()
        .position(position)
        .label_font(("sans-serif", LABEL_SIZE))
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.3))
        .draw()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_short() {
        for (scale, place, text) in [
            (Scale::Linear, 0.25, "0.25"),
            (Scale::Linear, 2_000_000.0, "2 M"),
            (Scale::Logarithmic, 3.0, "1000"),
            (Scale::Logarithmic, 4.5, "31.6 k"),
        ] {
            assert_eq!(scale.label(place), text);
        }
    }

    #[test]
    fn nothing_cannot_be_drawn() {
        let axes = Axes { title: "t", x: "x", y: "y", x_scale: Scale::Linear };
        let error = lines(Path::new("/nowhere/plot.svg"), &axes, &[]).expect_err("nothing");
        assert!(error.to_string().contains("nothing to draw"), "{error}");
    }
}
