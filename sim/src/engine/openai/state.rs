//! Shared state of the routes.

use super::body::Limits;
use super::error::ApiError;
use super::remote::LoadFailure;
use super::text::Text;
use crate::engine::live::LiveEngine;
use axum::http::StatusCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

/// Shared state of the routes.
#[derive(Debug)]
pub(crate) struct State {
    pub(super) engine: LiveEngine,
    pub(super) text: Text,
    pub(super) limits: Limits,
    pub(super) load_failure: LoadFailure,
    /// Number of prefills for other engines that succeed; later ones fail.
    pub(super) prefills_max: Option<u64>,
    pub(super) prefills: AtomicU64,
    pub(super) is_render_closed: bool,
    /// Id of this run of the engine. Other engines use it in requests.
    pub(super) engine_id: String,
    /// Host and port at which other engines reach this one.
    pub(super) address: (String, u16),
    pub(super) tasks: Arc<TaskTracker>,
    pub(super) start: Instant,
    pub(super) start_secs: u64,
}

impl State {
    /// Current time, in seconds since 1970.
    pub(super) fn now_secs(&self) -> u64 {
        self.start_secs + self.start.elapsed().as_secs()
    }

    /// Rejects `/render` if it is disabled.
    pub(super) fn check_render(&self) -> Result<(), ApiError> {
        let message = "/render is closed, as this engine was started to do";
        let closed = || ApiError::with(StatusCode::FORBIDDEN, message);
        (!self.is_render_closed).then_some(()).ok_or_else(closed)
    }

    /// Counts a prefill for another engine. Returns false if it must fail.
    pub(super) fn may_prefill(&self) -> bool {
        let before = self.prefills.fetch_add(1, Ordering::Relaxed);
        self.prefills_max.is_none_or(|most| before < most)
    }
}
