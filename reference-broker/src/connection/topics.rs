//! Subscribing and publishing (wire protocol 10.1 to 10.4).

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use nolag_protocol::features::{Feature, Features};
use nolag_protocol::filter::{self, FilterError};
use nolag_protocol::frame::{
    ClientFrame, FiltersUpdated, Lenient, Publish, Qos, Raw, SetFilters, Subscribe, Subscribed, Unsubscribed,
};
use nolag_protocol::grant::{self, Operation, Resolution};
use nolag_protocol::msgpack::{Token, write};
use nolag_protocol::topic::{self, MAX_TOPIC_BYTES};
use nolag_protocol::trace::is_traceparent;
use nolag_protocol::{MAX_MESSAGE_BYTES, codes};
use uuid::Uuid;

use super::requests::{ENVELOPE_BYTES, Relayed, relayed};
use super::session::{Context, Live, Session};
use crate::hub::{Envelope, Interest, Join, Joined, Origin, Publication, Reply, Worker};
use crate::resume;
use crate::store::Full;

/// How many subscriptions a connection may hold: more than anybody needs, and some 50 MB of memory.
const MAX_SUBSCRIPTIONS: usize = 100_000;

/// The features that the frames of messages depend on.
const IN_FRAMES: Features =
    Features::NONE.with(Feature::Recover).with(Feature::Redeliver).with(Feature::Trace);

/// How many messages of the history a subscribe may ask for (features 2).
const MAX_HISTORY: u64 = 1_000;

/// How long a member of a group that redelivers may take to acknowledge a message, in ms (features 6).
const ACK_TIMEOUT_MS: RangeInclusive<u64> = 1_000..=3_600_000;

/// The same where it does not say.
const DEFAULT_ACK_TIMEOUT_MS: u64 = 30_000;

const DENIED_HINT: &str = "the topic is outside this token's grants or its room does not exist";

impl Live {
    /// Where an address leads for an operation, and the address with its scope; `None` when it is denied.
    fn route(&self, operation: Operation, address: &str) -> Option<(String, Resolution)> {
        // Longer topics are refused before; in the kraken profile here.
        if address.len() > MAX_TOPIC_BYTES {
            return None;
        }
        let rules = &self.identity.rules;
        let effective = grant::effective(rules, self.identity.scope_slug.as_deref(), address);
        let resolution = grant::resolve(rules, operation, &effective)?;
        Some((effective.into_owned(), resolution))
    }

    /// What a subscription to an address asks for.
    fn interest(&self, address: Arc<str>, keys: Vec<String>, group: Option<&str>) -> Option<Interest> {
        let (effective, resolution) = self.route(Operation::Subscribe, &address)?;
        let wildcard = topic::is_wildcard(&effective);
        let project = self.identity.project_id.as_deref();
        Some(Interest {
            app_levels: resolution.app_id.split('/').count(),
            wildcard,
            exact: resolution.exact,
            keys,
            group: group.map(|name| grant::share_group(project, &resolution.app_id, name).into()),
            descends: !resolution.exact && grant::descends(&self.identity.rules, &effective),
            scope: self.identity.scope_slug.as_deref().filter(|_| *effective != *address).map(Arc::from),
            features: self.features.and(IN_FRAMES),
            worker: None,
            base: resolution.base.into(),
            topic: address,
        })
    }

    /// By what a subscription acknowledges, if its group redelivers (features 6), or what is wrong with that.
    fn worker(
        &self,
        subscribe: &Subscribe<'_>,
        interest: &Interest,
    ) -> Result<Option<Arc<Worker>>, &'static str> {
        if !self.features.has(Feature::Redeliver) || !subscribe.redeliver.is(true) {
            return Ok(None);
        }
        let timeout = subscribe.ack_timeout_ms.unwrap_or(DEFAULT_ACK_TIMEOUT_MS);
        if interest.group.is_none() {
            return Err("redeliver needs loadBalance");
        }
        if !ACK_TIMEOUT_MS.contains(&timeout) {
            return Err("ackTimeoutMs is 1,000 to 3,600,000");
        }
        Ok(Some(Arc::new(Worker {
            ack_timeout: Duration::from_millis(timeout),
            actor: self.actor.clone(),
            client_id: self.client_id.clone(),
        })))
    }
}

