//! Draws plots as SVG text: lines over two axes, or groups of horizontal bars.

mod bars;
mod canvas;
mod lines;
mod ruler;

use crate::plot::Plot;

/// Draws a plot: the content of an SVG file.
#[must_use]
pub fn svg(plot: &Plot) -> String {
    if plot.groups.is_empty() { lines::draw(plot) } else { bars::draw(plot) }
}

#[cfg(test)]
#[path = "svg_test.rs"]
mod tests;
