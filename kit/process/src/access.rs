//! Who calls, and what they may name: identities of a file that is read again when it changes.

use crate::{
    net::Reasons,
    quota::{Quota, Rates},
};
use kvasir_access::{Denied, Identities, Principal, Rate, Role};
use kvasir_proto::{
    convert::{Registration, WorkerAddress},
    types::PartitionKey,
};
use kvasir_tls::{CertificateNames, Reloaded, ServerTls, Source, TlsError};
use std::{fmt, path::PathBuf, sync::Arc, time::Duration};
use tonic::{
    Status,
    codegen::http::{HeaderMap, header::AUTHORIZATION},
};

/// Who gets into the ports of a process, and for how long: TLS, identities within it, and the age of connections.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Guard {
    /// TLS; none for none.
    pub tls: Option<ServerTls>,
    /// Who may call.
    pub access: Access,
    /// Age at which clients are told to open another connection, up to a tenth more or less; none for any age.
    pub connection_age: Option<Duration>,
}

/// Who may call. Clones share it.
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
    /// Everybody may do everything.
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
    /// Only identities of this file may call.
    ///
    /// # Errors
    /// If the file cannot be used.
    pub fn of_file(path: PathBuf) -> Result<Self, TlsError> {
        let sources = vec![Source { option: "identities", path: path.clone() }];
        let identities = Reloaded::open(sources, |contents| {
            // There is one source.
            let [contents] = contents else { return Ok(Identities::default()) };
            Identities::parse(contents.text()?).map_err(|error| contents.unusable(error))
        })?;
        let identities = Arc::new(identities);
        Ok(Self { identities: Some(File { path, identities }), ..Self::default() })
    }

    /// The same with a rate for the queries of each tenant.
    #[must_use]
    pub fn with_tenant_rate(self, rate: Option<Rate>) -> Self {
        Self { rates: Rates::new(rate), ..self }
    }

    /// What limits the queries of a caller; none if nothing does. `refused` counts those beyond, as `queries_of_identity` and
    /// `queries_of_tenant`.
    #[must_use]
    pub fn quota(&self, principal: &Arc<Principal>, refused: &Reasons) -> Option<Quota> {
        self.rates.quota(principal, refused)
    }

    /// Whether everybody may do everything.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        self.identities.is_none()
    }

    /// Who calls, by the token of a request or else by the connection's verified certificate; none if nobody who is known. A
    /// certificate never makes up for a token that nobody has.
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

/// The token of an `authorization` header.
fn bearer(value: &str) -> Option<&str> {
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// A denied call.
#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
#[must_use]
pub fn denied(denied: Denied) -> Status {
    Status::permission_denied(denied.to_string())
}

/// Checks that the caller may use a partition. Do it before the partition is looked for: the answer must not depend on what is
/// there.
///
/// # Errors
/// If it may not.
pub fn check_partition(principal: &Principal, key: &PartitionKey) -> Result<(), Status> {
    principal.check_partition(key.tenant(), key.model()).map_err(denied)
}

/// Checks that the caller may publish for a worker, or change its registration.
///
/// # Errors
/// If it may not, whether or not the worker is there.
pub fn check_worker(principal: &Principal, at: &WorkerAddress) -> Result<(), Status> {
    let tenant = at.partition.tenant();
    let model = at.partition.model();
    principal.check_worker(tenant, model, at.worker.as_str()).map_err(denied)
}

/// Checks that the caller speaks for the one worker that is served, which the call does not name.
///
/// # Errors
/// If it does not; the error tells nothing of the worker.
pub fn check_own_worker(principal: &Principal, served: &WorkerAddress) -> Result<(), Status> {
    check_worker(principal, served).map_err(|denied| {
        // Without the role, the denial speaks of the caller alone.
        if principal.has(Role::Publish) {
            let text = format!("identity {:?} does not speak for this worker", principal.name());
            Status::new(denied.code(), text)
        } else {
            denied
        }
    })
}

/// Checks that the caller may say of a worker that it has loaded these adapters.
///
/// # Errors
/// If it may not use models of their names.
pub fn check_adapters(principal: &Principal, registration: &Registration) -> Result<(), Status> {
    let tenant = registration.partition.tenant();
    let mut adapters = registration.lora_names.values();
    adapters.try_for_each(|name| principal.check_adapter(tenant, name)).map_err(denied)
}

/// Checks that the caller may use the worker that it asks for, and that this is the one that is served.
///
/// # Errors
/// If it may not, or another one is served, which is named to callers that may use it.
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

/// Logs who makes a call that changes the server.
pub fn audit(principal: &Principal, call: &'static str, on: &dyn fmt::Display) {
    tracing::info!(target: "kvasir::audit", principal = principal.name(), call, on = %on, "audit");
}
