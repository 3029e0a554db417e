use super::Connection;
use async_nats::{SubscribeError, Subscriber};
use futures::{future::try_join_all, stream::SelectAll};
use kvasir_proto::broker::{EVENTS_ALL, HEARTBEATS_ALL, events_of_bucket, heartbeats_of_bucket};

/// The buckets whose workers a server has; none for all.
pub(super) type Buckets = Option<Vec<u8>>;

/// Subjects of batches.
pub(super) fn events(buckets: &Buckets) -> Vec<String> {
    match buckets {
        None => vec![EVENTS_ALL.to_owned()],
        Some(buckets) => buckets.iter().map(|bucket| events_of_bucket(*bucket)).collect(),
    }
}

/// Subjects of heartbeats.
pub(super) fn heartbeats(buckets: &Buckets) -> Vec<String> {
    match buckets {
        None => vec![HEARTBEATS_ALL.to_owned()],
        Some(buckets) => buckets.iter().map(|bucket| heartbeats_of_bucket(*bucket)).collect(),
    }
}

/// Subscribes to all of them, now and whenever the connection comes back.
pub(super) async fn subscribe(
    connection: &Connection,
    subjects: Vec<String>,
) -> Result<SelectAll<Subscriber>, SubscribeError> {
    let subscribed = subjects.into_iter().map(|subject| connection.client.subscribe(subject));
    Ok(try_join_all(subscribed).await?.into_iter().collect())
}
