//! What each frame of the broker does (wire protocol 11, 12; chapter 30).

use std::time::Duration;

use bytes::Bytes;
use nolag_protocol::codes;
use nolag_protocol::frame::{ErrorReply, ServerFrame, Subscribed};

use super::requests::{Answer, Kind, ListFor, Settled};
use super::{LinkId, Session, Transport, presence, record};
use crate::error::{Error, ServerError};
use crate::event::{Change, Event};

impl Session {
    /// The transport did something; what an earlier one still does is ignored.
    pub fn transport(&mut self, now: Duration, link: LinkId, event: Transport) {
        self.begin(now);
        if self.connection.link() == Some(link) {
            match event {
                Transport::Opened => {
                    if matches!(self.connection.phase, super::connection::Phase::Opening { .. }) {
                        self.opened(link);
                    }
                }
                Transport::Frame(bytes) => self.received(&bytes),
                #[cfg(feature = "json")]
                Transport::Text(text) => {
                    // What is no JSON is ignored like any frame that cannot be read (K-061).
                    match nolag_protocol::json::to_msgpack(&text) {
                        Ok(Some(frame)) => self.received(&Bytes::from(frame)),
                        Ok(None) => {}
                        Err(_) => self.fx.counts.decode_errors += 1,
                    }
                }
                Transport::Closed { code, reason } => self.closed_by_peer(code, &reason),
                Transport::Failed { code, message, retry_after } => {
                    self.transport_failed(code, &message, retry_after);
                }
            }
        }
        self.end();
    }

    /// A message: a heartbeat's echo, one frame, or with `batch` several (features 5). One that cannot be read ends it, and those
    /// before it stand.
    fn received(&mut self, message: &Bytes) {
        let now = self.fx.now;
        self.fx.counts.bytes_in += message.len() as u64;
        if let Some(up) = self.connection.up() {
            up.heart.received(now, message.is_empty());
            self.outbox.received(now);
        }
        if message.is_empty() {
            self.fx.counts.frames_in += 1;
            // A heartbeat's echo, which is never answered (K-011).
            let timeout = self.options.ack_timeout;
            return self.subscriptions.echoed(&mut self.fx, &mut self.requests, timeout);
        }
        let mut rest: &[u8] = message;
        while !rest.is_empty() {
            self.fx.counts.frames_in += 1;
            let is_one_of_many = rest.len() < message.len();
            let (frame, behind) = ServerFrame::decode_first(rest);
            match frame {
                Err(_) => return self.fx.counts.decode_errors += 1,
                Ok(_) if is_one_of_many && !self.may_batch() => {
                    return self.fx.counts.decode_errors += 1;
                }
                Ok(ServerFrame::AuthReply(reply)) => self.auth_reply(&reply),
                Ok(_) if self.fx.link.is_none() => {}
                Ok(frame) if !is_one_of_many && behind.is_empty() => self.frame(message, &frame),
                Ok(frame) => {
                    let own = message.slice_ref(&rest[..rest.len() - behind.len()]);
                    self.frame(&own, &frame);
                }
            }
            rest = behind;
        }
    }

