//! Where the broker runs: it can be killed, drained and started again.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nolag_broker::auth::StaticAuth;
use nolag_broker::clock::Clock;
use nolag_broker::config::Settings;
use nolag_broker::{Broker, http};
use tokio::io::DuplexStream;
use tokio::task::JoinHandle;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::Role;

use crate::disk::Disk;

/// How many bytes are under way on the broker's side before a writer has to wait.
const WIRE_BYTES: usize = 64 * 1024;

/// The actors: each has a token of its own name.
pub(crate) const ACTORS: [&str; 3] = ["ann", "ben", "cleo"];

/// The broker, or none for now.
pub(crate) struct Place {
    settings: Settings,
    clock: Clock,
    /// What outlives a broker, if anything does.
    disk: Option<Arc<Disk>>,
    running: Mutex<Option<Running>>,
}

struct Running {
    broker: Arc<Broker>,
    connections: Vec<JoinHandle<()>>,
}

impl Place {
    pub(crate) fn new(settings: Settings, disk: Option<Arc<Disk>>) -> Arc<Self> {
        let place = Self { settings, clock: Clock::follow_tokio(), disk, running: Mutex::default() };
        place.start();
        Arc::new(place)
    }

    /// Starts a broker where none is.
    pub(crate) fn start(&self) {
        let mut running = self.running();
        if running.is_some() {
            return;
        }
        let auth = StaticAuth::from_text(&tokens(), self.settings.profile).expect("a token file");
        let (settings, auth, clock) = (self.settings.clone(), Arc::new(auth), self.clock.clone());
        let broker = match &self.disk {
            Some(disk) => {
                let (store, kept) = disk.open();
                Broker::with_store(settings, auth, clock, store, kept)
            }
            None => Broker::new(settings, auth, clock),
        };
        *running = Some(Running { broker, connections: Vec::new() });
    }

    pub(crate) fn is_up(&self) -> bool {
        self.running().is_some()
    }

    /// The broker that runs.
    pub(crate) fn broker(&self) -> Arc<Broker> {
        self.running().as_ref().expect("a broker that runs").broker.clone()
    }

    /// The far end of a new connection, if somebody listens.
    pub(crate) fn accept(&self) -> Option<DuplexStream> {
        let mut running = self.running();
        let Running { broker, connections } = running.as_mut()?;
        let (ours, theirs) = tokio::io::duplex(WIRE_BYTES);
        let broker = Arc::clone(broker);
        connections.retain(|connection| !connection.is_finished());
        connections.push(tokio::spawn(async move {
            let config = Some(http::websocket_config());
            let mut socket = WebSocketStream::from_raw_socket(theirs, Role::Server, config).await;
            nolag_broker::serve(&broker, &mut socket).await;
        }));
        Some(ours)
    }

    /// As `kill -9`: everything of it is gone, connections are reset.
    pub(crate) fn kill(&self) {
        let Some(running) = self.running().take() else { return };
        for connection in running.connections {
            connection.abort();
        }
        if let Some(disk) = &self.disk {
            disk.crash();
        }
    }

    /// As SIGTERM: it tells its clients, and takes no new ones.
    pub(crate) async fn drain(&self) {
        let Some(running) = self.running().take() else { return };
        running.broker.shutdown().await;
        if let Some(disk) = &self.disk {
            disk.sync();
        }
        for connection in running.connections {
            connection.abort();
        }
    }

    fn running(&self) -> MutexGuard<'_, Option<Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Every actor may use every topic below `demo`, and be in two rooms.
fn tokens() -> String {
    let entry = |actor: &str| {
        format!(
            r#""{actor}": {{"actorTokenId": "{actor}", "projectId": "p", "organizationId": "o", "appId": "app",
                "allowedTopics": [
                    {{"pattern": "demo/#", "permission": "pubSub", "room_id": "room-hall", "room_slug": "hall"}},
                    {{"pattern": "demo/loft/#", "permission": "pubSub", "room_id": "room-loft", "room_slug": "loft"}}]}}"#
        )
    };
    format!(r#"{{"tokens": {{{}}}}}"#, ACTORS.map(entry).join(","))
}
