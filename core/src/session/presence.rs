//! What the caller announced, and the rosters: who is in which room, here and nowhere else (client-api 9).
//!
//! A list is the whole truth and replaces a roster. Its difference, and every event after it, comes out as at most one
//! join, update or leave per actor. An actor with several connections stays until the last of them has gone; since
//! events do not say which connection they mean, each of them is settled by a list, one at a time per room.
//!
//! With the feature `rooms` frames name the app beside the room, and presence in one room ends none in another (features 4).

use std::time::Duration;

use bytes::Bytes;
use indexmap::IndexMap;
use nolag_protocol::frame::{Data, GetPresence, Lenient, Presence as PresenceFrame};
use nolag_protocol::msgpack::NIL;

use super::effects::{Effects, earlier};
use super::record;
use super::requests::{Kind, ListFor, Requests};
use super::{Reply, RequestId};
use crate::Error;
use crate::event::{Actor, Change, Event, Room, Warning};
use crate::options::Feature;

/// How many rooms a client may announce itself in (features 4).
pub(super) const MAX_ROOMS: usize = 64;
/// How often a list that does not come is asked for again.
const MAX_RETRIES: u32 = 3;
/// How many calls for lists may wait for a connection.
const MAX_WAITING: usize = 1_000;
/// How many actors a roster holds; what comes beyond is left to the next list.
const MAX_ACTORS: usize = 100_000;

/// One room's members, as far as they are known.
#[derive(Default)]
struct Roster {
    actors: IndexMap<String, Actor>,
    /// Joins whose first update is expected with the same data.
    fresh: Option<(String, Bytes)>,
    /// A list is on its way.
    fetching: bool,
    /// Another is needed when that has come.
    again: bool,
    /// No list since presence was set in the room.
    unconfirmed: bool,
    retries: u32,
    retry_at: Option<Duration>,
    /// Actors of untagged events that were dropped while the first list was on its way.
    dropped: Vec<(Duration, String)>,
    /// It does not follow the room any more.
    stale: bool,
}

/// What was announced, in the order of the last change, and who is where.
#[derive(Default)]
pub(super) struct Presence {
    announced: IndexMap<Room, Bytes>,
    /// The form without a room.
    roomless: Option<Bytes>,
    rosters: IndexMap<Room, Roster>,
    /// The room set last on this connection: untagged events belong to it.
    current: Option<Room>,
    /// Calls for lists that wait for a connection.
    waiting: Vec<(RequestId, Room)>,
}

impl Presence {
    /// Announces presence, or with nil takes it back.
    pub(super) fn announce(
        &mut self,
        fx: &mut Effects,
        requests: &mut Requests,
        timeout: Duration,
        room: Option<Room>,
        data: Option<Bytes>,
    ) -> Result<(), Error> {
        let Some(room) = room else {
            fx.warn(Warning::PresenceWithoutRoom);
            send(fx, requests, timeout, None, data.as_deref().unwrap_or(NIL), false);
            self.roomless = data;
            return Ok(());
        };
        let room = self.known(room);
        let Some(data) = data else {
            self.withdraw(fx, requests, timeout, &room);
            return Ok(());
        };
        let new = !self.announced.contains_key(&room);
        if new && self.announced.len() >= MAX_ROOMS {
            return Err(Error::queue("queue_full", Some(&room.room)));
        }
        self.announced.shift_remove(&room); // the order is that of the last change
        self.announced.insert(room.clone(), data.clone());
        if fx.link.is_none() {
            self.rosters.entry(room).or_default().unconfirmed |= new;
            return Ok(());
        }
        send(fx, requests, timeout, Some(&room), &data, false);
        let moved = self.current.replace(room.clone()).filter(|before| *before != room);
        if let Some(before) = moved.filter(|_| !fx.features.has(Feature::Rooms)) {
            self.replaced(fx, before);
        }
        let roster = self.rosters.entry(room.clone()).or_default();
        if new || roster.stale {
            roster.begin();
            fetch(fx, requests, timeout, &room, roster, false);
        }
        Ok(())
    }

