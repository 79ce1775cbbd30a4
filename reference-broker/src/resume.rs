//! What subscriptions are remembered for clients that ask to have them restored (wire protocol 17).
//!
//! The published clients send `reconnect: true` and subscribe to nothing again by themselves. What they subscribed to is kept
//! under their actor and `clientId`, as the `subscribe` frames to handle again, for as long as a connection holds it and an
//! hour more; in memory, and bounded: per key, so that what is restored can be listed in one reply, and over all.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use indexmap::IndexMap;
use nolag_protocol::frame::{ClientFrame, Lenient, Qos, Raw, Subscribe};
use nolag_protocol::msgpack::{Token, write};
use parking_lot::Mutex;
use tokio::time::Instant;

/// What is remembered under one key, in bytes of frames, so that the reply of a restore fits a message.
const KEY_BYTES: usize = 512 * 1024;

/// What is remembered in all. Past it the keys whose connections ended longest ago go first, then nothing new is taken.
const TOTAL_BYTES: usize = 64 * 1024 * 1024;

/// What a subscription costs beyond its topic and frame, about.
const ENTRY_OVERHEAD: usize = 96;

/// How much of a `clientId` counts.
const CLIENT_ID_CHARS: usize = 64;

/// An actor, and the name of one of its clients; empty where it has none.
type Key = Arc<(Box<str>, Box<str>)>;

/// All that is remembered.
#[derive(Debug)]
pub(crate) struct Resume {
    /// For how long after the last connection.
    retention: Duration,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    keys: HashMap<Key, Remembered>,
    /// Keys that no connection holds, by when the last one ended; the number tells equal moments apart.
    ended: BTreeMap<(Instant, u64), Key>,
    next: u64,
    bytes: usize,
}

#[derive(Debug, Default)]
struct Remembered {
    /// How many connections there are.
    holders: usize,
    /// Where it stands among those that none holds.
    ended: Option<(Instant, u64)>,
    /// `subscribe` frames by topic, in the order they first came.
    frames: IndexMap<Arc<str>, Box<[u8]>>,
    bytes: usize,
}

/// A connection's hold on what is remembered for its client.
#[derive(Debug)]
pub(crate) struct Held {
    resume: Arc<Resume>,
    key: Key,
}

impl Resume {
    pub(crate) fn new(retention: Duration) -> Arc<Self> {
        Arc::new(Self { retention, state: Mutex::default() })
    }

    /// Takes hold of what is remembered for a client. Who does not reconnect begins anew, unless another connection of the client
    /// lives (C-085). A `clientId` counts by its letters, digits, `-` and `_`, the first 64 of them (C-088).
    pub(crate) fn hold(self: &Arc<Self>, actor: &str, client_id: Option<&str>, reconnects: bool) -> Held {
        let counts = |char: &char| char.is_ascii_alphanumeric() || matches!(char, '-' | '_');
        let client: String =
            client_id.unwrap_or_default().chars().filter(counts).take(CLIENT_ID_CHARS).collect();
        let key: Key = Arc::new((actor.into(), client.into()));
        let mut state = self.state.lock();
        state.expire(self.retention);
        let state = &mut *state;
        let remembered = state.keys.entry(key.clone()).or_default();
        if let Some(ended) = remembered.ended.take() {
            state.ended.remove(&ended);
        }
        if !reconnects && remembered.holders == 0 {
            state.bytes -= remembered.bytes;
            *remembered = Remembered::default();
        }
        remembered.holders += 1;
        Held { resume: self.clone(), key }
    }
}

impl State {
    fn expire(&mut self, retention: Duration) {
        let now = Instant::now();
        while self
            .ended
            .first_key_value()
            .is_some_and(|((at, _), _)| now.saturating_duration_since(*at) >= retention)
        {
            self.drop_oldest();
        }
    }

    /// Forgets the key that nobody has held for longest; false if there is none.
    fn drop_oldest(&mut self) -> bool {
        let Some((_, key)) = self.ended.pop_first() else { return false };
        if let Some(remembered) = self.keys.remove(&key) {
            self.bytes -= remembered.bytes;
        }
        true
    }
}

impl Held {
    /// Remembers a subscription, in the place of one of the same topic. One that goes beyond the bounds is forgotten.
    pub(crate) fn remember(&self, topic: &Arc<str>, subscribe: &Subscribe<'_>) {
        let frame = Subscribe {
            recover: None,
            history: None,
            redeliver: Lenient(None),
            ack_timeout_ms: None,
            msg_ref: Lenient(None),
            ..*subscribe
        };
        self.put(topic, frame.to_vec().into());
    }

    /// Changes the filters of one that is remembered.
    pub(crate) fn set_filters(&self, topic: &Arc<str>, filters: Raw<'_>) {
        let frame =
            self.resume.state.lock().keys.get(&self.key).and_then(|own| own.frames.get(topic).cloned());
        if let Some(Ok(ClientFrame::Subscribe(subscribe))) = frame.as_deref().map(ClientFrame::decode) {
            self.put(topic, Subscribe { filters: Some(filters), ..subscribe }.to_vec().into());
        }
    }

    fn put(&self, topic: &Arc<str>, frame: Box<[u8]>) {
        let cost = frame.len() + topic.len() + ENTRY_OVERHEAD;
        let mut state = self.resume.state.lock();
        let state = &mut *state;
        state.forget(&self.key, topic);
        while state.bytes + cost > TOTAL_BYTES {
            if !state.drop_oldest() {
                return;
            }
        }
        let Some(own) = state.keys.get_mut(&self.key).filter(|own| own.bytes + cost <= KEY_BYTES) else {
            return;
        };
        own.bytes += cost;
        state.bytes += cost;
        own.frames.insert(topic.clone(), frame);
    }

