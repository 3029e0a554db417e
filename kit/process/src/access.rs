//! Authenticates callers by token or certificate. The identities come from a file that is reloaded when it changes.

use crate::net::Reasons;
use crate::quota::{Quota, Rates};
use kvasir_access::{Denied, Identities, Principal, Rate, Role};
use kvasir_proto::convert::{Registration, WorkerAddress};
use kvasir_proto::types::PartitionKey;
use kvasir_tls::{CertificateNames, Reloaded, ServerTls, Source, TlsError};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tonic::Status;
use tonic::codegen::http::HeaderMap;
use tonic::codegen::http::header::AUTHORIZATION;

/// Admission to a process's ports: TLS, identities, and the maximum age of connections.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Guard {
    /// TLS; none for plain connections.
    pub tls: Option<ServerTls>,
    /// The identities that may call.
    pub access: Access,
    /// Age at which clients are asked to reconnect, varied by up to a tenth. `None` is unlimited.
    pub connection_age: Option<Duration>,
}

/// Authentication of callers. Clones share the identities.
#[derive(Debug, Clone)]
pub struct Access {
    anyone: Arc<Principal>,
    identities: Option<File>,
    rates: Rates,
}

#[derive(Debug, Clone)]
struct File {
    path: PathBuf,
    identities: Arc<Reloaded<Identities>>,
}

impl Default for Access {
    /// Without identities: every caller may do everything.
    fn default() -> Self {
        let anyone = Arc::new(Principal::anyone());
        Self { anyone, identities: None, rates: Rates::new(None) }
    }
}

impl PartialEq for Access {
    fn eq(&self, other: &Self) -> bool {
        let path = |access: &Self| access.identities.as_ref().map(|file| file.path.clone());
        path(self) == path(other) && self.rates.tenant() == other.rates.tenant()
    }
}

impl Eq for Access {}

impl Access {
    /// Admits only identities of this file.
    ///
    /// # Errors
    /// If the file cannot be used.
    pub fn of_file(path: PathBuf) -> Result<Self, TlsError> {
        let sources = vec![Source { option: "identities", path: path.clone() }];
        let identities = Reloaded::open(sources, |contents| {
            // The file is the only source.
            let [contents] = contents else { return Ok(Identities::default()) };
            Identities::parse(contents.text()?).map_err(|error| contents.unusable(error))
        })?;
        let identities = Arc::new(identities);
        Ok(Self { identities: Some(File { path, identities }), ..Self::default() })
    }

    /// Adds a rate limit for the queries of each tenant.
    #[must_use]
    pub fn with_tenant_rate(self, rate: Option<Rate>) -> Self {
        Self { rates: Rates::new(rate), ..self }
    }

    /// Rate limits that apply to a caller, if any. `refused` counts rejected queries, as `queries_of_identity` and
    /// `queries_of_tenant`.
    #[must_use]
    pub fn quota(&self, principal: &Arc<Principal>, refused: &Reasons) -> Option<Quota> {
        self.rates.quota(principal, refused)
    }

    /// Whether every caller may do everything.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        self.identities.is_none()
    }

    /// Finds the caller by its request's token, else by its connection's verified certificate. Returns `None` for an
    /// unknown caller. An invalid token is rejected even if the certificate is known. A server without identities
    /// admits everyone.
    #[must_use]
    pub fn principal(
        &self,
        headers: &HeaderMap,
        certificate: Option<&CertificateNames>,
    ) -> Option<Arc<Principal>> {
        let Some(file) = &self.identities else { return Some(Arc::clone(&self.anyone)) };
        let identities = file.identities.get();
        match headers.get(AUTHORIZATION) {
            Some(value) => identities.of_token(bearer(value.to_str().ok()?)?).cloned(),
            None => identities.of_certificate(certificate?.all()).cloned(),
        }
    }
}

/// The bearer token in an `authorization` header.
fn bearer(value: &str) -> Option<&str> {
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// Logs a denied call and returns its status.
#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
#[must_use]
pub fn denied(denied: Denied) -> Status {
    Status::permission_denied(denied.to_string())
}

/// Checks that the caller may use a partition. Call it before looking the partition up, so that the answer does not
/// reveal whether the partition exists.
///
/// # Errors
/// If the caller may not use it.
pub fn check_partition(principal: &Principal, key: &PartitionKey) -> Result<(), Status> {
    principal.check_partition(key.tenant(), key.model()).map_err(denied)
}

/// Checks that the caller may publish for a worker, or change its registration.
///
/// # Errors
/// If the caller lacks this right, whether or not the worker exists.
pub fn check_worker(principal: &Principal, at: &WorkerAddress) -> Result<(), Status> {
    let tenant = at.partition.tenant();
    let model = at.partition.model();
    principal.check_worker(tenant, model, at.worker.as_str()).map_err(denied)
}

/// Checks that the caller may publish for the one worker that this process serves. The call does not name the worker.
///
/// # Errors
/// If the caller may not. The error reveals nothing about the worker.
pub fn check_own_worker(principal: &Principal, served: &WorkerAddress) -> Result<(), Status> {
    check_worker(principal, served).map_err(|denied| {
        // Without the role, the error mentions only the caller.
        if principal.has(Role::Publish) {
            let text = format!("identity {:?} may not act for this worker", principal.name());
            Status::new(denied.code(), text)
        } else {
            denied
        }
    })
}

/// Checks that the caller may report these adapters of a worker as loaded.
///
/// # Errors
/// If the caller may not use models with the adapters' names.
pub fn check_adapters(principal: &Principal, registration: &Registration) -> Result<(), Status> {
    let tenant = registration.partition.tenant();
    let mut adapters = registration.lora_names.values();
    adapters.try_for_each(|name| principal.check_adapter(tenant, name)).map_err(denied)
}

/// Checks that the caller may use the requested worker, and that this process serves it.
///
/// # Errors
/// If the caller may not use the worker, or this process serves another one. The error names the served worker only to
/// callers that may use it.
pub fn check_served(
    principal: &Principal,
    requested: &WorkerAddress,
    served: &WorkerAddress,
) -> Result<(), Status> {
    check_partition(principal, &requested.partition)?;
    if requested == served {
        return Ok(());
    }
    let is_seen = principal.sees(served.partition.tenant(), served.partition.model());
    let other = if is_seen { format!(", {served} is") } else { String::new() };
    Err(Status::not_found(format!("worker {requested} is not served here{other}")))
}

/// Writes an audit log line for a call that changes the server.
pub fn audit(principal: &Principal, call: &'static str, on: &dyn fmt::Display) {
    tracing::info!(target: "kvasir::audit", principal = principal.name(), call, on = %on, "audit");
}
