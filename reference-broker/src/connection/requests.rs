//! The requests of an authenticated connection: topics, presence and lobbies.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use nolag_protocol::codes;
use nolag_protocol::filter::{self, FilterError};
use nolag_protocol::frame::{
    ClientFrame, Data, FiltersUpdated, GetPresence, Lenient, Limits as ToldLimits, LobbyUnsubscribed,
    Presence, PresenceUpdated, Publish, Published, Raw, SetFilters, Subscribe, Subscribed, Unsubscribed,
};
use nolag_protocol::grant::{self, Operation, Resolution};
use nolag_protocol::topic::{self, MAX_TOPIC_BYTES};
use nolag_protocol::{MAX_MESSAGE_BYTES, msgpack, payload};
use uuid::Uuid;

use super::encoded;
use super::session::{Context, Live, Session};
use crate::auth::Identity;
use crate::config::Settings;
use crate::hub::{Interest, Origin, Publication};
use crate::presence::{Member, RoomKey, SnapshotKind, Style, Watch};

/// What the envelope of a message takes beyond its topics, key and sender, in bytes: keys, ids, headers.
const ENVELOPE_BYTES: usize = 512;

const DENIED_HINT: &str = "the topic is outside this token's grants or its room does not exist";

/// What a connection may publish.
#[derive(Debug)]
pub(super) struct Limits {
    payload_bytes: usize,
    per_second: Option<u64>,
    /// The wall-clock second that is being counted, and the publishes accepted in it.
    second: u64,
    accepted: u64,
}

impl Limits {
    pub(super) fn new(settings: &Settings, identity: &Identity) -> Self {
        Self {
            payload_bytes: settings.payload_limit(identity.max_payload_bytes),
            per_second: settings.publish_rate(identity.publishes_per_second),
            second: 0,
            accepted: 0,
        }
    }

    /// Takes over changed limits; what was accepted in this second still counts.
    pub(super) fn renew(&mut self, settings: &Settings, identity: &Identity) {
        let Self { second, accepted, .. } = *self;
        *self = Self { second, accepted, ..Self::new(settings, identity) };
    }

    /// As the client is told.
    pub(super) fn told(&self) -> ToldLimits {
        ToldLimits {
            publishes_per_second: self.per_second,
            max_payload_bytes: u64::try_from(self.payload_bytes).ok(),
        }
    }

    /// Whether one more publish fits into this second. The window is a wall-clock second (wire protocol 9).
    fn admits(&mut self, second: u64) -> bool {
        if self.second != second {
            (self.second, self.accepted) = (second, 0);
        }
        self.per_second.is_none_or(|limit| self.accepted < limit)
    }
}

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
            base: resolution.base.into(),
            topic: address,
        })
    }

    fn room_key(&self, room_id: &str) -> RoomKey {
        RoomKey {
            project: self.identity.project_id.as_deref().map(Arc::from),
            scope: self.identity.scope_slug.as_deref().map(Arc::from),
            room: room_id.into(),
        }
    }

    /// The rooms that a lobby slug stands for; `None` when it is not among the actor's lobbies. A room in
    /// several of its ids is watched once.
    fn watches(&self, slug: &str) -> Option<Vec<Watch>> {
        let identity = &self.identity;
        let lobbies: Vec<_> = identity.lobbies.iter().filter(|lobby| lobby.slug == slug).collect();
        let mut watches: Vec<Watch> = Vec::new();
        for lobby in &lobbies {
            for room in identity.rooms_of(lobby) {
                let key = self.room_key(room);
                if watches.iter().all(|watch| watch.key != key) {
                    let slug = identity.room_slug(room).map(Arc::from);
                    watches.push(Watch { key, lobby_id: lobby.id.as_str().into(), slug });
                }
            }
        }
        (!lobbies.is_empty()).then_some(watches)
    }
}

impl Session {
    /// Handles a request of an authenticated connection.
    pub(super) fn request(&mut self, frame: ClientFrame<'_>) {
        match frame {
            ClientFrame::Publish(publish) => self.publish(&publish),
            ClientFrame::Subscribe(subscribe) => self.subscribe(&subscribe),
            ClientFrame::Unsubscribe(request) => self.unsubscribe(request.topic, request.msg_ref),
            ClientFrame::SetFilters(request) => self.set_filters(&request),
            ClientFrame::Presence(presence) => self.presence(&presence),
            ClientFrame::GetPresence(request) => self.get_presence(&request),
            ClientFrame::LobbySubscribe(request) => self.lobby_subscribe(request.lobby_id, request.msg_ref),
            ClientFrame::LobbyUnsubscribe(request) => {
                self.lobby_unsubscribe(request.lobby_id, request.msg_ref);
            }
            ClientFrame::GetLobbyPresence(request) => {
                self.get_lobby_presence(request.lobby_id, request.msg_ref);
            }
            // Without negotiated features nothing waits for an acknowledgement (wire protocol 18.1).
            ClientFrame::Ack(_) | ClientFrame::BatchAck(_) => {}
            ClientFrame::Auth(_) | ClientFrame::Reauth(_) | ClientFrame::Unknown(_) => {
                debug_assert!(false, "the session handles these itself");
            }
        }
    }

