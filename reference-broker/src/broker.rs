//! The broker: what all connections share.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use nolag_protocol::codes;
use nolag_protocol::frame::Disconnect;
use parking_lot::Mutex;
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::auth::{Auth, Cache};
use crate::clock::Clock;
use crate::config::{Profile, Settings};
use crate::hub::Hub;
use crate::metrics::Metrics;
use crate::organizations::Organizations;
use crate::outgoing::{Close, ConnectionId, Outgoing};
use crate::presence::Presence;
use crate::resume::Resume;
use crate::store::{Kept, Memory, Store};

/// A running broker. It owns every connection's task and ends them in [`Broker::shutdown`].
pub struct Broker {
    pub(crate) settings: Settings,
    pub(crate) clock: Clock,
    pub(crate) auth: Cache,
    pub(crate) hub: Hub,
    pub(crate) presence: Presence,
    pub(crate) organizations: Arc<Organizations>,
    pub(crate) resume: Arc<Resume>,
    pub(crate) metrics: Arc<Metrics>,
    connections: Mutex<HashMap<ConnectionId, Arc<Outgoing>>>,
    next_id: AtomicU64,
    draining: CancellationToken,
    tasks: TaskTracker,
    /// Keeps the time of the hub, from the first connection on.
    timekeeper: OnceLock<AbortHandle>,
}

impl Broker {
    /// A broker with these settings that asks `auth` about tokens, and keeps messages in memory.
    pub fn new(settings: Settings, auth: Arc<dyn Auth>, clock: Clock) -> Arc<Self> {
        Self::with_store(settings, auth, clock, Arc::new(Memory), Kept::nothing())
    }

    /// A broker that goes on with what its store has kept.
    pub fn with_store(
        settings: Settings,
        auth: Arc<dyn Auth>,
        clock: Clock,
        store: Arc<dyn Store>,
        kept: Kept,
    ) -> Arc<Self> {
        let metrics = Arc::new(Metrics::default());
        Arc::new(Self {
            auth: Cache::new(auth, settings.auth_cache_ttl),
            hub: Hub::new(&settings, metrics.clone(), store, kept, clock.now()),
            presence: Presence::new(&settings, metrics.clone()),
            organizations: Arc::default(),
            resume: Resume::new(settings.resume_retention),
            metrics,
            connections: Mutex::default(),
            next_id: AtomicU64::new(1),
            draining: CancellationToken::new(),
            tasks: TaskTracker::new(),
            timekeeper: OnceLock::new(),
            clock,
            settings,
        })
    }

    /// Waits until [`Broker::shutdown`] is called.
    pub(crate) async fn drained(&self) {
        self.draining.cancelled().await;
    }

    /// Runs a task that [`Broker::shutdown`] waits for.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(task);
    }

    /// How many connections there are, authenticated or not.
    pub fn connections(&self) -> usize {
        self.connections.lock().len()
    }

    /// How many tasks of connections have not ended yet.
    pub fn tasks(&self) -> usize {
        self.tasks.len()
    }

    /// Everything that is counted, in Prometheus' text form.
    pub fn metrics_text(&self) -> String {
        let (retained, messages, bytes) = self.hub.kept();
        let gauges = &self.metrics;
        for (gauge, count) in [
            (&gauges.retained_messages, retained),
            (&gauges.history_messages, messages),
            (&gauges.history_bytes, bytes),
        ] {
            gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
        }
        self.metrics.text()
    }

    /// Whether [`Broker::shutdown`] was called.
    pub fn is_draining(&self) -> bool {
        self.draining.is_cancelled()
    }

    /// Tells every connection that the broker goes, with its returns spread over time, and closes them; gives up
    /// on the rest after the grace time (X-17, features 7).
    pub async fn shutdown(&self) {
        self.draining.cancel();
        {
            let connections = self.connections.lock();
            for (index, outgoing) in connections.values().enumerate() {
                let retry_after_ms = Some(return_ms(index, connections.len()));
                outgoing.close(Close { retry_after_ms, ..codes::DRAINING.into() });
            }
        }
        self.tasks.close();
        let _ = tokio::time::timeout(self.settings.shutdown_grace, self.tasks.wait()).await;
    }

    /// Takes a connection in, for as long as the answer lives.
    pub(crate) fn register(self: &Arc<Self>) -> Registration {
        self.timekeeper.get_or_init(|| tokio::spawn(keep_time(Arc::downgrade(self))).abort_handle());
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let outgoing = Arc::new(Outgoing::new(id, self.settings.max_outbound_bytes));
        let mut connections = self.connections.lock();
        connections.insert(id, outgoing.clone());
        // Looked at under the lock, so that no connection slips in behind the one pass of `shutdown`.
        if self.is_draining() {
            let retry_after_ms = Some(return_ms(usize::try_from(id % 100).unwrap_or_default(), 100));
            outgoing.close(Close { retry_after_ms, ..codes::DRAINING.into() });
        }
        Registration { broker: self.clone(), outgoing: outgoing.clone() }
    }

    /// The `disconnect` frame that goes before a close of our own.
    pub(crate) fn farewell(&self, close: &Close) -> Option<Vec<u8>> {
        let announced = close.code >= 4000 || close.code == codes::DRAINING.code;
        // The end of a token is announced by kraken too (C-037).
        let kraken_does = close.code == codes::EXPIRED.code;
        (announced && (self.settings.profile == Profile::Extended || kraken_does))
            .then(|| Disconnect { reason: &close.reason, retry_after_ms: close.retry_after_ms }.to_vec())
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        if let Some(timekeeper) = self.timekeeper.get() {
            timekeeper.abort();
        }
    }
}