    /// A room that is named without its app is the one of that slug that was announced, whatever its app.
    fn known(&self, room: Room) -> Room {
        if room.app.is_some() {
            return room;
        }
        self.announced.keys().rev().find(|known| known.room == room.room).cloned().unwrap_or(room)
    }

    /// An answer about a room names its app (features 4). A room that was given without one has it from now on; returns the
    /// room by its name.
    pub(super) fn named(
        &mut self,
        fx: &mut Effects,
        requests: &mut Requests,
        room: Room,
        app: Option<&str>,
    ) -> Room {
        let Some(app) = app.filter(|_| room.app.is_none() && fx.features.has(Feature::Rooms)) else {
            return room;
        };
        let named = Room { app: Some(app.to_owned()), room: room.room.clone() };
        rename(&mut self.announced, &room, &named);
        if let Some(roster) = self.rosters.get_mut(&room) {
            roster.replace(fx, Vec::new()); // known from a broker that named no apps; the list brings them again
        }
        rename(&mut self.rosters, &room, &named);
        requests.rename(&room, &named);
        if self.current.as_ref() == Some(&room) {
            self.current = Some(named.clone());
        }
        named
    }

    /// Brokers without `rooms` keep one room per connection.
    fn replaced(&mut self, fx: &mut Effects, room: Room) {
        if let Some(roster) = self.rosters.get_mut(&room) {
            roster.stale = true;
            roster.retry_at = None;
            fx.event(Event::PresenceReplaced(room));
        }
    }

    fn withdraw(&mut self, fx: &mut Effects, requests: &mut Requests, timeout: Duration, room: &Room) {
        if self.announced.shift_remove(room).is_none() {
            return;
        }
        self.rosters.shift_remove(room);
        send(fx, requests, timeout, Some(room), NIL, false);
        if self.current.as_ref() == Some(room) {
            self.current = None;
        }
    }

    /// Announces everything again, each followed by a list (client-api 2.3).
    pub(super) fn restore(&mut self, fx: &mut Effects, requests: &mut Requests, timeout: Duration) {
        if let Some(data) = &self.roomless {
            send(fx, requests, timeout, None, data, false);
        }
        for (room, data) in &self.announced {
            send(fx, requests, timeout, Some(room), data, true);
            let roster = self.rosters.entry(room.clone()).or_default();
            roster.begin();
            fetch(fx, requests, timeout, room, roster, true);
            self.current = Some(room.clone());
        }
        for (request, room) in std::mem::take(&mut self.waiting) {
            ask(fx, requests, timeout, &room, ListFor::Caller(request), false);
        }
    }

    /// Asks for a room's list on the caller's behalf; without a connection the call waits for one.
    pub(super) fn list(
        &mut self,
        fx: &mut Effects,
        requests: &mut Requests,
        timeout: Duration,
        room: Room,
        request: RequestId,
    ) {
        let room = self.known(room);
        if fx.link.is_some() && requests.has_room() {
            ask(fx, requests, timeout, &room, ListFor::Caller(request), false);
        } else if fx.link.is_none() && self.waiting.len() < MAX_WAITING {
            self.waiting.push((request, room));
        } else {
            fx.complete(request, Err(Error::queue("queue_full", Some(&room.room))));
        }
    }

