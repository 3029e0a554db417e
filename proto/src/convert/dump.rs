use super::{ConvertError, shared::check_range};
use crate::{
    limits::{DUMP_CHUNK_RECORDS_DEFAULT, DUMP_CHUNK_RECORDS_MAX},
    pb,
    types::{DpRank, PartitionKey, WorkerId},
};

/// A checked `DumpWorkerRequest`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DumpQuery {
    /// Index to ask.
    pub partition: PartitionKey,
    /// The worker.
    pub worker: WorkerId,
    /// This rank only.
    pub rank: Option<DpRank>,
    /// Most records in one chunk, at least 1.
    pub chunk_records: usize,
}

impl TryFrom<pb::DumpWorkerRequest> for DumpQuery {
    type Error = ConvertError;

    fn try_from(request: pb::DumpWorkerRequest) -> Result<Self, ConvertError> {
        let asked = request.chunk_records.map_or(DUMP_CHUNK_RECORDS_DEFAULT as u64, u64::from);
        check_range("chunk_records", asked, 1, DUMP_CHUNK_RECORDS_MAX as u64)?;
        Ok(Self {
            partition: PartitionKey::new(&request.model, &request.tenant)?,
            worker: WorkerId::new(&request.worker_id)?,
            rank: request.dp_rank,
            chunk_records: usize::try_from(asked).unwrap_or(DUMP_CHUNK_RECORDS_MAX),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunk_records_are_bounded() {
        let request = |chunk_records| pb::DumpWorkerRequest {
            model: "m".to_owned(),
            worker_id: "w".to_owned(),
            chunk_records,
            ..Default::default()
        };
        let check = |chunk_records, expected: Result<usize, &str>| {
            let query = DumpQuery::try_from(request(chunk_records));
            let found = query.map(|query| query.chunk_records).map_err(|error| error.to_string());
            assert_eq!(found, expected.map_err(str::to_owned));
        };
        check(None, Ok(2_048));
        check(Some(1), Ok(1));
        check(Some(8_192), Ok(8_192));
        check(Some(0), Err("chunk_records is 0, must be 1 to 8192"));
        check(Some(8_193), Err("chunk_records is 8193, must be 1 to 8192"));
    }
}
