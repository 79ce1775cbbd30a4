//! Subscriptions of the clients: made, read, given up, and continued by a client that takes the place of another.

use std::sync::Arc;
use std::time::Duration;

use nolag_core::Client;
use nolag_core::client::Subscribe;
use nolag_core::event::Event;
use nolag_core::options::{Position, ReceiveOverflow};
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::presence;
use crate::record::{Got, KEYS, PATTERNS, Tenure};
use crate::world::{Shared, World, lock, ms};

/// The task that makes a subscription and reads it.
pub(crate) struct Reader {
    /// The subscription's index in the record.
    pub(crate) tenure: usize,
    filters: Vec<&'static str>,
    pace: Pace,
    /// It goes on with what an earlier client had.
    continues: bool,
    /// It gives where the subscription was when it ended.
    task: JoinHandle<Option<Position>>,
}

/// How somebody reads: as fast as possible, or slowly, from a small buffer.
#[derive(Clone, Copy)]
struct Pace {
    buffer: usize,
    pause: Duration,
}

impl World {
    pub(crate) fn subscribe(&mut self, index: usize) {
        let rng = &mut self.rng;
        let pattern = rng.usize(..PATTERNS.len());
        let filters: Vec<_> =
            if rng.u8(..) < 80 { KEYS.into_iter().filter(|_| rng.bool()).collect() } else { Vec::new() };
        let pace = if rng.u8(..) < 50 {
            Pace { buffer: rng.usize(1..20), pause: ms(rng.u64(1..200)) }
        } else {
            Pace { buffer: 1_024, pause: Duration::ZERO }
        };
        // Without ids nobody could tell the same history from another.
        let history = (self.has_ids && rng.u8(..) < 60).then(|| rng.u16(1..20));
        let peer = &mut self.peers[index];
        peer.readers.retain(|_, reader| !reader.task.is_finished());
        if peer.readers.contains_key(&pattern) {
            return;
        }
        let tenure = self.tenure(index, pattern, &filters, pace);
        let peer = &mut self.peers[index];
        let mut subscribing = pace.apply(&peer.client, pattern, &filters);
        if let Some(history) = history {
            subscribing = subscribing.history(history);
        }
        let task = tokio::spawn(read(subscribing, pace.pause, tenure, Arc::clone(&self.record)));
        peer.readers.insert(pattern, Reader { tenure, filters, pace, continues: false, task });
    }

