//! What the routes share.

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

/// What the routes share.
#[derive(Debug)]
pub(crate) struct State {
    pub(super) engine: LiveEngine,
    pub(super) text: Text,
    pub(super) limits: Limits,
    pub(super) load_failure: LoadFailure,
    /// Prefills for other engines that succeed; later ones fail.
    pub(super) prefills_max: Option<u64>,
    pub(super) prefills: AtomicU64,
    pub(super) is_render_closed: bool,
    /// Id of this engine's life, which other engines name.
    pub(super) engine_id: String,
    /// Where other engines ask it.
    pub(super) address: (String, u16),
    pub(super) tasks: Arc<TaskTracker>,
    pub(super) start: Instant,
    pub(super) start_secs: u64,
}

impl State {
    /// Now, in seconds since 1970.
    pub(super) fn now_secs(&self) -> u64 {
        self.start_secs + self.start.elapsed().as_secs()
    }

    /// Refuses `/render` where it is closed.
    pub(super) fn check_render(&self) -> Result<(), ApiError> {
        let message = "/render is closed, as this engine was started to do";
        let closed = || ApiError::with(StatusCode::FORBIDDEN, message);
        (!self.is_render_closed).then_some(()).ok_or_else(closed)
    }

    /// Counts a prefill for another engine; false if it is to fail.
    pub(super) fn may_prefill(&self) -> bool {
        let before = self.prefills.fetch_add(1, Ordering::Relaxed);
        self.prefills_max.is_none_or(|most| before < most)
    }
}
