//! Fields of a registration that concern pools.

use super::shared::check_count;
use super::{ConvertError, Problem};
use crate::limits::WORKER_POOLS_MAX;
use crate::pb;
use crate::types::{HolderKind, WorkerId};
use std::fmt;

/// Displays worker ids.
pub(super) struct Ids<'a>(pub(super) &'a [WorkerId]);

impl fmt::Display for Ids<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("none");
        }
        self.0
            .iter()
            .enumerate()
            .try_for_each(|(index, id)| write!(f, "{}{id}", if index == 0 { "" } else { "," }))
    }
}

/// A worker is encoded as unspecified, so that its registration equals one from before pools existed.
pub(super) const fn kind_message(kind: HolderKind) -> pb::HolderKind {
    match kind {
        HolderKind::Worker => pb::HolderKind::Unspecified,
        HolderKind::Pool => pb::HolderKind::Pool,
    }
}

pub(super) fn read_kind(value: i32) -> Result<HolderKind, ConvertError> {
    match pb::HolderKind::try_from(value) {
        Ok(pb::HolderKind::Unspecified | pb::HolderKind::Worker) => Ok(HolderKind::Worker),
        Ok(pb::HolderKind::Pool) => Ok(HolderKind::Pool),
        Err(_) => Err(ConvertError::new("kind", Problem::UnknownValue(value))),
    }
}

/// Checks the pool ids of a worker. Returns them sorted.
///
/// # Errors
/// If there are too many ids, an id is invalid, or an id occurs twice. The error names the entry.
pub fn read_pool_ids(ids: &[String]) -> Result<Vec<WorkerId>, ConvertError> {
    check_count("pool_ids", ids.len(), WORKER_POOLS_MAX)?;
    let mut read = Vec::with_capacity(ids.len());
    for (index, id) in ids.iter().enumerate() {
        let field = format!("pool_ids[{index}]");
        let pool = WorkerId::new(id)
            .map_err(|error| ConvertError { field: field.clone(), ..ConvertError::from(error) })?;
        if read.contains(&pool) {
            return Err(ConvertError::new(field, Problem::Repeated(id.clone())));
        }
        read.push(pool);
    }
    read.sort_unstable();
    Ok(read)
}

/// Rejects a worker that lists itself as a pool.
pub(super) fn check_reader(worker: &WorkerId, pools: &[WorkerId]) -> Result<(), ConvertError> {
    if pools.contains(worker) {
        return Err(ConvertError::new("pool_ids", Problem::Unexpected(OWN_ID)));
    }
    Ok(())
}

/// Rejects a pool's registration if a listed field is set. The error names the first.
pub(super) fn check_empty(fields: &[(&'static str, bool)]) -> Result<(), ConvertError> {
    match fields.iter().find(|(_, is_empty)| !is_empty) {
        Some((field, _)) => Err(ConvertError::new(*field, Problem::Unexpected(OF_A_POOL))),
        None => Ok(()),
    }
}

const OWN_ID: &str = "with the worker's own id: name pools, which have ids of their own";
const OF_A_POOL: &str = "with kind HOLDER_KIND_POOL: leave it out";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::convert::Registration;

    fn request(kind: pb::HolderKind, pool_ids: &[&str]) -> pb::RegisterWorkerRequest {
        pb::RegisterWorkerRequest {
            worker_id: "w".to_owned(),
            model: "m".to_owned(),
            block_size: 16,
            kind: kind.into(),
            pool_ids: pool_ids.iter().map(ToString::to_string).collect(),
            ..Default::default()
        }
    }

    fn refusal(request: pb::RegisterWorkerRequest) -> String {
        Registration::try_from(request).expect_err("it contradicts itself").to_string()
    }

    #[test]
    fn a_worker_names_its_pools_each_once() {
        let read = Registration::try_from(request(pb::HolderKind::Worker, &["b", "a"]));
        let read = read.expect("valid");
        assert_eq!(read.kind, HolderKind::Worker);
        assert_eq!(read.pools.iter().map(WorkerId::as_str).collect::<Vec<_>>(), ["a", "b"]);
        let again = pb::RegisterWorkerRequest::from(&read);
        assert_eq!(Registration::try_from(again), Ok(read.clone()));
        let other = Registration { pools: Vec::new(), ..read.clone() };
        let difference = ("pool_ids", "a,b".to_owned(), "none".to_owned());
        assert_eq!(read.difference(&other), Some(difference));
        let of = |ids: &[&str]| refusal(request(pb::HolderKind::Unspecified, ids));
        assert_eq!(of(&["a", "a"]), "pool_ids[1] repeats a: each may be given once");
        assert_eq!(of(&["a", ""]), "pool_ids[1] is required");
        let many = ["0", "1", "2", "3", "4", "5", "6", "7", "8"];
        assert_eq!(of(&many), "pool_ids has 9 entries, the limit is 8: send fewer");
        assert!(of(&["w"]).starts_with("pool_ids"), "{}", of(&["w"]));
    }

    #[test]
    fn a_pool_has_nothing_that_only_workers_have() {
        let pool = || request(pb::HolderKind::Pool, &[]);
        let read = Registration::try_from(pool()).expect("valid");
        assert_eq!(read.kind, HolderKind::Pool);
        let worker = Registration { kind: HolderKind::Worker, ..read.clone() };
        let difference = ("kind", "pool".to_owned(), "worker".to_owned());
        assert_eq!(read.difference(&worker), Some(difference));
        let refused = [
            ("lease_ms", pb::RegisterWorkerRequest { lease_ms: 10_000, ..pool() }),
            ("pool_ids", request(pb::HolderKind::Pool, &["a"])),
            (
                "local_indexer_endpoint",
                pb::RegisterWorkerRequest { local_indexer_endpoint: "a:1".to_owned(), ..pool() },
            ),
        ];
        for (field, request) in refused {
            let text = refusal(request);
            assert!(text.starts_with(field), "{text}");
        }
        let unknown = pb::RegisterWorkerRequest { kind: 7, ..pool() };
        assert!(refusal(unknown).starts_with("kind"));
    }
}
