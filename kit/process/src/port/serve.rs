use super::access::Authenticate;
use super::config::{
    BATCH_BYTES_MAX, CONNECTION_MESSAGES_MAX, CONNECTION_PART, CONNECTION_SIDE_CALLS_MAX,
    KEEPALIVE_INTERVAL, KEEPALIVE_TIMEOUT, LARGE_ANSWER_BYTES_MAX, PATIENCE,
    SIDE_MESSAGE_BYTES_MAX, SMALL_ANSWER_BYTES_MAX, STREAMS_MAX,
};
use super::connections::Serving;
use super::limit::RequestLimit;
use super::{PortConfig, PortMetrics, Roles, Streams};
use crate::access::Guard;
use crate::net::{
    CONNECTION_WINDOW_BYTES, ConnectionLimits, LimitedListener, Listening, PeerLimits,
};
use crate::telemetry::TraceCalls;
use crate::tls::{Accepting, warn_if_open};
use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kvasir_access::Principal;
use kvasir_tls::{LocalServer, Protocol};
use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tonic::server::NamedService;
use tonic::service::RoutesBuilder;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;
use tower::{Layer, Service, ServiceExt};

/// Why a port cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The reflection service cannot be built: a bug in the build.
    #[error("reflection: {0}")]
    Reflection(#[from] tonic_reflection::server::Error),
}

/// The services of a port.
#[derive(Default)]
pub struct Services {
    routes: RoutesBuilder,
    names: Vec<&'static str>,
}

impl Services {
    /// Adds a service; health reports the service by its name.
    pub fn add<S>(&mut self, service: S)
    where
        S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>
            + NamedService
            + Clone
            + Send
            + Sync
            + 'static,
        S::Future: Send + 'static,
    {
        self.names.push(S::NAME);
        self.routes.add_service(service);
    }

    /// The services for callers in this process: each of them may do everything, and no limits apply.
    #[must_use]
    pub fn local(self) -> LocalServer {
        let anyone = Arc::new(Principal::anyone());
        let admit = move |mut request: Request<Body>| {
            request.extensions_mut().insert(Arc::clone(&anyone));
            request
        };
        LocalServer::new(TraceCalls(self.routes.routes().prepare()).map_request(admit))
    }
}

impl fmt::Debug for Services {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Services").field(&self.names).finish()
    }
}

/// A gRPC port.
#[derive(Debug, Clone)]
pub struct Port {
    /// Limits of calls.
    pub config: PortConfig,
    /// Streams and long calls, by path.
    pub streams: Streams,
    /// Required roles of calls, by path.
    pub roles: Roles,
    /// Metrics of the port.
    pub metrics: PortMetrics,
    /// Encoded descriptors of the services, for reflection.
    pub descriptors: &'static [u8],
    /// Admission to the port.
    pub guard: Guard,
}

impl Port {
    /// Serves until `stop` is cancelled and the active requests are answered.
    ///
    /// # Errors
    /// If the services cannot be built.
    pub async fn serve(
        self,
        listener: impl Into<Listening>,
        services: Services,
        stop: CancellationToken,
    ) -> Result<(), ServeError> {
        let listener = listener.into();
        let connections = self.metrics.connections.clone();
        if let Ok(address) = listener.local_addr() {
            warn_if_open("listen", address, &self.guard);
        }
        let listener = LimitedListener::new(listener, self.limits(), connections);
        let tls = self.guard.tls.clone().map(|tls| (tls, Protocol::Grpc));
        let accepting = Accepting::new(listener, tls);
        let (reporter, health) = tonic_health::server::health_reporter();
        let Services { mut routes, mut names } = services;
        names.push("");
        set_health(&reporter, &names, ServingStatus::Serving).await;
        let reflection = || {
            tonic_reflection::server::Builder::configure()
                .register_encoded_file_descriptor_set(self.descriptors)
                .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        };
        let bytes = SIDE_MESSAGE_BYTES_MAX;
        routes
            .add_service(health.max_decoding_message_size(bytes))
            .add_service(reflection().build_v1()?.max_decoding_message_size(bytes))
            .add_service(reflection().build_v1alpha()?.max_decoding_message_size(bytes));
        let authenticate = Authenticate {
            access: self.guard.access.clone(),
            roles: self.roles,
            metrics: self.metrics.clone(),
        };
        let calls =
            RequestLimit::new(self.streams, self.config.max_in_flight, self.metrics.clone(), &stop);
        let serving = Serving {
            calls: authenticate.layer(calls.layer(TraceCalls(routes.routes().prepare()))),
            http2: self.http2(),
            age: self.guard.connection_age,
            metrics: self.metrics.connections,
        };
        let stopped = set_health(&reporter, &names, ServingStatus::NotServing);
        serving.serve(accepting, &stop, stopped).await;
        Ok(())
    }

    /// Builds the HTTP/2 settings of a connection.
    fn http2(&self) -> http2::Builder<TokioExecutor> {
        let mut http2 = http2::Builder::new(TokioExecutor::new());
        http2
            .timer(TokioTimer::new())
            .max_concurrent_streams(self.config.connection_calls_max)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .keep_alive_interval(KEEPALIVE_INTERVAL)
            .keep_alive_timeout(KEEPALIVE_TIMEOUT);
        http2
    }

    /// Returns the limits of one connection, as parts of the port's limits.
    fn limits(&self) -> ConnectionLimits {
        let part = |all: usize| all.div_ceil(CONNECTION_PART);
        ConnectionLimits {
            connections: self.config.max_connections,
            patience: PATIENCE,
            peer: PeerLimits {
                calls: part(self.config.max_in_flight),
                streams: part(STREAMS_MAX),
                asking_streams: self.config.connection_asking_streams_max,
                side_calls: CONNECTION_SIDE_CALLS_MAX,
                message_bytes: CONNECTION_MESSAGES_MAX * self.config.message_bytes_max,
                large_answer_bytes: part(LARGE_ANSWER_BYTES_MAX),
                small_answer_bytes: part(SMALL_ANSWER_BYTES_MAX),
                batch_bytes: part(BATCH_BYTES_MAX),
            },
        }
    }
}

async fn set_health(reporter: &HealthReporter, names: &[&'static str], status: ServingStatus) {
    for name in names {
        reporter.set_service_status(*name, status).await;
    }
}

#[cfg(test)]
#[path = "serve_test.rs"]
mod tests;