    /// A list came: it replaces the roster (K-054).
    pub(super) fn listed(
        &mut self,
        fx: &mut Effects,
        requests: &mut Requests,
        timing: (Duration, Option<&str>),
        (room, wanted_by): (Room, ListFor),
        actors: Vec<Actor>,
    ) {
        let (timeout, me) = timing;
        if let ListFor::Caller(request) = wanted_by {
            fx.complete(request, Ok(Reply::Presence(actors.clone())));
        }
        let Some(roster) = self.rosters.get_mut(&room) else { return };
        if roster.stale {
            return;
        }
        if wanted_by == ListFor::Roster {
            roster.fetching = false;
            roster.retries = 0;
        }
        roster.retry_at = None;
        let is_first = std::mem::take(&mut roster.unconfirmed);
        let missing = me.is_some_and(|me| !actors.iter().any(|actor| actor.actor_id == me));
        let now = fx.now;
        let dropped = std::mem::take(&mut roster.dropped);
        let unsure = dropped.iter().any(|(at, id)| {
            *at + Duration::from_secs(1) >= now && !actors.iter().any(|actor| actor.actor_id == *id)
        });
        roster.replace(fx, actors);
        if is_first && missing && !unsure {
            let code = &nolag_protocol::codes::UNKNOWN_ROOM;
            fx.error(Error::refused(code, &room.room, "the room's list does not have this connection"));
        }
        if (std::mem::take(&mut roster.again) || unsure) && !roster.fetching {
            fetch(fx, requests, timeout, &room, roster, false);
        }
    }

    /// No list came in time.
    pub(super) fn list_overdue(&mut self, fx: &mut Effects, (room, wanted_by): (&Room, ListFor)) {
        let error = Error::timeout("presence_timeout", &room.room);
        if let ListFor::Caller(request) = wanted_by {
            fx.complete(request, Err(error));
            return;
        }
        let Some(roster) = self.rosters.get_mut(room).filter(|_| wanted_by == ListFor::Roster) else {
            return;
        };
        roster.fetching = false;
        if roster.retries < MAX_RETRIES {
            let wait = Duration::from_millis(500 << roster.retries);
            roster.retries += 1;
            roster.retry_at = Some(fx.now + wait);
        } else {
            roster.stale = true;
            roster.fresh = None;
            fx.error(error);
        }
    }

    /// The broker does not know a room that presence was set in, and has said so: the list need not tell it again.
    pub(super) fn refused(&mut self, room: &Room) {
        if let Some(roster) = self.rosters.get_mut(room) {
            roster.unconfirmed = false;
        }
    }

    /// The broker does not know the room: it will not say more when asked again.
    pub(super) fn list_refused(&mut self, room: &Room) {
        if let Some(roster) = self.rosters.get_mut(room) {
            roster.fetching = false;
            roster.stale = true;
        }
    }

    pub(super) fn wake(&mut self, fx: &mut Effects, requests: &mut Requests, timeout: Duration) {
        for (room, roster) in &mut self.rosters {
            if roster.retry_at.is_some_and(|at| at <= fx.now) {
                roster.retry_at = None;
                fetch(fx, requests, timeout, room, roster, false);
            }
        }
    }

    pub(super) fn deadline(&self) -> Option<Duration> {
        self.rosters.values().fold(None, |earliest, roster| earlier(earliest, roster.retry_at))
    }

    /// An event of a room: by the room it names, and the app where that tells rooms apart (F-17), else of the room set last
    /// (K-051).
    pub(super) fn event(
        &mut self,
        fx: &mut Effects,
        requests: &mut Requests,
        timeout: Duration,
        (app, room): (Option<&str>, Option<&str>),
        change: Change,
        mut actor: Actor,
    ) {
        let tagged = room.is_some();
        let app = app.filter(|_| fx.features.has(Feature::Rooms));
        let named = |key: &Room| {
            room.map_or(self.current.as_ref() == Some(key), |room| key.room == room)
                && (app.is_none() || key.app.as_deref() == app)
        };
        let Some(index) = self.rosters.keys().rposition(named) else { return };
        let Some((key, roster)) = self.rosters.get_index_mut(index) else { return };
        if !tagged && roster.unconfirmed {
            if roster.dropped.len() < 1_000 {
                roster.dropped.push((fx.now, actor.actor_id));
            }
            return;
        }
        actor.room = Some(key.clone());
        if roster.apply(fx, change, actor) {
            if roster.fetching {
                roster.again = true;
            } else {
                let key = key.clone();
                fetch(fx, requests, timeout, &key, roster, false);
            }
        }
    }

