//! Where tasks, timers and clocks come from: the one place that another platform changes.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use tokio::time::{Instant, Sleep};

/// Runs a future beside the caller, until it ends.
pub(crate) fn spawn(future: impl Future<Output = ()> + Send + 'static) {
    tokio::spawn(future);
}

/// Time since a start, by a clock that never goes back.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock(Instant);

impl Clock {
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    pub(crate) fn now(self) -> Duration {
        self.0.elapsed()
    }

    /// A timer for a time of this clock.
    pub(crate) fn timer(self, at: Duration) -> Pin<Box<Sleep>> {
        Box::pin(tokio::time::sleep_until(self.0 + at))
    }
}

/// A number that nobody can guess, from the keys that every hash map of the standard library starts with.
pub(crate) fn seed() -> u64 {
    use std::hash::{BuildHasher as _, RandomState};
    RandomState::new().hash_one(0)
}

/// At most so long.
pub(crate) async fn within<T>(limit: Duration, future: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(limit, future).await.ok()
}