/// Why a subscribe is refused.
enum Refused {
    Topic(topic::TopicError),
    Malformed(String),
    Denied,
    Filters(FilterError),
    /// As kraken does with what it does not understand.
    Silently,
}

impl Session {
    /// Tells that an address is outside the grants, in the words of the negotiated version.
    fn denied(&mut self, context: Context<'_>) {
        let version = self.live().map_or(1, |live| live.version);
        if version >= 2 {
            self.error(codes::UNKNOWN_TOPIC, Context { hint: Some(DENIED_HINT), ..context });
        } else {
            self.error(codes::NOT_AUTHORIZED, context);
        }
    }

    fn invalid_topic(&self, error: topic::TopicError, context: Context<'_>) {
        let detail = format!("the topic is not well formed: {error}");
        self.error(codes::INVALID_TOPIC, Context { detail: Some(&detail), ..context });
    }

    /// What a subscribe asks for, by today's grants.
    fn wanted(&mut self, subscribe: &Subscribe<'_>) -> Result<Interest, Refused> {
        let extended = self.extended();
        if extended {
            topic::check_subscribe(subscribe.topic).map_err(Refused::Topic)?;
        }
        let group = match subscribe.group() {
            Err(fault) if extended => return Err(Refused::Malformed(fault.to_string())),
            Err(_) => return Err(Refused::Silently),
            Ok(group) => group,
        };
        if extended
            && let Some(Some(name)) = group
            && let Err(error) = topic::check_group(name)
        {
            return Err(Refused::Malformed(format!("loadBalanceGroup is not well formed: {error}")));
        }
        let keys = self.keys(subscribe.filters);
        let Some(live) = self.live() else { return Err(Refused::Silently) };
        let group = group.map(|name| name.unwrap_or(&live.actor));
        let interest = live.interest(subscribe.topic.into(), Vec::new(), group).ok_or(Refused::Denied)?;
        let keys = keys.map_err(Refused::Filters)?;
        if live.subscriptions.len() >= MAX_SUBSCRIPTIONS && !live.subscriptions.contains_key(subscribe.topic)
        {
            return Err(Refused::Malformed("a connection holds at most 100,000 subscriptions".to_owned()));
        }
        let worker =
            live.worker(subscribe, &interest).map_err(|detail| Refused::Malformed(detail.to_owned()))?;
        Ok(Interest { keys, worker, ..interest })
    }

    pub(super) fn subscribe(&mut self, subscribe: &Subscribe<'_>) {
        let msg_ref = self.echoed(subscribe.msg_ref);
        let context = Context { topic: Some(subscribe.topic), msg_ref, ..Context::default() };
        let interest = match self.wanted(subscribe) {
            Ok(interest) => interest,
            Err(Refused::Topic(error)) => return self.invalid_topic(error, context),
            Err(Refused::Malformed(detail)) => {
                return self.error(codes::INVALID_MESSAGE, Context { detail: Some(&detail), ..context });
            }
            Err(Refused::Denied) => return self.denied(context),
            Err(Refused::Filters(error)) => return self.filters_refused(error, context),
            Err(Refused::Silently) => return,
        };
        let Some(live) = self.live() else { return };
        let recovers = live.features.has(Feature::Recover);
        let history = match subscribe.history.filter(|_| recovers) {
            Some(count @ 1..=MAX_HISTORY) => usize::try_from(count).ok(),
            Some(_) => {
                let detail = Some("history is 1 to 1,000 messages");
                return self.error(codes::INVALID_MESSAGE, Context { detail, ..context });
            }
            None => None,
        };
        live.remembered.remember(&interest.topic, subscribe);
        let load_balance = Some(interest.group.is_some());
        let metrics = self.broker.metrics.clone();
        let recover = subscribe.recover.filter(|_| recovers);
        self.put(interest, Join { recover, history, ..Join::default() }, |joined| {
            Some(metrics.encoded(Subscribed {
                topic: subscribe.topic,
                load_balance,
                epoch: joined.map(|joined| joined.epoch),
                seq: joined.map(|joined| joined.seq),
                recovered: joined.and_then(|joined| joined.recovered),
                gap: joined.and_then(|joined| joined.gap),
                msg_ref,
            }))
        });
    }

