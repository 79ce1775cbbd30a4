//! The model of a broker: what it numbers, keeps and remembers, what it holds for a connection, and what it answers.

use super::*;
use crate::app::number_of;
use crate::world::Arriving;

/// A publish that the broker accepted.
#[derive(Debug, Clone)]
pub(super) struct Accepted {
    pub(super) at: Duration,
    pub(super) base: String,
    key: Option<String>,
    data: Bytes,
    /// Its run and number.
    pub(super) id: String,
    seq: u64,
    /// It is of a quality that is kept.
    pub(super) kept: bool,
}

pub(super) struct Broker {
    /// Without features, limits and references.
    pub(super) kraken: bool,
    /// It grants the same features to every connection, keeps all and never restarts: then there are no gaps.
    pub(super) steady: bool,
    pub(super) features: Vec<&'static str>,
    rate: Option<u64>,
    epoch: u64,
    seq: u64,
    history: VecDeque<Accepted>,
    history_size: usize,
    history_ttl: Duration,
    recover_limit: usize,
    /// The newest number that was dropped from the history, by base.
    dropped: HashMap<String, u64>,
    retained: BTreeMap<(String, Option<String>), Accepted>,
    seen: HashSet<String>,
    /// All that was ever accepted.
    pub(super) log: Vec<Accepted>,
    /// Publishes of the client, by how often they were accepted.
    pub(super) accepted: HashMap<u64, u32>,
    /// The client's publishes in the order in which it saw each first.
    pub(super) first_seen: HashMap<String, Vec<u64>>,
    /// Publishes that were refused for the rate once: what was in flight behind them may have been accepted at the turn of the
    /// second, which is the one exception to the order of a topic (client-api 7.5).
    pub(super) refused: BTreeSet<u64>,
    /// It did not recognise copies at all times.
    forgetful: bool,
}

/// Whether a subscription is to what is published to this base.
pub(super) fn matches(topic: &str, base: &str) -> bool {
    let (mut pattern, mut levels) = (topic.split('/'), base.split('/'));
    pattern.by_ref().zip(levels.by_ref()).all(|(level, of)| level == "+" || level == of)
        && topic.split('/').count() == base.split('/').count()
}

fn is_for(topic: &str, keys: &[String], message: &Accepted) -> bool {
    matches(topic, &message.base)
        && (keys.is_empty() || message.key.as_ref().is_some_and(|key| keys.contains(key)))
}

impl Broker {
    pub(super) fn new(rng: &mut fastrand::Rng) -> Self {
        let kraken = rng.u8(0..4) == 0;
        let steady = !kraken && rng.bool();
        let mut broker = Self {
            kraken,
            steady,
            features: Vec::new(),
            rate: [None, Some(5), Some(50)][rng.usize(0..3)],
            epoch: 1,
            seq: 0,
            history: VecDeque::new(),
            history_size: if steady { usize::MAX } else { rng.usize(1..30) },
            history_ttl: if steady { Duration::MAX } else { ms(rng.u64(500..20_000)) },
            recover_limit: if steady { usize::MAX } else { rng.usize(1..30) },
            dropped: HashMap::new(),
            retained: BTreeMap::new(),
            seen: HashSet::new(),
            log: Vec::new(),
            accepted: HashMap::new(),
            first_seen: HashMap::new(),
            refused: BTreeSet::new(),
            forgetful: false,
        };
        broker.choose_features(rng);
        broker
    }

    pub(super) fn choose_features(&mut self, rng: &mut fastrand::Rng) {
        self.features = match (self.kraken, self.steady) {
            (true, _) => Vec::new(),
            (_, true) => vec!["recover", "dedupe"],
            _ => ["recover", "dedupe"].into_iter().filter(|_| rng.u8(0..4) > 0).collect(),
        };
        self.forgetful |= !self.has("dedupe");
    }

    pub(super) fn has(&self, feature: &str) -> bool {
        self.features.contains(&feature)
    }

    /// It restarts, with nothing but its memory: that is gone.
    pub(super) fn restart(&mut self, rng: &mut fastrand::Rng) {
        self.epoch += 1;
        self.seq = rng.u64(0..50);
        self.history.clear();
        self.dropped.clear();
        self.retained.clear();
        self.seen.clear();
        self.forgetful = true;
        self.choose_features(rng);
    }

    pub(super) fn retained(&self) -> Vec<Accepted> {
        self.retained.values().cloned().collect()
    }