    fn style(&self) -> Style {
        Style { extended: self.extended() }
    }

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

    fn subscribe(&mut self, subscribe: &Subscribe<'_>) {
        let msg_ref = self.echoed(subscribe.msg_ref);
        let context = Context { topic: Some(subscribe.topic), msg_ref, ..Context::default() };
        if self.extended()
            && let Err(error) = topic::check_subscribe(subscribe.topic)
        {
            return self.invalid_topic(error, context);
        }
        let group = match subscribe.group() {
            Ok(group) => group,
            Err(fault) => {
                let detail = fault.to_string();
                if self.extended() {
                    self.error(codes::INVALID_MESSAGE, Context { detail: Some(&detail), ..context });
                }
                return;
            }
        };
        if self.extended()
            && let Some(Some(name)) = group
            && let Err(error) = topic::check_group(name)
        {
            let detail = format!("loadBalanceGroup is not well formed: {error}");
            return self.error(codes::INVALID_MESSAGE, Context { detail: Some(&detail), ..context });
        }
        let keys = self.keys(subscribe.filters);
        let Some(live) = self.live() else { return };
        let group = group.map(|name| name.unwrap_or(&live.actor));
        let Some(mut interest) = live.interest(subscribe.topic.into(), Vec::new(), group) else {
            return self.denied(context);
        };
        match keys {
            Ok(keys) => interest.keys = keys,
            Err(error) => return self.filters_refused(error, context),
        }
        let load_balance = Some(interest.group.is_some());
        let reply = Subscribed {
            topic: subscribe.topic,
            load_balance,
            epoch: None,
            seq: None,
            recovered: None,
            gap: None,
            msg_ref,
        };
        self.put(interest, false, encoded(reply));
    }

    /// Puts a subscription in the place of the one of the same topic, if there is one.
    fn put(&mut self, interest: Interest, fresh: bool, reply: Bytes) {
        let (broker, outgoing) = (self.broker.clone(), self.outgoing.clone());
        let Some(live) = self.live() else { return };
        let previous = live.subscriptions.remove(&interest.topic);
        if previous.is_none() {
            broker.metrics.subscriptions.inc();
        }
        let subscription = broker.hub.subscribe(&outgoing, interest, previous, fresh, reply);
        live.subscriptions.insert(subscription.interest.topic.clone(), subscription);
    }

    fn unsubscribe(&mut self, topic: &str, msg_ref: Lenient<&str>) {
        let msg_ref = self.echoed(msg_ref);
        if self.overlong(Some(topic), msg_ref) {
            return;
        }
        let (broker, outgoing) = (self.broker.clone(), self.outgoing.clone());
        if let Some(subscription) = self.live().and_then(|live| live.subscriptions.remove(topic)) {
            broker.hub.unsubscribe(&subscription);
            broker.metrics.subscriptions.dec();
        }
        outgoing.push(encoded(Unsubscribed { topic, reason: None, msg_ref }));
    }

