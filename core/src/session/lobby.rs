//! Lobby watches: kept over reconnects, and the snapshots that tell what was missed (client-api 9, wire protocol 20).

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use bytes::Bytes;
use indexmap::IndexMap;
use nolag_protocol::frame::{GetLobbyPresence, Lenient, LobbyPresence, LobbySubscribe, LobbyUnsubscribe};

use super::effects::Effects;
use super::record;
use super::requests::{Kind, Requests};
use super::{Reply, RequestId};
use crate::Error;
use crate::event::{Change, Event, LobbyChange, LobbySnapshot};

/// How many lobbies a client may watch.
const MAX_LOBBIES: usize = 1_000;
/// How many calls for a lobby may wait for a connection, each kind.
const MAX_WAITING: usize = 1_000;
/// How many actors of a lobby are remembered for the comparison after a reconnect.
const MAX_ACTORS: usize = 100_000;

#[derive(Default)]
struct Watch {
    /// Calls that wait for the first snapshot on a connection.
    waiting: Vec<RequestId>,
    /// Who was where: presence data by room and actor.
    known: HashMap<(String, String), Bytes>,
    /// A snapshot has come; the next one is compared with it.
    confirmed: bool,
    /// The lobby's internal id, learnt from events (20.3).
    uuid: Option<String>,
}

/// The lobbies that the caller watches.
#[derive(Default)]
pub(super) struct Lobbies {
    watches: IndexMap<String, Watch>,
    /// Calls for a snapshot alone that wait for a connection.
    waiting: Vec<(RequestId, String)>,
}

impl Lobbies {
    /// Watches a lobby and returns its snapshot.
    pub(super) fn watch(
        &mut self,
        fx: &mut Effects,
        requests: &mut Requests,
        timeout: Duration,
        lobby: &str,
        request: RequestId,
    ) {
        let full = self.watches.len() >= MAX_LOBBIES && !self.watches.contains_key(lobby);
        let watch = if full { None } else { Some(self.watches.entry(lobby.to_owned()).or_default()) };
        match watch {
            Some(_) if fx.link.is_some() && requests.has_room() => {
                subscribe(fx, requests, timeout, lobby, vec![request], false);
            }
            Some(watch) if fx.link.is_none() && watch.waiting.len() < MAX_WAITING => {
                watch.waiting.push(request);
            }
            _ => fx.complete(request, Err(Error::queue("queue_full", Some(lobby)))),
        }
    }

    /// Watches no more; without a connection that is settled at once.
    pub(super) fn unwatch(
        &mut self,
        fx: &mut Effects,
        requests: &mut Requests,
        timeout: Duration,
        lobby: &str,
        request: RequestId,
    ) {
        let watched = self.watches.shift_remove(lobby);
        for waiter in watched.iter().flat_map(|watch| &watch.waiting) {
            fx.complete(*waiter, Err(Error::aborted())); // there is no snapshot to give
        }
        if watched.is_none() || fx.link.is_none() || !requests.has_room() {
            fx.done(request);
            return;
        }
        let msg_ref = fx.ref_if_understood();
        fx.send(LobbyUnsubscribe { lobby_id: lobby, msg_ref: Lenient(msg_ref.as_deref()) }.to_vec());
        let kind = Kind::LobbyUnsubscribe { lobby: lobby.to_owned(), waiter: Some(request) };
        requests.push(msg_ref, kind, fx.now + timeout, false);
    }

    /// Returns a snapshot without watching.
    pub(super) fn list(
        &mut self,
        fx: &mut Effects,
        requests: &mut Requests,
        timeout: Duration,
        lobby: &str,
        request: RequestId,
    ) {
        if fx.link.is_some() && requests.has_room() {
            get(fx, requests, timeout, lobby.to_owned(), request);
        } else if fx.link.is_none() && self.waiting.len() < MAX_WAITING {
            self.waiting.push((request, lobby.to_owned()));
        } else {
            fx.complete(request, Err(Error::queue("queue_full", Some(lobby))));
        }
    }

