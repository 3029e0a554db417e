use super::Parts;
use super::access::{Caller, for_principal};
use super::config::{CHUNKS_QUEUED_MAX, DUMP_STALL_TIMEOUT};
use super::dumpers::{Dumpers, Place};
use super::status::{status, stopping};
use crate::partitions::{Dump, DumpError, DumpPart};
use crate::query::QueryError;
use futures::Stream;
use kvasir_index::{DumpRecord, DumpSourceEnd, IndexError, SourceId};
use kvasir_process::outlet::{Last, Outlet, outlet};
use kvasir_proto::convert::{self, DumpQuery, DumpedSource, WorkerAddress};
use kvasir_proto::limits::{DUMP_MEANINGS_MAX, TOLD_PAST_INCARNATIONS_MAX};
use kvasir_proto::pb;
use kvasir_proto::types::Incarnation;
use std::pin::Pin;
use std::sync::Arc;
use tokio::select;
use tokio::sync::oneshot;
use tokio::time::timeout;
use tonic::Status;

pub(super) type DumpStream =
    Pin<Box<dyn Stream<Item = Result<pb::DumpWorkerResponse, Status>> + Send>>;

/// Starts a dump in its own task, which closes the dump properly, even if the client disconnects.
pub(super) async fn start(
    parts: &Parts,
    dumpers: &Dumpers,
    caller: &Caller,
    query: DumpQuery,
) -> Result<DumpStream, Status> {
    caller.admit_query(&query.partition)?;
    let worker = query.worker.clone();
    let address = WorkerAddress { partition: query.partition.clone(), worker };
    parts.ingest.check_address(&address).map_err(status)?;
    let partition = parts.finder.partition(&query.partition);
    let partition = partition.map_err(|error| status(for_principal(error, &caller.principal)))?;
    tracing::debug!(worker = query.worker.as_str(), partition = %query.partition, "dump requested");
    let place = dumpers.wait_for_permit(address, caller.peer.as_ref()).await?;
    let (parcels, stream) = outlet(CHUNKS_QUEUED_MAX);
    let (begun_tx, begun) = oneshot::channel();
    let task_parts = parts.clone();
    parts.tasks.spawn(async move {
        let place = place;
        match Dump::begin(&partition, task_parts.writer.clone(), &query).await {
            Err(error) => {
                let outcome = begin_error(&task_parts, query, error);
                let _client_gone = begun_tx.send(outcome);
                parcels.end(Ok(None));
            }
            Ok(dump) if begun_tx.send(Ok(())).is_ok() => {
                let last = run(dump, &task_parts, &place, &parcels).await;
                parcels.end(last);
            }
            Ok(dump) => dump.cancel().await,
        }
    });
    begun.await.unwrap_or_else(|_gone| Err(stopping()))?;
    Ok(Box::pin(stream))
}

/// Converts the error of a dump that did not begin. Returns `Ok` for a registered worker that still waits for its first
/// source, because its dump is empty. Fails if the query names a rank of such a worker.
fn begin_error(parts: &Parts, query: DumpQuery, error: DumpError) -> Result<(), Status> {
    let unknown = matches!(error, DumpError::Index(IndexError::UnknownWorker { .. }));
    let address = WorkerAddress { partition: query.partition, worker: query.worker };
    if !unknown || !parts.ingest.contains(&address) {
        return Err(status(QueryError::from(error)));
    }
    let Some(rank) = query.rank else { return Ok(()) };
    let no_rank = IndexError::UnknownRank { worker: address.worker, rank };
    Err(status(QueryError::from(no_rank)))
}

/// Sends a dump to the client: records, then the sources. Cancels the dump if the client leaves or reads too slowly.
async fn run(
    mut dump: Dump,
    parts: &Parts,
    place: &Place,
    parcels: &Outlet<pb::DumpWorkerResponse>,
) -> Last<pb::DumpWorkerResponse> {
    let mut sources = Sources::default();
    loop {
        // A part may have no record to send.
        if parcels.queue.is_closed() {
            dump.cancel().await;
            return Err(Status::cancelled("the client is gone"));
        }
        let part = dump.next().await.map_err(|error| status(QueryError::from(error)))?;
        let (records, ends, messages) = match part {
            None => return Ok(None),
            Some(DumpPart::Records(records)) => {
                (records.len(), Vec::new(), sources.chunks(&records))
            }
            Some(DumpPart::Ends(ends)) => {
                let messages = sources.ends(&ends);
                (0, ends, messages)
            }
        };
        let meanings = ends.iter().flat_map(|end| sources.meanings(end));
        for message in meanings.chain(messages) {
            if let Err(cut_off) = deliver(parts, place, parcels, message).await {
                dump.cancel().await;
                return Err(cut_off);
            }
        }
        place.count_records(records);
    }
}

