//! The report: a function of what the parts say.

use crate::explanations::Explanations;
use crate::html;
use crate::machine::Machine;
use crate::plot::svg;
use anyhow::{Context, Result};
use bench_figures::{Bar, Incident, Part, Side, Table, Verdict};
use std::fs;
use std::path::Path;

/// Names of the report's files.
const MARKDOWN: &str = "report.md";
const HTML: &str = "report.html";
const PLOTS: &str = "plots";

/// What was measured, where and when.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) machine: Machine,
    pub(crate) commit: String,
    pub(crate) quick: bool,
}

/// All there is to say.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) head: Head,
    pub(crate) parts: Vec<Part>,
    /// Parts that could not be run or read, and why.
    pub(crate) failures: Vec<Incident>,
    pub(crate) explanations: Explanations,
}

/// A piece of the report, to be written as Markdown or HTML.
#[derive(Debug)]
pub(crate) enum Piece {
    Heading(usize, String),
    Text(String),
    Table(Table),
    /// Title, name, and the drawing.
    Plot(String, String, String),
}

impl Report {
    /// Whether nothing failed. Missed bars are no failures.
    pub(crate) fn is_complete(&self) -> bool {
        self.failures.is_empty() && self.parts.iter().all(|part| part.incidents.is_empty())
    }

    fn bars(&self) -> impl Iterator<Item = &Bar> {
        self.parts.iter().flat_map(|part| &part.bars)
    }

    fn count(&self, verdict: Verdict) -> usize {
        self.bars().filter(|bar| bar.verdict() == verdict).count()
    }

    /// In one line.
    pub(crate) fn summary(&self) -> String {
        let [met, missed, absent] = [Verdict::Met, Verdict::Missed, Verdict::NotMeasured]
            .map(|verdict| self.count(verdict));
        let failed =
            self.failures.len() + self.parts.iter().map(|part| part.incidents.len()).sum::<usize>();
        format!("{met} bars met, {missed} missed, {absent} not measured; {failed} failures")
    }

    /// Writes Markdown, HTML and plots.
    ///
    /// # Errors
    /// If a file cannot be written or a plot cannot be drawn.
    pub(crate) fn write(&self, folder: &Path) -> Result<()> {
        let pieces = self.pieces()?;
        let write = |path: &Path, text: &str| {
            fs::write(path, text).with_context(|| format!("write {}", path.display()))
        };
        let plots = folder.join(PLOTS);
        // Plots of an earlier run may not be drawn any more.
        if plots.exists() {
            fs::remove_dir_all(&plots).with_context(|| format!("remove {}", plots.display()))?;
        }
        fs::create_dir_all(&plots).with_context(|| format!("create {}", plots.display()))?;
        for piece in &pieces {
            if let Piece::Plot(_, name, svg) = piece {
                write(&plots.join(format!("{name}.svg")), svg)?;
            }
        }
        write(&folder.join(MARKDOWN), &markdown(&pieces))?;
        write(&folder.join(HTML), &html::page("Benches", &pieces))
    }

    fn pieces(&self) -> Result<Vec<Piece>> {
        let mut pieces = vec![Piece::Heading(1, "Benches".to_owned())];
        self.introduce(&mut pieces);
        pieces.push(Piece::Heading(2, "What must be reached".to_owned()));
        pieces.push(Piece::Text(
            "The value beside the bar is ours, or ours over the other's, of medians or the median of \
             ratios; the spread is largest less smallest, as a share of the median."
                .to_owned(),
        ));
        pieces.push(Piece::Table(self.bar_table()));
        self.explain(&mut pieces);
        self.incidents(&mut pieces);
        for part in &self.parts {
            let said = part.sections.len() + part.plots.len();
            if said > 0 {
                describe(part, &mut pieces)?;
            }
        }
        Ok(pieces)
    }

    fn introduce(&self, pieces: &mut Vec<Piece>) {
        let Head { machine, commit, quick } = &self.head;
        let Machine { processor, processors, memory_gib, load, date } = machine;
        pieces.push(Piece::Text(format!(
            "{date}, {processor}, {processors} processors, {memory_gib} GiB; load {load} when the run \
             began; commit {commit}."
        )));
        if *quick {
            let text = "**A quick run: small, one trial of each, and not for quoting.**";
            pieces.push(Piece::Text(text.to_owned()));
        }
        pieces.push(Piece::Text(format!("{}.", self.summary())));
    }

    fn bar_table(&self) -> Table {
        let heads = ["what", "bar", "measured", "", "ours", "other", "spread", "trials"];
        let mut table = Table::new(heads);
        for bar in self.bars() {
            let verdict = match bar.verdict() {
                Verdict::Met => "met",
                Verdict::Missed => "**missed**",
                Verdict::NotMeasured => "not measured",
            };
            table.row([
                bar.what.as_str(),
                &bar.wanted,
                &bar.measured,
                verdict,
                &bar.ours.text,
                &bar.other.text,
                // One trial has no spread.
                &both(bar, |side| match side.trials {
                    0 | 1 => String::new(),
                    _ => side.spread.clone(),
                }),
                &both(bar, |side| match side.trials {
                    0 => String::new(),
                    trials => trials.to_string(),
                }),
            ]);
        }
        table
    }