    /// Watches everything again (client-api 2.3).
    pub(super) fn restore(&mut self, fx: &mut Effects, requests: &mut Requests, timeout: Duration) {
        for (lobby, watch) in &mut self.watches {
            let waiters = std::mem::take(&mut watch.waiting);
            subscribe(fx, requests, timeout, lobby, waiters, true);
        }
        for (request, lobby) in std::mem::take(&mut self.waiting) {
            get(fx, requests, timeout, lobby, request);
        }
    }

    /// A snapshot of a watched lobby: whoever asked gets it, and what changed meanwhile is told (API-032).
    pub(super) fn snapshot(
        &mut self,
        fx: &mut Effects,
        lobby: &str,
        waiters: &[RequestId],
        bytes: &Bytes,
        presence: &[u8],
    ) {
        let snapshot = read(bytes, presence);
        for waiter in waiters {
            fx.complete(*waiter, Ok(Reply::Lobby(snapshot.clone())));
        }
        let Some(watch) = self.watches.get_mut(lobby) else { return };
        let records = snapshot.iter().flat_map(|(room, actors)| {
            actors.iter().map(move |(actor, record)| {
                ((room.clone(), actor.clone()), bytes.slice_ref(record::presence_of(record)))
            })
        });
        let now: HashMap<_, _> = records.take(MAX_ACTORS).collect();
        if watch.confirmed {
            let keys: HashSet<&(String, String)> = watch.known.keys().chain(now.keys()).collect();
            let mut keys: Vec<_> = keys.into_iter().collect();
            keys.sort_unstable();
            for key in keys {
                let (change, data) = match (watch.known.get(key), now.get(key)) {
                    (Some(_), None) => (Change::Leave, Bytes::from_static(&[0x80])),
                    (None, Some(data)) => (Change::Join, data.clone()),
                    (Some(before), Some(data)) if before != data => (Change::Update, data.clone()),
                    _ => continue,
                };
                fx.event(Event::Lobby(Box::new(LobbyChange {
                    lobby: Some(lobby.to_owned()),
                    lobby_id: lobby.to_owned(),
                    room: Some(key.0.clone()),
                    app: None,
                    actor_id: key.1.clone(),
                    change,
                    data,
                    synthetic: true,
                })));
            }
        }
        watch.known = now;
        watch.confirmed = true;
    }

    /// The broker refused a watch. One that it never allowed is given up; one of before is asked for again on the next
    /// connect.
    pub(super) fn refused(&mut self, fx: &mut Effects, lobby: &str, waiters: Vec<RequestId>, error: &Error) {
        if self.watches.get(lobby).is_some_and(|watch| !watch.confirmed) {
            self.watches.shift_remove(lobby);
        }
        for waiter in waiters {
            fx.complete(waiter, Err(error.clone()));
        }
    }