    fn frame(&mut self, bytes: &Bytes, frame: &ServerFrame<'_>) {
        match frame {
            ServerFrame::Message(message) => {
                self.inbox.message(&mut self.fx, &self.options, &mut self.subscriptions, bytes, message);
            }
            ServerFrame::Published(published) => self.outbox.published(&mut self.fx, published),
            ServerFrame::ErrorReply(error) => self.refused(error),
            ServerFrame::Subscribed(reply) => self.subscribed(reply),
            ServerFrame::Unsubscribed(reply) if reply.reason.is_some() => self.revoked(reply.topic),
            ServerFrame::Unsubscribed(reply) => {
                self.answer(reply.msg_ref, &Answer::Unsubscribed(reply.topic));
            }
            ServerFrame::FiltersUpdated(reply) => {
                self.answer(reply.msg_ref, &Answer::FiltersUpdated(reply.topic));
            }
            ServerFrame::PresenceUpdated(reply) => {
                let answer = Answer::PresenceUpdated { app: reply.app, room: reply.room_id };
                if let Some(settled) = self.requests.settle(reply.msg_ref, &answer)
                    && let Kind::Presence { room: Some(room) } = settled.kind
                {
                    self.presence.named(&mut self.fx, &mut self.requests, room, reply.app);
                }
            }
            ServerFrame::LobbyUnsubscribed(reply) => {
                self.answer(reply.msg_ref, &Answer::LobbyUnsubscribed(reply.lobby_id));
            }
            ServerFrame::PresenceList(list) => {
                let answer = Answer::PresenceList { app: list.app, room: list.room_id };
                if let Some(settled) = self.requests.settle(list.msg_ref, &answer) {
                    self.listed(settled, bytes, list.app, list.data.bytes);
                }
            }
            ServerFrame::LobbySubscribed(reply) => {
                let settled = self.requests.settle(reply.msg_ref, &Answer::LobbySubscribed(reply.lobby_id));
                self.snapshot(settled, bytes, reply.presence.bytes);
            }
            ServerFrame::LobbyPresenceList(reply) => {
                let settled = self.requests.settle(reply.msg_ref, &Answer::LobbyList(reply.lobby_id));
                self.snapshot(settled, bytes, reply.presence.bytes);
            }
            ServerFrame::PresenceEvent(event) => {
                let change = match event.event {
                    "join" => Change::Join,
                    "update" => Change::Update,
                    "leave" => Change::Leave,
                    "waking" => Change::Waking,
                    _ => return,
                };
                if let Some(actor) = record::actor(bytes, event.data.bytes) {
                    let timeout = self.options.presence_timeout;
                    let (fx, requests) = (&mut self.fx, &mut self.requests);
                    self.presence.event(fx, requests, timeout, (event.app, event.room_id), change, actor);
                }
            }
            ServerFrame::LobbyPresence(event) => self.lobbies.event(&mut self.fx, bytes, event),
            ServerFrame::Hydration(hydration) => self.fx.event(Event::Hydration {
                topic: hydration.topic.to_owned(),
                full_topic: hydration.full_topic.map(str::to_owned),
                data: bytes.slice_ref(hydration.data.bytes),
            }),
            ServerFrame::ReplayStart(start) => {
                if let Some(topic) = start.topic {
                    self.subscriptions.replays(topic);
                }
                self.fx.event(Event::ReplayStart {
                    topic: start.topic.map(Into::into),
                    count: start.count.unwrap_or(0),
                    oldest_timestamp: start.oldest_timestamp,
                    newest_timestamp: start.newest_timestamp,
                });
            }
            ServerFrame::ReplayEnd(end) => {
                if let Some(topic) = end.topic {
                    self.subscriptions.replayed(topic);
                }
                self.fx.event(Event::ReplayEnd {
                    topic: end.topic.map(Into::into),
                    replayed: end.replayed.or(end.count).unwrap_or(0),
                });
            }
            ServerFrame::ReauthReply(reply) => self.reauth_reply(reply.success),
            // The close that follows has the code (K-062); only the bound on the next attempt is in the frame alone.
            ServerFrame::Disconnect(disconnect) => {
                self.connection.retry_after = disconnect.retry_after_ms.map(Duration::from_millis);
            }
            ServerFrame::AuthReply(_) | ServerFrame::Unknown(_) => {}
        }
    }

    /// A confirmation without content.
    fn answer(&mut self, msg_ref: Option<&str>, answer: &Answer<'_>) {
        if let Some(settled) = self.requests.settle(msg_ref, answer) {
            self.settled(settled, Ok(()));
        }
    }

    /// A subscription is there, and continues or does not (features 2).
    fn subscribed(&mut self, reply: &Subscribed<'_>) {
        let Some(settled) = self.requests.settle(reply.msg_ref, &Answer::Subscribed(reply.topic)) else {
            return;
        };
        if let Kind::Subscribe { topic, life, join, .. } = &settled.kind
            && let Some(gap) = self.subscriptions.confirmed((topic, *life, join), reply)
        {
            self.fx.counts.gaps += 1;
            if let Some(ready) = &mut self.recovery {
                ready.gaps.push(gap.clone());
            }
            self.fx.event(Event::Gap(gap));
        }
        if self.subscriptions.wants_proof() {
            self.probe(self.options.heartbeat_timeout);
        }
        self.settled(settled, Ok(()));
    }

    fn settled(&mut self, settled: Settled, result: Result<(), Error>) {
        let Settled { kind, recovery, late } = settled;
        match kind {
            Kind::Subscribe { topic, op, .. }
            | Kind::Unsubscribe { topic, op }
            | Kind::SetFilters { topic, op } => {
                let timeout = self.options.ack_timeout;
                let (fx, requests) = (&mut self.fx, &mut self.requests);
                let outcome = self.subscriptions.answered(fx, requests, timeout, (&topic, op), result);
                if let Some((ready, outcome)) = self.recovery.as_mut().filter(|_| recovery).zip(outcome) {
                    match outcome.result {
                        Ok(()) => ready.resubscribed.push(outcome.topic),
                        Err(error) => ready.refused.push((outcome.topic, error)),
                    }
                }
            }
            Kind::GetPresence { room, wanted_by } => {
                let Err(error) = result else { return };
                match wanted_by {
                    ListFor::Caller(request) if !late => self.fx.complete(request, Err(error)),
                    ListFor::Caller(_) | ListFor::Nobody => {}
                    ListFor::Roster => self.presence.list_refused(&room),
                }
            }
            Kind::LobbySubscribe { lobby, waiters } => {
                let Err(error) = result else { return };
                let waiters = if late { Vec::new() } else { waiters };
                self.lobbies.refused(&mut self.fx, &lobby, waiters, &error);
            }
            Kind::LobbyUnsubscribe { waiter, .. } | Kind::GetLobby { waiter, .. } if !late => {
                if let Some(request) = waiter {
                    self.fx.complete(request, result.map(|()| super::Reply::Done));
                }
            }
            Kind::Presence { room: Some(room) } if result.is_err() => self.presence.refused(&room),
            Kind::LobbyUnsubscribe { .. } | Kind::GetLobby { .. } | Kind::Presence { .. } => {}
        }
    }