    /// Texts for missed bars, each once, with the bars it is for.
    fn explain(&self, pieces: &mut Vec<Piece>) {
        let mut texts: Vec<(Option<&str>, Vec<&str>)> = Vec::new();
        for bar in self.bars().filter(|bar| bar.verdict() == Verdict::Missed) {
            let text = self.explanations.of(&bar.id);
            match texts.iter_mut().find(|(known, _)| *known == text) {
                Some((_, bars)) => bars.push(&bar.id),
                None => texts.push((text, vec![&bar.id])),
            }
        }
        if texts.is_empty() {
            return;
        }
        pieces.push(Piece::Heading(2, "Why bars were missed".to_owned()));
        // What nobody explained comes last.
        texts.sort_by_key(|(text, _)| text.is_none());
        for (text, bars) in texts {
            let text = text.unwrap_or("**Not explained yet.**");
            pieces.push(Piece::Text(format!("{}: {text}", bars.join(", "))));
        }
    }

    fn incidents(&self, pieces: &mut Vec<Piece>) {
        let mut table = Table::new(["what", "why"]);
        let of_parts = self.parts.iter().flat_map(|part| &part.incidents);
        for (what, why) in self.failures.iter().chain(of_parts) {
            table.row([what.clone(), why.replace(['\n', '|'], " ")]);
        }
        if !table.is_empty() {
            pieces.push(Piece::Heading(2, "What failed".to_owned()));
            pieces.push(Piece::Table(table));
        }
    }
}

/// Something of both sides.
fn both(bar: &Bar, of: fn(&Side) -> String) -> String {
    let sides = [of(&bar.ours), of(&bar.other)];
    let said: Vec<&str> = sides.iter().map(String::as_str).filter(|at| !at.is_empty()).collect();
    said.join(", ")
}

fn describe(part: &Part, pieces: &mut Vec<Piece>) -> Result<()> {
    pieces.push(Piece::Heading(2, part.title.clone()));
    pieces.extend(part.notes.iter().cloned().map(Piece::Text));
    for section in &part.sections {
        pieces.push(Piece::Heading(3, section.title.clone()));
        if !section.note.is_empty() {
            pieces.push(Piece::Text(section.note.clone()));
        }
        pieces.push(Piece::Table(section.table.clone()));
    }
    for plot in &part.plots {
        let drawn = svg(plot)?;
        pieces.push(Piece::Plot(plot.title.clone(), plot.name.clone(), drawn));
    }
    Ok(())
}

fn markdown(pieces: &[Piece]) -> String {
    let text = |piece: &Piece| match piece {
        Piece::Heading(level, text) => format!("{} {text}\n", "#".repeat(*level)),
        Piece::Text(text) => format!("{text}\n"),
        Piece::Table(table) => table.to_string(),
        Piece::Plot(title, name, _) => format!("![{title}]({PLOTS}/{name}.svg)\n"),
    };
    pieces.iter().map(text).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use bench_figures::{Axes, Drawing, Limit, Plot, Section, Series};

    fn bar(id: &str, value: Option<f64>) -> Bar {
        let bar = Bar::ratio(id.to_owned(), id.to_owned(), Limit::AtMost(0.8), "a peer");
        Bar { ours: Side { text: "1 ns".to_owned(), ..Side::default() }, ..bar.with_ratio(value) }
    }

    fn report(bars: Vec<Bar>, failures: Vec<Incident>) -> Report {
        let machine = Machine {
            processor: "a processor".to_owned(),
            processors: 2,
            memory_gib: 4,
            load: "0 0 0".to_owned(),
            date: "2026-11-21".to_owned(),
        };
        let mut table = Table::new(["index", "ns"]);
        table.row(["ours", "1 <2>"]);
        let line = Series { name: "ours".to_owned(), values: vec![(1.0, 1.0), (2.0, 2.0)] };
        let part = Part {
            title: "A part".to_owned(),
            bars,
            sections: vec![Section { title: "S".to_owned(), note: String::new(), table }],
            plots: vec![Plot {
                name: "p".to_owned(),
                title: "A plot".to_owned(),
                axes: Axes::linear("x", "y"),
                drawing: Drawing::Lines(vec![line]),
            }],
            ..Part::default()
        };
        let explanations = Explanations::parse("## a.*\nBecause of b.\n");
        let head = Head { machine, commit: "abc".to_owned(), quick: false };
        Report { head, parts: vec![part], failures, explanations }
    }

    #[test]
    fn every_bar_has_a_line_and_every_missed_one_a_reason() {
        let bars = vec![
            bar("a.a", Some(0.8)),
            bar("a.b", Some(0.9)),
            bar("a.c", None),
            bar("c", Some(1.0)),
        ];
        let report = report(bars, Vec::new());
        assert_eq!(report.summary(), "1 bars met, 2 missed, 1 not measured; 0 failures");
        let text = markdown(&report.pieces().expect("a report"));
        let line = |id: &str| {
            let start = format!("| {id} ");
            text.lines().find(|line| line.starts_with(&start)).unwrap_or_default().to_owned()
        };
        assert!(line("a.a").contains("| met") || line("a.a").contains(" met |"), "{text}");
        assert!(line("a.b").contains("**missed**"), "{text}");
        assert!(line("a.c").contains("not measured"), "{text}");
        assert!(text.contains("a.b: Because of b."), "{text}");
        assert!(text.contains("c: **Not explained yet.**"), "{text}");
        assert!(!text.contains("a.a: "), "{text}");
        assert!(report.is_complete());
    }

    #[test]
    fn what_failed_is_named() {
        let report = report(vec![], vec![("service".to_owned(), "no python".to_owned())]);
        let text = markdown(&report.pieces().expect("a report"));
        assert!(text.contains("What failed") && text.contains("no python"), "{text}");
        assert!(!report.is_complete());
    }

    #[test]
    fn a_page_has_its_plots_in_it() {
        let page = html::page("Benches", &report(vec![], vec![]).pieces().expect("a report"));
        assert!(page.contains("<svg") && page.contains("1 &lt;2&gt;"), "{page}");
        assert!(page.contains("<h2>A part</h2>"), "{page}");
    }
}
