//! Options for the blocks on one medium of the engines.

use super::Options;
use kvasir_engine::normalise::{chunk_sizes, is_pool_medium, tier_of_medium};
use kvasir_process::config::ConfigError;
use kvasir_process::text::Span;
use kvasir_proto::convert::{read_connector_chunks, read_medium_ttls};
use kvasir_proto::limits::{MEDIUM_TTL_MS_MAX, MEDIUM_TTL_MS_MIN};
use kvasir_proto::pb;
use std::time::Duration;

/// Reads the times to live of blocks, pairs `medium=time`. Fails for an unknown medium, and with `journal-dir`.
pub(super) fn medium_ttls(options: &Options) -> Result<Vec<(String, Duration)>, ConfigError> {
    const FIELD: &str = "medium-ttl";
    let invalid = |why: String| ConfigError::invalid(FIELD, why);
    if options.journal_dir.is_some() && !options.medium_ttl.is_empty() {
        let why = "does not go with journal-dir: the journal on disk does not have the times of announcements; set \
                   one of them";
        return Err(invalid(why.to_owned()));
    }
    let read = |text: &String| {
        let pair = text.split_once('=');
        let (medium, ttl) = pair.ok_or_else(|| invalid(format!("{text:?} is no medium=time")))?;
        let is_in_pool = options.engine_pool.is_some() && is_pool_medium(medium);
        if tier_of_medium(medium).is_none() && !is_in_pool {
            let why = if is_pool_medium(medium) {
                format!("{medium:?} is the medium of a shared store: set engine-pool")
            } else {
                format!("{medium:?} is no medium of a worker's own memory, such as CPU or DISK")
            };
            return Err(invalid(why));
        }
        let ttl: Span = ttl.parse().map_err(invalid)?;
        let ttl_ms = ttl.millis_within(MEDIUM_TTL_MS_MIN..=MEDIUM_TTL_MS_MAX);
        let ttl_ms = ttl_ms.map_err(|why| invalid(format!("{medium} {why}")))?;
        Ok((medium.to_owned(), ttl_ms))
    };
    let ttls = options.medium_ttl.iter().map(read).collect::<Result<_, _>>()?;
    let ttls = read_medium_ttls(ttls).map_err(|error| invalid(error.to_string()))?;
    if !ttls.is_empty() && options.source.is_empty() {
        let why = "needs a source: publishers on the gRPC port remove blocks themselves";
        return Err(invalid(why.to_owned()));
    }
    Ok(ttls.into_iter().collect())
}

/// Reads the chunk sizes of connectors, pairs `medium=blocks`.
pub(super) fn connector_chunks(options: &Options) -> Result<Vec<pb::ConnectorChunk>, ConfigError> {
    let invalid = |why: String| ConfigError::invalid("connector-chunk", why);
    let read = |text: &String| {
        let pair = text.split_once('=');
        let pair = pair
            .and_then(|(medium, blocks)| Some((medium.to_owned(), blocks.parse::<u32>().ok()?)));
        pair.ok_or_else(|| invalid(format!("{text:?} is no medium=blocks such as CPU=4")))
    };
    let chunks = options.connector_chunk.iter().map(read).collect::<Result<_, _>>()?;
    let chunks = read_connector_chunks(chunks).map_err(|error| invalid(error.to_string()))?;
    chunk_sizes(&chunks).map_err(|error| invalid(error.to_string()))?;
    let chunks = chunks.into_iter().map(|(medium, blocks)| pb::ConnectorChunk { medium, blocks });
    Ok(chunks.collect())
}
