//! Where tasks, timers and clocks come from: the one place that another platform changes.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
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
}

/// Rings at a time of a clock. To put it off is free: the timer below is moved when it rings, not before.
#[derive(Default)]
pub(crate) struct Alarm {
    at: Option<Duration>,
    timer: Option<(Duration, Pin<Box<Sleep>>)>,
}

impl Alarm {
    /// Rings once at this time instead, or never.
    pub(crate) fn set(&mut self, at: Option<Duration>) {
        self.at = at;
    }

    /// Whether it rings.
    pub(crate) fn poll(&mut self, clock: Clock, cx: &mut Context<'_>) -> Poll<()> {
        let Some(at) = self.at else { return Poll::Pending };
        loop {
            match &mut self.timer {
                Some((armed, timer)) if *armed <= at => {
                    if timer.as_mut().poll(cx).is_pending() {
                        return Poll::Pending;
                    }
                    if *armed == at {
                        self.at = None;
                        self.timer = None;
                        return Poll::Ready(());
                    }
                    timer.as_mut().reset(clock.0 + at);
                    *armed = at;
                }
                Some((armed, timer)) => {
                    timer.as_mut().reset(clock.0 + at);
                    *armed = at;
                }
                None => self.timer = Some((at, Box::pin(tokio::time::sleep_until(clock.0 + at)))),
            }
        }
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