    /// A publish is accepted: it has a number, and is kept as it should be.
    pub(super) fn accept(
        &mut self,
        now: Duration,
        base: &str,
        key: Option<String>,
        data: Bytes,
        kept: bool,
        retain: bool,
    ) -> Accepted {
        self.seq += 1 + u64::from(self.seq.is_multiple_of(7)); // numbers may skip
        let id = format!("{}-{}", self.epoch, self.seq);
        let message = Accepted { at: now, base: base.to_owned(), key, data, id, seq: self.seq, kept };
        self.log.push(message.clone());
        if retain {
            self.retained.insert((message.base.clone(), message.key.clone()), message.clone());
        }
        if kept {
            self.history.push_back(message.clone());
            let of_base = self.history.iter().filter(|other| other.base == message.base).count();
            if of_base > self.history_size {
                let oldest = self.history.iter().position(|other| other.base == message.base).unwrap();
                self.drop_from_history(oldest);
            }
        }
        message
    }

    fn drop_from_history(&mut self, index: usize) {
        let dropped = self.history.remove(index).unwrap();
        self.dropped.insert(dropped.base, dropped.seq);
    }

    /// What a subscription missed, or why that cannot be said (features 2).
    fn missed(
        &self,
        topic: &str,
        keys: &[String],
        epoch: &str,
        seq: u64,
    ) -> Result<Vec<Accepted>, &'static str> {
        if epoch != self.epoch.to_string() || seq > self.seq {
            return Err("epoch");
        }
        if self.dropped.iter().any(|(base, dropped)| matches(topic, base) && *dropped > seq) {
            return Err("expired");
        }
        let kept = self.history.iter().chain(self.retained.values());
        let missed: BTreeMap<u64, &Accepted> = kept
            .filter(|message| message.seq > seq && is_for(topic, keys, message))
            .map(|message| (message.seq, message))
            .collect();
        if missed.len() > self.recover_limit {
            return Err("too_many");
        }
        Ok(missed.into_values().cloned().collect())
    }

    fn expire(&mut self, now: Duration) {
        while self.history.front().is_some_and(|oldest| oldest.at.saturating_add(self.history_ttl) <= now) {
            self.drop_from_history(0);
        }
    }
}

impl World {
    /// The broker reads one frame.
    pub(super) fn broker(&mut self, frame: &[u8]) {
        if frame.is_empty() {
            return self.reply_raw(Bytes::new());
        }
        self.broker.expire(self.now);
        self.note(|| format!("     --> {:?}", ClientFrame::decode(frame)));
        let authenticated = self.link.as_ref().is_some_and(|link| link.authenticated);
        match ClientFrame::decode(frame).expect("the client sends what a broker can read") {
            ClientFrame::Auth(frame) => {
                assert!(!authenticated, "auth twice");
                for feature in &self.broker.features {
                    assert!(frame.features.contains(feature), "{feature} is not asked for");
                }
                self.authenticate();
            }
            _ if !authenticated => panic!("a frame before auth success"),
            ClientFrame::Subscribe(frame) => self.subscribe(&frame),
            ClientFrame::Unsubscribe(frame) => {
                let msg_ref = self.echo(frame.msg_ref.0);
                if let Some(link) = &mut self.link {
                    link.subscriptions.remove(frame.topic);
                }
                self.reply(nolag_protocol::frame::Unsubscribed { msg_ref, ..unsubscribed(frame.topic) });
            }
            ClientFrame::SetFilters(frame) => {
                let msg_ref = self.echo(frame.msg_ref.0);
                let keys = filter::subscription_keys(Some(frame.filters.0)).unwrap();
                let held = self.link.as_mut().and_then(|link| link.subscriptions.get_mut(frame.topic));
                match held {
                    Some(held) => {
                        *held = keys;
                        self.reply(FiltersUpdated { topic: frame.topic, filters: None, msg_ref });
                        self.send_retained(frame.topic);
                    }
                    None => {
                        let topic = Some(frame.topic);
                        self.reply(ErrorReply { topic, msg_ref, ..error("not_subscribed") });
                    }
                }
            }
            ClientFrame::Publish(frame) => self.publish(&frame),
            ClientFrame::Presence(frame) => {
                if !self.broker.kraken {
                    let (room_id, msg_ref) = (frame.room_id, frame.msg_ref.0);
                    self.reply(PresenceUpdated { app: None, room_id, msg_ref });
                }
            }
            ClientFrame::GetPresence(frame) => {
                let (room_id, msg_ref) = (frame.room_id, self.echo(frame.msg_ref.0));
                let data = Data::new(&[0x90]);
                self.reply(PresenceList { app: None, room_id, data, truncated: None, msg_ref });
            }
            ClientFrame::LobbySubscribe(frame) => {
                let (lobby_id, msg_ref) = (frame.lobby_id, self.echo(frame.msg_ref.0));
                if self.chance(10) {
                    let lobby_id = Some(lobby_id);
                    return self.reply(ErrorReply { lobby_id, msg_ref, ..error("not_authorized") });
                }
                let presence = Data::new(&[0x80]);
                self.reply(LobbySubscribed { lobby_id, presence, truncated: None, msg_ref });
            }
            ClientFrame::GetLobbyPresence(frame) => {
                let (lobby_id, msg_ref) = (frame.lobby_id, self.echo(frame.msg_ref.0));
                let presence = Data::new(&[0x80]);
                self.reply(LobbyPresenceList { lobby_id, presence, truncated: None, msg_ref });
            }
            ClientFrame::LobbyUnsubscribe(frame) => {
                let msg_ref = self.echo(frame.msg_ref.0);
                self.reply(LobbyUnsubscribed { lobby_id: frame.lobby_id, msg_ref });
            }
            ClientFrame::Reauth(_) => {
                let success = !self.chance(20);
                self.reply(ReauthReply { success, auth_expires_at: None, error: None });
            }
            ClientFrame::Ack(_) | ClientFrame::BatchAck(_) => {}
            ClientFrame::Unknown(kind) => panic!("{kind}"),
        }
    }

