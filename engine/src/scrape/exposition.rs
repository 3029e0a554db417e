//! Parser for Prometheus' text format. Reads only the needed lines.

use super::ReadError;
use std::borrow::Cow;

/// Maximum number of labels per line.
const LABELS_MAX: usize = 64;

/// One sample: labels and a value.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Sample<'a> {
    /// Number of the sample's line, from 1.
    pub(super) line: usize,
    labels: Vec<(&'a str, Cow<'a, str>)>,
    pub(super) value: f64,
}

impl Sample<'_> {
    /// Value of the label `name`.
    pub(super) fn label(&self, name: &str) -> Option<&str> {
        self.labels.iter().find(|(at, _)| *at == name).map(|(_, value)| &**value)
    }
}

/// Samples of the names that `wanted` maps to a value, with that value.
pub(super) fn samples<'a, T>(
    text: &'a str,
    wanted: impl Fn(&str) -> Option<T>,
) -> impl Iterator<Item = Result<(T, Sample<'a>), ReadError>> {
    (1..).zip(text.lines()).filter_map(move |(line, text)| {
        let text = text.trim();
        let end = text.find(['{', ' ', '\t']).unwrap_or(text.len());
        let (name, rest) = text.split_at_checked(end)?;
        let wanted = wanted(name)?;
        let sample = parse_sample(line, rest).map_err(|problem| ReadError::Line { line, problem });
        Some(sample.map(|sample| (wanted, sample)))
    })
}

/// Reads the rest of a line after its name: labels, value, and an optional time.
fn parse_sample(line: usize, rest: &str) -> Result<Sample<'_>, &'static str> {
    let (labels, rest) = match rest.trim_start().strip_prefix('{') {
        Some(labels) => read_labels(labels)?,
        None => (Vec::new(), rest),
    };
    let mut words = rest.split_ascii_whitespace();
    let value = words.next().ok_or("there is no value")?;
    let value = value.parse().map_err(|_malformed| "the value is not a number")?;
    if words.next().is_some_and(|time| time.parse::<i64>().is_err()) {
        return Err("the time is not a number of milliseconds");
    }
    if words.next().is_some() {
        return Err("there is more than a value and a time");
    }
    Ok(Sample { line, labels, value })
}

type Labels<'a> = Vec<(&'a str, Cow<'a, str>)>;

/// Reads labels after their opening brace; returns them with the text after the closing brace.
fn read_labels(mut rest: &str) -> Result<(Labels<'_>, &str), &'static str> {
    let mut labels = Vec::new();
    loop {
        rest = rest.trim_start();
        if let Some(rest) = rest.strip_prefix('}') {
            return Ok((labels, rest));
        }
        if labels.len() == LABELS_MAX {
            return Err("there are more than 64 labels");
        }
        let (name, value) = rest.split_once('=').ok_or("a label has no value")?;
        let value = value.trim_start().strip_prefix('"').ok_or("a label's value has no quotes")?;
        let (value, after) = read_quoted(value)?;
        labels.push((name.trim(), value));
        let after = after.trim_start();
        rest = match after.strip_prefix(',') {
            Some(rest) => rest,
            None if after.starts_with('}') => after,
            None => return Err("labels are not separated by commas"),
        };
    }
}

/// Reads a label's value after its opening quote; returns it with the text after the closing quote.
fn read_quoted(text: &str) -> Result<(Cow<'_, str>, &str), &'static str> {
    let mut unescaped = String::new();
    let mut rest = text;
    loop {
        let end = rest.find(['"', '\\']).ok_or("a label's value has no closing quote")?;
        let (plain, special) = rest.split_at_checked(end).ok_or("a label's value is cut")?;
        if let Some(after) = special.strip_prefix('"') {
            return Ok(if unescaped.is_empty() {
                (Cow::Borrowed(plain), after)
            } else {
                (Cow::Owned(unescaped + plain), after)
            });
        }
        unescaped.push_str(plain);
        let mut letters = special.chars();
        letters.next();
        unescaped.push(match letters.next() {
            Some('n') => '\n',
            Some(letter @ ('"' | '\\')) => letter,
            _ => return Err("a label's value has an escape that is none"),
        });
        rest = letters.as_str();
    }
}

#[cfg(test)]
#[path = "exposition_test.rs"]
mod tests;
