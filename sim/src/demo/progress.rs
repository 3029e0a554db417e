//! Progress of a pass, on standard error: a bar on a terminal, elsewhere one line per tenth.

use super::route::Policy;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use std::fmt::Write;
use std::io::IsTerminal;

/// The bar. With the longest numbers it takes less than 80 columns. `{msg}` is the hit rate so far.
const TEMPLATE: &str = "{prefix:>11} {bar:20.cyan/blue} {pos}/{len} {rate}, {msg}, {eta} left";

/// Maximum displayed rate: at the very beginning, the rate is meaningless.
const RATE_MAX: f64 = 999_999.0;

/// Shows the progress of a pass.
#[derive(Debug)]
pub enum Progress {
    /// A bar on a terminal.
    Bar(ProgressBar),
    /// Lines elsewhere: name, number of requests, tenths printed so far.
    Lines(&'static str, u64, u64),
}

impl Progress {
    /// Creates the progress of a pass of at most `requests`.
    #[must_use]
    pub fn new(policy: Policy, requests: u64) -> Self {
        if !std::io::stderr().is_terminal() {
            return Self::Lines(policy.name(), requests, 0);
        }
        Self::Bar(bar(policy, requests, ProgressDrawTarget::stderr()))
    }

    /// Shows that `done` requests are served, with the hit share of their tokens.
    pub fn advance(&mut self, done: u64, hit_share: f64) {
        let hits = format!("hits {:.1} %", 100.0 * hit_share);
        match self {
            Self::Bar(bar) => {
                bar.set_position(done);
                bar.set_message(hits);
            }
            Self::Lines(name, requests, tenths) => {
                let now = 10 * done / (*requests).max(1);
                if now > *tenths {
                    *tenths = now;
                    eprintln!("{name:>11}: {done}/{requests} requests, {hits}");
                }
            }
        }
    }

    /// Removes the bar at the end of the pass.
    pub fn finish(self) {
        if let Self::Bar(bar) = self {
            bar.abandon();
        }
    }
}

fn bar(policy: Policy, requests: u64, target: ProgressDrawTarget) -> ProgressBar {
    let style = ProgressStyle::with_template(TEMPLATE).expect("the template is sound");
    let rate = |state: &ProgressState, out: &mut dyn Write| {
        // Writing to this buffer does not fail.
        let _infallible = write!(out, "{:.0}/s", state.per_sec().min(RATE_MAX));
    };
    let style = style.with_key("rate", rate).progress_chars("█▉▊▋▌▍▎▏ ");
    let bar = ProgressBar::with_draw_target(Some(requests), target).with_style(style);
    bar.with_prefix(policy.name())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::report::WIDTH;
    use indicatif::TermLike;
    use std::io::Result;
    use std::sync::{Arc, Mutex};

    /// A test terminal that is wider than any line, and keeps everything written to it.
    #[derive(Debug, Clone, Default)]
    struct Wide(Arc<Mutex<Vec<String>>>);

    impl TermLike for Wide {
        fn width(&self) -> u16 {
            500
        }
        fn move_cursor_up(&self, _lines: usize) -> Result<()> {
            Ok(())
        }
        fn move_cursor_down(&self, _lines: usize) -> Result<()> {
            Ok(())
        }
        fn move_cursor_right(&self, _columns: usize) -> Result<()> {
            Ok(())
        }
        fn move_cursor_left(&self, _columns: usize) -> Result<()> {
            Ok(())
        }
        fn write_line(&self, line: &str) -> Result<()> {
            self.write_str(line)
        }
        fn write_str(&self, text: &str) -> Result<()> {
            self.0.lock().expect("no panic").push(text.trim_end().to_owned());
            Ok(())
        }
        fn clear_line(&self) -> Result<()> {
            Ok(())
        }
        fn flush(&self) -> Result<()> {
            Ok(())
        }
    }

    #[test]
    fn the_bar_fits_the_screen_and_rounds_its_rate() {
        let terminal = Wide::default();
        let target = ProgressDrawTarget::term_like(Box::new(terminal.clone()));
        let bar = bar(Policy::RoundRobin, 10_000_000, target);
        let mut progress = Progress::Bar(bar.clone());
        for done in [1, 5_000_000, 9_999_999] {
            progress.advance(done, 0.999);
            bar.tick();
        }
        let drawn = terminal.0.lock().expect("no panic").clone();
        let lines: Vec<_> = drawn.iter().filter(|line| line.contains("round-robin")).collect();
        assert!(!lines.is_empty(), "{drawn:?}");
        for line in lines {
            let line = console_text(line);
            assert!(line.chars().count() <= usize::from(WIDTH), "{line}");
            let rate = line.split_whitespace().find_map(|word| word.strip_suffix("/s,"));
            let rate = rate.unwrap_or_else(|| panic!("no rate in {line}"));
            assert!(rate.chars().all(|at| at.is_ascii_digit()), "{line}");
        }
    }

    /// Removes colours from a line.
    fn console_text(line: &str) -> String {
        let mut parts = line.split('\u{1b}');
        let first = parts.next().unwrap_or_default().to_owned();
        parts.fold(first, |text, part| text + part.split_once('m').map_or(part, |(_, rest)| rest))
    }
}