    fn authenticate(&mut self) {
        if self.chance(8) {
            let reason = self.rng.choice(&["broker_unavailable", "connection_failed"]).copied();
            return self.reply(nolag_protocol::frame::AuthReply {
                success: false,
                error: reason,
                ..accepted()
            });
        }
        if self.chance(25) {
            self.broker.choose_features(&mut self.rng);
        }
        if let Some(link) = &mut self.link {
            link.authenticated = true;
        }
        let mut reply = accepted();
        reply.features.clone_from(&self.broker.features);
        if self.broker.kraken {
            reply.limits = None;
        } else if let Some(rate) = self.broker.rate {
            reply.limits = Some(nolag_protocol::frame::Limits {
                publishes_per_second: Some(rate),
                max_payload_bytes: None,
            });
        }
        self.reply(reply);
    }

    fn subscribe(&mut self, frame: &Subscribe<'_>) {
        let msg_ref = self.echo(frame.msg_ref.0);
        let topic = frame.topic;
        if self.chance(1) {
            return; // it never answers, and does nothing
        }
        if self.chance(4) {
            return self.reply(ErrorReply { topic: Some(topic), msg_ref, ..error("unknown_topic") });
        }
        let keys = filter::subscription_keys(frame.filters.map(|raw| raw.0)).unwrap();
        if let Some(link) = &mut self.link {
            link.subscriptions.insert(topic.into(), keys.clone());
        }
        let mut reply = nolag_protocol::frame::Subscribed { msg_ref, ..subscribed(topic) };
        if !self.broker.has("recover") {
            assert!(frame.recover.is_none() && frame.history.is_none(), "that was not granted");
            self.reply(reply);
            return self.send_retained(topic);
        }
        let epoch = self.broker.epoch.to_string();
        (reply.epoch, reply.seq) = (Some(epoch.as_str()), Some(self.broker.seq));
        let missed = frame.recover.map(|at| self.broker.missed(topic, &keys, at.epoch, at.seq));
        match missed {
            Some(Ok(missed)) => {
                self.reply(nolag_protocol::frame::Subscribed { recovered: Some(true), ..reply });
                *self.tally.entry("recovered".into()).or_default() += 1;
                return self.replay(topic, &missed);
            }
            Some(Err(gap)) => {
                assert!(!self.broker.steady, "{gap}");
                *self.tally.entry(format!("gap {gap}")).or_default() += 1;
                (reply.recovered, reply.gap) = (Some(false), Some(gap));
            }
            None => {}
        }
        self.reply(reply);
        let history = usize::try_from(frame.history.unwrap_or(0)).unwrap();
        let kept: Vec<_> =
            self.broker.history.iter().filter(|message| is_for(topic, &keys, message)).cloned().collect();
        let replay_first = self.rng.bool();
        if replay_first {
            self.replay(topic, &kept[kept.len().saturating_sub(history)..]);
        }
        self.send_retained(topic);
        if !replay_first {
            self.replay(topic, &kept[kept.len().saturating_sub(history)..]);
        }
    }

    fn replay(&mut self, topic: &str, messages: &[Accepted]) {
        if messages.is_empty() {
            return;
        }
        assert!(messages.len() <= self.broker.recover_limit.max(5));
        let count = Some(messages.len() as u64);
        let start = ReplayStart { topic: Some(topic), count, oldest_timestamp: None, newest_timestamp: None };
        self.reply(start);
        for accepted in messages {
            let frame = message(topic, Some(&accepted.id), &accepted.data);
            let seq = Some(accepted.seq);
            self.reply(nolag_protocol::frame::Message { is_replay: Some(true), seq, ..frame });
        }
        self.reply(ReplayEnd { topic: Some(topic), count, replayed: count });
    }

