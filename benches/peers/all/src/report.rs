//! Writes the report from the results of the parts.

use crate::explanations::Explanations;
use anyhow::{Context, Result};
use bench_figures::{Bar, Incident, Part, Plot, Table, Verdict, bar_table, svg};
use std::fs;
use std::path::{Path, PathBuf};

/// Name of the report's file, and of the folder of its plots.
const REPORT: &str = "report.md";
const PLOTS: &str = "plots";

/// What was measured, where and when.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) date: String,
    pub(crate) machine: String,
    pub(crate) commit: String,
    pub(crate) quick: bool,
}

/// Content of the report.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) head: Head,
    pub(crate) parts: Vec<Part>,
    /// Parts that could not be run or read, and the reasons.
    pub(crate) failures: Vec<Incident>,
    pub(crate) explanations: Explanations,
}

impl Report {
    /// Whether all parts succeeded. Missed targets are not failures.
    pub(crate) fn is_complete(&self) -> bool {
        self.failures.is_empty() && self.parts.iter().all(|part| part.incidents.is_empty())
    }

    fn bars(&self) -> impl Iterator<Item = &Bar> {
        self.parts.iter().flat_map(|part| &part.bars)
    }

    fn count(&self, verdict: Verdict) -> usize {
        self.bars().filter(|bar| bar.verdict() == verdict).count()
    }

    /// Summary in one line.
    pub(crate) fn summary(&self) -> String {
        let [met, missed, absent] = [Verdict::Met, Verdict::Missed, Verdict::NotMeasured]
            .map(|verdict| self.count(verdict));
        let failed =
            self.failures.len() + self.parts.iter().map(|part| part.incidents.len()).sum::<usize>();
        format!("{met} bars met, {missed} missed, {absent} not measured; {failed} failures")
    }

    /// Writes the report into a folder, with a subfolder of plots.
    pub(crate) fn write(&self, folder: &Path) -> Result<PathBuf> {
        let plots = folder.join(PLOTS);
        // An earlier run may have left plots that this run lacks.
        if plots.exists() {
            fs::remove_dir_all(&plots).with_context(|| format!("remove {}", plots.display()))?;
        }
        fs::create_dir_all(&plots).with_context(|| format!("create {}", plots.display()))?;
        let write = |path: &Path, text: &str| {
            fs::write(path, text).with_context(|| format!("write {}", path.display()))
        };
        for plot in self.parts.iter().flat_map(|part| &part.plots) {
            write(&plots.join(format!("{}.svg", plot.name)), &svg(plot))?;
        }
        let path = folder.join(REPORT);
        write(&path, &self.markdown())?;
        Ok(path)
    }

    fn markdown(&self) -> String {
        let mut text = self.introduction();
        text += "## What must be reached\n\nThe value beside the bar is ours, or ours over the other's, of \
            medians or the median of ratios; the spread is largest less smallest, as a share of the \
            median.\n\n";
        text += &format!("{}\n{}{}", bar_table(self.bars()), self.explained(), self.incidents());
        for part in self.parts.iter().filter(|part| !part.sections.is_empty()) {
            let show =
                |Plot { title, name, .. }: &Plot| format!("![{title}]({PLOTS}/{name}.svg)\n\n");
            let plots: String = part.plots.iter().map(show).collect();
            text += &format!("## {}\n\n{}", part.title, part.markdown(&plots));
        }
        text
    }

    fn introduction(&self) -> String {
        let Head { date, machine, commit, quick } = &self.head;
        let quick = match quick {
            true => "**A quick run: small, one trial of each, and not for quoting.**\n\n",
            false => "",
        };
        format!(
            "# Benches\n\n{date}, {machine}; commit {commit}.\n\n{quick}{}.\n\n",
            self.summary()
        )
    }

    /// Explanations of missed targets, each once, with the targets it applies to.
    fn explained(&self) -> String {
        let mut texts: Vec<(Option<&str>, Vec<&str>)> = Vec::new();
        for bar in self.bars().filter(|bar| bar.verdict() == Verdict::Missed) {
            let text = self.explanations.of(&bar.id);
            match texts.iter_mut().find(|(known, _)| *known == text) {
                Some((_, bars)) => bars.push(&bar.id),
                None => texts.push((text, vec![&bar.id])),
            }
        }
        if texts.is_empty() {
            return String::new();
        }
        // Targets without an explanation come last.
        texts.sort_by_key(|(text, _)| text.is_none());
        let paragraph = |(text, bars): (Option<&str>, Vec<&str>)| {
            format!("{}: {}\n\n", bars.join(", "), text.unwrap_or("**Not explained yet.**"))
        };
        let paragraphs: String = texts.into_iter().map(paragraph).collect();
        format!("## Why bars were missed\n\n{paragraphs}")
    }

    fn incidents(&self) -> String {
        let mut table = Table::new(["what", "why"]);
        let of_parts = self.parts.iter().flat_map(|part| &part.incidents);
        for (what, why) in self.failures.iter().chain(of_parts) {
            table.row([what.clone(), why.replace(['\n', '|'], " ")]);
        }
        match table.is_empty() {
            true => String::new(),
            false => format!("## What failed\n\n{table}\n"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bench_figures::{Axis, Limit, Section, Side};

    fn bar(id: &str, value: Option<f64>) -> Bar {
        let bar = Bar::ratio(id.to_owned(), id.to_owned(), Limit::AtMost(0.8), "a peer");
        Bar { ours: Side { text: "1 ns".to_owned(), ..Side::default() }, ..bar.with_ratio(value) }
    }

    fn report(bars: Vec<Bar>, failures: Vec<Incident>) -> Report {
        let mut table = Table::new(["index", "ns"]);
        table.row(["ours", "1"]);
        let plot = Plot::lines("p", "A plot", Axis::linear("x"), Axis::linear("y"));
        let part = Part {
            title: "A part".to_owned(),
            bars,
            sections: vec![Section { title: "S".to_owned(), note: String::new(), table }],
            plots: vec![plot.with_line("ours", [(1.0, 1.0), (2.0, 2.0)])],
            ..Part::default()
        };
        let explanations = Explanations::parse("## a.*\nBecause of b.\n");
        let [date, machine, commit] = ["2026-11-21", "a machine", "abc"].map(str::to_owned);
        let head = Head { date, machine, commit, quick: false };
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
        let text = report.markdown();
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
        assert!(text.contains("\n![A plot](plots/p.svg)\n"), "{text}");
        assert!(report.is_complete());
    }

    #[test]
    fn what_failed_is_named() {
        let report = report(vec![], vec![("service".to_owned(), "no python".to_owned())]);
        let text = report.markdown();
        assert!(text.contains("What failed") && text.contains("no python"), "{text}");
        assert!(!report.is_complete());
    }
}
