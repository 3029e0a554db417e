//! Shows finished and remaining jobs, with the remaining time.

use crate::job::Job;
use std::time::{Duration, Instant};

/// Weight of the expected durations, in seconds: before this much is done, they count more than the measured ones.
const SURE_SECS: f64 = 20.0;

/// Prints the current job and the remaining time: the expected duration, scaled by the measured speed so far.
pub(crate) struct Progress {
    begin: Instant,
    all: usize,
    done: usize,
    expected_done: f64,
    expected_left: f64,
    taken: f64,
}

impl Progress {
    /// Progress before the first job.
    pub(crate) fn new<'a>(jobs: impl Iterator<Item = &'a Job>) -> Self {
        let (all, expected_left) = jobs.fold((0, 0.0), |(n, secs), job| (n + 1, secs + job.secs));
        let begin = Instant::now();
        Self { begin, all, done: 0, expected_done: 0.0, expected_left, taken: 0.0 }
    }

    /// Records the start of a job.
    pub(crate) fn begin(&self, part: &str, job: &Job) {
        eprintln!(
            "[{:3}/{} {} about {} left] {part}: {}",
            self.done + 1,
            self.all,
            minutes(self.begin.elapsed()),
            minutes(self.left()),
            job.name
        );
    }

    /// Records the end of a job: its duration, or none if it was not needed.
    pub(crate) fn end(&mut self, job: &Job, taken: Option<Duration>) {
        self.done += 1;
        self.expected_left -= job.secs;
        if let Some(taken) = taken {
            self.expected_done += job.secs;
            self.taken += taken.as_secs_f64();
        }
    }

    fn left(&self) -> Duration {
        let scale = (self.taken + SURE_SECS) / (self.expected_done + SURE_SECS);
        Duration::from_secs_f64((self.expected_left * scale).max(0.0))
    }
}

fn minutes(time: Duration) -> String {
    let secs = time.as_secs();
    format!("{}:{:02}", secs / 60, secs % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_scaled_by_what_was_done() {
        let job = |secs| Job {
            name: "job".to_owned(),
            program: "program".into(),
            arguments: Vec::new(),
            secs,
            limit: Duration::ZERO,
            out: None,
        };
        let jobs = [job(SURE_SECS), job(20.0), job(30.0)];
        let mut progress = Progress::new(jobs.iter());
        assert_eq!(progress.left(), Duration::from_secs(70));
        // Twice as long as expected; half of that difference counts.
        progress.end(&jobs[0], Some(Duration::from_secs(40)));
        assert_eq!(progress.left(), Duration::from_secs(75));
        progress.end(&jobs[1], None);
        assert_eq!(progress.left(), Duration::from_secs(45));
    }
}