    fn send_retained(&mut self, topic: &str) {
        let Some(keys) = self.link.as_ref().and_then(|link| link.subscriptions.get(topic)).cloned() else {
            return;
        };
        for accepted in self.broker.retained().iter().filter(|message| is_for(topic, &keys, message)) {
            let frame = message(topic, Some(&accepted.id), &accepted.data);
            let seq = Some(accepted.seq).filter(|_| self.broker.has("recover"));
            let retained = (!self.broker.kraken).then_some(true);
            self.reply(nolag_protocol::frame::Message { retained, seq, ..frame });
        }
    }

    fn publish(&mut self, frame: &Publish<'_>) {
        let n = value(frame.data.bytes);
        let topic = Some(frame.topic);
        let msg_ref = frame.msg_ref.0;
        let is_kept = frame.qos != Some(Qos::AtMostOnce);
        if let Some(msg_ref) =
            msg_ref.filter(|msg_ref| self.broker.has("dedupe") && self.broker.seen.contains(*msg_ref))
        {
            *self.tally.entry("recognised".into()).or_default() += 1;
            let reply = published(frame.topic, Some(msg_ref));
            return self.reply(nolag_protocol::frame::Published { duplicate: Some(true), ..reply });
        }
        let second = self.now.as_secs();
        let link = self.link.as_mut().unwrap();
        if link.window.0 != second {
            link.window = (second, 0);
        }
        let rate = if self.broker.kraken { Some(50) } else { self.broker.rate };
        let over = rate.is_some_and(|rate| link.window.1 >= rate);
        if over || self.chance(2) {
            self.broker.refused.insert(n);
            let name = *self.rng.choice(&["rate_limit_exceeded", "store_full"]).unwrap();
            return self.reply(ErrorReply { topic, msg_ref, ..error(name) });
        }
        self.link.as_mut().unwrap().window.1 += 1;
        if is_kept {
            let seen = self.broker.first_seen.entry(frame.topic.into()).or_default();
            if !seen.contains(&n) {
                seen.push(n);
            }
            let times = self.broker.accepted.entry(n).or_default();
            *times += 1;
            assert!(*times == 1 || self.broker.forgetful, "{n} was accepted {times} times");
        }
        if let Some(msg_ref) = msg_ref {
            self.broker.seen.insert(msg_ref.to_owned());
            self.reply(published(frame.topic, Some(msg_ref)));
        }
        let key = filter::publish_key(frame.filter.map(|raw| raw.0), None).unwrap();
        let data = Bytes::copy_from_slice(frame.data.bytes);
        let accepted = self.broker.accept(self.now, frame.topic, key, data, is_kept, frame.retain.is(true));
        self.fan_out(&accepted);
    }

    /// kraken answers nothing but publishes with the request's reference.
    fn echo<'a>(&self, msg_ref: Option<&'a str>) -> Option<&'a str> {
        msg_ref.filter(|_| !self.broker.kraken)
    }

    pub(super) fn fan_out(&mut self, accepted: &Accepted) {
        self.note(|| format!("                   accepts {accepted:?}"));
        let Some(link) = &self.link else { return };
        let interested = link.subscriptions.iter().filter(|(topic, keys)| is_for(topic, keys, accepted));
        let topics: Vec<_> = interested.map(|(topic, _)| topic.clone()).collect();
        for topic in topics {
            debug_assert_eq!(number_of(&accepted.id).1, accepted.seq);
            let seq = Some(accepted.seq).filter(|_| self.broker.has("recover"));
            let is_replay = (self.rng.u8(0..10) == 0).then_some(false);
            let frame = message(&topic, Some(&accepted.id), &accepted.data);
            let frame = nolag_protocol::frame::Message { seq, is_replay, ..frame };
            if self.chance(10) {
                self.reply(frame.clone());
            }
            self.reply(frame);
        }
    }

    fn reply<'a>(&mut self, frame: impl Into<ServerFrame<'a>>) {
        let frame = frame.into();
        // Of what nobody waits for longer than the time-out, and nothing else hangs on, some is never sent.
        let may_lack = matches!(
            frame,
            ServerFrame::Published(_)
                | ServerFrame::FiltersUpdated(_)
                | ServerFrame::PresenceList(_)
                | ServerFrame::LobbySubscribed(_)
                | ServerFrame::LobbyPresenceList(_)
                | ServerFrame::Unsubscribed(_)
        );
        if may_lack && self.chance(1) {
            return;
        }
        self.reply_raw(frame.to_vec().into());
    }

    fn reply_raw(&mut self, frame: Bytes) {
        let at = self.now + self.delay();
        let Some(link) = &mut self.link else { return };
        if link.silent {
            return;
        }
        let at = link.down.back().map_or(at, |last| at.max(last.at));
        link.down.push_back(Arriving { at, sent: self.now, event: Transport::Frame(frame) });
    }
}