    /// Forgets a subscription.
    pub(crate) fn forget(&self, topic: &str) {
        self.resume.state.lock().forget(&self.key, topic);
    }

    /// The `subscribe` frames to handle again.
    pub(crate) fn frames(&self) -> Vec<Box<[u8]>> {
        let state = self.resume.state.lock();
        state.keys.get(&self.key).map(|own| own.frames.values().cloned().collect()).unwrap_or_default()
    }
}

impl State {
    fn forget(&mut self, key: &Key, topic: &str) {
        let Some(own) = self.keys.get_mut(key) else { return };
        if let Some((topic, frame)) = own.frames.shift_remove_entry(topic) {
            let cost = frame.len() + topic.len() + ENTRY_OVERHEAD;
            own.bytes -= cost;
            self.bytes -= cost;
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut state = self.resume.state.lock();
        let state = &mut *state;
        state.expire(self.resume.retention);
        let Some(own) = state.keys.get_mut(&self.key) else { return };
        own.holders -= 1;
        if own.holders > 0 {
            return;
        }
        if own.frames.is_empty() {
            state.keys.remove(&self.key);
        } else {
            let ended = (Instant::now(), state.next);
            state.next += 1;
            own.ended = Some(ended);
            state.ended.insert(ended, self.key.clone());
        }
    }
}

/// A `subscribe` frame of these fields.
pub(crate) fn frame(
    topic: &str,
    filters: Option<&[u8]>,
    load_balance: Option<bool>,
    group: Option<&[u8]>,
) -> Vec<u8> {
    Subscribe {
        topic,
        qos: None,
        load_balance: Lenient(load_balance),
        load_balance_group: group.map(Raw),
        filters: filters.map(Raw),
        recover: None,
        history: None,
        redeliver: Lenient(None),
        ack_timeout_ms: None,
        msg_ref: Lenient(None),
    }
    .to_vec()
}

/// The entry of `restoredSubscriptions`: what the client sent, in the order of wire protocol 17.
pub(crate) fn entry(out: &mut Vec<u8>, subscribe: &Subscribe<'_>) {
    let Subscribe { topic, filters, load_balance, load_balance_group, qos, .. } = *subscribe;
    let fields = [filters.is_some(), load_balance.0.is_some(), load_balance_group.is_some(), qos.is_some()];
    let count = 1 + fields.into_iter().map(u32::from).sum::<u32>();
    write::token(out, Token::Map(count));
    write::str(out, "topic");
    write::str(out, topic);
    if let Some(Raw(filters)) = filters {
        write::str(out, "filters");
        out.extend_from_slice(filters);
    }
    if let Lenient(Some(load_balance)) = load_balance {
        write::str(out, "loadBalance");
        write::token(out, Token::Bool(load_balance));
    }
    if let Some(Raw(group)) = load_balance_group {
        write::str(out, "loadBalanceGroup");
        out.extend_from_slice(group);
    }
    if let Some(qos) = qos {
        write::str(out, "qos");
        write::uint(
            out,
            match qos {
                Qos::AtMostOnce => 0,
                Qos::AtLeastOnce => 1,
                Qos::ExactlyOnce => 2,
            },
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remember(held: &Held, topic: &str, filters: &[u8]) {
        let frame = frame(topic, Some(filters), None, None);
        let Ok(ClientFrame::Subscribe(subscribe)) = ClientFrame::decode(&frame) else {
            panic!("a subscribe")
        };
        held.remember(&topic.into(), &subscribe);
    }

    /// A value of about so many bytes.
    fn bytes(count: usize) -> Vec<u8> {
        let mut out = Vec::new();
        write::str(&mut out, &"x".repeat(count));
        out
    }

    /// C-083 and 17: what is remembered is bounded per key, and in all by dropping who is gone for longest.
    #[tokio::test(start_paused = true)]
    async fn what_is_remembered_is_bounded() {
        let resume = Resume::new(Duration::from_secs(3_600));
        let held = resume.hold("a", None, true);
        for n in 0..10 {
            remember(&held, &format!("t/{n}"), &bytes(100_000));
        }
        assert_eq!(held.frames().len(), 5);
        remember(&held, "t/0", &bytes(10));
        remember(&held, "small", &bytes(10));
        assert_eq!(held.frames().len(), 6, "what fits is taken");
        drop(held);

        for n in 0..200 {
            let held = resume.hold("b", Some(&n.to_string()), true);
            for part in 0..5 {
                remember(&held, &part.to_string(), &bytes(100_000));
            }
            assert_eq!(held.frames().len(), 5, "those who live come before those who are gone");
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        assert!(resume.state.lock().bytes <= TOTAL_BYTES);
        assert!(resume.hold("a", None, true).frames().is_empty(), "gone for longest");
        assert_eq!(resume.hold("b", Some("199"), true).frames().len(), 5);
        tokio::time::advance(Duration::from_secs(3_600)).await;
        drop(resume.hold("c", None, true));
        let state = resume.state.lock();
        assert_eq!((state.bytes, state.keys.len(), state.ended.len()), (0, 0, 0), "nothing is left behind");
    }

    /// A client that comes and goes all the time leaves no trail.
    #[tokio::test(start_paused = true)]
    async fn coming_and_going_costs_nothing() {
        let resume = Resume::new(Duration::from_secs(3_600));
        for _ in 0..1_000 {
            remember(&resume.hold("a", Some("c"), true), "t", &bytes(10));
        }
        assert_eq!(resume.state.lock().ended.len(), 1);
        for n in 0..1_000 {
            drop(resume.hold("a", Some(&n.to_string()), false));
        }
        assert_eq!(resume.state.lock().keys.len(), 1, "who subscribed to nothing is not remembered");
    }
}
