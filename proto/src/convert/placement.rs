use super::find::{Fields, INPUTS};
use super::shared::check_range;
use super::{ConvertError, FindQuery, QueryInput, WorkerAddress};
use crate::limits::{PLACEMENT_TTL_MS_DEFAULT, PLACEMENT_TTL_MS_MAX, WORKER_RANKS_MAX};
use crate::pb;
use crate::types::{DpRank, LocalHash, WorkerId};
use std::time::Duration;

/// A checked `RecordPlacementRequest`.
#[derive(Debug, Clone)]
pub struct Placement {
    /// The worker that received the prompt.
    pub address: WorkerAddress,
    /// The worker's rank, below [`WORKER_RANKS_MAX`].
    pub rank: DpRank,
    /// Block size that the client assumes, in tokens.
    pub block_size: Option<u32>,
    /// The prompt: tokens or local hashes, never names.
    pub input: QueryInput,
    /// Lifetime of the placement's speculative blocks.
    pub ttl: Duration,
}

const PLACEMENT_INPUTS: &str = "token_ids, token_ids_le, wide_token_ids or local_hashes";

impl TryFrom<pb::RecordPlacementRequest> for Placement {
    type Error = ConvertError;

    fn try_from(request: pb::RecordPlacementRequest) -> Result<Self, ConvertError> {
        let worker = WorkerId::new(&request.worker_id)?;
        let rank_max = u64::try_from(WORKER_RANKS_MAX - 1).unwrap_or(u64::MAX);
        check_range("dp_rank", request.dp_rank.into(), 0, rank_max)?;
        let ttl_ms = request.ttl_ms.unwrap_or(PLACEMENT_TTL_MS_DEFAULT);
        check_range("ttl_ms", ttl_ms.into(), 1, PLACEMENT_TTL_MS_MAX.into())?;
        let rank = request.dp_rank;
        // Reads the prompt as a query does, so that a query for this prompt matches the placement.
        let query = Fields {
            model: &request.model,
            tenant: &request.tenant,
            lora_name: &request.lora_name,
            cache_salt: &request.cache_salt,
            block_size: request.block_size,
            hash_scheme: request.hash_scheme.as_deref(),
            token_ids: request.token_ids,
            token_ids_le: request.token_ids_le,
            local_hashes: request.local_hashes.into_iter().map(LocalHash).collect(),
            multimodal: request.multimodal,
            wide_token_ids: request.wide_token_ids,
            ..Fields::default()
        }
        .check();
        let FindQuery { partition, block_size, input, .. } = query.map_err(without_names)?;
        let address = WorkerAddress { partition, worker };
        Ok(Self { address, rank, block_size, input, ttl: Duration::from_millis(ttl_ms.into()) })
    }
}

/// Rewords an error of a query's prompt for a request that does not accept names.
pub(super) fn without_names(mut error: ConvertError) -> ConvertError {
    if error.field == INPUTS {
        PLACEMENT_INPUTS.clone_into(&mut error.field);
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::convert::FindRequest;
    use prost::Message;

    fn request() -> pb::RecordPlacementRequest {
        pb::RecordPlacementRequest {
            model: "m".to_owned(),
            worker_id: "w".to_owned(),
            token_ids: vec![1, 2, 3, 4, 5],
            ..pb::RecordPlacementRequest::default()
        }
    }

    #[test]
    fn a_placement_is_read_like_a_query() {
        let namespaced = pb::RecordPlacementRequest {
            lora_name: "lora".to_owned(),
            cache_salt: "salt".to_owned(),
            tenant: "t".to_owned(),
            dp_rank: 1_023,
            ttl_ms: Some(7),
            ..request()
        };
        let placement = Placement::try_from(namespaced).expect("a valid request");
        assert_eq!(placement.address.to_string(), "w (model m, tenant t)");
        assert_eq!((placement.rank, placement.ttl), (1_023, Duration::from_millis(7)));
        let query = pb::FindMatchesRequest {
            model: "m".to_owned(),
            lora_name: "lora".to_owned(),
            cache_salt: "salt".to_owned(),
            token_ids: vec![1, 2, 3, 4, 5],
            ..pb::FindMatchesRequest::default()
        };
        let query = FindRequest::read(&query.encode_to_vec().into()).expect("a message").query;
        let query = query.expect("a valid request");
        let mut asked = Vec::new();
        let mut placed = Vec::new();
        let asked = query.input.local_hashes(2, &mut asked).expect("few blocks");
        let placed = placement.input.local_hashes(2, &mut placed).expect("few blocks");
        assert_eq!(asked.map(<[LocalHash]>::len), Some(2));
        assert_eq!(asked, placed);
        let placement = Placement::try_from(request()).expect("a valid request");
        assert_eq!((placement.rank, placement.ttl), (0, Duration::from_secs(120)));
    }

    #[test]
    fn every_refusal_names_the_field_and_the_fix() {
        let check = |request: pb::RecordPlacementRequest, expected: &str| {
            let error = Placement::try_from(request).expect_err(expected);
            assert_eq!(error.to_string(), expected);
        };
        let base = request;
        check(
            pb::RecordPlacementRequest { worker_id: String::new(), ..base() },
            "worker_id is required",
        );
        check(pb::RecordPlacementRequest { model: String::new(), ..base() }, "model is required");
        check(
            pb::RecordPlacementRequest { dp_rank: 1_024, ..base() },
            "dp_rank is 1024, must be 0 to 1023",
        );
        check(
            pb::RecordPlacementRequest { ttl_ms: Some(0), ..base() },
            "ttl_ms is 0, must be 1 to 3600000",
        );
        check(
            pb::RecordPlacementRequest { ttl_ms: Some(3_600_001), ..base() },
            "ttl_ms is 3600001, must be 1 to 3600000",
        );
        check(
            pb::RecordPlacementRequest { token_ids: vec![], ..base() },
            "token_ids, token_ids_le, wide_token_ids or local_hashes is required",
        );
        check(
            pb::RecordPlacementRequest { local_hashes: vec![1], ..base() },
            "token_ids, token_ids_le, wide_token_ids or local_hashes are 2 inputs, must be exactly one",
        );
        check(
            pb::RecordPlacementRequest {
                token_ids: vec![],
                local_hashes: vec![1],
                lora_name: "lora".to_owned(),
                ..base()
            },
            "lora_name must not be set with hashes: they contain it; send tokens instead",
        );
    }
}
