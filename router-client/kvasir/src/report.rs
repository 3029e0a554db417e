//! The report of an engine's check: steps with a tick, or the first fault with its fix.

use std::fmt;

/// One step of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// What was checked.
    pub name: &'static str,
    /// The observation, or the fault with its fix.
    pub outcome: Result<String, String>,
}

/// The check of one engine. Steps after the first failed one are missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The engine.
    pub engine: String,
    /// The steps in order.
    pub steps: Vec<Step>,
}

impl Report {
    /// A report of one failed step.
    #[must_use]
    pub fn failed(engine: String, name: &'static str, why: String) -> Self {
        Self { engine, steps: vec![Step { name, outcome: Err(why) }] }
    }

    /// The fault, if a step failed.
    #[must_use]
    pub fn fault(&self) -> Option<&str> {
        self.steps.iter().find_map(|step| step.outcome.as_ref().err()).map(String::as_str)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.engine)?;
        for Step { name, outcome } in &self.steps {
            match outcome {
                Ok(seen) => writeln!(f, "  ✓ {name}: {seen}")?,
                Err(why) => writeln!(f, "  ✗ {name}: {why}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_names_its_first_fault() {
        let mut report = Report {
            engine: "gpu:8000".to_owned(),
            steps: vec![Step { name: "engine", outcome: Ok("vllm".to_owned()) }],
        };
        assert_eq!(report.fault(), None);
        report.steps.push(Step { name: "events", outcome: Err("none".to_owned()) });
        assert_eq!(report.fault(), Some("none"));
        assert_eq!(report.to_string(), "gpu:8000\n  ✓ engine: vllm\n  ✗ events: none\n");
    }
}
