//! Who is present in which room, and who is told (wire protocol 19 and 20).
//!
//! Presence is a room membership of a connection, with data. Members are told of every change in their room;
//! so are the connections that watch a lobby the room belongs to. One lock covers both: a list or snapshot
//! reflects every change whose event was queued before it, and every later change comes after it.
//!
//! - [`lobby`]: watching rooms without being in them

mod lobby;

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use indexmap::IndexMap;
use nolag_protocol::MAX_MESSAGE_BYTES;
use nolag_protocol::frame::{Data, PresenceEvent, PresenceList};
use nolag_protocol::msgpack::{Token, write};
use parking_lot::Mutex;

use lobby::Watcher;
pub(crate) use lobby::{SnapshotKind, Watch};

use crate::config::{Profile, Settings};
use crate::metrics::Metrics;
use crate::outgoing::{ConnectionId, Outgoing};

/// Names a room: presence is kept apart by project and scope.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct RoomKey {
    pub(crate) project: Option<Arc<str>>,
    pub(crate) scope: Option<Arc<str>>,
    pub(crate) room: Arc<str>,
}

/// What a connection is as a member of a room.
#[derive(Debug, Clone)]
pub(crate) struct Member {
    pub(crate) outgoing: Arc<Outgoing>,
    pub(crate) actor: Arc<str>,
    /// What it calls the room.
    pub(crate) slug: Arc<str>,
    /// What it calls the app, where it hears of apps.
    pub(crate) app: Option<Arc<str>>,
    /// It was granted `rooms`.
    pub(crate) rooms: bool,
    /// Its presence data.
    pub(crate) data: Bytes,
    /// In seconds since 1970.
    pub(crate) joined_at: u64,
}

/// All rooms.
pub(crate) struct Presence {
    extended: bool,
    rooms: Mutex<HashMap<RoomKey, Room>>,
    metrics: Arc<Metrics>,
}

#[derive(Debug, Default)]
struct Room {
    members: IndexMap<ConnectionId, Member>,
    watchers: IndexMap<(ConnectionId, Arc<str>), Watcher>,
}

/// What happened to a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    Join,
    Update,
    Leave,
}

impl Change {
    fn name(self) -> &'static str {
        match self {
            Self::Join => "join",
            Self::Update => "update",
            Self::Leave => "leave",
        }
    }
}

impl Presence {
    pub(crate) fn new(settings: &Settings, metrics: Arc<Metrics>) -> Self {
        Self { extended: settings.profile == Profile::Extended, rooms: Mutex::default(), metrics }
    }

    /// Enters a room, or changes the data in it; a first time is a `join`, and for those without `rooms` at once an `update`.
    pub(crate) fn set(&self, key: &RoomKey, mut member: Member) {
        let mut rooms = self.rooms.lock();
        let room = rooms.entry(key.clone()).or_default();
        let id = member.outgoing.id();
        let before = room.members.get(&id);
        let first = before.is_none();
        if let Some(before) = before {
            member.joined_at = before.joined_at;
        }
        room.members.insert(id, member.clone());
        if first {
            self.metrics.presence_members.inc();
            self.tell(room, &member, Change::Join, false);
        }
        self.tell(room, &member, Change::Update, first);
    }

    /// Leaves a room. The members are told, the leaving one included where `told` says so: that a connection
    /// has ended, it knows itself.
    pub(crate) fn leave(&self, key: &RoomKey, id: ConnectionId, told: bool) {
        let mut rooms = self.rooms.lock();
        let Some(room) = rooms.get_mut(key) else { return };
        let member = if told { room.members.get(&id).cloned() } else { room.members.swap_remove(&id) };
        let Some(member) = member else { return };
        self.tell(room, &member, Change::Leave, false);
        room.members.swap_remove(&id);
        self.metrics.presence_members.dec();
        if room.is_empty() {
            rooms.remove(key);
        }
    }

