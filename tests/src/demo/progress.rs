//! How far a pass is: a bar on a terminal, a line every tenth elsewhere.

use super::route::Policy;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;

/// The bar. `{msg}` is the share of hits so far.
const TEMPLATE: &str =
    "{prefix:>11} {bar:40.cyan/blue} {pos}/{len} requests, {per_sec}, {msg} (eta {eta})";

/// Shows how far a pass is.
#[derive(Debug)]
pub enum Progress {
    /// On a terminal.
    Bar(ProgressBar),
    /// Elsewhere: name, number of requests, tenths said so far.
    Lines(&'static str, u64, u64),
}

impl Progress {
    /// Progress of a pass of at most `requests`.
    #[must_use]
    pub fn new(policy: Policy, requests: u64) -> Self {
        if !std::io::stdout().is_terminal() {
            return Self::Lines(policy.name(), requests, 0);
        }
        let style = ProgressStyle::with_template(TEMPLATE).expect("the template is sound");
        let bar = ProgressBar::new(requests).with_style(style.progress_chars("█▉▊▋▌▍▎▏ "));
        Self::Bar(bar.with_prefix(policy.name()))
    }

    /// `done` requests are served, `hit_share` of their tokens were found in caches.
    pub fn advance(&mut self, done: u64, hit_share: f64) {
        let hits = format!("{:.1} % prefix hits", 100.0 * hit_share);
        match self {
            Self::Bar(bar) => {
                bar.set_position(done);
                bar.set_message(hits);
            }
            Self::Lines(name, requests, tenths) => {
                let now = 10 * done / (*requests).max(1);
                if now > *tenths {
                    *tenths = now;
                    println!("{name:>11}: {done}/{requests} requests, {hits}");
                }
            }
        }
    }

    /// The pass is over.
    pub fn finish(self) {
        if let Self::Bar(bar) = self {
            bar.abandon();
        }
    }
}