/// Sends one message. Fails when the server stops, the client is gone or stopped reading, or its permit is revoked
/// for other clients.
async fn deliver(
    parts: &Parts,
    place: &Place,
    parcels: &Outlet<pb::DumpWorkerResponse>,
    message: pb::DumpWorkerResponse,
) -> Result<(), Status> {
    let sent = select! {
        () = parts.stop.cancelled() => return Err(stopping()),
        () = place.makes_way.cancelled() => {
            tracing::info!("closed a dump whose client reads too slowly while others wait");
            return Err(Status::aborted("the client reads too slowly while others wait: dump again"));
        }
        sent = timeout(DUMP_STALL_TIMEOUT, parcels.queue.send(message)) => sent,
    };
    match sent {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_gone)) => Err(Status::cancelled("the client is gone")),
        Err(_late) => {
            tracing::info!("closed a dump whose client stopped reading");
            Err(Status::aborted("the client stopped reading: dump again"))
        }
    }
}

/// Numbers of a dump's sources, in order of appearance.
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

    /// Builds chunks. Records of different ranks go into different chunks.
    fn chunks(&mut self, records: &[DumpRecord]) -> Vec<pb::DumpWorkerResponse> {
        let ranks = records.chunk_by(|a, b| a.rank == b.rank);
        let chunks = ranks.map(|records| pb::DumpChunk {
            dp_rank: records.first().map_or(0, |record| record.rank),
            records: records.iter().map(|record| self.record(record)).collect(),
        });
        chunks.map(|chunk| message(pb::dump_worker_response::Part::Chunk(chunk))).collect()
    }

    /// Converts a record to a message, and counts it for its source.
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

    /// Returns messages with the meanings of a source's block names, each for one rank.
    fn meanings<'a>(
        &mut self,
        end: &'a DumpSourceEnd,
    ) -> impl Iterator<Item = pb::DumpWorkerResponse> + use<'a> {
        let number = u32::try_from(self.number(end.source)).unwrap_or(u32::MAX);
        let ranks = end.meanings.chunk_by(|one, next| one.0 == next.0);
        let parts = ranks.flat_map(|names| names.chunks(DUMP_MEANINGS_MAX));
        parts.map(move |names| {
            let rank = names.first().map_or(0, |&(rank, ..)| rank);
            let names =
                names.iter().map(|(_, name, meaning)| convert::name_meaning(*name, meaning));
            let names = names.collect();
            let part = pb::DumpMeanings { source_index: number, dp_rank: rank, names };
            message(pb::dump_worker_response::Part::Meanings(part))
        })
    }

    /// Converts the ends of the sources to messages, in order of the sources' numbers in the dump.
    fn ends(&mut self, ends: &[DumpSourceEnd]) -> Vec<pb::DumpWorkerResponse> {
        let mut numbered: Vec<_> = ends.iter().map(|end| (self.number(end.source), end)).collect();
        numbered.sort_by_key(|(number, _)| *number);
        let ends = numbered.into_iter().map(|(number, end)| {
            let records = self.seen.get(number).map_or(0, |(_, count)| *count);
            let source = DumpedSource {
                name: end.name.as_ref().to_owned(),
                copy_mode: end.copy_mode,
                applied: end.status.applied,
                past: latest(&end.status.past).to_vec(),
                learned: Arc::clone(&end.status.learned),
                state: end.status.state,
                reasons: end.status.reasons.to_vec(),
                incomplete: end.incomplete,
                ranks: end.ranks.clone(),
            };
            convert::dumped_source(u32::try_from(number).unwrap_or(u32::MAX), records, source)
        });
        ends.map(|end| message(pb::dump_worker_response::Part::End(end))).collect()
    }
}

/// The latest past incarnations, at most as many as a dump may list.
fn latest(past: &[Incarnation]) -> &[Incarnation] {
    past.get(past.len().saturating_sub(TOLD_PAST_INCARNATIONS_MAX)..).unwrap_or(past)
}

fn message(part: pb::dump_worker_response::Part) -> pb::DumpWorkerResponse {
    pb::DumpWorkerResponse { part: Some(part) }
}
