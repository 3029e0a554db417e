//! Rate limits of callers: one for each tenant, by option, and one for each identity, by its file (token bucket).

use crate::net::Reasons;
use kvasir_access::{Principal, Rate, Used};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

/// Used rates of tenants and identities. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Rates {
    tenant: Option<Rate>,
    used: Arc<UsedBy>,
}

#[derive(Debug)]
struct UsedBy {
    begin: Instant,
    tenants: Mutex<Used>,
    identities: Mutex<Used>,
}

impl Rates {
    /// Creates the limits with a rate per tenant; `None` is unlimited.
    pub(crate) fn new(tenant: Option<Rate>) -> Self {
        let tenants = Mutex::default();
        let identities = Mutex::default();
        Self { tenant, used: Arc::new(UsedBy { begin: Instant::now(), tenants, identities }) }
    }

    pub(crate) const fn tenant(&self) -> Option<Rate> {
        self.tenant
    }

    /// Returns the rate limits that apply to a caller, if there are any.
    pub(crate) fn quota(&self, principal: &Arc<Principal>, refused: &Reasons) -> Option<Quota> {
        let is_limited = self.tenant.is_some() || principal.rate().is_some();
        let quota = || Quota {
            rates: self.clone(),
            principal: Arc::clone(principal),
            refused: refused.clone(),
        };
        is_limited.then(quota)
    }
}

/// Rate limits of one caller.
#[derive(Debug, Clone)]
pub struct Quota {
    rates: Rates,
    principal: Arc<Principal>,
    refused: Reasons,
}

/// A query that exceeds a rate limit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{whose} has used its rate of queries: retry in {} ms", .wait.as_millis() + 1)]
pub struct RateExceeded {
    whose: String,
    /// Time after which the next query is allowed.
    pub wait: Duration,
}

impl Quota {
    /// Takes one query of a tenant that the caller may use.
    ///
    /// # Errors
    /// If the tenant's or the caller's rate is used up.
    pub fn take(&self, tenant: &str) -> Result<(), RateExceeded> {
        let UsedBy { begin, tenants, identities } = &*self.rates.used;
        let now = begin.elapsed();
        let take = |used: &Mutex<Used>, name: &str, rate: Option<Rate>| match rate {
            // Code under this lock does not panic.
            Some(rate) => used.lock().unwrap_or_else(PoisonError::into_inner).take(name, rate, now),
            None => Ok(()),
        };
        let name = self.principal.name();
        take(identities, name, self.principal.rate()).map_err(|wait| {
            self.refused.count("queries_of_identity");
            RateExceeded { whose: format!("identity {name:?}"), wait }
        })?;
        take(tenants, tenant, self.rates.tenant).map_err(|wait| {
            self.refused.count("queries_of_tenant");
            RateExceeded { whose: format!("tenant {tenant:?}"), wait }
        })
    }
}

impl From<RateExceeded> for Status {
    fn from(exceeded: RateExceeded) -> Self {
        let details = ErrorDetails::with_retry_info(Some(exceeded.wait));
        Self::with_error_details(Code::ResourceExhausted, exceeded.to_string(), details)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvasir_access::{Identities, token_sha256};
    use tokio::time::advance;

    fn identity(rest: &str) -> Arc<Principal> {
        let hash = token_sha256("t");
        let text = format!(
            "[[identity]]\nname = \"a\"\ntoken-sha256 = \"{hash}\"\nroles = [\"query\"]\ntenants = [\"*\"]\n{rest}"
        );
        let identities = Identities::parse(&text).expect("a file");
        Arc::clone(identities.of_token("t").expect("an identity"))
    }

    #[tokio::test(start_paused = true)]
    async fn a_tenant_at_its_limit_leaves_others_theirs() {
        let rates = Rates::new(Rate::new(2, None).ok());
        let quota = rates.quota(&identity(""), &Reasons::default()).expect("a limit");
        let of = |tenant| quota.take(tenant).is_ok();
        assert_eq!([of("x"), of("x"), of("x")], [true, true, false]);
        assert_eq!([of("y"), of("y"), of("y")], [true, true, false]);
        let refused = Status::from(quota.take("x").expect_err("it is used"));
        assert_eq!(refused.code(), Code::ResourceExhausted);
        let wait = refused.get_details_retry_info().expect("a time").retry_delay;
        assert_eq!(wait, Some(Duration::from_millis(500)));
        advance(Duration::from_millis(500)).await;
        assert_eq!([of("x"), of("x")], [true, false]);
    }

    #[tokio::test(start_paused = true)]
    async fn an_identity_has_its_own_rate_which_outlives_its_file() {
        let rates = Rates::new(None);
        let take = |identity| {
            let quota = rates.quota(&identity, &Reasons::default());
            quota.map(|quota| quota.take("any").is_ok())
        };
        let limited = || identity("queries-per-second = 1\nquery-burst = 2");
        assert_eq!(
            [take(limited()), take(limited()), take(limited())].map(|at| at == Some(true)),
            [true, true, false]
        );
        assert_eq!(take(identity("")), None, "nothing limits it");
        advance(Duration::from_secs(1)).await;
        assert_eq!(take(limited()), Some(true));
    }
}
