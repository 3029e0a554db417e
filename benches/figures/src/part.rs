//! One part of the benches, as data: what was to be reached, and everything that was measured.

use crate::{Figure, Plot, Side, Table};
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
    /// The same to look at. Parts that earlier versions printed may have none.
    #[serde(default)]
    pub plots: Vec<Plot>,
    /// Trials without figures, and why.
    pub incidents: Vec<Incident>,
}

impl Part {
    /// Adds a table with its heading, if anything in it was measured.
    pub fn add(&mut self, title: impl Into<String>, note: impl Into<String>, table: Table) {
        if !table.is_empty() {
            self.sections.push(Section { title: title.into(), note: note.into(), table });
        }
    }

    /// Adds a plot, if anything in it was measured.
    pub fn add_plot(&mut self, plot: Plot) {
        if !plot.series.is_empty() {
            self.plots.push(plot);
        }
    }

    /// Notes and tables in Markdown, with lines that show the plots between them.
    #[must_use]
    pub fn markdown(&self, plots: &str) -> String {
        let notes = self.notes.iter().map(|note| format!("{note}\n\n"));
        let section = |Section { title, note, table }: &Section| match note.is_empty() {
            true => format!("### {title}\n\n{table}\n"),
            false => format!("### {title}\n\n{note}\n\n{table}\n"),
        };
        notes.chain([plots.to_owned()]).chain(self.sections.iter().map(section)).collect()
    }

    /// The report of this part alone in Markdown, and whether all bars that were measured are met.
    #[must_use]
    pub fn report(&self) -> (String, bool) {
        let measured = || self.bars.iter().filter(|bar| bar.value.is_some());
        let met = measured().all(|bar| bar.verdict() == Verdict::Met);
        (format!("{}{}", self.markdown(""), bar_table(measured())), met)
    }
}

/// Bars, what was measured, and whether they are met: a row each.
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
        // One trial has no spread.
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

impl Verdict {
    /// In words.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Met => "met",
            Self::Missed => "**missed**",
            Self::NotMeasured => "not measured",
        }
    }
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
        let ours = Side::default();
        let other = Side::default();
        Self { id, what, limit, wanted, value: None, measured: String::new(), ours, other }
    }

    /// With the ratio that was measured, if it was.
    #[must_use]
    pub fn with_ratio(self, value: Option<f64>) -> Self {
        Self { value, measured: value.map_or(String::new(), |at| format!("{at:.2} ×")), ..self }
    }

    /// With the figure of ours that was measured, if it was; `show` writes it.
    #[must_use]
    pub fn with_figure(self, figure: Option<Figure>, show: impl Fn(f64) -> String) -> Self {
        let Some(figure) = figure else { return self };
        let ours = figure.side(show);
        Self { value: Some(figure.median), measured: ours.text.clone(), ours, ..self }
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