    fn set_filters(&mut self, request: &SetFilters<'_>) {
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
                let reply = encoded(FiltersUpdated { topic: request.topic, filters, msg_ref });
                if reply.len() > MAX_MESSAGE_BYTES {
                    let detail = Some("the filters do not fit a reply");
                    return self.error(codes::INVALID_MESSAGE, Context { detail, ..context });
                }
                self.put(Interest { keys, ..current }, true, reply);
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

    fn publish(&mut self, publish: &Publish<'_>) {
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

        live.limits.accepted += 1;
        let reaches_below = !resolution.exact
            && key
                .as_ref()
                .is_some_and(|key| grant::may_publish(&live.identity.rules, &format!("{effective}/{key}")));
        let mut id = Uuid::encode_buffer();
        let msg_id =
            broker.settings.record_messages.then(|| &*Uuid::new_v4().hyphenated().encode_lower(&mut id));
        let publication = Publication {
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
            silent: publish.echo.is(false).then_some(outgoing.id()),
            retain: publish.retain.is(true).then_some(retain_ttl.unwrap_or(broker.settings.retain_ttl)),
        };
        let reply = msg_ref.map(|msg_ref| {
            let reply =
                Published { topic: publish.topic, msg_ref: Some(msg_ref), duplicate: None, level: None };
            (&*outgoing, encoded(reply))
        });
        let delivered = broker.hub.publish(&publication, reply);
        broker.metrics.published.inc();
        broker.metrics.delivered.inc_by(delivered);
        broker.metrics.messages_out.inc_by(delivered);
    }

    fn presence(&mut self, presence: &Presence<'_>) {
        let (extended, style) = (self.extended(), self.style());
        let msg_ref = self.echoed(presence.msg_ref);
        let (broker, outgoing) = (self.broker.clone(), self.outgoing.clone());
        let confirm = |room_id| {
            if msg_ref.is_some() {
                outgoing.push(encoded(PresenceUpdated { app: None, room_id, msg_ref }));
            }
        };
        // Without a room it is accepted and announced to nobody (19).
        let Some(slug) = presence.room_id else { return confirm(None) };
        let data = match relayed(presence.data, extended) {
            Relayed::AsItCame => Bytes::copy_from_slice(presence.data.bytes),
            Relayed::Changed(data) => data.into(),
            Relayed::Dropped => return,
        };
        let Some(live) = self.live() else { return };
        let context = Context { room_id: Some(slug), msg_ref, ..Context::default() };
        let Some(key) = live.identity.room_id(slug).map(|room| live.room_key(room)) else {
            if extended && live.version >= 2 {
                self.error(codes::UNKNOWN_ROOM, context);
            }
            return;
        };
        let limit = live.limits.payload_bytes;
        if data.len() > limit {
            let max_size_bytes = u64::try_from(limit).ok();
            return self.error(codes::MESSAGE_TOO_LARGE, Context { max_size_bytes, ..context });
        }
        let id = outgoing.id();
        if extended && *data == *msgpack::NIL {
            if live.room.as_ref() == Some(&key) {
                live.room = None;
                broker.presence.leave(&key, id, true, style);
                broker.metrics.presence_members.dec();
            }
            return confirm(Some(slug));
        }
        if let Some(previous) = live.room.replace(key.clone())
            && previous != key
        {
            broker.presence.leave(&previous, id, true, style);
            broker.metrics.presence_members.dec();
        }
        let member = Member {
            outgoing: outgoing.clone(),
            actor: live.actor.clone(),
            slug: slug.into(),
            data,
            joined_at: broker.clock.seconds(),
        };
        if broker.presence.set(&key, member, style) {
            broker.metrics.presence_members.inc();
        }
        confirm(Some(slug));
    }

    fn get_presence(&mut self, request: &GetPresence<'_>) {
        let msg_ref = self.echoed(request.msg_ref);
        if self.overlong(request.room_id, msg_ref) {
            return;
        }
        let (broker, outgoing) = (self.broker.clone(), self.outgoing.clone());
        let Some(live) = self.live() else { return };
        // A slug, or the id of a room that the actor's own rules name (19.4).
        let key = request.room_id.and_then(|slug| {
            let named =
                |id: &&str| live.identity.rules.iter().any(|rule| rule.room_id.as_deref() == Some(*id));
            live.identity.room_id(slug).or_else(|| Some(slug).filter(named)).map(|room| live.room_key(room))
        });
        broker.presence.list(key.as_ref(), request.room_id, msg_ref, &outgoing);
    }

    fn lobby_subscribe(&mut self, lobby_id: &str, msg_ref: Lenient<&str>) {
        let msg_ref = self.echoed(msg_ref);
        if self.overlong(Some(lobby_id), msg_ref) {
            return;
        }
        let (broker, outgoing) = (self.broker.clone(), self.outgoing.clone());
        let Some(live) = self.live() else { return };
        let Some(watches) = live.watches(lobby_id) else { return self.lobby_refused(lobby_id, msg_ref) };
        let lobby: Arc<str> = lobby_id.into();
        broker.presence.watch(&lobby, &watches, &outgoing);
        broker.presence.snapshot(SnapshotKind::Subscribed, lobby_id, &watches, msg_ref, &outgoing);
        live.lobbies.insert(lobby, watches);
    }

    fn lobby_unsubscribe(&mut self, lobby_id: &str, msg_ref: Lenient<&str>) {
        let msg_ref = self.echoed(msg_ref);
        if self.overlong(Some(lobby_id), msg_ref) {
            return;
        }
        let (broker, outgoing) = (self.broker.clone(), self.outgoing.clone());
        if let Some((lobby, watches)) = self.live().and_then(|live| live.lobbies.remove_entry(lobby_id)) {
            broker.presence.unwatch(&lobby, &watches, &outgoing);
        }
        outgoing.push(encoded(LobbyUnsubscribed { lobby_id, msg_ref }));
    }

    fn get_lobby_presence(&mut self, lobby_id: &str, msg_ref: Lenient<&str>) {
        let msg_ref = self.echoed(msg_ref);
        if self.overlong(Some(lobby_id), msg_ref) {
            return;
        }
        let (broker, outgoing) = (self.broker.clone(), self.outgoing.clone());
        match self.live().and_then(|live| live.watches(lobby_id)) {
            Some(watches) => {
                broker.presence.snapshot(SnapshotKind::List, lobby_id, &watches, msg_ref, &outgoing);
            }
            None => self.lobby_refused(lobby_id, msg_ref),
        }
    }

    fn lobby_refused(&self, lobby_id: &str, msg_ref: Option<&str>) {
        let lobby_id = Some(lobby_id);
        self.error(codes::NOT_AUTHORIZED, Context { lobby_id, msg_ref, ..Context::default() });
    }

    /// Refuses a request whose reply would not fit a message with what it has to echo.
    fn overlong(&self, name: Option<&str>, msg_ref: Option<&str>) -> bool {
        let overlong =
            name.map_or(0, str::len) + msg_ref.map_or(0, str::len) + ENVELOPE_BYTES > MAX_MESSAGE_BYTES;
        if overlong {
            let detail = Some("the reply to this request would not fit a message");
            self.error(codes::INVALID_MESSAGE, Context { detail, ..Context::default() });
        }
        overlong
    }

    /// Lets go of what new grants do not cover, and moves what they map elsewhere. In the kraken profile
    /// subscriptions stay as they are.
    pub(super) fn apply_grants(&mut self) {
        let (extended, style) = (self.extended(), self.style());
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
                    let moved = Interest { group: interest.group.clone(), ..renewed };
                    let subscription = broker.hub.relocate(&outgoing, moved, &subscription);
                    live.subscriptions.insert(topic, subscription);
                }
                None => {
                    broker.hub.unsubscribe(&subscription);
                    broker.metrics.subscriptions.dec();
                    let reason = Some(codes::NOT_AUTHORIZED.name);
                    outgoing.push(encoded(Unsubscribed { topic: &topic, reason, msg_ref: None }));
                }
            }
        }
        for (lobby, watches) in std::mem::take(&mut live.lobbies) {
            broker.presence.unwatch(&lobby, &watches, &outgoing);
            if let Some(watches) = live.watches(&lobby) {
                broker.presence.watch(&lobby, &watches, &outgoing);
                live.lobbies.insert(lobby, watches);
            }
        }
        let keeps = |live: &Live, key: &RoomKey| {
            let identity = &live.identity;
            live.room_key(&key.room) == *key && (identity.any_room || identity.room_slug(&key.room).is_some())
        };
        if let Some(key) = live.room.take_if(|_| true) {
            if keeps(live, &key) {
                live.room = Some(key);
            } else {
                broker.presence.leave(&key, outgoing.id(), true, style);
                broker.metrics.presence_members.dec();
            }
        }
    }

    /// The end of the connection.
    pub(super) fn leave_everything(&mut self) {
        let style = self.style();
        let (broker, outgoing) = (self.broker.clone(), self.outgoing.clone());
        let Some(live) = self.live() else { return };
        for (_, subscription) in live.subscriptions.drain() {
            broker.hub.unsubscribe(&subscription);
            broker.metrics.subscriptions.dec();
        }
        for (lobby, watches) in live.lobbies.drain() {
            broker.presence.unwatch(&lobby, &watches, &outgoing);
        }
        if let Some(key) = live.room.take() {
            broker.presence.leave(&key, outgoing.id(), false, style);
            broker.metrics.presence_members.dec();
        }
    }
}

/// Whether two resolutions of one subscription lead to the same place.
fn same_place(a: &Interest, b: &Interest) -> bool {
    a.base == b.base && a.exact == b.exact && a.descends == b.descends && a.scope == b.scope
}

/// What becomes of an application's value on its way through.
enum Relayed {
    AsItCame,
    Changed(Vec<u8>),
    /// kraken would drop the frame.
    Dropped,
}

fn relayed(data: Data<'_>, extended: bool) -> Relayed {
    // The value was walked through before, so neither can fail.
    if !extended {
        return match payload::as_kraken_relays(data.bytes) {
            Ok(Some(data)) => Relayed::Changed(data),
            _ => Relayed::Dropped,
        };
    }
    if data.contents.broken_text {
        return payload::with_valid_text(data.bytes).map_or(Relayed::Dropped, Relayed::Changed);
    }
    Relayed::AsItCame
}
