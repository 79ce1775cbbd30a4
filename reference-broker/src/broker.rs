//! The broker: what all connections share.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nolag_protocol::codes;
use nolag_protocol::frame::Disconnect;
use parking_lot::Mutex;
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
use crate::store::{Kept, Memory, Store};

/// A running broker. It owns every connection's task and ends them in [`Broker::shutdown`].
pub struct Broker {
    pub(crate) settings: Settings,
    pub(crate) clock: Clock,
    pub(crate) auth: Cache,
    pub(crate) hub: Hub,
    pub(crate) presence: Presence,
    pub(crate) organizations: Arc<Organizations>,
    pub(crate) metrics: Arc<Metrics>,
    connections: Mutex<HashMap<ConnectionId, Arc<Outgoing>>>,
    next_id: AtomicU64,
    draining: CancellationToken,
    tasks: TaskTracker,
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
            metrics,
            connections: Mutex::default(),
            next_id: AtomicU64::new(1),
            draining: CancellationToken::new(),
            tasks: TaskTracker::new(),
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
            let count = connections.len() as u64;
            let window = spread(count);
            for (index, outgoing) in (0_u64..).zip(connections.values()) {
                let retry_after_ms = Some(window * index / count);
                outgoing.close(Close { retry_after_ms, ..codes::DRAINING.into() });
            }
        }
        self.tasks.close();
        let _ = tokio::time::timeout(self.settings.shutdown_grace, self.tasks.wait()).await;
    }

    /// Takes a connection in, for as long as the answer lives.
    pub(crate) fn register(self: &Arc<Self>) -> Registration {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let outgoing = Arc::new(Outgoing::new(id, self.settings.max_outbound_bytes));
        let mut connections = self.connections.lock();
        connections.insert(id, outgoing.clone());
        // Looked at under the lock, so that no connection slips in behind the one pass of `shutdown`.
        if self.is_draining() {
            outgoing.close(codes::DRAINING.into());
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

/// Over how many ms the returns of so many clients are spread: none for one, 5 s from 5,000 on.
fn spread(connections: u64) -> u64 {
    const LONGEST: Duration = Duration::from_secs(5);
    let longest = u64::try_from(LONGEST.as_millis()).unwrap_or(u64::MAX);
    connections.min(longest)
}