/// Has the hub do what is due, for as long as there is a broker.
async fn keep_time(broker: Weak<Broker>) {
    let Some(clock) = broker.upgrade().map(|broker| broker.hub.clock()) else { return };
    while let Some(due) = broker.upgrade().map(|broker| broker.hub.tick()) {
        let until = async {
            match due {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = until => {}
            () = clock.notified() => {}
        }
    }
}

/// A connection that the broker knows of.
pub(crate) struct Registration {
    broker: Arc<Broker>,
    pub(crate) outgoing: Arc<Outgoing>,
}

impl Drop for Registration {
    /// However the connection's task ends, by a panic or by being dropped too, the broker forgets it.
    fn drop(&mut self) {
        self.broker.connections.lock().remove(&self.outgoing.id());
        self.broker.metrics.dropped(self.outgoing.dropped());
    }
}

/// When the client of one of so many connections may come back, in ms: one every 50 ms, or 5 s for all of them where they are
/// more, so that no 100 ms window holds more than 3 % of more than 100 (F-16).
///
/// Clients begin with a wait of their own of 250 to 500 ms. What all may come back before would hold them together again, so the
/// first may come after that.
fn return_ms(index: usize, connections: usize) -> u64 {
    const FIRST: u64 = 500;
    const APART: usize = 50;
    const LONGEST: usize = 5_000;
    let after = if connections <= LONGEST / APART { index * APART } else { index * LONGEST / connections };
    FIRST + u64::try_from(after).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// F-16, with the waits of our own client (client-api 2: 500 ms, half of it by chance), and without any: most returns of a
    /// drain that any 100 ms hold, in percent.
    #[test]
    fn returns_are_spread() {
        let mut rng = fastrand::Rng::with_seed(16);
        for (connections, most) in [(100, 3), (2_000, 5), (10_000, 5)] {
            for jitter in [true, false] {
                let mut returns: Vec<u64> = (0..connections)
                    .map(|index| {
                        let own = if jitter { rng.u64(250..=500) } else { 0 };
                        return_ms(index, connections).max(own)
                    })
                    .collect();
                returns.sort_unstable();
                let in_window = |from: u64| {
                    let ends = |to| returns.partition_point(|at| *at < to);
                    ends(from + 100) - ends(from)
                };
                let fullest = returns.iter().map(|at| in_window(*at)).max().unwrap();
                assert!(fullest * 100 <= connections * most, "{fullest} of {connections}");
                assert!(returns[connections - 1] < 6_000, "nobody waits long");
            }
        }
    }

    #[test]
    fn few_connections_come_back_at_once() {
        assert_eq!((0..3).map(|index| return_ms(index, 3)).collect::<Vec<_>>(), [500, 550, 600]);
    }
}