    /// What a reconnecting client asks to have restored (wire protocol 17): the backend's list of the actor where it has one, else
    /// what is remembered of the client. What today's grants refuse is forgotten without a word (C-086, C-087).
    /// Returns the array of entries too.
    pub(super) fn restored(&mut self) -> (Vec<Interest>, Vec<u8>) {
        let (mut interests, mut entries) = (Vec::new(), Vec::new());
        let Some(live) = self.live() else { return (interests, entries) };
        let listed = live.identity.active_subscriptions.iter().map(|frame| frame.clone().into_boxed_slice());
        let mut frames: Vec<Box<[u8]>> = listed.collect();
        if frames.is_empty() {
            frames = live.remembered.frames();
        }
        for frame in frames {
            let Ok(ClientFrame::Subscribe(subscribe)) = ClientFrame::decode(&frame) else { continue };
            match self.wanted(&subscribe) {
                Ok(interest) if entries.len() + frame.len() + ENVELOPE_BYTES <= MAX_MESSAGE_BYTES / 2 => {
                    resume::entry(&mut entries, &subscribe);
                    interests.push(interest);
                }
                _ => {
                    if let Some(live) = self.live() {
                        live.remembered.forget(subscribe.topic);
                    }
                }
            }
        }
        let mut array = Vec::with_capacity(entries.len() + 5);
        write::token(&mut array, Token::Array(u32::try_from(interests.len()).unwrap_or(u32::MAX)));
        array.extend_from_slice(&entries);
        (interests, array)
    }

    /// Puts restored subscriptions into force; what is retained for them follows.
    pub(super) fn restore(&mut self, interests: Vec<Interest>) {
        for interest in interests {
            self.put(interest, Join::default(), |_| None);
        }
    }

