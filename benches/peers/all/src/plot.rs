//! Plots, as SVG.

use bench_figures::{Axes, Drawing, Plot, Scale, Series};
use plotters::coord::Shift;
use plotters::coord::ranged1d::{Ranged, ValueFormatter};
use plotters::prelude::*;
use std::ops::Range;

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
#[error("cannot draw {name}: {reason}")]
pub(crate) struct PlotError {
    name: String,
    reason: String,
}

/// Draws a plot.
///
/// # Errors
/// If there is nothing to draw.
pub(crate) fn svg(plot: &Plot) -> Result<String, PlotError> {
    let error = |reason: String| PlotError { name: plot.name.clone(), reason };
    let mut text = String::new();
    let drawn = {
        let root = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        draw(&root, plot).and_then(|()| root.present().map_err(Into::into))
    };
    drawn.map_err(|reason| error(reason.to_string()))?;
    Ok(text)
}

type Root<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), Box<dyn std::error::Error>>;

fn draw(root: &Root<'_>, plot: &Plot) -> Drawn {
    const NOTHING: &str = "there is nothing to draw";
    root.fill(&WHITE)?;
    let axes = &plot.axes;
    match &plot.drawing {
        Drawing::Lines(series) => {
            let placed = placed(axes, series);
            let all = || placed.iter().flat_map(|line| &line.values);
            let x = range(all().map(|point| point.0), false).ok_or(NOTHING)?;
            let from_zero = axes.y_scale == Scale::Linear;
            let y = range(all().map(|point| point.1), from_zero).ok_or(NOTHING)?;
            draw_lines(root, plot, &placed, x, y)
        }
        Drawing::Bars(groups, series) => {
            let all = series.iter().flat_map(|bars| &bars.values).copied();
            let y = range(all, true).ok_or(NOTHING)?;
            draw_bars(root, plot, groups, series, y.start..y.end * ABOVE_BARS)
        }
    }
}

/// The points where they lie along the axes, without those that have no place on one.
fn placed(axes: &Axes, series: &[Series<(f64, f64)>]) -> Vec<Series<(f64, f64)>> {
    let point = |&(x, y): &(f64, f64)| Some((place(axes.x_scale, x)?, place(axes.y_scale, y)?));
    let line = |line: &Series<(f64, f64)>| Series {
        name: line.name.clone(),
        values: line.values.iter().filter_map(point).collect(),
    };
    series.iter().map(line).collect()
}

fn place(scale: Scale, value: f64) -> Option<f64> {
    match scale {
        Scale::Linear => Some(value),
        Scale::Logarithmic => (value > 0.0).then(|| value.log10()),
    }
}

fn label(scale: Scale, place: f64) -> String {
    let value = match scale {
        Scale::Linear => place,
        Scale::Logarithmic => 10_f64.powf(place),
    };
    match value {
        value if value >= 1e6 => format!("{} M", round(value / 1e6)),
        value if value >= 1e4 => format!("{} k", round(value / 1e3)),
        value => round(value),
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
    plot: &Plot,
    series: &[Series<(f64, f64)>],
    x: Range<f64>,
    y: Range<f64>,
) -> Drawn {
    let mut chart = ChartBuilder::on(root);
    let mut chart = margins(&mut chart, plot).build_cartesian_2d(x, y)?;
    let mut mesh = chart.configure_mesh();
    let axes = &plot.axes;
    let x_label = |place: &f64| label(axes.x_scale, *place);
    let y_label = |place: &f64| label(axes.y_scale, *place);
    mesh.x_desc(&axes.x).y_desc(&axes.y).x_label_formatter(&x_label).y_label_formatter(&y_label);
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
    plot: &Plot,
    groups: &[String],
    series: &[Series<f64>],
    y: Range<f64>,
) -> Drawn {
    let mut chart = ChartBuilder::on(root);
    let x = -0.5..groups.len() as f64 - 0.5;
    let mut chart = margins(&mut chart, plot).build_cartesian_2d(x, y)?;
    let mut mesh = chart.configure_mesh();
    let x_label = |place: &f64| match place.fract() == 0.0 && *place >= 0.0 {
        true => groups.get(*place as usize).cloned().unwrap_or_default(),
        false => String::new(),
    };
    let y_label = |place: &f64| label(Scale::Linear, *place);
    mesh.x_desc(&plot.axes.x).y_desc(&plot.axes.y).x_labels(groups.len() * 2 + 1);
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
    plot: &Plot,
) -> &'c mut ChartBuilder<'a, 'b, SVGBackend<'b>> {
    chart
        .caption(&plot.title, ("sans-serif", TITLE_SIZE))
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
            assert_eq!(label(scale, place), text);
        }
    }

    #[test]
    fn nothing_cannot_be_drawn() {
        let plot = |drawing| Plot {
            name: "p".to_owned(),
            title: "t".to_owned(),
            axes: Axes::logarithmic("x", "y"),
            drawing,
        };
        let error = svg(&plot(Drawing::Lines(Vec::new()))).expect_err("nothing");
        assert!(error.to_string().contains("nothing to draw"), "{error}");
        let line = Series { name: "a line".to_owned(), values: vec![(1.0, 2.0), (10.0, 3.0)] };
        let drawn = svg(&plot(Drawing::Lines(vec![line]))).expect("a plot");
        assert!(drawn.starts_with("<svg") && drawn.contains("a line"), "{drawn}");
        let bars = Series { name: "b".to_owned(), values: vec![1.0] };
        let drawn = svg(&plot(Drawing::Bars(vec!["a group".to_owned()], vec![bars])));
        assert!(drawn.expect("a plot").contains("a group"));
    }
}
