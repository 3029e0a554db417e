use super::Connection;
use async_nats::{SubscribeError, Subscriber};
use futures::future::try_join_all;
use futures::stream::SelectAll;
use kvasir_proto::broker::{
    EVENTS_ALL, HEARTBEATS_ALL, Namespace, events_of_bucket, heartbeats_of_bucket,
};

/// Buckets of a server's workers. `None` for all.
pub(super) type Buckets = Option<Vec<u8>>;

/// Subjects of batches.
pub(super) fn events(namespace: &Namespace, buckets: &Buckets) -> Vec<String> {
    let subject = |bucket: &u8| namespace.subject(events_of_bucket(*bucket));
    match buckets {
        None => vec![namespace.subject(EVENTS_ALL)],
        Some(buckets) => buckets.iter().map(subject).collect(),
    }
}

/// Subjects of heartbeats.
pub(super) fn heartbeats(namespace: &Namespace, buckets: &Buckets) -> Vec<String> {
    let subject = |bucket: &u8| namespace.subject(heartbeats_of_bucket(*bucket));
    match buckets {
        None => vec![namespace.subject(HEARTBEATS_ALL)],
        Some(buckets) => buckets.iter().map(subject).collect(),
    }
}

/// Subscribes to all subjects, now and after each reconnect.
pub(super) async fn subscribe(
    connection: &Connection,
    subjects: Vec<String>,
) -> Result<SelectAll<Subscriber>, SubscribeError> {
    let subscribed = subjects.into_iter().map(|subject| connection.client.subscribe(subject));
    Ok(try_join_all(subscribed).await?.into_iter().collect())
}
