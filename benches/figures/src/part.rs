//! One part of the benches as data: its targets, and all measurements.

use crate::{Figure, Plot, Side, Table};
use serde::{Deserialize, Serialize};

/// Content of a part.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// Heading of the part.
    pub title: String,
    /// What was compared and how, one paragraph each.
    pub notes: Vec<String>,
    /// Targets, measured or not.
    pub bars: Vec<Bar>,
    /// All measurements.
    pub sections: Vec<Section>,
    /// The measurements as plots. Parts from earlier versions may have none.
    #[serde(default)]
    pub plots: Vec<Plot>,
    /// Trials without results, and the reasons.
    pub incidents: Vec<Incident>,
}

impl Part {
    /// Adds a table with its heading, unless the table is empty.
    pub fn add(&mut self, title: impl Into<String>, note: impl Into<String>, table: Table) {
        if !table.is_empty() {
            self.sections.push(Section { title: title.into(), note: note.into(), table });
        }
    }

    /// Adds a plot, unless it is empty.
    pub fn add_plot(&mut self, plot: Plot) {
        if !plot.series.is_empty() {
            self.plots.push(plot);
        }
    }

    /// Notes and tables in Markdown, with `plots`, the lines that show the plots, between them.
    #[must_use]
    pub fn markdown(&self, plots: &str) -> String {
        let notes = self.notes.iter().map(|note| format!("{note}\n\n"));
        let section = |Section { title, note, table }: &Section| match note.is_empty() {
            true => format!("### {title}\n\n{table}\n"),
            false => format!("### {title}\n\n{note}\n\n{table}\n"),
        };
        notes.chain([plots.to_owned()]).chain(self.sections.iter().map(section)).collect()
    }

    /// The report of this part alone in Markdown, and whether all measured targets are met.
    #[must_use]
    pub fn report(&self) -> (String, bool) {
        let measured = || self.bars.iter().filter(|bar| bar.value.is_some());
        let met = measured().all(|bar| bar.verdict() == Verdict::Met);
        (format!("{}{}", self.markdown(""), bar_table(measured())), met)
    }
}

/// A table with one row per target: the measured value, and whether it meets the target.
#[must_use]
pub fn bar_table<'a>(bars: impl Iterator<Item = &'a Bar>) -> Table {
    let heads = ["what", "bar", "measured", "", "ours", "other", "spread", "trials"];
    let mut table = Table::new(heads);
    for bar in bars {
        let Bar { what, wanted, measured, ours, other, .. } = bar;
        let both = |of: fn(&Side) -> String| {
            let sides = [of(ours), of(other)].into_iter().filter(|side| !side.is_empty());
            sides.collect::<Vec<_>>().join(", ")
        };
        // A single trial has no spread.
        let spread = both(|side| if side.trials > 1 { side.spread.clone() } else { String::new() });
        let trials = both(|side| match side.trials {
            0 => String::new(),
            trials => trials.to_string(),
        });
        let verdict = bar.verdict().text();
        table.row([
            what.as_str(),
            wanted,
            measured,
            verdict,
            &ours.text,
            &other.text,
            &spread,
            &trials,
        ]);
    }
    table
}

/// A trial without results, and the reason.
pub type Incident = (String, String);

/// A table with its heading.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Section {
    /// The heading.
    pub title: String,
    /// How to read the table.
    pub note: String,
    /// The table.
    pub table: Table,
}

/// Limit of a target.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum Limit {
    /// The value must be at most this.
    AtMost(f64),
    /// The value must be at least this.
    AtLeast(f64),
}

impl Limit {
    /// Whether a value meets the limit.
    #[must_use]
    pub fn allows(self, value: f64) -> bool {
        match self {
            Self::AtMost(most) => value <= most,
            Self::AtLeast(least) => value >= least,
        }
    }

    /// Whether `a` is better than `b`.
    #[must_use]
    pub fn prefers(self, a: f64, b: f64) -> bool {
        match self {
            Self::AtMost(_) => a < b,
            Self::AtLeast(_) => a > b,
        }
    }

    /// The limit as text; `show` formats the number.
    pub fn text(self, show: impl Fn(f64) -> String) -> String {
        match self {
            Self::AtMost(most) => format!("≤ {}", show(most)),
            Self::AtLeast(least) => format!("≥ {}", show(least)),
        }
    }
}

/// Result of a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Measured and met.
    Met,
    /// Measured and not met.
    Missed,
    /// Not measured, or not a number. It never counts as met.
    NotMeasured,
}

impl Verdict {
    /// The result as text.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Met => "met",
            Self::Missed => "**missed**",
            Self::NotMeasured => "not measured",
        }
    }
}

/// A target of a measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Bar {
    /// Identifies the target in explanations: words separated by points.
    pub id: String,
    /// The measured quantity.
    pub what: String,
    /// The limit.
    pub limit: Limit,
    /// The limit as text.
    pub wanted: String,
    /// The measured value, if any.
    pub value: Option<f64>,
    /// The measured value as text.
    pub measured: String,
    /// Kvasir's side.
    pub ours: Side,
    /// The side of the baseline or peer.
    pub other: Side,
}

impl Bar {
    /// A target for a ratio to the baseline `against`; not measured yet.
    pub fn ratio(id: String, what: String, limit: Limit, against: &str) -> Self {
        let wanted = limit.text(|limit| format!("{limit} × {against}"));
        Self::new(id, what, limit, wanted)
    }

    /// A target for one of Kvasir's own figures; not measured yet.
    pub fn new(id: String, what: String, limit: Limit, wanted: String) -> Self {
        let ours = Side::default();
        let other = Side::default();
        Self { id, what, limit, wanted, value: None, measured: String::new(), ours, other }
    }

    /// Adds the measured ratio, if any.
    #[must_use]
    pub fn with_ratio(self, value: Option<f64>) -> Self {
        Self { value, measured: value.map_or(String::new(), |at| format!("{at:.2} ×")), ..self }
    }

    /// Adds the measured figure, if any; `show` formats it.
    #[must_use]
    pub fn with_figure(self, figure: Option<Figure>, show: impl Fn(f64) -> String) -> Self {
        let Some(figure) = figure else { return self };
        let ours = figure.side(show);
        Self { value: Some(figure.median), measured: ours.text.clone(), ours, ..self }
    }

    /// Result of the target.
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
