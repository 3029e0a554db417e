use super::{Feed, FeedDump, FeedError};
use crate::disk::DiskError;
use std::sync::Arc;
use std::time::Duration;
use tokio::select;
use tokio::task::spawn_blocking;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

/// Records read in one critical section of the journal's lock.
const STEP_RECORDS: usize = 256;
/// Backoff after an image that was aborted, because too much changed meanwhile.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Why no image was written.
#[derive(Debug, thiserror::Error)]
enum ImageError {
    #[error(transparent)]
    Feed(#[from] FeedError),
    #[error(transparent)]
    Disk(#[from] DiskError),
    #[error("the agent is stopping")]
    Stopping,
}

/// Writes an image of the held blocks whenever one is due, until `stop` is cancelled or the disk fails. Returns
/// immediately if the feed has no disk. Publishing continues meanwhile.
pub async fn write_images(feed: Arc<Feed>, stop: CancellationToken) {
    let Some(disk) = feed.disk() else { return };
    loop {
        select! {
            () = stop.cancelled() => return,
            () = disk.image_is_due() => {}
        }
        while let Err(error) = make_image(&feed, &stop).await {
            match error {
                ImageError::Stopping => return,
                ImageError::Disk(error) => return disk.image_failed(&error),
                ImageError::Feed(error) => tracing::debug!(%error, "no image of the journal yet"),
            }
            select! {
                () = stop.cancelled() => return,
                () = sleep(RETRY_PAUSE) => {}
            }
        }
    }
}

async fn make_image(feed: &Arc<Feed>, stop: &CancellationToken) -> Result<(), ImageError> {
    let dump = FeedDump::begin(feed, None).await?;
    let feed = Arc::clone(feed);
    let stop = stop.clone();
    let made = spawn_blocking(move || write_image(&feed, dump, &stop)).await;
    // A panic is in the log, and the next image starts over.
    made.unwrap_or(Err(ImageError::Stopping))
}

/// Writes an image from the steps of a dump, and makes it current. Stops if `stop` is cancelled.
fn write_image(feed: &Feed, dump: FeedDump, stop: &CancellationToken) -> Result<(), ImageError> {
    let Some(disk) = feed.disk() else { return Ok(()) };
    let complete = disk.write_image(move || {
        if stop.is_cancelled() || disk.is_given_up() {
            return Err(ImageError::Stopping);
        }
        Ok(dump.step(STEP_RECORDS)?)
    })?;
    feed.with_journal(|journal| disk.count(&complete, journal));
    Ok(())
}
