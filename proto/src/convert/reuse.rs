use super::shared::check_range;
use super::{ConvertError, WorkerAddress};
use crate::limits::{QUERY_TOKENS_MAX, REUSE_REQUESTS_MAX, WORKER_RANKS_MAX};
use crate::pb;
use crate::types::{DpRank, PartitionKey, PromptReuse, WorkerId};

/// A checked `ReportReuseRequest`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReuseReport {
    /// The worker that served the requests.
    pub address: WorkerAddress,
    /// The worker's rank, below [`WORKER_RANKS_MAX`].
    pub rank: DpRank,
    /// The requests, 1 to [`REUSE_REQUESTS_MAX`].
    pub requests: Vec<PromptReuse>,
}

impl TryFrom<pb::ReportReuseRequest> for ReuseReport {
    type Error = ConvertError;

    fn try_from(request: pb::ReportReuseRequest) -> Result<Self, ConvertError> {
        let address = WorkerAddress {
            partition: PartitionKey::new(&request.model, &request.tenant)?,
            worker: WorkerId::new(&request.worker_id)?,
        };
        let rank_max = u64::try_from(WORKER_RANKS_MAX - 1).unwrap_or(u64::MAX);
        check_range("dp_rank", request.dp_rank.into(), 0, rank_max)?;
        let count = request.requests.len() as u64;
        check_range("requests", count, 1, REUSE_REQUESTS_MAX as u64)?;
        let requests = request.requests.into_iter().enumerate().map(|(at, reused)| {
            let field = |name: &str| format!("requests[{at}].{name}");
            let prompt = reused.prompt_tokens.into();
            check_range(&field("prompt_tokens"), prompt, 1, QUERY_TOKENS_MAX as u64)?;
            check_range(&field("expected_tokens"), reused.expected_tokens.into(), 0, prompt)?;
            check_range(&field("cached_tokens"), reused.cached_tokens.into(), 0, prompt)?;
            Ok(PromptReuse {
                prompt: reused.prompt_tokens,
                expected: reused.expected_tokens,
                cached: reused.cached_tokens,
            })
        });
        let requests = requests.collect::<Result<_, ConvertError>>()?;
        Ok(Self { address, rank: request.dp_rank, requests })
    }
}

impl From<&ReuseReport> for pb::ReportReuseRequest {
    fn from(report: &ReuseReport) -> Self {
        let requests = report.requests.iter().map(|reused| pb::ReusedTokens {
            prompt_tokens: reused.prompt,
            expected_tokens: reused.expected,
            cached_tokens: reused.cached,
        });
        Self {
            model: report.address.partition.model().to_owned(),
            tenant: report.address.partition.tenant().to_owned(),
            worker_id: report.address.worker.as_str().to_owned(),
            dp_rank: report.rank,
            requests: requests.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(reused: pb::ReusedTokens) -> pb::ReportReuseRequest {
        pb::ReportReuseRequest {
            model: "m".into(),
            worker_id: "w".into(),
            dp_rank: 1,
            requests: vec![reused],
            ..pb::ReportReuseRequest::default()
        }
    }

    #[test]
    fn a_report_is_read_and_wrong_numbers_are_named() {
        let reused = pb::ReusedTokens { prompt_tokens: 64, expected_tokens: 48, cached_tokens: 32 };
        let report = ReuseReport::try_from(request(reused)).expect("a valid report");
        assert_eq!(report.requests, [PromptReuse { prompt: 64, expected: 48, cached: 32 }]);
        assert_eq!((report.rank, report.address.worker.as_str()), (1, "w"));
        assert_eq!(pb::ReportReuseRequest::from(&report), request(reused));
        let fails = |request: pb::ReportReuseRequest, field: &str| {
            let error = ReuseReport::try_from(request).expect_err("a wrong number");
            assert_eq!(error.field, field);
        };
        let none = pb::ReportReuseRequest { requests: vec![], ..request(reused) };
        fails(none, "requests");
        let many = vec![reused; REUSE_REQUESTS_MAX + 1];
        fails(pb::ReportReuseRequest { requests: many, ..request(reused) }, "requests");
        fails(pb::ReportReuseRequest { dp_rank: 1_024, ..request(reused) }, "dp_rank");
        let without = pb::ReusedTokens { prompt_tokens: 0, ..reused };
        fails(request(without), "requests[0].prompt_tokens");
        let beyond = pb::ReusedTokens { expected_tokens: 65, ..reused };
        fails(request(beyond), "requests[0].expected_tokens");
        let beyond = pb::ReusedTokens { cached_tokens: 65, ..reused };
        fails(request(beyond), "requests[0].cached_tokens");
    }
}
