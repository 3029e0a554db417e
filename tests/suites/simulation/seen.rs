//! What happened in a run, by what it is called: a test can tell that it was reached.

use std::collections::BTreeMap;

/// How often each thing happened.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Seen(BTreeMap<&'static str, u64>);

impl Seen {
    pub fn add(&mut self, what: &'static str) {
        *self.0.entry(what).or_default() += 1;
    }

    pub fn merge(&mut self, other: &Self) {
        for (what, times) in &other.0 {
            *self.0.entry(what).or_default() += times;
        }
    }

    /// Those of a list that never happened.
    pub fn missing<'a>(&self, list: &[&'a str]) -> Vec<&'a str> {
        list.iter().filter(|what| !self.0.contains_key(**what)).copied().collect()
    }

    pub fn lines(&self) -> String {
        self.0.iter().map(|(what, times)| format!("{times:>9} {what}\n")).collect()
    }
}
