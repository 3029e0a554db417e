//! Errors in OpenAI's form, with the types that vLLM gives them.

use crate::engine::live::Refusal;
use axum::body::Body;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

/// An error of a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// HTTP status of the answer.
    pub status: StatusCode,
    /// Description of the error.
    pub message: String,
    /// The invalid field, if the error concerns a field.
    pub param: Option<&'static str>,
}

// === impl ApiError ===

impl ApiError {
    /// An error for an invalid request.
    pub fn bad(param: impl Into<Option<&'static str>>, message: impl Into<String>) -> Self {
        Self { status: StatusCode::BAD_REQUEST, message: message.into(), param: param.into() }
    }

    /// An error with a status.
    pub fn with(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), param: None }
    }

    /// The error as JSON, in OpenAI's form.
    #[must_use]
    pub fn json(&self) -> Value {
        let kind = match self.status {
            StatusCode::BAD_REQUEST => "BadRequestError",
            StatusCode::NOT_FOUND => "NotFoundError",
            StatusCode::PAYLOAD_TOO_LARGE => "PayloadTooLargeError",
            StatusCode::SERVICE_UNAVAILABLE => "ServiceUnavailableError",
            _ => "InternalServerError",
        };
        let code = self.status.as_u16();
        json!({"error": {"message": self.message, "type": kind, "param": self.param, "code": code}})
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        let status = match refusal {
            Refusal::Empty | Refusal::TooLarge(_) => StatusCode::BAD_REQUEST,
            Refusal::Busy(_) | Refusal::Gone => StatusCode::SERVICE_UNAVAILABLE,
        };
        Self::with(status, refusal.to_string())
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        json_response(self.status, &self.json())
    }
}

/// A JSON response.
pub(super) fn json_response(status: StatusCode, json: &Value) -> Response {
    let mut response = Response::new(Body::from(json.to_string()));
    *response.status_mut() = status;
    let kind = axum::http::HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}
