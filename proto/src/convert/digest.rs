//! Requests to an agent for the digests of a source's blocks (anti-entropy), and the agent's answers.

use super::local::{present, read_address, read_buckets, read_present, read_source};
use super::shared::{read_incarnation, read_tier, tier};
use super::{ConvertError, LocalSource, Problem, incarnation};
use crate::digest::TierDigest;
use crate::pb;
use crate::pb::get_digests_response::Part;
use crate::types::{DpRank, Incarnation, Tier};

/// A checked `GetDigestsRequest`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DigestsQuery {
    /// The source.
    pub source: LocalSource,
    /// Incarnation of the source.
    pub incarnation: Incarnation,
}

/// A checked `GetDigestsResponse`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DigestsPart {
    /// A tier of a rank.
    Tier {
        /// The rank.
        rank: DpRank,
        /// The tier.
        tier: Tier,
        /// Digest of the blocks in this tier.
        digest: TierDigest,
    },
    /// The answer is complete.
    End {
        /// The last batch that the digests include.
        watermark: Option<u64>,
    },
    /// The source has another incarnation.
    WrongIncarnation {
        /// The current incarnation.
        present: Incarnation,
    },
}

// === impl DigestsQuery ===

impl TryFrom<pb::GetDigestsRequest> for DigestsQuery {
    type Error = ConvertError;

    fn try_from(request: pb::GetDigestsRequest) -> Result<Self, ConvertError> {
        let address = read_address(&request.model, &request.tenant, &request.worker_id)?;
        Ok(Self {
            source: read_source(address, request.source)?,
            incarnation: read_incarnation("incarnation", &request.incarnation)?,
        })
    }
}

impl From<DigestsQuery> for pb::GetDigestsRequest {
    fn from(query: DigestsQuery) -> Self {
        let address = query.source.address;
        Self {
            model: address.partition.model().to_owned(),
            tenant: address.partition.tenant().to_owned(),
            worker_id: address.worker.as_str().to_owned(),
            source: query.source.name,
            incarnation: incarnation(query.incarnation),
        }
    }
}

// === impl DigestsPart ===

impl TryFrom<pb::GetDigestsResponse> for DigestsPart {
    type Error = ConvertError;

    fn try_from(response: pb::GetDigestsResponse) -> Result<Self, ConvertError> {
        match response.part {
            Some(Part::Digest(digest)) => {
                read_digest(&digest).map_err(|error| error.within("digest"))
            }
            Some(Part::End(end)) => Ok(Self::End { watermark: end.watermark_sequence }),
            Some(Part::WrongIncarnation(answer)) => {
                Ok(Self::WrongIncarnation { present: read_present(&answer)? })
            }
            None => Err(ConvertError::new("part", Problem::Required)),
        }
    }
}

fn read_digest(digest: &pb::TierDigest) -> Result<DigestsPart, ConvertError> {
    let buckets = read_buckets(&digest.buckets)?;
    if buckets.len() != digest.digests.len() {
        let actual = format!("has {} entries", digest.digests.len());
        let expected = format!("as many as buckets, {}", buckets.len());
        return Err(ConvertError::new("digests", Problem::Mismatch { actual, expected }));
    }
    let sums = buckets.into_iter().zip(digest.digests.iter().copied());
    Ok(DigestsPart::Tier {
        rank: digest.dp_rank,
        tier: read_tier("tier", digest.tier, None)?,
        digest: TierDigest::of(digest.blocks, sums),
    })
}

impl From<DigestsPart> for pb::GetDigestsResponse {
    fn from(part: DigestsPart) -> Self {
        let part = match part {
            DigestsPart::Tier { rank, tier: at, digest } => {
                let (buckets, digests) =
                    digest.buckets().map(|(bucket, sum)| (u32::from(bucket), sum)).unzip();
                let dp_rank = rank;
                let tier = tier(at).into();
                Part::Digest(pb::TierDigest {
                    dp_rank,
                    tier,
                    blocks: digest.blocks(),
                    buckets,
                    digests,
                })
            }
            DigestsPart::End { watermark } => {
                Part::End(pb::DigestsEnd { watermark_sequence: watermark })
            }
            DigestsPart::WrongIncarnation { present: current } => {
                Part::WrongIncarnation(present(current))
            }
        };
        Self { part: Some(part) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::convert::WorkerAddress;
    use crate::types::{PartitionKey, WorkerId};

    const INCARNATION: Incarnation = Incarnation(7);

    #[test]
    fn digests_arrive_as_they_were_sent() {
        let partition = PartitionKey::new("m", "t").expect("names");
        let address = WorkerAddress { partition, worker: WorkerId::new("w").expect("a name") };
        let source = LocalSource { address, name: "s".to_owned() };
        let query = DigestsQuery { source, incarnation: INCARNATION };
        let read = DigestsQuery::try_from(pb::GetDigestsRequest::from(query.clone()));
        assert_eq!(read, Ok(query));
        let digest = TierDigest::of(3, [(0, 5), (4_095, u64::MAX)]);
        for part in [
            DigestsPart::Tier { rank: 3, tier: Tier::Disk, digest },
            DigestsPart::End { watermark: None },
            DigestsPart::End { watermark: Some(0) },
            DigestsPart::WrongIncarnation { present: INCARNATION },
        ] {
            let read = DigestsPart::try_from(pb::GetDigestsResponse::from(part.clone()));
            assert_eq!(read, Ok(part));
        }
    }

    #[test]
    fn what_is_wrong_with_digests_is_named() {
        let refused = |buckets: &[u32], tier: i32, expected: &str| {
            let buckets = buckets.to_vec();
            let digests = vec![5];
            let digest = pb::TierDigest { dp_rank: 0, tier, blocks: 1, buckets, digests };
            let part = Some(Part::Digest(digest));
            let error = DigestsPart::try_from(pb::GetDigestsResponse { part });
            assert_eq!(error.expect_err(expected).to_string(), expected);
        };
        refused(&[4_096], 1, "digest.buckets is 4096, must be 0 to 4095");
        refused(&[], 1, "digest.digests has 1 entries, must be as many as buckets, 0");
        refused(&[1], 0, "digest.tier has the unknown value 0");
        let nothing = DigestsPart::try_from(pb::GetDigestsResponse { part: None });
        assert_eq!(nothing.expect_err("nothing").to_string(), "part is required");
    }
}
