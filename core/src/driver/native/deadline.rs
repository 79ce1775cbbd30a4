//! How long opening a link may take, told step by step.

use std::future::Future;
use std::time::Duration;

use tokio::time::Instant;

use super::failure;
use crate::driver::OpenFailure;
use crate::error::ConnectionCode;

/// The end of an attempt.
#[derive(Debug, Clone, Copy)]
pub(super) struct Deadline {
    at: Instant,
    limit: Duration,
}

impl Deadline {
    pub(super) fn after(limit: Duration) -> Self {
        Self { at: Instant::now() + limit, limit }
    }

    /// Passes when the attempt must end.
    pub(super) async fn passed(self) {
        tokio::time::sleep_until(self.at).await;
    }

    /// One step of the attempt; `stuck` says what it was waiting for.
    pub(super) async fn bound<T>(
        self,
        step: impl Future<Output = Result<T, OpenFailure>>,
        stuck: impl FnOnce() -> String,
    ) -> Result<T, OpenFailure> {
        tokio::time::timeout_at(self.at, step).await.unwrap_or_else(|_| Err(self.missed(&stuck())))
    }

    /// The failure of an attempt that took too long.
    pub(super) fn missed(self, stuck: &str) -> OpenFailure {
        let message = format!("{stuck}: given up after {:?}", self.limit);
        failure(ConnectionCode::ConnectTimeout, message)
    }
}
