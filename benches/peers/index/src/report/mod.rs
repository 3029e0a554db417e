//! The report of a run, made from its raw file.
//!
//! - [`figures`]: medians by index, workload and size;
//! - [`bars`]: what must be reached, as ratios to peers in the same run;
//! - [`tables`]: everything that was measured;
//! - [`plots`]: distributions, series and bars as SVG.

mod bars;
mod figures;
mod plots;
mod tables;

use crate::record::{self, Head, Record};
use anyhow::{Context, Result, bail};
use figures::Figures;
use peers_report::Table;
use std::fmt::Write;
use std::fs;
use std::path::Path;

/// Name of the report.
const REPORT: &str = "report.md";

/// Writes report and plots beside the raw file.
pub(crate) fn write(folder: &Path) -> Result<()> {
    let records = record::read(folder)?;
    let Some(Record::Run(head)) = records.first() else {
        bail!("{} does not begin with a run", folder.join(record::RAW).display());
    };
    let figures = Figures::new(&records);
    let mut text = String::new();
    introduce(&mut text, head)?;
    writeln!(text, "## What must be reached\n\n{}", bars::table(&figures, head))?;
    for (title, note, table) in tables::all(&figures, head) {
        if !table.is_empty() {
            writeln!(text, "## {title}\n\n{note}\n\n{table}")?;
        }
    }
    let plots = plots::draw(&figures, head, folder)?;
    writeln!(text, "## Plots\n")?;
    for (file, title) in plots {
        writeln!(text, "![{title}]({file})\n")?;
    }
    incidents(&mut text, &records)?;
    let path = folder.join(REPORT);
    fs::write(&path, text).with_context(|| format!("write {}", path.display()))
}

fn introduce(text: &mut String, head: &Head) -> Result<()> {
    writeln!(text, "# The index beside published ones\n")?;
    writeln!(
        text,
        "{}, {}, {} processors, {} GiB, load {} at the start; allocator {}. \
         Medians of {} trials, each in a process of its own, interleaved.",
        head.date,
        head.processor,
        head.processors,
        head.memory_gib,
        head.load,
        head.allocator,
        head.trials
    )?;
    if head.quick {
        writeln!(text, "\nA quick run: smaller, and not for quoting.")?;
    }
    writeln!(
        text,
        "\nchain: `ChainIndex` of kv-index 2.0.0 with its lane maps; crtc and positional: \
         `ConcurrentRadixTreeCompressed` and `PositionalIndexer` of dynamo-kv-router 1.6.1.\n"
    )?;
    Ok(())
}

fn incidents(text: &mut String, records: &[Record]) -> Result<()> {
    let mut table = Table::new(["trial", "index", "what happened"]);
    for record in records {
        match record {
            Record::Failed { index, group, reason } => {
                let reason = reason.replace(['\n', '|'], " ");
                table.row([group.clone(), index.clone(), reason]);
            }
            Record::Skipped { index, group } => {
                table.row([group.as_str(), index, "skipped: not enough memory"]);
            }
            Record::Run(_) | Record::Trial(_) => {}
        }
    }
    if !table.is_empty() {
        writeln!(text, "## Trials without figures\n\n{table}")?;
    }
    Ok(())
}
