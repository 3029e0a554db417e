//! Plots, as data.

use serde::{Deserialize, Serialize};

/// A plot of lines or of bars.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plot {
    /// Name of the plot's file, without the extension.
    pub name: String,
    /// Title above the plot.
    pub title: String,
    /// Horizontal axis of lines.
    pub x: Axis,
    /// Vertical axis of lines; axis of the values of bars.
    pub y: Axis,
    /// Names of the groups of bars, at 0, 1, .. as x; empty for a plot of lines.
    pub groups: Vec<String>,
    /// Lines or bars of the plot.
    pub series: Vec<Series>,
}

/// One line, or one bar of each group.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// Name in the legend.
    pub name: String,
    /// Points (x, y).
    pub points: Vec<(f64, f64)>,
    /// Half of each point's confidence interval, in the unit of y; empty if no interval is known.
    #[serde(default)]
    pub halves: Vec<f64>,
}

/// An axis.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Axis {
    /// Quantity and unit.
    pub label: String,
    /// Scale of the axis.
    pub scale: Scale,
}

/// Scale of an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Scale {
    /// Equal distances for equal differences.
    Linear,
    /// Equal distances for equal ratios; values of 0 or less are not shown.
    Logarithmic,
}

impl Plot {
    /// An empty plot of lines.
    pub fn lines(name: impl Into<String>, title: impl Into<String>, x: Axis, y: Axis) -> Self {
        let groups = Vec::new();
        let series = Vec::new();
        Self { name: name.into(), title: title.into(), x, y, groups, series }
    }

    /// An empty plot of groups of bars.
    pub fn bars<S: Into<String>>(
        name: impl Into<String>,
        title: impl Into<String>,
        groups: impl IntoIterator<Item = S>,
        y: Axis,
    ) -> Self {
        let groups = groups.into_iter().map(Into::into).collect();
        Self { groups, ..Self::lines(name, title, Axis::linear(""), y) }
    }

    /// Adds a line, if it has points.
    #[must_use]
    pub fn with_line(
        self,
        name: impl Into<String>,
        points: impl IntoIterator<Item = (f64, f64)>,
    ) -> Self {
        self.with_series(Series::new(name.into(), points))
    }

    /// Adds a line of points (x, y, half of the confidence interval), if it has points.
    #[must_use]
    pub fn with_estimates(
        self,
        name: impl Into<String>,
        points: impl IntoIterator<Item = (f64, f64, f64)>,
    ) -> Self {
        let points: Vec<_> = points.into_iter().collect();
        let halves = points.iter().map(|(_, _, half)| *half).collect();
        let points = points.into_iter().map(|(x, y, _)| (x, y));
        self.with_series(Series { halves, ..Series::new(name.into(), points) })
    }

    /// Adds a bar to each group that has a value, if there is any.
    #[must_use]
    pub fn with_bars(
        self,
        name: impl Into<String>,
        values: impl IntoIterator<Item = Option<f64>>,
    ) -> Self {
        let values = values.into_iter().enumerate();
        self.with_line(name, values.filter_map(|(group, value)| Some((group as f64, value?))))
    }

    /// Adds a bar with a confidence interval (value, half of the interval) to each group that has a value.
    #[must_use]
    pub fn with_bar_estimates(
        self,
        name: impl Into<String>,
        values: impl IntoIterator<Item = Option<(f64, f64)>>,
    ) -> Self {
        let point = |(group, value): (usize, Option<(f64, f64)>)| {
            let (value, half) = value?;
            Some((group as f64, value, half))
        };
        self.with_estimates(name, values.into_iter().enumerate().filter_map(point))
    }

    fn with_series(mut self, series: Series) -> Self {
        if !series.points.is_empty() {
            self.series.push(series);
        }
        self
    }
}

impl Series {
    fn new(name: String, points: impl IntoIterator<Item = (f64, f64)>) -> Self {
        Self { name, points: points.into_iter().collect(), halves: Vec::new() }
    }

    /// Whether confidence intervals are known.
    #[must_use]
    pub fn has_intervals(&self) -> bool {
        !self.halves.is_empty()
    }

    /// Points with half of their confidence intervals: 0 where none is known.
    pub fn with_intervals(&self) -> impl Iterator<Item = (f64, f64, f64)> {
        let halves = self.halves.iter().copied().chain(std::iter::repeat(0.0));
        self.points.iter().zip(halves).map(|(&(x, y), half)| (x, y, half))
    }
}

impl Axis {
    /// A linear axis.
    pub fn linear(label: impl Into<String>) -> Self {
        Self { label: label.into(), scale: Scale::Linear }
    }

    /// A logarithmic axis.
    pub fn logarithmic(label: impl Into<String>) -> Self {
        Self { label: label.into(), scale: Scale::Logarithmic }
    }
}
