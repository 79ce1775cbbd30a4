//! Presence and lobbies (wire protocol 10.5 to 10.7, 19 and 20).

use std::sync::Arc;

use bytes::Bytes;
use nolag_protocol::frame::{GetPresence, Lenient, LobbyUnsubscribed, Presence, PresenceUpdated};
use nolag_protocol::{codes, msgpack};

use super::requests::{Relayed, relayed};
use super::session::{Context, Live, Session};
use crate::presence::{Member, RoomKey, SnapshotKind, Watch};

impl Live {
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
    pub(super) fn presence(&mut self, presence: &Presence<'_>) {
        let extended = self.extended();
        let msg_ref = self.echoed(presence.msg_ref);
        let (broker, outgoing) = (self.broker.clone(), self.outgoing.clone());
        let confirm = |room_id| {
            if msg_ref.is_some() {
                outgoing.push(broker.metrics.encoded(PresenceUpdated { app: None, room_id, msg_ref }));
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
                broker.presence.leave(&key, id, true);
            }
            return confirm(Some(slug));
        }
        if let Some(previous) = live.room.replace(key.clone())
            && previous != key
        {
            broker.presence.leave(&previous, id, true);
        }
        let member = Member {
            outgoing: outgoing.clone(),
            actor: live.actor.clone(),
            slug: slug.into(),
            data,
            joined_at: broker.clock.seconds(),
        };
        broker.presence.set(&key, member);
        confirm(Some(slug));
    }

    pub(super) fn get_presence(&mut self, request: &GetPresence<'_>) {
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

    pub(super) fn lobby_subscribe(&mut self, lobby_id: &str, msg_ref: Lenient<&str>) {
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

    pub(super) fn lobby_unsubscribe(&mut self, lobby_id: &str, msg_ref: Lenient<&str>) {
        let msg_ref = self.echoed(msg_ref);
        if self.overlong(Some(lobby_id), msg_ref) {
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

    /// Follows new grants into rooms and lobbies: what they no longer name is left.
    pub(super) fn renew_rooms(&mut self) {
        let (broker, outgoing) = (self.broker.clone(), self.outgoing.clone());
        let Some(live) = self.live() else { return };
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
        if let Some(key) = live.room.take() {
            if keeps(live, &key) {
                live.room = Some(key);
            } else {
                broker.presence.leave(&key, outgoing.id(), true);
            }
        }
    }

    /// Leaves the room and all lobbies, with the connection.
    pub(super) fn end_presence(&mut self) {
        let (broker, outgoing) = (self.broker.clone(), self.outgoing.clone());
        let Some(live) = self.live() else { return };
        for (lobby, watches) in live.lobbies.drain() {
            broker.presence.unwatch(&lobby, &watches, &outgoing);
        }
        if let Some(key) = live.room.take() {
            broker.presence.leave(&key, outgoing.id(), false);
        }
    }
}
