//! Lobbies: watching the presence of several rooms without being in them (wire protocol 20).

use std::collections::{BTreeMap, HashSet};
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
    /// What it calls the app, where it hears of apps.
    pub(crate) app: Option<Arc<str>>,
}

/// A connection that watches a room through a lobby.
#[derive(Debug)]
pub(super) struct Watcher {
    outgoing: Arc<Outgoing>,
    lobby: Arc<str>,
    watch: Watch,
    /// It was granted `rooms`.
    rooms: bool,
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
    pub(crate) fn watch(&self, lobby: &Arc<str>, watches: &[Watch], rooms: bool, outgoing: &Arc<Outgoing>) {
        let mut all = self.rooms.lock();
        for watch in watches {
            let watcher =
                Watcher { outgoing: outgoing.clone(), lobby: lobby.clone(), watch: watch.clone(), rooms };
            let watchers = &mut all.entry(watch.key.clone()).or_default().watchers;
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
        let mut slugs = HashSet::new();
        for watch in watches {
            let members = rooms.get(&watch.key).into_iter().flat_map(|room| room.members.values());
            let mut actors: BTreeMap<&str, &Member> = BTreeMap::new();
            for member in members {
                let latest = actors.entry(&member.actor).or_insert(member);
                if member.joined_at >= latest.joined_at {
                    *latest = member;
                }
            }
            // A second room of one slug, in another app, has only its id to be told by.
            let slug = watch.slug.as_deref().filter(|slug| slugs.insert(*slug)).unwrap_or(&watch.key.room);
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

    /// Queues the events of a change for those who watch the room; returns for how many.
    pub(super) fn tell_watchers(&self, room: &Room, who: &Member, change: Change, first: bool) -> usize {
        const EMPTY_MAP: &[u8] = &[0x80];
        let data = Data::new(if change == Change::Leave { EMPTY_MAP } else { &who.data });
        let (mut frames, mut told) = (Frames::default(), 0);
        for watcher in room.watchers.values().filter(|watcher| !(first && watcher.rooms)) {
            let watch = &watcher.watch;
            let key = (&watcher.lobby, &watch.lobby_id, &watch.slug, &watch.app);
            watcher.outgoing.push(frames.get(key, || {
                // kraken names the lobby by its internal id.
                let lobby_id = if self.extended { &watcher.lobby } else { &watch.lobby_id };
                LobbyPresence {
                    event: change.name(),
                    lobby_id,
                    room_id: Some(Nilable(watch.slug.as_deref())),
                    actor_id: &who.actor,
                    data,
                    lobby_uuid: self.extended.then_some(&*watch.lobby_id),
                    app: watch.app.as_deref(),
                }
                .to_vec()
                .into()
            }));
            told += 1;
        }
        told
    }
}
