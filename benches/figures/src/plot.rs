//! Plots, as data.

use serde::{Deserialize, Serialize};

/// A plot of lines or of bars.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plot {
    /// Name of the plot's file, without the extension.
    pub name: String,
    /// Title above the plot.
    pub title: String,
    /// Horizontal axis.
    pub x: Axis,
    /// Vertical axis.
    pub y: Axis,
    /// Names of the groups of bars, at 0, 1, .. of the x axis; empty for a plot of lines.
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
        mut self,
        name: impl Into<String>,
        points: impl IntoIterator<Item = (f64, f64)>,
    ) -> Self {
        let points: Vec<(f64, f64)> = points.into_iter().collect();
        if !points.is_empty() {
            self.series.push(Series { name: name.into(), points });
        }
        self
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