    /// Queues the list of a room's members; `app` and `room_id` are what the asker calls it.
    pub(crate) fn list(
        &self,
        key: Option<&RoomKey>,
        app: Option<&str>,
        room_id: Option<&str>,
        msg_ref: Option<&str>,
        to: &Outgoing,
    ) {
        let rooms = self.rooms.lock();
        let mut list = Cut::new([app, room_id, msg_ref].into_iter().flatten().map(str::len).sum());
        let members = key.and_then(|key| rooms.get(key)).into_iter().flat_map(|room| room.members.values());
        for member in members {
            list.add(|out| member.write(out, true));
        }
        let mut data = Vec::with_capacity(list.bytes.len() + 5);
        write::token(&mut data, Token::Array(list.count));
        data.extend_from_slice(&list.bytes);
        to.push(self.metrics.encoded(PresenceList {
            app,
            room_id,
            data: Data::new(&data),
            truncated: list.full.then_some(true),
            msg_ref,
        }));
    }

    /// Queues the events of a change for members and watchers. `first`: those with `rooms` know of it by the `join`.
    fn tell(&self, room: &Room, who: &Member, change: Change, first: bool) {
        let mut data = Vec::with_capacity(who.data.len() + 64);
        let with_data = change != Change::Leave;
        write::token(&mut data, Token::Map(1 + u32::from(with_data)));
        write::str(&mut data, "actor_token_id");
        write::str(&mut data, &who.actor);
        if with_data {
            write::str(&mut data, "presence");
            data.extend_from_slice(&who.data);
        }
        let mut frames = Frames::default();
        let mut told = 0;
        for member in room.members.values().filter(|member| !(first && member.rooms)) {
            let (app, room_id) = (member.app.as_deref(), self.extended.then_some(&*member.slug));
            member.outgoing.push(frames.get((app, room_id), || {
                let data = Data::new(&data);
                PresenceEvent { event: change.name(), app, room_id, data }.to_vec().into()
            }));
            told += 1;
        }
        self.metrics.frames_out("presence", told);
        let told = self.tell_watchers(room, who, change, first);
        self.metrics.frames_out("lobbyPresence", told);
    }
}

impl Room {
    fn is_empty(&self) -> bool {
        self.members.is_empty() && self.watchers.is_empty()
    }
}

impl Member {
    /// Writes the entry of a list or snapshot.
    fn write(&self, out: &mut Vec<u8>, with_status: bool) {
        write::token(out, Token::Map(3 + u32::from(with_status)));
        write::str(out, "actorTokenId");
        write::str(out, &self.actor);
        write::str(out, "presence");
        out.extend_from_slice(&self.data);
        write::str(out, "joinedAt");
        write::uint(out, self.joined_at);
        if with_status {
            write::str(out, "status");
            write::str(out, "online");
        }
    }
}

/// Frames of one event, by what differs between their receivers; mostly there is one.
struct Frames<K>(Vec<(K, Bytes)>);

impl<K> Default for Frames<K> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<K: PartialEq> Frames<K> {
    fn get(&mut self, key: K, encode: impl FnOnce() -> Bytes) -> Bytes {
        if let Some((_, frame)) = self.0.iter().find(|(known, _)| *known == key) {
            return frame.clone();
        }
        let frame = encode();
        self.0.push((key, frame.clone()));
        frame
    }
}

/// Entries of a list, as many as fit a message.
struct Cut {
    bytes: Vec<u8>,
    count: u32,
    room: usize,
    /// One more did not fit.
    full: bool,
}

impl Cut {
    /// A list in a frame whose other fields have so many bytes, keys and headers aside.
    fn new(others: usize) -> Self {
        const ENVELOPE: usize = 256;
        Self {
            bytes: Vec::new(),
            count: 0,
            room: MAX_MESSAGE_BYTES.saturating_sub(ENVELOPE + others),
            full: false,
        }
    }

    /// A list inside this one, under a key of so many bytes.
    fn nested(&self, key: usize) -> Self {
        const HEADERS: usize = 16;
        let room = self.room.saturating_sub(self.bytes.len() + key + HEADERS);
        Self { bytes: Vec::new(), count: 0, room, full: false }
    }

    fn add(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        if self.full {
            return;
        }
        let before = self.bytes.len();
        write(&mut self.bytes);
        if self.bytes.len() > self.room {
            self.bytes.truncate(before);
            self.full = true;
        } else {
            self.count += 1;
        }
    }
}
