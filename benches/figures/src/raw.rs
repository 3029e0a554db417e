//! What trials printed: a file each, so that a run that was interrupted goes on where it was.

use crate::{Incident, Part};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Why a raw file cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum RawError {
    /// The system refused.
    #[error("{path}: {source}")]
    File {
        /// The file or folder.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
    /// It is not what a trial prints.
    #[error("{path}: not what this version prints: {source}")]
    Form {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: serde_json::Error,
    },
}

/// What became of a trial.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Outcome {
    /// What it printed: lines of JSON.
    Done(Vec<Value>),
    /// What it complained about.
    Failed(String),
}

/// One trial.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Raw {
    /// Names it among the trials of its part.
    pub name: String,
    /// Programs and arguments that it was made with: with others it would be another trial.
    pub identity: String,
    /// How long it took, in seconds.
    pub secs: f64,
    /// What became of it.
    pub outcome: Outcome,
}

impl Raw {
    /// The file of a trial in the folder of its part.
    #[must_use]
    pub fn path(folder: &Path, name: &str) -> PathBuf {
        folder.join(format!("{name}.json"))
    }

    /// Writes it into the folder of its part: whole or not at all.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&self, folder: &Path) -> Result<(), RawError> {
        let path = Self::path(folder, &self.name);
        let text = serde_json::to_string(self)
            .map_err(|source| RawError::Form { path: path.clone(), source })?;
        let part = path.with_extension("part");
        let written = fs::write(&part, text + "\n").and_then(|()| fs::rename(&part, &path));
        written.map_err(|source| RawError::File { path, source })
    }

    /// Reads one.
    ///
    /// # Errors
    /// If the file is not there or is not one.
    pub fn read(path: &Path) -> Result<Self, RawError> {
        let text = fs::read_to_string(path)
            .map_err(|source| RawError::File { path: path.to_owned(), source })?;
        serde_json::from_str(&text)
            .map_err(|source| RawError::Form { path: path.to_owned(), source })
    }

    /// All trials of a part, by name; none if the folder is not there.
    ///
    /// # Errors
    /// If a file cannot be read or is not one.
    pub fn read_all(folder: &Path) -> Result<Vec<Self>, RawError> {
        let error = |source| RawError::File { path: folder.to_owned(), source };
        let entries = match fs::read_dir(folder) {
            Err(absent) if absent.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(error)?,
        };
        let mut all = Vec::new();
        for entry in entries {
            let path = entry.map_err(error)?.path();
            if path.extension().is_some_and(|ending| ending == "json") {
                all.push(Self::read(&path)?);
            }
        }
        all.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(all)
    }

    /// The lines of all trials as `T`, and the names and complaints of those without.
    ///
    /// # Errors
    /// If a line is something else.
    pub fn lines<T: DeserializeOwned>(all: &[Self]) -> Result<(Vec<T>, Vec<Incident>), RawError> {
        let mut lines = Vec::new();
        let mut incidents = Vec::new();
        for raw in all {
            match &raw.outcome {
                Outcome::Failed(reason) => incidents.push((raw.name.clone(), reason.clone())),
                Outcome::Done(values) => {
                    for value in values {
                        let line = serde_json::from_value(value.clone());
                        let error =
                            |source| RawError::Form { path: raw.name.clone().into(), source };
                        lines.push(line.map_err(error)?);
                    }
                }
            }
        }
        Ok((lines, incidents))
    }
}

/// Prints what the trials in a folder say, as a line of JSON; `part` makes it of their lines.
///
/// # Errors
/// If a file cannot be read or is not one of these trials.
pub fn print_part<T: DeserializeOwned>(
    folder: &Path,
    part: impl FnOnce(&[T], Vec<Incident>) -> Part,
) -> Result<(), RawError> {
    let (lines, incidents) = Raw::lines(&Raw::read_all(folder)?)?;
    let text = serde_json::to_string(&part(&lines, incidents));
    println!("{}", text.map_err(|source| RawError::Form { path: folder.to_owned(), source })?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_told_apart_from_lines() {
        let raw = |name: &str, outcome| Raw {
            name: name.to_owned(),
            identity: String::new(),
            secs: 1.0,
            outcome,
        };
        let all = [
            raw("a", Outcome::Done(vec![Value::from(1), Value::from(2)])),
            raw("b", Outcome::Failed("no".to_owned())),
        ];
        let (lines, incidents) = Raw::lines::<u32>(&all).expect("numbers");
        assert_eq!(lines, [1, 2]);
        assert_eq!(incidents, [("b".to_owned(), "no".to_owned())]);
        assert!(Raw::lines::<String>(&all).is_err());
    }
}
