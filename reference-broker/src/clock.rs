//! The wall clock, in one place.
//!
//! Time-outs and lifetimes use tokio's monotonic clock. What is told to clients or compared with a date in
//! authorization data (timestamps, `joinedAt`, token expiry, the second of the rate limit) comes from here.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use tokio::time::Instant;

/// A moment so far away that nothing waits for it, and that every clock can tell.
const NEVER: Duration = Duration::from_secs(30 * 365 * 86_400);

/// The moment `after` that, or thirty years on where no clock goes so far: settings may be as long as somebody likes to write.
pub(crate) fn later(moment: Instant, after: Duration) -> Instant {
    moment.checked_add(after.min(NEVER)).unwrap_or(moment)
}

/// Where the wall-clock time comes from.
#[derive(Debug, Clone)]
pub enum Clock {
    /// The system's.
    System,
    /// A date that moves with tokio's clock, so that a test on a paused clock moves both.
    Tokio {
        /// The date at `from`; [`Clock::set_back`] changes it.
        date: Arc<Mutex<SystemTime>>,
        /// A moment of tokio's clock.
        from: Instant,
    },
}

impl Clock {
    /// A clock that shows the present now and then moves with tokio's.
    pub fn follow_tokio() -> Self {
        Self::Tokio { date: Arc::new(Mutex::new(SystemTime::now())), from: Instant::now() }
    }

    /// As if somebody had set the clock back. The system's is not ours to set.
    pub fn set_back(&self, by: Duration) {
        if let Self::Tokio { date, .. } = self {
            *date.lock() -= by;
        }
    }

    /// Time since 1970.
    pub fn now(&self) -> Duration {
        let date = match self {
            Self::System => SystemTime::now(),
            Self::Tokio { date, from } => *date.lock() + from.elapsed(),
        };
        date.duration_since(UNIX_EPOCH).unwrap_or_default()
    }

    /// Milliseconds since 1970.
    #[allow(clippy::cast_possible_truncation)] // for another 500 million years
    pub fn millis(&self) -> u64 {
        self.now().as_millis() as u64
    }

    /// Whole seconds since 1970.
    pub fn seconds(&self) -> u64 {
        self.now().as_secs()
    }
}
