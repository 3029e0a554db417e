//! Authenticates the calls of a port: each call gets its principal, or is rejected before the server reads its message.

use super::PortMetrics;
use crate::access::Access;
use crate::net::Peer;
use crate::quota::Quota;
use futures::future::{Either, Ready, ready};
use kvasir_access::{Principal, Role};
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use tonic::body::Body;
use tonic::codegen::http::{self, HeaderMap};
use tonic::{Request, Status};
use tower::{Layer, Service};

/// Required role of each call of a port's own services, by path. Calls that are not listed require the role admin.
pub type Roles = &'static [(&'static str, Role)];

/// The principal that the port has found for a call.
///
/// # Errors
/// If the principal is missing: a bug of the program. The call is then rejected.
pub fn principal<T>(request: &Request<T>) -> Result<Arc<Principal>, Status> {
    let found = request.extensions().get::<Arc<Principal>>();
    found.cloned().ok_or_else(|| Status::internal("the call has no principal"))
}

/// Rate limits that apply to a caller, if any.
#[must_use]
pub fn quota<T>(request: &Request<T>) -> Option<Quota> {
    request.extensions().get().cloned()
}

/// Takes one query of a tenant from its caller's rate limits, if there are any.
///
/// # Errors
/// If the tenant's or the caller's rate is used up.
pub fn take_query(quota: Option<&Quota>, tenant: &str) -> Result<(), Status> {
    quota.map_or(Ok(()), |quota| quota.take(tenant)).map_err(Status::from)
}

/// A request from another transport, such as NATS, that has already authorised its caller.
#[must_use]
pub fn let_in<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.extensions_mut().insert(Arc::new(Principal::anyone()));
    request
}

/// Address of the client that makes a call.
#[must_use]
pub fn client<T>(request: &Request<T>) -> Option<SocketAddr> {
    request.extensions().get::<Arc<Peer>>()?.address
}

/// Layer that adds the principal to each call.
#[derive(Debug, Clone)]
pub(super) struct Authenticate {
    pub(super) access: Access,
    pub(super) roles: Roles,
    pub(super) metrics: PortMetrics,
}

impl Authenticate {
    /// Authenticates a caller by certificate or token, and checks its role for the call. A call without a listed role
    /// needs the role admin.
    fn admit(
        &self,
        path: &str,
        headers: &HeaderMap,
        peer: Option<&Arc<Peer>>,
    ) -> Result<Arc<Principal>, Status> {
        let certificate = peer.and_then(|peer| peer.certificate.get());
        let Some(principal) = self.access.principal(headers, certificate) else {
            self.metrics.denied.count("no_identity");
            let text = "no identity: send a valid token as \"authorization: Bearer TOKEN\", or show a client certificate \
                        of an identity";
            return Err(Status::unauthenticated(text));
        };
        // Health and reflection are open to every identity.
        if path.starts_with(super::limit::OURS) {
            let role = self
                .roles
                .iter()
                .find(|(of, _)| *of == path)
                .map_or(Role::Admin, |(_, role)| *role);
            principal.check_role(role).map_err(|denied| {
                self.metrics.denied.count("role");
                Status::permission_denied(denied.to_string())
            })?;
        }
        Ok(principal)
    }
}

impl<S> Layer<S> for Authenticate {
    type Service = Authenticated<S>;

    fn layer(&self, inner: S) -> Authenticated<S> {
        Authenticated { inner, authenticate: self.clone() }
    }
}

/// A service with authenticated calls.
#[derive(Clone)]
pub(super) struct Authenticated<S> {
    inner: S,
    authenticate: Authenticate,
}

impl<S> Service<http::Request<Body>> for Authenticated<S>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Either<S::Future, Ready<Result<S::Response, S::Error>>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Self::Future {
        let peer = request.extensions().get::<Arc<Peer>>();
        match self.authenticate.admit(request.uri().path(), request.headers(), peer) {
            Ok(principal) => {
                let Authenticate { access, metrics, .. } = &self.authenticate;
                if let Some(quota) = access.quota(&principal, &metrics.limited) {
                    request.extensions_mut().insert(quota);
                }
                request.extensions_mut().insert(principal);
                Either::Left(self.inner.call(request))
            }
            Err(refusal) => Either::Right(ready(Ok(refusal.into_http()))),
        }
    }
}
