//! Stores the output of trials, one file each, so that an interrupted run can resume.

use crate::{Incident, Part};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Why a raw file cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum RawError {
    /// The file system failed.
    #[error("{path}: {source}")]
    File {
        /// The file or folder.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The file is not a trial's output.
    #[error("{path}: not what this version prints: {source}")]
    Form {
        /// The file.
        path: PathBuf,
        /// Error of the parser.
        source: serde_json::Error,
    },
}

/// Result of a trial.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Outcome {
    /// Output of a successful trial: lines of JSON.
    Done(Vec<Value>),
    /// Error output of a failed trial.
    Failed(String),
}

/// One trial.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Raw {
    /// Name of the trial, unique within its part.
    pub name: String,
    /// Programs and arguments of the trial. A trial with others counts as a different one.
    pub identity: String,
    /// Duration of the trial, in seconds.
    pub secs: f64,
    /// Result of the trial.
    pub outcome: Outcome,
}

impl Raw {
    /// The file of a trial in its part's folder.
    #[must_use]
    pub fn path(folder: &Path, name: &str) -> PathBuf {
        folder.join(format!("{name}.json"))
    }

    /// Writes the trial atomically into its part's folder.
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

    /// Reads a trial.
    ///
    /// # Errors
    /// If the file does not exist or is not a trial's output.
    pub fn read(path: &Path) -> Result<Self, RawError> {
        let text = fs::read_to_string(path)
            .map_err(|source| RawError::File { path: path.to_owned(), source })?;
        serde_json::from_str(&text)
            .map_err(|source| RawError::Form { path: path.to_owned(), source })
    }

    /// All trials of a part, by name; empty if the folder does not exist.
    ///
    /// # Errors
    /// If a file cannot be read or is not a trial's output.
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

    /// The lines of all trials as `T`, and the names and error outputs of failed trials.
    ///
    /// # Errors
    /// If a line has another type.
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

/// Prints the results of the trials in a folder as a line of JSON; `part` creates the part from their lines.
///
/// # Errors
/// If a file cannot be read or is not a trial of this part.
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
