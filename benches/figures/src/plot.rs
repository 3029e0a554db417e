//! Plots, as data.

use serde::{Deserialize, Serialize};

/// A plot of lines or of bars.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plot {
    /// Name of its file, without the extension.
    pub name: String,
    /// Above it.
    pub title: String,
    /// From left to right.
    pub x: Axis,
    /// From bottom to top.
    pub y: Axis,
    /// Names of the groups of bars, which are at 0, 1, .. of the x axis; none if it has lines.
    pub groups: Vec<String>,
    /// What it shows.
    pub series: Vec<Series>,
}

/// One line, or one bar of each group.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// In the legend.
    pub name: String,
    /// Its values, (x, y).
    pub points: Vec<(f64, f64)>,
}

/// An axis.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Axis {
    /// What it shows, with the unit.
    pub label: String,
    /// How values are laid out along it.
    pub scale: Scale,
}

/// How values are laid out along an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Scale {
    /// Equal distances for equal differences.
    Linear,
    /// Equal distances for equal ratios; values up to 0 are not shown.
    Logarithmic,
}

impl Plot {
    /// A plot of lines, none of which is there yet.
    pub fn lines(name: impl Into<String>, title: impl Into<String>, x: Axis, y: Axis) -> Self {
        let groups = Vec::new();
        let series = Vec::new();
        Self { name: name.into(), title: title.into(), x, y, groups, series }
    }

    /// A plot of groups of bars, none of which is there yet.
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

    /// Adds a bar to each group that has a value, if any has.
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
