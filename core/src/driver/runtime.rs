//! Where tasks, timers and clocks come from: the one place that another platform changes.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::{Instant, Sleep};

use crate::options::EVER;

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

/// How much further than the clock the date must have gone on for a sleep (client-api 10.3).
const SLEEP: Duration = Duration::from_secs(10);

/// Notices that the machine has slept: its clock stands still meanwhile, and its date does not. (A date that somebody sets ahead looks
/// the same, and one that is set back like nothing at all: nothing but a probe and the renewal of a token come of it.)
#[derive(Debug, Default)]
pub(crate) struct Naps {
    /// Clock and date when it looked last.
    last: Option<(Duration, Duration)>,
}

impl Naps {
    /// For how long the machine has slept since the last look, if it has.
    pub(crate) fn look(&mut self, clock: Duration) -> Option<Duration> {
        self.compare(clock, date())
    }

    fn compare(&mut self, clock: Duration, date: Duration) -> Option<Duration> {
        let (clock_before, date_before) = self.last.replace((clock, date))?;
        let ahead = date.saturating_sub(date_before).saturating_sub(clock.saturating_sub(clock_before));
        (ahead > SLEEP).then_some(ahead)
    }
}

/// The date, since 1970.
pub(crate) fn date() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
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
        self.at = at.map(|at| at.min(EVER)); // no clock is asked for a time that it cannot express
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

/// A number that nobody can guess, from the keys that every hash map of the standard library starts with. Processes that were
/// forked from one have the same keys, so what tells them apart is hashed: brokers take equal references for repeats.
pub(crate) fn seed() -> u64 {
    use std::hash::{BuildHasher as _, RandomState};
    RandomState::new().hash_one((std::process::id(), std::time::SystemTime::now()))
}

/// At most so long.
pub(crate) async fn within<T>(limit: Duration, future: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(limit, future).await.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Client-api 10.3 and 10.6: a date that goes on without the clock is a sleep; one that is set back, or drifts, is nothing.
    #[test]
    fn sleep_is_noticed() {
        let s = Duration::from_secs;
        let mut naps = Naps::default();
        let mut look = |clock, date| naps.compare(s(clock), s(date));
        assert_eq!(look(100, 1_000_000), None);
        assert_eq!(look(130, 1_000_030), None);
        assert_eq!(look(140, 1_007_240), Some(s(7_200)));
        assert_eq!(look(141, 1_007_241), None, "once");
        assert_eq!(look(150, 1_003_650), None, "an hour back");
        assert_eq!(look(160, 1_003_670), None, "ten seconds are none");
        assert_eq!(look(170, 1_003_691), Some(s(11)));
    }
}