    /// The connection is gone: rosters stay as they are, and are reconciled on the next one.
    pub(super) fn lost(&mut self) {
        self.current = None;
        for roster in self.rosters.values_mut() {
            roster.begin();
            roster.stale = true;
        }
    }

    /// The client is closed: what was announced stays wanted, the rosters are empty (API-066).
    pub(super) fn closed(&mut self, fx: &mut Effects, error: &Error) {
        self.current = None;
        self.rosters.clear();
        for (request, _) in self.waiting.drain(..) {
            fx.complete(request, Err(error.clone()));
        }
    }

    pub(super) fn cancel(&mut self, request: RequestId) -> bool {
        let before = self.waiting.len();
        self.waiting.retain(|(waiting, _)| *waiting != request);
        self.waiting.len() < before
    }

    /// The members of a room, as far as they are known.
    pub(super) fn roster(&self, room: &Room) -> impl Iterator<Item = &Actor> {
        let by_slug = || self.rosters.iter().rev().find(|(known, _)| known.room == room.room);
        let roster = match (self.rosters.get(room), &room.app) {
            (None, None) => by_slug().map(|(_, roster)| roster),
            (found, _) => found,
        };
        roster.into_iter().flat_map(|roster| roster.actors.values())
    }

    /// The rooms that have a roster.
    pub(super) fn rooms(&self) -> impl Iterator<Item = &Room> {
        self.rosters.keys()
    }
}

impl Roster {
    /// Presence was set, or set again: what is known is to be confirmed by a list.
    fn begin(&mut self) {
        self.unconfirmed = true;
        self.stale = false;
        self.fetching = false;
        self.again = false;
        self.retries = 0;
        self.retry_at = None;
        self.fresh = None;
        self.dropped.clear();
    }

    fn replace(&mut self, fx: &mut Effects, listed: Vec<Actor>) {
        self.fresh = None;
        let listed: IndexMap<String, Actor> =
            listed.into_iter().map(|actor| (actor.actor_id.clone(), actor)).collect();
        for (id, before) in &self.actors {
            let gone = listed.get(id).is_none_or(|now| now.connections.is_empty());
            if gone && !before.connections.is_empty() {
                fx.event(Event::Presence(Change::Leave, Box::new(before.clone())));
            }
        }
        for (id, now) in &listed {
            if now.connections.is_empty() {
                continue; // a record of an actor that is not there
            }
            match self.actors.get(id).filter(|before| !before.connections.is_empty()) {
                None => fx.event(Event::Presence(Change::Join, Box::new(now.clone()))),
                Some(before) if before.presence != now.presence || before.connections != now.connections => {
                    fx.event(Event::Presence(Change::Update, Box::new(now.clone())));
                }
                Some(_) => {}
            }
        }
        self.actors = listed;
        self.actors.truncate(MAX_ACTORS);
    }

    /// Applies an event; true asks for a list, because it does not say which connection it means.
    fn apply(&mut self, fx: &mut Effects, change: Change, actor: Actor) -> bool {
        let id = actor.actor_id.clone();
        let fresh = self.fresh.take();
        let known = self.actors.get_mut(&id).filter(|known| !known.connections.is_empty());
        match (change, known) {
            (Change::Waking, _) => {
                if let Some(record) = self.actors.get_mut(&id) {
                    record.status = Some("waking".into());
                }
                fx.event(Event::Presence(Change::Waking, Box::new(actor)));
                false
            }
            (Change::Join | Change::Update, None) => {
                if self.actors.len() >= MAX_ACTORS {
                    return false;
                }
                let joined = Actor { connections: vec![actor.presence.clone()], ..actor };
                if change == Change::Join {
                    self.fresh = Some((id.clone(), joined.presence.clone()));
                }
                fx.event(Event::Presence(Change::Join, Box::new(joined.clone())));
                self.actors.insert(id, joined);
                false
            }
            (Change::Join, Some(known)) => {
                known.connections.push(actor.presence.clone());
                known.presence = actor.presence;
                fx.event(Event::Presence(Change::Update, Box::new(known.clone())));
                true
            }
            (Change::Update, Some(_)) if fresh == Some((id, actor.presence.clone())) => false,
            (Change::Update, Some(known)) if known.connections.len() == 1 => {
                known.connections[0] = actor.presence.clone();
                known.presence = actor.presence;
                fx.event(Event::Presence(Change::Update, Box::new(known.clone())));
                false
            }
            (Change::Update, Some(_)) => true,
            (Change::Leave, Some(known)) if known.connections.len() > 1 => true,
            (Change::Leave, Some(known)) => {
                let left = known.clone();
                self.actors.shift_remove(&left.actor_id);
                fx.event(Event::Presence(Change::Leave, Box::new(left)));
                false
            }
            (Change::Leave, None) => false,
        }
    }
}