    /// Puts a subscription in the place of the one of the same topic, if there is one.
    fn put(
        &mut self,
        interest: Interest,
        join: Join<'_>,
        reply: impl FnOnce(Option<Joined<'_>>) -> Option<Bytes>,
    ) {
        let (broker, outgoing) = (self.broker.clone(), self.outgoing.clone());
        let Some(live) = self.live() else { return };
        let previous = live.subscriptions.remove(&interest.topic);
        let join = Join { actor: &live.actor, client_id: live.client_id.as_deref(), ..join };
        let subscription = broker.hub.subscribe(&outgoing, interest, previous, &join, reply);
        live.subscriptions.insert(subscription.interest.topic.clone(), subscription);
    }

    pub(super) fn unsubscribe(&mut self, topic: &str, msg_ref: Lenient<&str>) {
        let msg_ref = self.echoed(msg_ref);
        if self.overlong(&[Some(topic), msg_ref]) {
            return;
        }
        let (broker, outgoing) = (self.broker.clone(), self.outgoing.clone());
        if let Some(live) = self.live() {
            live.remembered.forget(topic);
            if let Some(subscription) = live.subscriptions.remove(topic) {
                broker.hub.unsubscribe(&subscription);
            }
        }
        outgoing.push(broker.metrics.encoded(Unsubscribed { topic, reason: None, msg_ref }));
    }

    pub(super) fn set_filters(&mut self, request: &SetFilters<'_>) {
        let msg_ref = self.echoed(request.msg_ref);
        let context = Context { topic: Some(request.topic), msg_ref, ..Context::default() };
        let keys = self.keys(Some(request.filters));
        let current = self.live().and_then(|live| live.subscriptions.get(request.topic));
        let Some(current) = current.map(|subscription| (*subscription.interest).clone()) else {
            return self.error(codes::NOT_SUBSCRIBED, context);
        };
        match keys {
            Ok(keys) => {
                let filters = Some(request.filters);
                let reply =
                    self.broker.metrics.encoded(FiltersUpdated { topic: request.topic, filters, msg_ref });
                if reply.len() > MAX_MESSAGE_BYTES {
                    let detail = Some("the filters do not fit a reply");
                    return self.error(codes::INVALID_MESSAGE, Context { detail, ..context });
                }
                let join = Join { fresh: true, ..Join::default() };
                if let Some(live) = self.live() {
                    live.remembered.set_filters(&current.topic, request.filters);
                }
                self.put(Interest { keys, ..current }, join, |_| Some(reply));
            }
            Err(error) => self.filters_refused(error, context),
        }
    }

    /// The keys of a `filters` field. A wrong type is no filter at all to kraken.
    fn keys(&self, filters: Option<Raw<'_>>) -> Result<Vec<String>, FilterError> {
        match filter::subscription_keys(filters.map(|raw| raw.0)) {
            Err(FilterError::WrongType) if !self.extended() => Ok(Vec::new()),
            keys => keys,
        }
    }

    fn filters_refused(&self, error: FilterError, context: Context<'_>) {
        let mut code = match error {
            FilterError::Chars => codes::INVALID_FILTER_CHARS,
            FilterError::TooMany => codes::TOO_MANY_FILTERS,
            FilterError::WrongType => codes::INVALID_FILTER,
        };
        if !self.extended() {
            code.code = None;
        }
        self.error(code, context);
    }

    pub(super) fn publish(&mut self, publish: &Publish<'_>) {
        let extended = self.extended();
        let msg_ref = publish.msg_ref.non_empty();
        let context = Context { topic: Some(publish.topic), msg_ref, ..Context::default() };
        let (broker, outgoing) = (self.broker.clone(), self.outgoing.clone());
        let relayed = relayed(publish.data, extended);
        let data = match &relayed {
            Relayed::AsItCame => publish.data.bytes,
            Relayed::Changed(data) => data,
            Relayed::Dropped => return,
        };
        let now = broker.clock.now();
        let Some(live) = self.live() else { return };
        let reject = |session: &mut Self, code: codes::ErrorCode, context| {
            broker.metrics.rejected(code.name);
            session.error(code, context);
        };

        let reply = msg_ref.map(|msg_ref| Reply {
            to: &outgoing,
            topic: publish.topic,
            msg_ref,
            with_level: live.features.has(Feature::Dedupe) || live.features.has(Feature::Recover),
        });
        let recognised = msg_ref.filter(|_| live.features.has(Feature::Dedupe));
        if let Some(msg_ref) = recognised
            && broker.hub.repeated(&live.actor, msg_ref, reply)
        {
            return;
        }
        if !live.limits.admits(now.as_secs()) {
            return reject(self, codes::RATE_LIMIT_EXCEEDED, context);
        }
        if extended && let Err(error) = topic::check_publish(publish.topic) {
            broker.metrics.rejected(codes::INVALID_TOPIC.name);
            return self.invalid_topic(error, context);
        }
        let Some((effective, resolution)) = live.route(Operation::Publish, publish.topic) else {
            broker.metrics.rejected(codes::UNKNOWN_TOPIC.name);
            return self.denied(context);
        };
        let key = match filter::publish_key(publish.filter.map(|raw| raw.0), publish.filters.map(|raw| raw.0))
        {
            Err(FilterError::WrongType) if !extended => Ok(None),
            key => key,
        };
        let limit = live.limits.payload_bytes;
        let key_bytes = key.as_ref().ok().and_then(Option::as_ref).map_or(0, String::len);
        let envelope = ENVELOPE_BYTES + 3 * MAX_TOPIC_BYTES + key_bytes + live.actor.len();
        if publish.data.bytes.len() > limit || data.len() + envelope > MAX_MESSAGE_BYTES {
            let max_size_bytes = u64::try_from(limit).ok();
            return reject(self, codes::MESSAGE_TOO_LARGE, Context { max_size_bytes, ..context });
        }
        let key = match key {
            Ok(key) => key,
            Err(error) => {
                let detail = error.to_string();
                return reject(self, codes::INVALID_FILTER, Context { detail: Some(&detail), ..context });
            }
        };
        let retain_ttl = match publish.retain_ttl {
            Some(seconds) if extended && !(1..=31_536_000).contains(&seconds) => {
                let detail = Some("retainTtl is 1 to 31,536,000 seconds");
                return reject(self, codes::INVALID_MESSAGE, Context { detail, ..context });
            }
            seconds => seconds.filter(|_| extended).map(Duration::from_secs),
        };

        let reaches_below = !resolution.exact
            && key
                .as_ref()
                .is_some_and(|key| grant::may_publish(&live.identity.rules, &format!("{effective}/{key}")));
        let mut id = Uuid::encode_buffer();
        let msg_id =
            broker.settings.record_messages.then(|| &*Uuid::new_v4().hyphenated().encode_lower(&mut id));
        let silent = publish.echo.is(false);
        let publication = Publication {
            message: Envelope {
                origin: Origin {
                    base: &resolution.base,
                    topic: &effective,
                    exact: resolution.exact,
                    key: key.as_deref(),
                    reaches_below,
                },
                data,
                msg_id,
                from: &live.actor,
                from_type: "actor",
                timestamp: u64::try_from(now.as_millis()).unwrap_or(u64::MAX),
                trace: publish
                    .trace
                    .filter(|trace| live.features.has(Feature::Trace) && is_traceparent(trace)),
            },
            keep: publish.qos.unwrap_or_default() >= Qos::AtLeastOnce,
            msg_ref: recognised,
            silent: silent.then_some(outgoing.id()),
            silent_client: live.client_id.as_deref().filter(|_| silent),
            retain: publish.retain.is(true).then_some(retain_ttl.unwrap_or(broker.settings.retain_ttl)),
        };
        match broker.hub.publish(&publication, reply) {
            Ok(_) => live.limits.count(),
            Err(Full) => reject(self, codes::STORE_FULL, context),
        }
    }

    /// Lets go of the subscriptions that new grants do not cover, and moves those that they map elsewhere.
    /// In the kraken profile they stay as they are.
    pub(super) fn renew_subscriptions(&mut self) {
        let extended = self.extended();
        let (broker, outgoing) = (self.broker.clone(), self.outgoing.clone());
        let Some(live) = self.live() else { return };
        for topic in if extended { live.subscriptions.keys().cloned().collect() } else { Vec::new() } {
            let Some(subscription) = live.subscriptions.remove(&topic) else { continue };
            let interest = &*subscription.interest;
            let renewed = live.interest(topic.clone(), interest.keys.clone(), None);
            match renewed {
                Some(renewed) if same_place(&renewed, interest) => {
                    live.subscriptions.insert(topic, subscription);
                }
                Some(renewed) => {
                    let (group, worker) = (interest.group.clone(), interest.worker.clone());
                    let moved = Interest { group, worker, ..renewed };
                    let subscription = broker.hub.relocate(&outgoing, moved, &subscription);
                    live.subscriptions.insert(topic, subscription);
                }
                None => {
                    broker.hub.unsubscribe(&subscription);
                    let reason = Some(codes::NOT_AUTHORIZED.name);
                    outgoing.push(broker.metrics.encoded(Unsubscribed {
                        topic: &topic,
                        reason,
                        msg_ref: None,
                    }));
                }
            }
        }
    }

    /// Ends all subscriptions, with the connection, which was `lost` or closed.
    pub(super) fn end_subscriptions(&mut self, lost: bool) {
        let (broker, connection) = (self.broker.clone(), self.outgoing.id());
        let Some(live) = self.live() else { return };
        for (_, subscription) in live.subscriptions.drain() {
            broker.hub.unsubscribe(&subscription);
        }
        if live.features.has(Feature::Redeliver) {
            broker.hub.end(connection, lost);
        }
    }
}

/// Whether two resolutions of one subscription lead to the same place.
fn same_place(a: &Interest, b: &Interest) -> bool {
    a.base == b.base && a.exact == b.exact && a.descends == b.descends && a.scope == b.scope
}
