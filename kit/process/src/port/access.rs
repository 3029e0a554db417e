//! Who calls what: each call gets its principal, or is refused before anything is read of it.

use super::PortMetrics;
use crate::{access::Access, net::Peer, quota::Quota};
use futures::future::{Either, Ready, ready};
use kvasir_access::{Principal, Role};
use std::{
    net::SocketAddr,
    sync::Arc,
    task::{Context, Poll},
};
use tonic::{
    Request, Status,
    body::Body,
    codegen::http::{self, HeaderMap},
};
use tower::{Layer, Service};

/// The role that each call of a port's own services needs, by path. Calls that are not here need the role admin.
pub type Roles = &'static [(&'static str, Role)];

/// The principal of a call, which the port has found.
///
/// # Errors
/// If it is missing: a fault of the program, which answers nobody then.
pub fn principal<T>(request: &Request<T>) -> Result<Arc<Principal>, Status> {
    let found = request.extensions().get::<Arc<Principal>>();
    found.cloned().ok_or_else(|| Status::internal("the call has no principal"))
}

/// What limits the queries of a caller; none if nothing does.
#[must_use]
pub fn quota<T>(request: &Request<T>) -> Option<Quota> {
    request.extensions().get().cloned()
}

/// Takes a query of a tenant from what its caller may ask, if that is limited.
///
/// # Errors
/// If the tenant or the caller has used its rate.
pub fn take_query(quota: Option<&Quota>, tenant: &str) -> Result<(), Status> {
    quota.map_or(Ok(()), |quota| quota.take(tenant)).map_err(Status::from)
}

/// A request that comes by another way than a port, such as NATS, which has let its caller in.
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

/// Gives each call its principal.
#[derive(Debug, Clone)]
pub(super) struct Authenticate {
    pub(super) access: Access,
    pub(super) roles: Roles,
    pub(super) metrics: PortMetrics,
}

impl Authenticate {
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
        // Health and reflection are for every identity.
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

/// A service whose calls have principals.
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