/// A key's new name keeps its place. Of two that turn out to be one the one of that name stays: it was set later, else the other
/// would have been set by its name.
fn rename<T>(map: &mut IndexMap<Room, T>, from: &Room, to: &Room) {
    if let Some(index) = map.get_index_of(from)
        && map.replace_index(index, to.clone()).is_err()
    {
        map.shift_remove_index(index);
    }
}

/// The app as frames name it, where the broker tells rooms of equal slugs apart by it.
fn app<'a>(fx: &Effects, room: &'a Room) -> Option<&'a str> {
    room.app.as_deref().filter(|_| fx.features.has(Feature::Rooms))
}

fn send(
    fx: &mut Effects,
    requests: &mut Requests,
    timeout: Duration,
    room: Option<&Room>,
    data: &[u8],
    recovery: bool,
) {
    if fx.link.is_none() || !(requests.has_room() || recovery) {
        return;
    }
    let msg_ref = fx.ref_if_understood();
    let frame = PresenceFrame {
        app: room.and_then(|room| app(fx, room)),
        room_id: room.map(|room| room.room.as_str()),
        data: Data::new(data),
        msg_ref: Lenient(msg_ref.as_deref()),
    };
    fx.send(frame.to_vec());
    requests.push(msg_ref, Kind::Presence { room: room.cloned() }, fx.now + timeout, false);
}

/// Asks for the list that the roster needs.
fn fetch(
    fx: &mut Effects,
    requests: &mut Requests,
    timeout: Duration,
    room: &Room,
    roster: &mut Roster,
    recovery: bool,
) {
    if fx.link.is_some() && (recovery || requests.has_room()) {
        roster.fetching = true;
        ask(fx, requests, timeout, room, ListFor::Roster, recovery);
    }
}

fn ask(
    fx: &mut Effects,
    requests: &mut Requests,
    timeout: Duration,
    room: &Room,
    wanted_by: ListFor,
    recovery: bool,
) {
    let msg_ref = fx.ref_if_understood();
    let msg_ref_field = Lenient(msg_ref.as_deref());
    let frame = GetPresence { app: app(fx, room), room_id: Some(&room.room), msg_ref: msg_ref_field };
    fx.send(frame.to_vec());
    let kind = Kind::GetPresence { room: room.clone(), wanted_by };
    requests.push(msg_ref, kind, fx.now + timeout, recovery);
}

/// The actors of a list, an actor's connections together.
pub(super) fn actors(room: &Room, bytes: &Bytes, list: &[u8]) -> Vec<Actor> {
    let mut actors: IndexMap<String, Actor> = IndexMap::new();
    for mut entry in record::list(bytes, list) {
        entry.room = Some(room.clone());
        let live = entry.status.as_deref() != Some("offline");
        let connection = live.then(|| entry.presence.clone());
        match actors.get_mut(&entry.actor_id) {
            None => {
                entry.connections.extend(connection);
                actors.insert(entry.actor_id.clone(), entry);
            }
            Some(known) => {
                known.connections.extend(connection);
                // The newest of an actor's connections speaks for it.
                if live && entry.joined_at >= known.joined_at {
                    entry.connections = std::mem::take(&mut known.connections);
                    *known = entry;
                }
            }
        }
    }
    actors.into_values().collect()
}
