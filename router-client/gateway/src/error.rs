//! Errors in the format of OpenAI's API.

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use hyper::StatusCode;
use hyper::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use kvasir_process::quota::RateExceeded;
use router_client::route::SelectError;
use router_client::router::RouteError;
use serde_json::{Value, json};
use std::fmt;

/// Retry delay that a client receives while workers are busy.
const BUSY_SECONDS: u64 = 1;

/// An error answered by the gateway itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError {
    status: StatusCode,
    kind: &'static str,
    code: Option<&'static str>,
    /// The invalid field of the request.
    field: Option<String>,
    message: String,
    /// Time after which the client may retry, in seconds.
    retry_after_seconds: Option<u64>,
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        let code = None;
        let field = None;
        let retry_after_seconds = None;
        Self { status, kind, code, field, message: message.into(), retry_after_seconds }
    }

    /// The tenant or identity has exceeded its rate.
    #[must_use]
    pub fn rate_exceeded(exceeded: &RateExceeded) -> Self {
        let message = exceeded.to_string();
        let error = Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message);
        let retry_after_seconds = Some(exceeded.wait.as_secs() + 1);
        Self { code: Some("rate_limit_exceeded"), retry_after_seconds, ..error }
    }

    /// A field of the request is invalid.
    pub fn invalid(field: impl Into<String>, problem: impl fmt::Display) -> Self {
        let field = field.into();
        let message = format!("{field}: {problem}");
        let error = Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message);
        Self { field: Some(field), ..error }
    }

    /// The request cannot be parsed.
    pub fn malformed(problem: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", problem)
    }

    /// No worker serves this model.
    #[must_use]
    pub fn unknown_model(model: &str, known: &[String]) -> Self {
        let message = format!("The model `{model}` does not exist. Models served: {known:?}");
        let error = Self::new(StatusCode::NOT_FOUND, "invalid_request_error", message);
        Self { field: Some("model".to_owned()), code: Some("model_not_found"), ..error }
    }

    /// Message for a tenant without workers.
    #[must_use]
    pub fn without_engine(tenant: &str) -> String {
        let of_tenant = match tenant {
            "" => String::new(),
            named => format!(" for tenant {named:?}"),
        };
        format!("No engine is registered at the index{of_tenant}")
    }

    /// The gateway's tenant has no worker, so that no request can be served yet.
    #[must_use]
    pub fn no_engine(tenant: &str) -> Self {
        let message = Self::without_engine(tenant)
            + ", or the index does not answer. /readyz and the log name the problem";
        let error = Self::new(StatusCode::SERVICE_UNAVAILABLE, "api_error", message);
        Self { code: Some("no_engine"), retry_after_seconds: Some(BUSY_SECONDS), ..error }
    }

    /// The caller has no known identity.
    #[must_use]
    pub fn no_identity() -> Self {
        let message = "No identity: send a valid token as the API key, or show a client certificate of an identity";
        let error = Self::new(StatusCode::UNAUTHORIZED, "authentication_error", message);
        Self { code: Some("invalid_api_key"), ..error }
    }

    /// The identity lacks the permission.
    pub fn denied(why: impl fmt::Display) -> Self {
        Self::new(StatusCode::FORBIDDEN, "permission_error", why.to_string())
    }

    /// The page does not exist.
    #[must_use]
    pub fn no_page(path: &str) -> Self {
        let message = format!("There is no page {path:?}");
        Self::new(StatusCode::NOT_FOUND, "invalid_request_error", message)
    }

    /// The page does not support this method.
    #[must_use]
    pub fn no_method(method: &str) -> Self {
        let message = format!("This page has no method {method}");
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "invalid_request_error", message)
    }

    /// The request exceeds the size limit.
    #[must_use]
    pub fn too_large(bytes_max: usize) -> Self {
        let message = format!("The request has more than {bytes_max} bytes");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "invalid_request_error", message)
    }

    /// The request's body did not arrive in time.
    #[must_use]
    pub fn too_slow() -> Self {
        let message = "The request did not arrive in time";
        Self::new(StatusCode::REQUEST_TIMEOUT, "invalid_request_error", message)
    }

    /// The gateway or all workers are overloaded.
    pub fn overloaded(message: impl Into<String>) -> Self {
        let error = Self::new(StatusCode::SERVICE_UNAVAILABLE, "overloaded_error", message);
        Self { code: Some("overloaded"), retry_after_seconds: Some(BUSY_SECONDS), ..error }
    }

    /// All workers that were tried failed.
    pub fn failed(message: impl Into<String>) -> Self {
        let error = Self::new(StatusCode::BAD_GATEWAY, "api_error", message);
        Self { code: Some("engine_failed"), ..error }
    }

    /// An internal error of the gateway.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "api_error", message)
    }

    /// The HTTP status.
    #[must_use]
    pub const fn status(&self) -> StatusCode {
        self.status
    }

    /// The error message.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The error as JSON in OpenAI's format.
    #[must_use]
    pub fn json(&self) -> Value {
        json!({"error": {
            "message": self.message, "type": self.kind, "param": self.field, "code": self.code,
        }})
    }
}

/// An engine's error status as text, with the fix if the gateway's key is wrong.
#[must_use]
pub fn engine_status(status: StatusCode) -> String {
    let fix = if status == StatusCode::UNAUTHORIZED {
        ": the engine demands another key: set --engine-key-file, or for kvasir serve key-file=PATH of the engine"
    } else {
        ""
    };
    format!("status {status}{fix}")
}

impl From<&RouteError> for ApiError {
    fn from(error: &RouteError) -> Self {
        const WORKER: &str = "nvext.backend_instance_id";
        match error {
            RouteError::Config(_) => Self::malformed(error.to_string()),
            RouteError::DuplicateId => Self::internal(error.to_string()),
            RouteError::QueueFull
            | RouteError::QueueTimeout(_)
            | RouteError::Select(
                SelectError::AllBusy { .. }
                | SelectError::NoWorkers
                | SelectError::NoneAllowed { .. },
            ) => Self::overloaded(error.to_string()),
            RouteError::Select(SelectError::NoTarget | SelectError::UnknownTarget) => {
                Self::invalid(WORKER, error)
            }
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::from(self.json().to_string()));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(seconds) = self.retry_after_seconds {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}
