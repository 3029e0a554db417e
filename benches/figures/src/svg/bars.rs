//! Draws groups of horizontal bars: names of any length stay readable.

use super::canvas::{Anchor, Canvas, GRID, LEGEND_WIDTH, Style, TOP, WIDTH};
use super::ruler::{Ruler, significant};
use crate::plot::{Plot, Series};

/// Height of a bar.
const BAR: f64 = 20.0;
/// Distance between groups.
const GAP: f64 = 8.0;
const BOTTOM: f64 = 50.0;
/// Approximate width of a character.
const CHARACTER: f64 = 7.6;
/// Widths of the column of group names.
const NAMES_MIN: f64 = 60.0;
const NAMES_MAX: f64 = 320.0;
/// Room for the value at the end of the longest bar.
const VALUE: f64 = 70.0;

/// The bars of one group, from top to bottom.
struct Group<'a> {
    name: &'a str,
    bars: Vec<Bar>,
}

struct Bar {
    series: usize,
    value: f64,
    half: f64,
}

pub(super) fn draw(plot: &Plot) -> String {
    let groups = groups(plot);
    let longest = plot.groups.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    let left = (longest as f64 * CHARACTER + 24.0).clamp(NAMES_MIN, NAMES_MAX);
    let right = WIDTH - LEGEND_WIDTH - VALUE;
    let ends = plot.series.iter().flat_map(Series::with_intervals);
    let ends = ends.flat_map(|(_, value, half)| [value, value + half]);
    let x = Ruler::new(plot.y.scale, ends, left, right).starting_at_origin();
    let rows: f64 = groups.iter().map(|group| group.bars.len().max(1) as f64 * BAR + GAP).sum();
    let bottom = TOP + rows.max(Canvas::legend_height(plot.series.len()));

    let mut canvas = Canvas::new(bottom + BOTTOM, &plot.title);
    for (at, label) in x.ticks() {
        canvas.stroke(&[(at, TOP), (at, bottom)], Style::solid(GRID));
        canvas.label(at, bottom + 18.0, Anchor::Middle, &label);
    }
    canvas.label(f64::midpoint(left, right), bottom + 38.0, Anchor::Middle, &plot.y.label);
    let mut top = TOP + GAP / 2.0;
    for group in &groups {
        let height = group.bars.len().max(1) as f64 * BAR;
        canvas.label(left - 8.0, top + height / 2.0 + 5.0, Anchor::End, group.name);
        for (row, bar) in group.bars.iter().enumerate() {
            draw_bar(&mut canvas, &x, left, top + row as f64 * BAR, bar);
        }
        top += height + GAP;
    }
    canvas.legend(plot.series.iter().map(|series| &*series.name));
    canvas.finish()
}

fn draw_bar(canvas: &mut Canvas, x: &Ruler, left: f64, top: f64, bar: &Bar) {
    let Bar { series, value, half } = *bar;
    let middle = top + BAR / 2.0;
    let high = x.pixel_within(value + half);
    canvas.bar(left, x.pixel_within(value), top + 2.0, BAR - 4.0, Style::of_series(series));
    if half > 0.0 {
        let low = x.pixel_within(value - half);
        canvas.stroke(&[(low, middle), (high, middle)], Style::solid("#000000"));
    }
    canvas.label(high + 6.0, middle + 5.0, Anchor::Start, &significant(value));
}

/// The bars by group. A series may lack a bar in a group.
fn groups(plot: &Plot) -> Vec<Group<'_>> {
    let bar = |group: usize, series: usize, of: &Series| {
        let (_, value, half) = of.with_intervals().find(|(at, _, _)| *at == group as f64)?;
        Some(Bar { series, value, half })
    };
    let bars = |group| {
        let all = plot.series.iter().enumerate();
        all.filter_map(|(series, of)| bar(group, series, of)).collect()
    };
    let names = plot.groups.iter().enumerate();
    names.map(|(group, name)| Group { name, bars: bars(group) }).collect()
}
