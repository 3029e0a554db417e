//! Reports prompts with unknown tokens: one log line a minute for each reason; `/readyz` shows the last prompt for a
//! minute.

use super::Unknown;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// Minimum time between two log lines for one reason, and how long `/readyz` shows a prompt.
const INTERVAL: Duration = Duration::from_secs(60);

/// The last prompt without tokens, by reason.
#[derive(Debug, Default)]
pub(super) struct Alerts(Mutex<BTreeMap<&'static str, Alert>>);

#[derive(Debug)]
struct Alert {
    at: Instant,
    model: String,
    detail: String,
    logged_at: Instant,
    /// Prompts since the last log line.
    suppressed: u64,
}

impl Alerts {
    /// Records a prompt, and logs it unless a prompt with the same reason was logged within the last minute.
    pub(super) fn report(&self, why: Unknown, model: &str, detail: &str, now: Instant) {
        let reason = why.word();
        if let Some(num_suppressed) = self.admit(reason, model, detail, now) {
            tracing::warn!(
                model,
                reason,
                detail,
                num_suppressed,
                "the tokens of a prompt are not known: load alone chooses its worker"
            );
        }
    }

    /// Records a prompt. If a log line is due, returns the number of prompts suppressed since the last one.
    fn admit(&self, reason: &'static str, model: &str, detail: &str, now: Instant) -> Option<u64> {
        let mut alerts = self.0.lock();
        let model = model.to_owned();
        let detail = detail.to_owned();
        let Some(alert) = alerts.get_mut(reason) else {
            let alert = Alert { at: now, model, detail, logged_at: now, suppressed: 0 };
            alerts.insert(reason, alert);
            return Some(0);
        };
        (alert.at, alert.model, alert.detail) = (now, model, detail);
        if now < alert.logged_at + INTERVAL {
            alert.suppressed += 1;
            return None;
        }
        alert.logged_at = now;
        Some(std::mem::take(&mut alert.suppressed))
    }

    /// Returns one line for each reason with a prompt in the last minute.
    pub(super) fn problems(&self, now: Instant) -> Vec<String> {
        let alerts = self.0.lock();
        let recent = alerts.iter().filter(|(_, alert)| now < alert.at + INTERVAL);
        let line = |(reason, Alert { model, detail, .. }): (&&str, &Alert)| {
            format!(
                "{model}: the tokens of a prompt are not known ({reason}: {detail}): load alone chooses its worker"
            )
        };
        recent.map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_a_minute_for_each_reason() {
        let alerts = Alerts::default();
        let began = Instant::now();
        let at = |seconds| began + Duration::from_secs(seconds);
        let admit = |reason, seconds| alerts.admit(reason, "m", "status 500", at(seconds));
        assert_eq!(admit("not_rendered", 0), Some(0));
        assert_eq!(admit("not_text", 1), Some(0));
        assert_eq!(admit("not_rendered", 2), None);
        assert_eq!(admit("not_rendered", 59), None);
        assert_eq!(admit("not_rendered", 60), Some(2));
        let lines = alerts.problems(at(70));
        let [line] = lines.as_slice() else { panic!("{lines:?}") };
        assert!(line.starts_with("m: ") && line.contains("not_rendered: status 500"), "{line}");
        assert_eq!(alerts.problems(at(121)), Vec::<String>::new());
    }
}
