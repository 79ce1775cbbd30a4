//! Lobbies: watching the presence of several rooms without being in them (wire protocol 20).

use std::collections::BTreeMap;
use std::sync::Arc;

use nolag_protocol::frame::{Data, LobbyPresence, LobbyPresenceList, LobbySubscribed, Nilable};
use nolag_protocol::msgpack::{Token, write};

use super::{Change, Cut, Frames, Member, Presence, Room, RoomKey};
use crate::outgoing::Outgoing;

/// One room of a lobby, as one actor sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Watch {
    pub(crate) key: RoomKey,
    /// The internal id of the lobby.
    pub(crate) lobby_id: Arc<str>,
    /// What the actor calls the room, if it has a name for it.
    pub(crate) slug: Option<Arc<str>>,
}

/// A connection that watches a room through a lobby.
#[derive(Debug)]
pub(super) struct Watcher {
    outgoing: Arc<Outgoing>,
    lobby: Arc<str>,
    lobby_id: Arc<str>,
    slug: Option<Arc<str>>,
}

/// The frame that a snapshot travels in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SnapshotKind {
    /// The answer to `lobbySubscribe`.
    Subscribed,
    /// The answer to `getLobbyPresence`.
    List,
}

impl Presence {
    /// Watches the rooms of a lobby from now on.
    pub(crate) fn watch(&self, lobby: &Arc<str>, watches: &[Watch], outgoing: &Arc<Outgoing>) {
        let mut rooms = self.rooms.lock();
        for watch in watches {
            let watcher = Watcher {
                outgoing: outgoing.clone(),
                lobby: lobby.clone(),
                lobby_id: watch.lobby_id.clone(),
                slug: watch.slug.clone(),
            };
            let watchers = &mut rooms.entry(watch.key.clone()).or_default().watchers;
            watchers.insert((outgoing.id(), lobby.clone()), watcher);
        }
    }

    /// Watches them no more.
    pub(crate) fn unwatch(&self, lobby: &Arc<str>, watches: &[Watch], outgoing: &Outgoing) {
        let mut rooms = self.rooms.lock();
        for watch in watches {
            if let Some(room) = rooms.get_mut(&watch.key) {
                room.watchers.swap_remove(&(outgoing.id(), lobby.clone()));
                if room.is_empty() {
                    rooms.remove(&watch.key);
                }
            }
        }
    }

    /// Queues who is in the rooms of a lobby: by room, then by actor. Of an actor's connections the latest to
    /// enter counts.
    pub(crate) fn snapshot(
        &self,
        kind: SnapshotKind,
        lobby_id: &str,
        watches: &[Watch],
        msg_ref: Option<&str>,
        to: &Outgoing,
    ) {
        let rooms = self.rooms.lock();
        let mut snapshot = Cut::new(lobby_id.len() + msg_ref.map_or(0, str::len));
        for watch in watches {
            let members = rooms.get(&watch.key).into_iter().flat_map(|room| room.members.values());
            let mut actors: BTreeMap<&str, &Member> = BTreeMap::new();
            for member in members {
                let latest = actors.entry(&member.actor).or_insert(member);
                if member.joined_at >= latest.joined_at {
                    *latest = member;
                }
            }
            let slug = watch.slug.as_deref().unwrap_or(&watch.key.room);
            let mut room = snapshot.nested(slug.len());
            for (actor, member) in actors {
                room.add(|out| {
                    write::str(out, actor);
                    member.write(out, false);
                });
            }
            snapshot.add(|out| {
                write::str(out, slug);
                write::token(out, Token::Map(room.count));
                out.extend_from_slice(&room.bytes);
            });
            snapshot.full |= room.full;
        }
        let mut presence = Vec::with_capacity(snapshot.bytes.len() + 5);
        write::token(&mut presence, Token::Map(snapshot.count));
        presence.extend_from_slice(&snapshot.bytes);
        let (presence, truncated) = (Data::new(&presence), snapshot.full.then_some(true));
        to.push(match kind {
            SnapshotKind::Subscribed => {
                self.metrics.encoded(LobbySubscribed { lobby_id, presence, truncated, msg_ref })
            }
            SnapshotKind::List => {
                self.metrics.encoded(LobbyPresenceList { lobby_id, presence, truncated, msg_ref })
            }
        });
    }

    /// Queues the events of a change for those who watch the room.
    pub(super) fn tell_watchers(&self, room: &Room, who: &Member, change: Change) {
        const EMPTY_MAP: &[u8] = &[0x80];
        let data = Data::new(if change == Change::Leave { EMPTY_MAP } else { &who.data });
        let mut frames = Frames::default();
        for watcher in room.watchers.values() {
            let key = (&watcher.lobby, &watcher.lobby_id, &watcher.slug);
            watcher.outgoing.push(frames.get(key, || {
                // kraken names the lobby by its internal id.
                let lobby_id = if self.extended { &watcher.lobby } else { &watcher.lobby_id };
                LobbyPresence {
                    event: change.name(),
                    lobby_id,
                    room_id: Some(Nilable(watcher.slug.as_deref())),
                    actor_id: &who.actor,
                    data,
                    lobby_uuid: self.extended.then_some(&*watcher.lobby_id),
                    app: None,
                }
                .to_vec()
                .into()
            }));
        }
    }
}
