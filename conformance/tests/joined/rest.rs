//! The end of a run: nothing goes wrong any more, everything comes to rest, and is as it is wanted.

use std::time::Duration;

use nolag_core::event::State;
use tokio::time::{Instant, sleep};

use crate::readers::Reader;
use crate::record::{Ended, Publish};
use crate::world::{IDLE, World, lock, ms};

/// How long everything may take to come to rest.
const REST: Duration = Duration::from_secs(600);

impl World {
    /// Nothing goes wrong any more: everything comes to rest, and is as it is wanted.
    pub(crate) async fn settle(&mut self) -> Vec<String> {
        while self.incidents.join_next().await.is_some() {}
        self.tell(|| "calm".to_owned());
        for peer in &self.peers {
            peer.line.slow_to(ms(5));
        }
        let deadline = Instant::now() + REST;
        while let Some(restless) = self.restless() {
            if Instant::now() > deadline {
                return vec![restless];
            }
            sleep(ms(500)).await;
        }
        // Until the broker has noticed who is gone, and slow readers have read what they have.
        sleep(IDLE * 2).await;
        let mut faults = self.probe().await;
        sleep(IDLE).await; // until the broker has seen the probing client go
        faults.extend(self.remains());
        faults.extend(self.presence_faults().await);
        faults
    }

    /// What is not done yet.
    fn restless(&mut self) -> Option<String> {
        self.calls.retain(|(_, call)| !call.is_finished());
        if let Some((what, _)) = self.calls.first() {
            return Some(format!("{} calls never end, the first of which is {what}", self.calls.len()));
        }
        let record = lock(&self.record);
        for peer in &self.peers {
            let (state, stats) = (peer.client.state(), peer.client.stats());
            let depth = &stats.outbox;
            let idle =
                depth.queued + depth.in_flight + depth.held + stats.open_calls + stats.ack_backlog == 0;
            let answered = |reader: &Reader| {
                let tenure = &record.tenures[reader.tenure];
                tenure.began.is_some() || tenure.ended.is_some()
            };
            if state != State::Connected || !idle || !peer.readers.values().all(answered) {
                return Some(format!("client {} does not come to rest: {state:?}, {stats:?}", peer.number));
            }
        }
        None
    }

    /// Publishes one message of each kind, from a client that nothing has happened to: it reaches whoever wants it, which the
    /// record tells.
    async fn probe(&mut self) -> Vec<String> {
        self.delay = ms(1);
        let mut peer = self.peer();
        if let Err(error) = peer.client.connect().await {
            return vec![format!("a new client cannot connect: {error}")];
        }
        std::mem::swap(&mut peer, &mut self.peers[0]);
        let first = lock(&self.record).publishes.len();
        for _ in 0..40 {
            self.publish(0);
            sleep(ms(50)).await; // its queue may be short
        }
        std::mem::swap(&mut peer, &mut self.peers[0]);
        sleep(IDLE * 2).await;
        self.calls.retain(|(_, call)| !call.is_finished());
        let record = lock(&self.record);
        let failure = |publish: &Publish| match &publish.ended {
            Some((_, Ended::Failed(code))) => Some(format!("a publish failed in calm weather: {code}")),
            None => Some("a publish never ended in calm weather".to_owned()),
            Some(_) => None,
        };
        record.publishes[first..].iter().find_map(failure).into_iter().collect()
    }

    /// What the broker and the clients hold in the end: no more than what is wanted.
    fn remains(&self) -> Vec<String> {
        let broker = self.place.broker();
        let mut faults = Vec::new();
        let mut compare = |what: &str, found: usize, wanted: usize| {
            if found != wanted {
                faults.push(format!("{found} {what}, and {wanted} are wanted"));
            }
        };
        compare("connections", broker.connections(), self.peers.len());
        let live = lock(&self.record).tenures.iter().filter(|tenure| tenure.is_live()).count();
        compare("subscriptions at the broker", gauge(&broker.metrics_text(), "nolag_subscriptions"), live);
        for peer in &self.peers {
            let topics = lock(&self.record);
            let wanted = topics
                .tenures
                .iter()
                .filter(|tenure| tenure.client == peer.number && tenure.is_live())
                .count();
            compare("topics of a client", peer.client.stats().topics, wanted);
        }
        faults
    }
}

/// The value of a metric without labels.
fn gauge(metrics: &str, name: &str) -> usize {
    let value = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.and_then(|value| value.parse().ok()).unwrap_or(usize::MAX)
}
