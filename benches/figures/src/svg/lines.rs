//! Draws lines over two axes.

use super::canvas::{Anchor, Canvas, GRID, LEGEND_WIDTH, Style, TOP, WIDTH};
use super::ruler::Ruler;
use crate::plot::{Plot, Scale, Series};

const HEIGHT: f64 = 480.0;
const LEFT: f64 = 90.0;
const RIGHT: f64 = WIDTH - LEGEND_WIDTH;
const BOTTOM: f64 = HEIGHT - 60.0;
/// Distance of points from the ends of the x axis.
const MARGIN: f64 = 16.0;
/// Horizontal offset between lines, so that their intervals do not hide each other.
const SHIFT: f64 = 3.0;

pub(super) fn draw(plot: &Plot) -> String {
    let x =
        Ruler::new(plot.x.scale, values(plot, |(x, _, _)| [x, x]), LEFT + MARGIN, RIGHT - MARGIN);
    let y = Ruler::new(plot.y.scale, values(plot, |(_, y, half)| [y, y + half]), BOTTOM, TOP);
    let y = if plot.y.scale == Scale::Linear { y.starting_at_origin() } else { y };
    let mut canvas = Canvas::new(HEIGHT, &plot.title);
    let grid = Style::solid(GRID);
    for (at, label) in y.ticks() {
        canvas.stroke(&[(LEFT, at), (RIGHT, at)], grid);
        canvas.label(LEFT - 8.0, at + 5.0, Anchor::End, &label);
    }
    for (at, label) in x.ticks() {
        canvas.stroke(&[(at, TOP), (at, BOTTOM)], grid);
        canvas.label(at, BOTTOM + 20.0, Anchor::Middle, &label);
    }
    canvas.label(16.0, TOP - 16.0, Anchor::Start, &plot.y.label);
    canvas.label(f64::midpoint(LEFT, RIGHT), HEIGHT - 14.0, Anchor::Middle, &plot.x.label);
    for (number, series) in plot.series.iter().enumerate() {
        let beside = match series.has_intervals() {
            true => (number as f64 - plot.series.len() as f64 / 2.0) * SHIFT,
            false => 0.0,
        };
        draw_series(&mut canvas, series, Style::of_series(number), &x, &y, beside);
    }
    canvas.legend(plot.series.iter().map(|series| &*series.name));
    canvas.finish()
}

/// The values of one axis.
fn values(plot: &Plot, of: impl Fn((f64, f64, f64)) -> [f64; 2]) -> impl Iterator<Item = f64> {
    plot.series.iter().flat_map(Series::with_intervals).flat_map(of)
}

/// Draws a line with its points and intervals, without the points that an axis cannot show.
fn draw_series(
    canvas: &mut Canvas,
    series: &Series,
    style: Style,
    x: &Ruler,
    y: &Ruler,
    beside: f64,
) {
    let mut points = Vec::new();
    for (value_x, value_y, half) in series.with_intervals() {
        let Some((at_x, at_y)) = x.pixel(value_x).zip(y.pixel(value_y)) else { continue };
        let at_x = at_x + beside;
        points.push((at_x, at_y));
        canvas.dot(at_x, at_y, style);
        if half > 0.0 {
            let ends = [value_y - half, value_y + half].map(|value| (at_x, y.pixel_within(value)));
            canvas.stroke(&ends, Style::solid(style.colour));
        }
    }
    canvas.stroke(&points, style);
}
