//! Presence and lobbies (wire protocol 10.5 to 10.7, 19 and 20).

use std::sync::Arc;

use bytes::Bytes;
use nolag_protocol::features::Feature;
use nolag_protocol::frame::{GetPresence, Lenient, LobbyUnsubscribed, Presence, PresenceUpdated};
use nolag_protocol::{codes, msgpack};

use super::requests::{Relayed, relayed};
use super::session::{Context, Live, Session};
use crate::presence::{Member, RoomKey, SnapshotKind, Watch};

/// In how many rooms a connection may be present (features 4).
const MAX_ROOMS: usize = 64;

impl Live {
    fn room_key(&self, room_id: &str) -> RoomKey {
        RoomKey {
            project: self.identity.project_id.as_deref().map(Arc::from),
            scope: self.identity.scope_slug.as_deref().map(Arc::from),
            room: room_id.into(),
        }
    }

    /// It hears of apps, and may be in several rooms (features 4).
    fn has_rooms(&self) -> bool {
        self.features.has(Feature::Rooms)
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
                    let rule = identity.rule_of(room).filter(|_| self.has_rooms());
                    let app = rule.map(|rule| rule.app_slug().into());
                    watches.push(Watch { key, lobby_id: lobby.id.as_str().into(), slug, app });
                }
            }
        }
        (!lobbies.is_empty()).then_some(watches)
    }
}

impl Session {
    pub(super) fn presence(&mut self, presence: &Presence<'_>) {
        let extended = self.extended();
        let msg_ref = self.echoed(presence.msg_ref);
        let (broker, outgoing) = (self.broker.clone(), self.outgoing.clone());
        let confirm = |app, room_id| {
            if msg_ref.is_some() {
                outgoing.push(broker.metrics.encoded(PresenceUpdated { app, room_id, msg_ref }));
            }
        };
        let Some(live) = self.live() else { return };
        let asked = presence.app.filter(|_| live.has_rooms());
        // Without a room it is accepted and announced to nobody (19).
        let Some(slug) = presence.room_id else { return confirm(asked, None) };
        let data = match relayed(presence.data, extended) {
            Relayed::AsItCame => Bytes::copy_from_slice(presence.data.bytes),
            Relayed::Changed(data) => data.into(),
            Relayed::Dropped => return,
        };
        let context = Context { app: asked, room_id: Some(slug), msg_ref, ..Context::default() };
        let Some((room, app)) = live.identity.room(asked, slug) else {
            if extended && live.version >= 2 {
                self.error(codes::UNKNOWN_ROOM, context);
            }
            return;
        };
        let key = live.room_key(room);
        let (rooms, app) = (live.has_rooms(), app.filter(|_| live.has_rooms()).map(Arc::<str>::from));
        let context = Context { app: app.as_deref(), ..context };
        let limit = live.limits.payload_bytes;
        if data.len() > limit {
            let max_size_bytes = u64::try_from(limit).ok();
            return self.error(codes::MESSAGE_TOO_LARGE, Context { max_size_bytes, ..context });
        }
        let id = outgoing.id();
        if extended && *data == *msgpack::NIL {
            if live.rooms.swap_remove(&key) {
                broker.presence.leave(&key, id, true);
            }
            return confirm(app.as_deref(), Some(slug));
        }
        if !live.rooms.contains(&key) {
            if !rooms {
                for previous in live.rooms.drain(..) {
                    broker.presence.leave(&previous, id, true);
                }
            } else if live.rooms.len() >= MAX_ROOMS {
                let detail = Some("a connection is present in at most 64 rooms");
                return self.error(codes::INVALID_MESSAGE, Context { detail, ..context });
            }
            live.rooms.insert(key.clone());
        }
        let member = Member {
            outgoing: outgoing.clone(),
            actor: live.actor.clone(),
            slug: slug.into(),
            app: app.clone(),
            rooms,
            data,
            joined_at: broker.clock.seconds(),
        };
        broker.presence.set(&key, member);
        confirm(app.as_deref(), Some(slug));
    }

