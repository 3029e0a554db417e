use super::config::READ_BATCHES;
use super::outlet::{Outlet, Sent};
use kvasir_feed::feed::Feed;
use kvasir_feed::journal::{Batch, RangeError};
use kvasir_proto::convert::{EventsPart, EventsQuery, publish_batch};
use kvasir_proto::pb;
use std::sync::Arc;

/// Sends the batches of a range, then the newest batch number. Sends the reason instead if the journal does not have
/// the range.
pub(super) async fn send_events(
    feed: &Arc<Feed>,
    query: EventsQuery,
    outlet: &Outlet<pb::GetEventsResponse>,
) -> Sent {
    let (mut from, mut to) = query.range.into_inner();
    loop {
        let range = match feed.range(query.incarnation, from..=to, READ_BATCHES) {
            Ok(range) => range,
            Err(error) => return outlet.send(Ok(refusal(error).into())).await,
        };
        // The range excludes batches that arrive meanwhile. Otherwise a busy source would make it endless.
        to = to.min(range.head.unwrap_or(to));
        let last = range.batches.last().map(|batch| batch.sequence());
        for batch in &range.batches {
            outlet.send(Ok(message(batch))).await?;
        }
        match last {
            Some(last) if last < to => from = last + 1,
            _ => return outlet.send(Ok(EventsPart::End { head: range.head }.into())).await,
        }
    }
}

fn message(batch: &Batch) -> pb::GetEventsResponse {
    let batch = publish_batch(batch.sequence(), batch.rank(), batch.events());
    pb::GetEventsResponse { part: Some(pb::get_events_response::Part::Batch(batch)) }
}

const fn refusal(error: RangeError) -> EventsPart {
    match error {
        RangeError::TooOld { oldest, head } => EventsPart::TooOld { oldest, head },
        RangeError::Ahead { head } => EventsPart::Ahead { head },
        RangeError::WrongIncarnation { present } => EventsPart::WrongIncarnation { present },
    }
}
