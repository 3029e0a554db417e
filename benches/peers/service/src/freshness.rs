//! Measures the staleness of answers: the time from sending a batch to the first answer that includes it, under a
//! background load of stores and removals.

use crate::measure::{now_ns, quantile_us};
use crate::process::Publishers;
use crate::stream::Stream;
use crate::subject::Subject;
use crate::trial::Trial;
use anyhow::{Context, Result};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Default rates of the background load, in blocks stored and removed per second.
pub const RATES: [u64; 4] = [0, 10_000, 100_000, 500_000];

/// Duration of the measurement of each rate.
const LENGTH: Duration = Duration::from_secs(4);
/// Time without measurement after a change of the rate.
const WARM_UP: Duration = Duration::from_millis(500);
/// Minimum time between two probes.
const PROBE_PAUSE: Duration = Duration::from_millis(2);
/// Timeout for an answer that includes a probe. A server that takes longer does not sustain the rate.
const PATIENCE: Duration = Duration::from_secs(5);
/// The rate counts as sustained if 99 of 100 batches were sent at most this late.
const HELD_LATE_MAX: Duration = Duration::from_millis(5);

/// Times from sending a batch to the first answer that includes it.
#[derive(Default)]
struct Seen {
    stored: Vec<Duration>,
    removed: Vec<Duration>,
}

impl Trial<'_> {
    /// Measures one rate after the other, up to the first that is not sustained.
    pub(crate) async fn freshness(
        &mut self,
        subject: &mut impl Subject,
        publishers: &mut Publishers,
    ) -> Result<()> {
        publishers.fill().await?;
        subject.server().idle().await?;
        let mut number = 0;
        for &rate in &self.plan.rates {
            for is_streamed in [false, true] {
                publishers.rate(rate).await?;
                sleep(WARM_UP).await;
                let seen = probe(subject, publishers, &mut number, is_streamed).await?;
                let late = publishers.rate(0).await?;
                match seen {
                    Probed::All(seen) if late <= HELD_LATE_MAX => {
                        self.add_seen(rate, is_streamed, seen)?;
                    }
                    Probed::All(_) | Probed::Unseen => {
                        self.progress(&format!(
                            "{rate} blocks a second are not held: 99 of 100 batches are late by {late:.1?} at most"
                        ));
                        return Ok(());
                    }
                    Probed::NoStream => {}
                }
            }
        }
        Ok(())
    }

    fn add_seen(&mut self, rate: u64, is_streamed: bool, mut seen: Seen) -> Result<()> {
        let way = if is_streamed { "_stream" } else { "" };
        for (change, times) in [("stored", &mut seen.stored), ("removed", &mut seen.removed)] {
            let measure = format!("freshness{way}_{rate}_{change}");
            for (name, share) in [("p50", 0.5), ("p99", 0.99), ("max", 1.0)] {
                let time = quantile_us(times, share).context("no probe was seen")?;
                self.add(&format!("{measure}_{name}_us"), time)?;
                self.progress(&format!("{measure}: {name} {time:.0} us"));
            }
        }
        Ok(())
    }
}

/// Result of the probes.
enum Probed {
    All(Seen),
    /// The server did not show a probe in time.
    Unseen,
    /// The server has no query stream.
    NoStream,
}

/// Stores and removes one block after the other.
async fn probe<S: Subject>(
    subject: &mut S,
    publishers: &mut Publishers,
    number: &mut u64,
    is_streamed: bool,
) -> Result<Probed> {
    let begin = Instant::now();
    let mut seen = Seen::default();
    while begin.elapsed() < LENGTH {
        let (_, prompt) = Stream::probe(*number);
        let question = subject.question(&prompt);
        if subject.holds(&question, &prompt, is_streamed).await?.is_none() {
            return Ok(Probed::NoStream);
        }
        for is_stored in [true, false] {
            let asked = Instant::now();
            publishers.probe(*number, is_stored).await?;
            while subject.holds(&question, &prompt, is_streamed).await? != Some(is_stored) {
                if asked.elapsed() > PATIENCE {
                    publishers.probed_ns().await?;
                    return Ok(Probed::Unseen);
                }
            }
            let now = now_ns()?;
            let sent = publishers.probed_ns().await?;
            let time = Duration::from_nanos(now.saturating_sub(sent));
            if is_stored { &mut seen.stored } else { &mut seen.removed }.push(time);
            sleep(PROBE_PAUSE).await;
        }
        *number += 1;
    }
    Ok(Probed::All(seen))
}