    pub(super) fn get_presence(&mut self, request: &GetPresence<'_>) {
        let msg_ref = self.echoed(request.msg_ref);
        if self.overlong(&[request.app, request.room_id, msg_ref]) {
            return;
        }
        let (broker, outgoing) = (self.broker.clone(), self.outgoing.clone());
        let Some(live) = self.live() else { return };
        let (identity, rooms) = (&live.identity, live.has_rooms());
        let asked = request.app.filter(|_| rooms);
        // A slug, or the id of a room that the actor's own rules name (19.4).
        let by_id = |id| {
            let app = identity.rule_of(id)?.app_slug();
            asked.is_none_or(|asked| asked == app).then_some((id, Some(app)))
        };
        let room = request.room_id.and_then(|slug| identity.room(asked, slug).or_else(|| by_id(slug)));
        let key = room.map(|(room, _)| live.room_key(room));
        let app = asked.or(room.and_then(|(_, app)| app)).filter(|_| rooms);
        broker.presence.list(key.as_ref(), app, request.room_id, msg_ref, &outgoing);
    }

    pub(super) fn lobby_subscribe(&mut self, lobby_id: &str, msg_ref: Lenient<&str>) {
        let msg_ref = self.echoed(msg_ref);
        if self.overlong(&[Some(lobby_id), msg_ref]) {
            return;
        }
        let (broker, outgoing) = (self.broker.clone(), self.outgoing.clone());
        let Some(live) = self.live() else { return };
        let Some(watches) = live.watches(lobby_id) else { return self.lobby_refused(lobby_id, msg_ref) };
        let lobby: Arc<str> = lobby_id.into();
        broker.presence.watch(&lobby, &watches, live.has_rooms(), &outgoing);
        broker.presence.snapshot(SnapshotKind::Subscribed, lobby_id, &watches, msg_ref, &outgoing);
        live.lobbies.insert(lobby, watches);
    }

    pub(super) fn lobby_unsubscribe(&mut self, lobby_id: &str, msg_ref: Lenient<&str>) {
        let msg_ref = self.echoed(msg_ref);
        if self.overlong(&[Some(lobby_id), msg_ref]) {
            return;
        }
        let (broker, outgoing) = (self.broker.clone(), self.outgoing.clone());
        if let Some((lobby, watches)) = self.live().and_then(|live| live.lobbies.remove_entry(lobby_id)) {
            broker.presence.unwatch(&lobby, &watches, &outgoing);
        }
        outgoing.push(broker.metrics.encoded(LobbyUnsubscribed { lobby_id, msg_ref }));
    }

    pub(super) fn get_lobby_presence(&mut self, lobby_id: &str, msg_ref: Lenient<&str>) {
        let msg_ref = self.echoed(msg_ref);
        if self.overlong(&[Some(lobby_id), msg_ref]) {
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

    /// Follows new grants into rooms and lobbies: what they no longer name is left.
    pub(super) fn renew_rooms(&mut self) {
        let (broker, outgoing) = (self.broker.clone(), self.outgoing.clone());
        let Some(live) = self.live() else { return };
        for (lobby, watches) in std::mem::take(&mut live.lobbies) {
            broker.presence.unwatch(&lobby, &watches, &outgoing);
            if let Some(watches) = live.watches(&lobby) {
                broker.presence.watch(&lobby, &watches, live.has_rooms(), &outgoing);
                live.lobbies.insert(lobby, watches);
            }
        }
        let keeps = |live: &Live, key: &RoomKey| {
            let identity = &live.identity;
            live.room_key(&key.room) == *key && (identity.any_room || identity.room_slug(&key.room).is_some())
        };
        for key in std::mem::take(&mut live.rooms) {
            if keeps(live, &key) {
                live.rooms.insert(key);
            } else {
                broker.presence.leave(&key, outgoing.id(), true);
            }
        }
    }

    /// Leaves all rooms and all lobbies, with the connection.
    pub(super) fn end_presence(&mut self) {
        let (broker, outgoing) = (self.broker.clone(), self.outgoing.clone());
        let Some(live) = self.live() else { return };
        for (lobby, watches) in live.lobbies.drain() {
            broker.presence.unwatch(&lobby, &watches, &outgoing);
        }
        for key in live.rooms.drain(..) {
            broker.presence.leave(&key, outgoing.id(), false);
        }
    }
}