    /// Notes a subscription that begins.
    fn tenure(&self, index: usize, pattern: usize, filters: &[&'static str], pace: Pace) -> usize {
        let peer = &self.peers[index];
        let mut record = lock(&self.record);
        let tenure = record.tenures.len();
        record.tell(|| {
            format!("client {} subscribes to {}, {filters:?}: {tenure}", peer.number, PATTERNS[pattern].0)
        });
        record.tenures.push(Tenure {
            client: peer.number,
            pattern,
            slow: !pace.pause.is_zero(),
            repeats: !pace.pause.is_zero() && peer.after_handler,
            filters: filters.to_vec(),
            continues: None,
            began: None,
            ended: None,
            got: Vec::new(),
            gaps: Vec::new(),
        });
        tenure
    }

    /// Ends a subscription: by letting go of it, or by name.
    pub(crate) fn unsubscribe(&mut self, index: usize) {
        let mut by_name = self.rng.bool();
        let peer = &mut self.peers[index];
        let patterns: Vec<_> = peer.readers.keys().copied().collect();
        let Some(pattern) = self.rng.choice(&patterns).copied() else { return };
        let Some(reader) = peer.readers.remove(&pattern) else { return };
        // One that waits for what it continues has not subscribed yet.
        by_name &= !reader.continues || lock(&self.record).tenures[reader.tenure].began.is_some();
        end(&self.record, reader.tenure, "unsubscribed");
        if by_name {
            let client = peer.client.clone();
            self.call("unsubscribe", async move { drop(client.unsubscribe(PATTERNS[pattern].0).await) });
            self.call("reading after unsubscribe", async move { drop(reader.task.await) });
        } else {
            reader.task.abort();
        }
    }

    /// Another client takes the place of one. That is let go of; or it closes, and the other continues what it read.
    pub(crate) fn replace(&mut self, index: usize) {
        let new = self.peer();
        let old = std::mem::replace(&mut self.peers[index], new);
        self.tell(|| format!("client {} goes", old.number));
        let closes = self.rng.bool();
        for (pattern, reader) in old.readers {
            end(&self.record, reader.tenure, "its client went");
            if !closes {
                reader.task.abort();
                continue;
            }
            let tenure = self.tenure(index, pattern, &reader.filters, reader.pace);
            let peer = &mut self.peers[index];
            let subscribing = reader.pace.apply(&peer.client, pattern, &reader.filters);
            let (pause, record, before) = (reader.pace.pause, Arc::clone(&self.record), reader.task);
            let continued = reader.tenure;
            let task = tokio::spawn(async move {
                let position = before.await.ok().flatten();
                {
                    let mut record = lock(&record);
                    let seq = position.as_ref().map(|position| position.seq);
                    record.tell(|| format!("subscription {tenure} continues {continued} from {seq:?}"));
                    record.tenures[tenure].continues = position.is_some().then_some(continued);
                }
                read(subscribing.resume_from(position), pause, tenure, record).await
            });
            peer.readers.insert(pattern, Reader { tenure, continues: true, task, ..reader });
        }
        if closes {
            let client = old.client;
            self.call("close", async move { drop(client.close().await) });
        }
    }
}

impl Pace {
    fn apply(self, client: &Client, pattern: usize, filters: &[&'static str]) -> Subscribe {
        let subscribing = client.subscribe(PATTERNS[pattern].0).filters(filters.iter().copied());
        subscribing.buffer(self.buffer).overflow(ReceiveOverflow::Pause)
    }
}

/// Marks a subscription as given up.
fn end(record: &Shared, tenure: usize, why: &str) {
    let mut record = lock(record);
    record.tell(|| format!("subscription {tenure} ends: {why}"));
    record.tenures[tenure].ended.get_or_insert_with(Instant::now);
}

/// Subscribes, and reads until there is no more; gives where it was then.
async fn read(subscribing: Subscribe, pause: Duration, tenure: usize, record: Shared) -> Option<Position> {
    let mut subscription = match subscribing.await {
        Ok(subscription) => subscription,
        Err(error) => {
            end(&record, tenure, error.code());
            return None;
        }
    };
    {
        let mut record = lock(&record);
        record.tell(|| format!("subscription {tenure} begins"));
        record.tenures[tenure].began = Some(Instant::now());
    }
    while let Some(next) = subscription.next().await {
        let message = match next {
            Ok(message) => message,
            Err(error) => {
                end(&record, tenure, error.code());
                return None;
            }
        };
        let (publish, _) = message.decode::<(usize, String)>().expect("one of our payloads");
        let retained = message.meta().retained;
        {
            let mut record = lock(&record);
            record.tell(|| format!("subscription {tenure} gets {publish}"));
            record.tenures[tenure].got.push(Got { at: Instant::now(), publish, retained });
        }
        if !pause.is_zero() {
            sleep(pause).await;
        }
    }
    end(&record, tenure, "nothing more comes");
    subscription.position()
}

/// Notes what a client is told, until it is gone.
pub(crate) async fn listen(number: usize, mut events: broadcast::Receiver<Event>, record: Shared) {
    loop {
        let event = match events.recv().await {
            Ok(event) => event,
            Err(RecvError::Closed) => return,
            Err(RecvError::Lagged(missed)) => panic!("{missed} events were missed"),
        };
        let mut record = lock(&record);
        match event {
            Event::Gap(gap) => {
                record.tell(|| format!("client {number}: {gap:?}"));
                for tenure in &mut record.tenures {
                    let is_of_topic = PATTERNS[tenure.pattern].0 == &*gap.topic;
                    // One that is given up may still be read.
                    if tenure.client == number && is_of_topic {
                        tenure.gaps.push((Instant::now(), gap.reason.clone()));
                    }
                }
            }
            Event::Presence(change, actor) => presence::told(&mut record, number, change, &actor),
            Event::State { to, reason, .. } => record.tell(|| format!("client {number}: {to:?} ({reason})")),
            Event::Error(error) => record.tell(|| format!("client {number}: {error}")),
            _ => {}
        }
    }
}
