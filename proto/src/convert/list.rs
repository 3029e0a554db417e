use super::shared::check_range;
use super::{ConvertError, Problem, Registration, WorkerAddress};
use crate::limits::{LIST_PAGE_WORKERS_MAX, NAME_BYTES_MAX};
use crate::pb;
use crate::types::{PartitionKey, WorkerId};
use std::fmt::Write;

const PAGE_TOKEN: &str = "page_token";
/// Separates names in a page token; names cannot contain it.
const SEPARATOR: char = '\0';
/// Maximum length of a page token: three names and two separators, two digits per byte.
const PAGE_TOKEN_BYTES_MAX: usize = (3 * NAME_BYTES_MAX + 2) * 2;

/// A checked `ListWorkersRequest`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListQuery {
    /// Only this model; none for all.
    pub model: Option<String>,
    /// Only this tenant; none for all.
    pub tenant: Option<String>,
    /// Maximum number of workers in the page.
    pub page_size: usize,
    /// The page begins after this worker, whether or not it still exists.
    pub after: Option<WorkerAddress>,
}

impl ListQuery {
    /// Whether the query includes the workers of this partition.
    #[must_use]
    pub fn asks_for(&self, partition: &PartitionKey) -> bool {
        self.model.as_deref().is_none_or(|model| model == partition.model())
            && self.tenant.as_deref().is_none_or(|tenant| tenant == partition.tenant())
    }
}

impl TryFrom<pb::ListWorkersRequest> for ListQuery {
    type Error = ConvertError;

    fn try_from(request: pb::ListWorkersRequest) -> Result<Self, ConvertError> {
        let pb::ListWorkersRequest { model, tenant, page_size, page_token } = request;
        let page_max = u32::try_from(LIST_PAGE_WORKERS_MAX).unwrap_or(u32::MAX);
        let page_size = page_size.unwrap_or(page_max);
        check_range("page_size", page_size.into(), 1, page_max.into())?;
        let after = (!page_token.is_empty()).then(|| read_page_token(&page_token)).transpose()?;
        let query = Self { model, tenant, page_size: page_size as usize, after };
        let is_other = |after: &WorkerAddress| !query.asks_for(&after.partition);
        if query.after.as_ref().is_some_and(is_other) {
            let actual = "belongs to another model or tenant".to_owned();
            let expected = "that of an answer to the same request".to_owned();
            return Err(ConvertError::new(PAGE_TOKEN, Problem::Mismatch { actual, expected }));
        }
        Ok(query)
    }
}

/// The token of the page that follows a worker.
#[must_use]
pub fn page_token(last: &Registration) -> String {
    let partition = &last.partition;
    let worker = &last.worker;
    let names = [partition.model(), partition.tenant(), worker.as_str()];
    let mut token = String::new();
    for byte in names.join(&SEPARATOR.to_string()).bytes() {
        // Writing to a String does not fail.
        let _infallible = write!(token, "{byte:02x}");
    }
    token
}

fn read_page_token(token: &str) -> Result<WorkerAddress, ConvertError> {
    read_names(token).ok_or_else(|| {
        let actual = "was not issued by this server".to_owned();
        let expected = "empty or the next_page_token of an answer".to_owned();
        ConvertError::new(PAGE_TOKEN, Problem::Mismatch { actual, expected })
    })
}

fn read_names(token: &str) -> Option<WorkerAddress> {
    if token.len() > PAGE_TOKEN_BYTES_MAX {
        return None;
    }
    let digits = token.as_bytes().chunks(2);
    let bytes = digits.map(|pair| match pair {
        [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
        _ => None,
    });
    let names = String::from_utf8(bytes.collect::<Option<Vec<u8>>>()?).ok()?;
    let mut names = names.split(SEPARATOR);
    let model = names.next()?;
    let tenant = names.next()?;
    let worker = names.next()?;
    if names.next().is_some() {
        return None;
    }
    let partition = PartitionKey::new(model, tenant).ok()?;
    Some(WorkerAddress { partition, worker: WorkerId::new(worker).ok()? })
}

/// The value of a hexadecimal digit of a [`page_token`].
const fn digit(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registration(model: &str, tenant: &str, worker_id: &str) -> Registration {
        let request = pb::RegisterWorkerRequest {
            worker_id: worker_id.to_owned(),
            model: model.to_owned(),
            tenant: tenant.to_owned(),
            block_size: 16,
            ..Default::default()
        };
        Registration::try_from(request).expect("valid")
    }

    fn request(page_token: &str) -> pb::ListWorkersRequest {
        pb::ListWorkersRequest { page_token: page_token.to_owned(), ..Default::default() }
    }

    #[test]
    fn a_token_names_the_worker_before_its_page() {
        let longest = "ü".repeat(NAME_BYTES_MAX / 2);
        for (model, tenant, worker) in
            [("m", "", "w"), ("m/1", "t, u", "a b"), (&*longest, &*longest, &*longest)]
        {
            let registration = registration(model, tenant, worker);
            let token = page_token(&registration);
            let query = ListQuery::try_from(request(&token)).expect("a valid token");
            assert_eq!(query.after, Some(registration.address()));
        }
        let query = ListQuery::try_from(request("")).expect("the first page");
        assert_eq!((query.after, query.page_size), (None, LIST_PAGE_WORKERS_MAX));
    }

    #[test]
    fn requests_are_refused_by_field() {
        let refused = |request: pb::ListWorkersRequest, expected: &str| {
            let error = ListQuery::try_from(request).expect_err(expected);
            assert_eq!(error.to_string(), expected);
        };
        let token = page_token(&registration("m", "t", "w"));
        let cut = token.get(1..).expect("hexadecimal digits");
        let long = "00".repeat(PAGE_TOKEN_BYTES_MAX);
        // The last three have too few names or one too many.
        for bad in ["x", "é", "6D", cut, &long, "6d", "6d0074", "6d007400770078"] {
            refused(
                request(bad),
                "page_token was not issued by this server, must be empty or the next_page_token of an answer",
            );
        }
        let page = |page_size| pb::ListWorkersRequest { page_size, ..Default::default() };
        refused(page(Some(0)), "page_size is 0, must be 1 to 4096");
        refused(page(Some(4_097)), "page_size is 4097, must be 1 to 4096");
        let other = |model: &str| pb::ListWorkersRequest {
            model: Some(model.to_owned()),
            ..request(&token)
        };
        refused(
            other("n"),
            "page_token belongs to another model or tenant, must be that of an answer to the same request",
        );
        assert!(ListQuery::try_from(other("m")).is_ok());
    }
}
