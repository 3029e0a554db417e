//! One part of the benches, as data: what was to be reached, and everything that was measured.

use crate::Table;
use serde::{Deserialize, Serialize};

/// What a part says.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// Its heading.
    pub title: String,
    /// What was compared and how, a paragraph each.
    pub notes: Vec<String>,
    /// What was to be reached, whether or not it was measured.
    pub bars: Vec<Bar>,
    /// Everything that was measured.
    pub sections: Vec<Section>,
    /// The same as pictures.
    pub plots: Vec<Plot>,
    /// Trials without figures, and why.
    pub incidents: Vec<Incident>,
}

/// A trial without figures, and why.
pub type Incident = (String, String);

/// A table with its heading.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Section {
    /// The heading.
    pub title: String,
    /// How to read it.
    pub note: String,
    /// The figures.
    pub table: Table,
}

/// Where a bar lies.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum Limit {
    /// The value must not be larger.
    AtMost(f64),
    /// The value must not be smaller.
    AtLeast(f64),
}

impl Limit {
    /// Whether a value is on the good side.
    #[must_use]
    pub fn allows(self, value: f64) -> bool {
        match self {
            Self::AtMost(most) => value <= most,
            Self::AtLeast(least) => value >= least,
        }
    }

    /// Whether `a` is nearer to the good side than `b`.
    #[must_use]
    pub fn prefers(self, a: f64, b: f64) -> bool {
        match self {
            Self::AtMost(_) => a < b,
            Self::AtLeast(_) => a > b,
        }
    }

    /// In words; `show` writes the number.
    pub fn text(self, show: impl Fn(f64) -> String) -> String {
        match self {
            Self::AtMost(most) => format!("≤ {}", show(most)),
            Self::AtLeast(least) => format!("≥ {}", show(least)),
        }
    }
}

/// What became of a bar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Reached.
    Met,
    /// Measured and not reached.
    Missed,
    /// Not measured, or not a number: never counts as met.
    NotMeasured,
}

/// One side of a comparison, as text.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Side {
    /// The median, with its unit, and whose it is if that is not clear.
    pub text: String,
    /// Largest less smallest, as a share of the median.
    pub spread: String,
    /// Trials that it is the median of.
    pub trials: usize,
}

/// Something that was to be reached.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Bar {
    /// Names it for explanations: words between points.
    pub id: String,
    /// What is measured.
    pub what: String,
    /// What is wanted.
    pub limit: Limit,
    /// That in words.
    pub wanted: String,
    /// What was measured; none if nothing was.
    pub value: Option<f64>,
    /// That in words.
    pub measured: String,
    /// Ours.
    pub ours: Side,
    /// What it is compared with.
    pub other: Side,
}

impl Bar {
    /// A bar on a ratio to something, which `against` names; not measured yet.
    pub fn ratio(id: String, what: String, limit: Limit, against: &str) -> Self {
        let wanted = limit.text(|limit| format!("{limit} × {against}"));
        Self::new(id, what, limit, wanted)
    }

    /// A bar on a figure of ours alone; not measured yet.
    pub fn new(id: String, what: String, limit: Limit, wanted: String) -> Self {
        let (ours, other) = (Side::default(), Side::default());
        Self { id, what, limit, wanted, value: None, measured: String::new(), ours, other }
    }

    /// With the ratio that was measured, if it was.
    #[must_use]
    pub fn with_ratio(self, value: Option<f64>) -> Self {
        Self { value, measured: value.map_or(String::new(), |at| format!("{at:.2} ×")), ..self }
    }

    /// What became of it.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        match self.value {
            Some(value) if value.is_finite() => match self.limit.allows(value) {
                true => Verdict::Met,
                false => Verdict::Missed,
            },
            _ => Verdict::NotMeasured,
        }
    }
}

/// How values are laid out along an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Scale {
    /// Equal distances for equal differences.
    Linear,
    /// Equal distances for equal ratios; values must be above 0.
    Logarithmic,
}

/// What stands around a plot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Axes {
    /// Below it, with the unit.
    pub x: String,
    /// Left of it, with the unit.
    pub y: String,
    /// Along the x axis.
    pub x_scale: Scale,
    /// Along the y axis of lines; bars are linear.
    pub y_scale: Scale,
}

impl Axes {
    /// Both axes linear.
    pub fn linear(x: &str, y: &str) -> Self {
        let (x_scale, y_scale) = (Scale::Linear, Scale::Linear);
        Self { x: x.to_owned(), y: y.to_owned(), x_scale, y_scale }
    }

    /// The x axis logarithmic.
    pub fn logarithmic(x: &str, y: &str) -> Self {
        Self { x_scale: Scale::Logarithmic, ..Self::linear(x, y) }
    }
}

/// One line, or one bar of each group.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Series<T> {
    /// In the legend.
    pub name: String,
    /// Its values.
    pub values: Vec<T>,
}

/// What is drawn.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Drawing {
    /// Lines through (x, y) points.
    Lines(Vec<Series<(f64, f64)>>),
    /// Groups of bars: their names, and one value per group and series.
    Bars(Vec<String>, Vec<Series<f64>>),
}

/// A plot.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plot {
    /// Name of its file, without the ending.
    pub name: String,
    /// Above it.
    pub title: String,
    /// Around it.
    pub axes: Axes,
    /// What it shows.
    pub drawing: Drawing,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_measured_is_never_met() {
        let bar = |value| {
            let bar = Bar::ratio("a.b".to_owned(), "b".to_owned(), Limit::AtMost(0.8), "a peer");
            bar.with_ratio(value).verdict()
        };
        for (value, verdict) in [
            (None, Verdict::NotMeasured),
            (Some(f64::NAN), Verdict::NotMeasured),
            (Some(f64::NEG_INFINITY), Verdict::NotMeasured),
            (Some(0.8), Verdict::Met),
            (Some(0.81), Verdict::Missed),
        ] {
            assert_eq!(bar(value), verdict, "{value:?}");
        }
    }

    #[test]
    fn limits_are_inclusive() {
        assert!(Limit::AtLeast(4.0).allows(4.0) && !Limit::AtLeast(4.0).allows(3.9));
        assert!(Limit::AtLeast(4.0).prefers(5.0, 4.0) && Limit::AtMost(1.0).prefers(0.5, 0.6));
    }
}
