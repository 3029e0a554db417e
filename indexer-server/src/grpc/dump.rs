use super::{
    config::{CHUNKS_QUEUED_MAX, DUMP_STALL_TIMEOUT},
    server::Parts,
    status::{status, stopping},
};
use crate::query::{Dump, DumpPart, QueryError};
use kvasir_index::{DumpRecord, DumpSourceEnd, IndexError, SourceId};
use kvasir_proto::{
    convert::{self, DumpQuery, WorkerAddress},
    pb,
};
use std::pin::Pin;
use tokio::{
    select,
    sync::{mpsc, oneshot},
    time::timeout,
};
use tokio_stream::{Stream, wrappers::ReceiverStream};
use tonic::Status;

pub(super) type DumpStream =
    Pin<Box<dyn Stream<Item = Result<pb::DumpWorkerResponse, Status>> + Send>>;

type Parcel = Result<pb::DumpWorkerResponse, Status>;

/// Begins a dump in a task of its own, which gives it up properly whatever the client does.
pub(super) async fn start(parts: &Parts, query: DumpQuery) -> Result<DumpStream, Status> {
    let partition = parts.finder.partition(&query.partition).map_err(status)?;
    let (parcels, stream) = mpsc::channel(CHUNKS_QUEUED_MAX);
    let (begun_tx, begun) = oneshot::channel();
    let task_parts = parts.clone();
    parts.tasks.spawn(async move {
        match Dump::begin(partition, task_parts.writer.clone(), &query).await {
            Err(error) => {
                let _client_gone = begun_tx.send(begin_error(&task_parts, query, error));
            }
            Ok(dump) if begun_tx.send(Ok(())).is_ok() => run(dump, &task_parts, parcels).await,
            Ok(dump) => dump.cancel().await,
        }
    });
    begun.await.unwrap_or_else(|_gone| Err(stopping()))?;
    Ok(Box::pin(ReceiverStream::new(stream)))
}

/// A registered worker that nothing has fed yet has an empty dump.
fn begin_error(parts: &Parts, query: DumpQuery, error: QueryError) -> Result<(), Status> {
    let unknown = matches!(error, QueryError::Index(IndexError::UnknownWorker { .. }));
    let address = WorkerAddress { partition: query.partition, worker: query.worker };
    if unknown && query.rank.is_none() && parts.ingest.contains(&address) {
        return Ok(());
    }
    Err(status(error))
}

async fn run(mut dump: Dump, parts: &Parts, parcels: mpsc::Sender<Parcel>) {
    let mut sources = Sources::default();
    loop {
        let messages = match dump.next().await {
            Ok(None) => return,
            Ok(Some(DumpPart::Records(records))) => sources.chunks(&records),
            Ok(Some(DumpPart::Ends(ends))) => sources.ends(&ends),
            Err(error) => {
                deliver(&parcels, Err(status(error))).await;
                return;
            }
        };
        for message in messages {
            let delivered = select! {
                () = parts.stop.cancelled() => {
                    // The queue may be full: then the client learns of it by the connection.
                    let _queue_full = parcels.try_send(Err(stopping()));
                    false
                }
                delivered = deliver(&parcels, Ok(message)) => delivered,
            };
            if !delivered {
                dump.cancel().await;
                return;
            }
        }
    }
}

async fn deliver(parcels: &mpsc::Sender<Parcel>, parcel: Parcel) -> bool {
    matches!(timeout(DUMP_STALL_TIMEOUT, parcels.send(parcel)).await, Ok(Ok(())))
}

/// Numbers of the sources of one dump, in the order in which they appear.
#[derive(Default)]
struct Sources {
    seen: Vec<(SourceId, u64)>,
}

impl Sources {
    fn number(&mut self, source: SourceId) -> usize {
        let known = self.seen.iter().position(|(id, _)| *id == source);
        known.unwrap_or_else(|| {
            self.seen.push((source, 0));
            self.seen.len() - 1
        })
    }

    /// Records of several ranks go in several chunks.
    fn chunks(&mut self, records: &[DumpRecord]) -> Vec<pb::DumpWorkerResponse> {
        let ranks = records.chunk_by(|a, b| a.rank == b.rank);
        let chunks = ranks.map(|records| pb::DumpChunk {
            dp_rank: records.first().map_or(0, |record| record.rank),
            records: records.iter().map(|record| self.record(record)).collect(),
        });
        chunks.map(|chunk| message(pb::dump_worker_response::Part::Chunk(chunk))).collect()
    }

    fn record(&mut self, record: &DumpRecord) -> pb::BlockRecord {
        let number = self.number(record.source);
        if let Some((_, count)) = self.seen.get_mut(number) {
            *count += 1;
        }
        let [device_copies, host_copies, disk_copies] = record.copies;
        pb::BlockRecord {
            name: record.name.0,
            parent_name: record.parent.map(|parent| parent.0),
            local_hash: record.local.map(|local| local.0),
            placed: record.placed,
            source_index: u32::try_from(number).unwrap_or(u32::MAX),
            device_copies,
            host_copies,
            disk_copies,
        }
    }

    fn ends(&mut self, ends: &[DumpSourceEnd]) -> Vec<pb::DumpWorkerResponse> {
        let mut numbered: Vec<_> = ends.iter().map(|end| (self.number(end.source), end)).collect();
        numbered.sort_by_key(|(number, _)| *number);
        let ends = numbered.into_iter().map(|(number, end)| pb::DumpEnd {
            source_index: u32::try_from(number).unwrap_or(u32::MAX),
            source: end.name.as_ref().to_owned(),
            watermark: end.status.applied.map(convert::cursor),
            records: self.seen.get(number).map_or(0, |(_, count)| *count),
            state: convert::state(end.status.state).into(),
        });
        ends.map(|end| message(pb::dump_worker_response::Part::End(end))).collect()
    }
}

fn message(part: pb::dump_worker_response::Part) -> pb::DumpWorkerResponse {
    pb::DumpWorkerResponse { part: Some(part) }
}
