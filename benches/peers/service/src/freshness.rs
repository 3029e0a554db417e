//! How old an answer is: from the sending of a batch to the first answer that shows it, while blocks come and go beside it.

use crate::{
    measure::{now_ns, quantile_us},
    process::Publishers,
    stream::Stream,
    subject::Subject,
    trial::Trial,
};
use anyhow::{Context, Result};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Blocks stored and removed a second beside the probes.
pub const RATES: [u64; 4] = [0, 10_000, 100_000, 500_000];

/// How long each rate is measured.
const LENGTH: Duration = Duration::from_secs(4);
/// So long nothing is measured: the server takes up the rate.
const WARM_UP: Duration = Duration::from_millis(500);
/// Probes are at least this far apart.
const PROBE_PAUSE: Duration = Duration::from_millis(2);
/// Longest wait for an answer that shows a probe: a server that takes longer does not hold the rate.
const PATIENCE: Duration = Duration::from_secs(5);
/// The rate counts as held if 99 of 100 batches were sent within this time after they were due.
const HELD_LATE_MAX: Duration = Duration::from_millis(5);

/// Times from the sending of a batch to the first answer that shows it.
#[derive(Default)]
struct Seen {
    stored: Vec<Duration>,
    removed: Vec<Duration>,
}

impl Trial<'_> {
    /// Measures one rate after the other, up to the first that is not held.
    pub(crate) async fn freshness(
        &mut self,
        subject: &mut impl Subject,
        publishers: &mut Publishers,
    ) -> Result<()> {
        let mut number = 0;
        for rate in RATES {
            publishers.rate(rate).await?;
            sleep(WARM_UP).await;
            let seen = probe(subject, publishers, &mut number).await?;
            let late = publishers.rate(0).await?;
            let Some(mut seen) = seen.filter(|_| late <= HELD_LATE_MAX) else {
                self.progress(&format!(
                    "{rate} blocks a second are not held: 99 of 100 batches are late by {late:.1?} at most"
                ));
                return Ok(());
            };
            for (change, times) in [("stored", &mut seen.stored), ("removed", &mut seen.removed)] {
                let measure = format!("freshness_{rate}_{change}");
                let p50_us = quantile_us(times, 0.5).context("no probe was seen")?;
                let p99_us = quantile_us(times, 0.99).context("no probe was seen")?;
                self.add(&format!("{measure}_p50_us"), p50_us)?;
                self.add(&format!("{measure}_p99_us"), p99_us)?;
                self.progress(&format!("{measure}: p50 {p50_us:.0}, p99 {p99_us:.0} us"));
            }
        }
        Ok(())
    }
}

/// Stores and removes one block after the other; none if the server does not show one in time.
async fn probe(
    subject: &mut impl Subject,
    publishers: &mut Publishers,
    number: &mut u64,
) -> Result<Option<Seen>> {
    let (begin, mut seen) = (Instant::now(), Seen::default());
    while begin.elapsed() < LENGTH {
        let (_, prompt) = Stream::probe(*number);
        for is_stored in [true, false] {
            let asked = Instant::now();
            publishers.probe(*number, is_stored).await?;
            while subject.holds(&prompt).await? != is_stored {
                if asked.elapsed() > PATIENCE {
                    publishers.probed_ns().await?;
                    return Ok(None);
                }
            }
            let (now, sent) = (now_ns()?, publishers.probed_ns().await?);
            let time = Duration::from_nanos(now.saturating_sub(sent));
            if is_stored { &mut seen.stored } else { &mut seen.removed }.push(time);
            sleep(PROBE_PAUSE).await;
        }
        *number += 1;
    }
    Ok(Some(seen))
}