    fn listed(&mut self, settled: Settled, bytes: &Bytes, app: Option<&str>, list: &[u8]) {
        let Kind::GetPresence { room, wanted_by } = settled.kind else { return };
        let room = self.presence.named(&mut self.fx, &mut self.requests, room, app);
        let wanted_by = if settled.late { ListFor::Nobody } else { wanted_by };
        let actors = presence::actors(&room, bytes, list);
        let timing = (self.options.presence_timeout, self.actor_id.as_deref());
        self.presence.listed(&mut self.fx, &mut self.requests, timing, (room, wanted_by), actors);
    }

    fn snapshot(&mut self, settled: Option<Settled>, bytes: &Bytes, snapshot: &[u8]) {
        let Some(Settled { kind, late, .. }) = settled else { return };
        match kind {
            Kind::LobbySubscribe { lobby, waiters } => {
                let waiters = if late { Vec::new() } else { waiters };
                self.lobbies.snapshot(&mut self.fx, &lobby, &waiters, bytes, snapshot);
            }
            Kind::GetLobby { waiter: Some(request), .. } if !late => {
                let snapshot = super::lobby::read(bytes, snapshot);
                self.fx.complete(request, Ok(super::Reply::Lobby(snapshot)));
            }
            _ => {}
        }
    }

    /// An `error` frame: of the request it belongs to, and an event in any case (K-031). It never ends the connection
    /// (K-032).
    fn refused(&mut self, frame: &ErrorReply<'_>) {
        let error = Error::Server(Box::new(ServerError::from(frame)));
        let is_rate = codes::error_verdict(frame.error) == Some(codes::Verdict::Resend);
        let of_publish =
            frame.msg_ref.is_some_and(|msg_ref| self.outbox.refused(&mut self.fx, msg_ref, &error));
        if of_publish {
            if is_rate {
                return; // it goes again by itself; if it does not, its own failure tells
            }
        } else if matches!(frame.code, Some(42910 | 42920 | 42930)) || is_rate {
            // A publish that asked for no answer; never a pending subscribe (12.3, K-026).
            if is_rate {
                self.outbox.stop(&mut self.fx);
            }
        } else {
            let answer = Answer::Error {
                topic: frame.topic,
                app: frame.app,
                room: frame.room_id,
                lobby: frame.lobby_id,
            };
            if let Some(settled) = self.requests.settle(frame.msg_ref, &answer) {
                self.settled(settled, Err(error.clone()));
            }
        }
        self.fx.error(error);
    }

    /// The broker took a subscription away (X-11, K-063).
    fn revoked(&mut self, topic: &str) {
        let error = Error::refused(&codes::ACCESS_REVOKED, topic, "the token no longer grants the topic");
        if self.subscriptions.revoked(self.fx.now, topic, error.clone()).is_some() {
            self.fx.error(error);
        }
    }

    /// No answer came in time; the request stays as a placeholder (wire protocol 12.3).
    pub(super) fn request_overdue(&mut self, request: Settled) {
        let timeout = self.options.ack_timeout;
        match request.kind {
            Kind::Subscribe { topic, op, .. }
            | Kind::Unsubscribe { topic, op }
            | Kind::SetFilters { topic, op } => {
                let (fx, requests) = (&mut self.fx, &mut self.requests);
                let outcome = self.subscriptions.timed_out(fx, requests, timeout, (&topic, op));
                if let Some(Err(error)) = outcome.map(|outcome| outcome.result) {
                    self.fx.error(error);
                }
            }
            Kind::GetPresence { room, wanted_by } => {
                self.presence.list_overdue(&mut self.fx, (&room, wanted_by));
            }
            Kind::LobbySubscribe { lobby, waiters } => {
                let error = Error::timeout("lobby_timeout", &lobby);
                for waiter in waiters {
                    self.fx.complete(waiter, Err(error.clone()));
                }
                self.fx.error(error);
            }
            Kind::LobbyUnsubscribe { waiter: Some(request), .. } => self.fx.done(request),
            Kind::GetLobby { lobby, waiter: Some(request) } => {
                self.fx.complete(request, Err(Error::timeout("lobby_timeout", &lobby)));
            }
            Kind::Presence { .. } | Kind::LobbyUnsubscribe { .. } | Kind::GetLobby { .. } => {}
        }
    }
}