    /// A change in a lobby's rooms, for the lobby it belongs to (20.3, K-052).
    pub(super) fn event(&mut self, fx: &mut Effects, bytes: &Bytes, frame: &LobbyPresence<'_>) {
        let change = match frame.event {
            "join" => Change::Join,
            "update" => Change::Update,
            "leave" => Change::Leave,
            "waking" => Change::Waking,
            _ => return,
        };
        let by_id = |(_, watch): &(&String, &mut Watch)| watch.uuid.as_deref() == Some(frame.lobby_id);
        let slug = if self.watches.contains_key(frame.lobby_id) {
            Some(frame.lobby_id.to_owned())
        } else if let Some((slug, _)) = self.watches.iter_mut().find(by_id) {
            Some(slug.clone())
        } else if self.watches.len() == 1 {
            self.watches.keys().next().cloned()
        } else {
            None
        };
        let data = bytes.slice_ref(frame.data.bytes);
        let room = frame.room_id.and_then(|room| room.0).map(str::to_owned);
        if let Some(watch) = slug.as_ref().and_then(|slug| self.watches.get_mut(slug)) {
            let only_one_lobby = slug.as_deref() != Some(frame.lobby_id);
            let uuid = frame.lobby_uuid.or(only_one_lobby.then_some(frame.lobby_id));
            if let Some(uuid) = uuid.filter(|uuid| watch.uuid.as_deref() != Some(uuid)) {
                watch.uuid = Some(uuid.to_owned());
            }
            let key = (room.clone().unwrap_or_default(), frame.actor_id.to_owned());
            if change == Change::Leave {
                watch.known.remove(&key);
            } else if watch.known.len() < MAX_ACTORS {
                watch.known.insert(key, data.clone());
            }
        }
        fx.event(Event::Lobby(Box::new(LobbyChange {
            lobby: slug,
            lobby_id: frame.lobby_id.to_owned(),
            room,
            app: frame.app.map(str::to_owned),
            actor_id: frame.actor_id.to_owned(),
            change,
            data,
            synthetic: false,
        })));
    }

    /// A watch that was on its way when the connection went: its callers wait for the next one.
    pub(super) fn interrupted(&mut self, fx: &mut Effects, lobby: &str, waiters: Vec<RequestId>) {
        match self.watches.get_mut(lobby) {
            Some(watch) => watch.waiting.extend(waiters),
            None => {
                for waiter in waiters {
                    fx.complete(waiter, Err(Error::lost("the connection was lost")));
                }
            }
        }
    }

    pub(super) fn closed(&mut self, fx: &mut Effects, error: &Error) {
        let waiting = self.waiting.drain(..).map(|(request, _)| request).collect::<Vec<_>>();
        let watching = self.watches.values_mut().flat_map(|watch| {
            watch.known.clear();
            watch.confirmed = false;
            std::mem::take(&mut watch.waiting)
        });
        for request in waiting.into_iter().chain(watching) {
            fx.complete(request, Err(error.clone()));
        }
    }

    pub(super) fn cancel(&mut self, request: RequestId) -> bool {
        let before = self.waiting.len();
        self.waiting.retain(|(waiting, _)| *waiting != request);
        self.waiting.len() < before
            || self.watches.values_mut().any(|watch| {
                let before = watch.waiting.len();
                watch.waiting.retain(|waiting| *waiting != request);
                watch.waiting.len() < before
            })
    }

    /// The lobbies that are watched.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.watches.keys().map(String::as_str)
    }
}

fn subscribe(
    fx: &mut Effects,
    requests: &mut Requests,
    timeout: Duration,
    lobby: &str,
    waiters: Vec<RequestId>,
    recovery: bool,
) {
    let msg_ref = fx.ref_if_understood();
    fx.send(LobbySubscribe { lobby_id: lobby, msg_ref: Lenient(msg_ref.as_deref()) }.to_vec());
    let kind = Kind::LobbySubscribe { lobby: lobby.to_owned(), waiters };
    requests.push(msg_ref, kind, fx.now + timeout, recovery);
}

fn get(fx: &mut Effects, requests: &mut Requests, timeout: Duration, lobby: String, waiter: RequestId) {
    let msg_ref = fx.ref_if_understood();
    fx.send(GetLobbyPresence { lobby_id: &lobby, msg_ref: Lenient(msg_ref.as_deref()) }.to_vec());
    requests.push(msg_ref, Kind::GetLobby { lobby, waiter: Some(waiter) }, fx.now + timeout, false);
}

/// A snapshot as the broker sent it (20.2).
pub(super) fn read(bytes: &Bytes, presence: &[u8]) -> LobbySnapshot {
    let actors = |actors| {
        record::pairs(actors).map(|(actor, record)| (actor.to_owned(), bytes.slice_ref(record))).collect()
    };
    record::pairs(presence).map(|(room, members)| (room.to_owned(), actors(members))).collect()
}
