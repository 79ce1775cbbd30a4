//! What goes out through the door.

use std::time::Duration;

use nolag_protocol::msgpack::{Token, write};

use super::NOBODY;
use super::fit::out as value;
use crate::Error;
use crate::error::ConnectionCode;
use crate::event::{Actor, Event, Gap, LobbyChange, LobbySnapshot, Message, Ready, Receipt, Warning};
use crate::options::{AckMode, Qos};
use crate::session::{Reply, RequestId, Stats, TokenRequest};

/// A message. It names its topic unless that is known.
pub(super) fn message(out: &mut Vec<u8>, message: &Message, is_topic_known: bool) {
    let meta = message.meta();
    let flags = [
        message.is_replay,
        message.requires_ack,
        meta.retained,
        meta.redelivered,
        message.ack_mode == AckMode::AfterHandler,
        message.ack_mode == AckMode::Manual,
    ];
    let flags = flags.into_iter().rev().fold(0, |flags, flag| flags << 1 | u64::from(flag));
    let rest = [
        meta.msg_id.map(str_token),
        meta.from.map(str_token),
        meta.from_type.map(str_token),
        meta.filter.map(str_token),
        meta.timestamp.map(Token::Uint),
        meta.source_topic.map(str_token),
        meta.seq.map(Token::Uint),
        meta.trace.map(str_token),
    ];
    let count = rest.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
    array(out, 4 + count);
    write::uint(out, message.delivery);
    maybe_str(out, (!is_topic_known).then_some(&*message.topic));
    value(out, &message.data);
    write::uint(out, flags);
    for field in &rest[..count] {
        write::token(out, field.unwrap_or(Token::Nil));
    }
}

/// An event, but for messages. `started` is the date when the session's clock began.
pub(super) fn event(out: &mut Vec<u8>, event: &Event, started: Duration) {
    match event {
        Event::State { from, to, reason, close_code } => {
            head(out, "state", 4);
            write::str(out, from.name());
            write::str(out, to.name());
            write::str(out, reason);
            maybe_uint(out, close_code.map(u64::from));
        }
        Event::Connecting => head(out, "connecting", 0),
        Event::Connected { actor_id, actor_type, project_id, protocol_version, features } => {
            head(out, "connected", 1);
            map(out, 5);
            field_maybe(out, "actorId", actor_id.as_deref());
            field_maybe(out, "actorType", actor_type.as_deref());
            field_maybe(out, "projectId", project_id.as_deref());
            field_uint(out, "protocolVersion", *protocol_version);
            write::str(out, "features");
            let names = features.names();
            array(out, names.len());
            for name in names {
                write::str(out, name);
            }
        }
        Event::Disconnected { reason, close_code } => {
            head(out, "disconnected", 2);
            write::str(out, reason);
            maybe_uint(out, close_code.map(u64::from));
        }
        Event::Reconnecting { attempt, delay, reason } => {
            head(out, "reconnecting", 3);
            write::uint(out, (*attempt).into());
            ms(out, *delay);
            write::str(out, reason);
        }
        Event::Ready(ready) => self::ready(out, ready, started),
        Event::Reconnected => head(out, "reconnected", 0),
        Event::Error(error) => {
            head(out, "error", 1);
            self::error(out, error);
        }
        Event::Failed(error) => {
            head(out, "clientFailed", 1);
            self::error(out, error);
        }
        Event::Warning(warning) => {
            head(out, "warning", 1);
            write::str(out, self::warning(*warning));
        }
        Event::ReplayStart { topic, count, oldest_timestamp, newest_timestamp } => {
            head(out, "replayStart", 4);
            maybe_str(out, topic.as_deref());
            write::uint(out, *count);
            maybe_uint(out, *oldest_timestamp);
            maybe_uint(out, *newest_timestamp);
        }
        Event::ReplayEnd { topic, replayed } => {
            head(out, "replayEnd", 2);
            maybe_str(out, topic.as_deref());
            write::uint(out, *replayed);
        }
        Event::Hydration { topic, full_topic, data } => {
            head(out, "hydration", 3);
            write::str(out, topic);
            maybe_str(out, full_topic.as_deref());
            value(out, data);
        }
        Event::Gap(gap) => {
            head(out, "gap", 1);
            self::gap(out, gap, started);
        }
        Event::Presence(change, actor) => {
            head(out, "presence", 2);
            write::str(out, change.name());
            self::actor(out, actor);
        }
        Event::PresenceReplaced(room) => {
            head(out, "presenceReplaced", 2);
            maybe_str(out, room.app.as_deref());
            write::str(out, &room.room);
        }
        Event::Lobby(change) => lobby(out, change),
        // Messages go another way, and overflow is told by whoever keeps the readers' queues.
        Event::Message(_) | Event::Overflow { .. } => {}
    }
}

/// What a call is completed with.
pub(super) fn done(out: &mut Vec<u8>, request: RequestId, result: Result<Reply, Error>) {
    if request.0 >= NOBODY {
        if let Err(error) = result {
            head(out, "failed", 1);
            self::error(out, &error);
        }
        return;
    }
    let has_reply = matches!(&result, Ok(reply) if *reply != Reply::Done);
    head(out, "done", if has_reply { 3 } else { 2 });
    write::uint(out, request.0);
    match result {
        Err(error) => self::error(out, &error),
        Ok(reply) => {
            write::token(out, Token::Nil);
            match reply {
                Reply::Done => {}
                Reply::Receipt(receipt) => self::receipt(out, &receipt),
                Reply::Presence(actors) => {
                    array(out, actors.len());
                    for actor in &actors {
                        self::actor(out, actor);
                    }
                }
                Reply::Lobby(snapshot) => self::snapshot(out, &snapshot),
            }
        }
    }
}

/// The application is asked for a token.
pub(super) fn question(out: &mut Vec<u8>, number: u64, request: &TokenRequest) {
    head(out, "token", 4);
    write::uint(out, number);
    write::str(out, request.reason.name());
    write::uint(out, request.attempt.into());
    match &request.last_error {
        Some(error) => self::error(out, error),
        None => write::token(out, Token::Nil),
    }
}

/// There is room for calls again.
pub(super) fn room(out: &mut Vec<u8>) {
    head(out, "room", 0);
}

pub(super) fn frame(out: &mut Vec<u8>, sent: bool, kind: &str, bytes: usize) {
    head(out, "frame", 3);
    write::token(out, Token::Bool(sent));
    write::str(out, kind);
    write::uint(out, bytes as u64);
}

/// An error as a map.
pub fn error(out: &mut Vec<u8>, error: &Error) {
    let message = error.to_string();
    let mut texts =
        vec![("class", Some(error.class())), ("code", Some(error.code())), ("message", Some(&*message))];
    texts.push(("topic", error.topic()));
    texts.push(("hint", error.hint()));
    let mut numbers = vec![("serverCode", error.server_code())];
    let mut flags = vec![("retryable", error.retryable()), ("fatal", error.fatal())];
    if error.outcome_unknown() {
        flags.push(("outcomeUnknown", true));
    }
    match error {
        Error::Server(server) => {
            texts.push(("detail", server.detail.as_deref()));
            texts.push(("msgRef", server.msg_ref.as_deref()));
            numbers.push(("maxSizeBytes", server.max_size_bytes));
            flags.push(("local", server.local));
        }
        Error::Encode { op, .. } => texts.push(("op", Some(op))),
        Error::Connection { code: ConnectionCode::HandshakeRejected(status), .. } => {
            numbers.push(("status", Some((*status).into())));
        }
        _ => {}
    }
    texts.retain(|(_, text)| text.is_some());
    numbers.retain(|(_, number)| number.is_some());
    map(out, texts.len() + numbers.len() + flags.len());
    for (name, text) in texts {
        field_maybe(out, name, text);
    }
    for (name, number) in numbers {
        write::str(out, name);
        maybe_uint(out, number);
    }
    for (name, flag) in flags {
        write::str(out, name);
        write::token(out, Token::Bool(flag));
    }
}

/// What counts.
pub(super) fn stats(stats: &Stats) -> Vec<u8> {
    let mut out = Vec::new();
    let counts = [
        ("connects", stats.connects),
        ("connect_failures", stats.connect_failures),
        ("reconnects", stats.reconnects),
        ("frames_in", stats.frames_in),
        ("frames_out", stats.frames_out),
        ("bytes_in", stats.bytes_in),
        ("bytes_out", stats.bytes_out),
        ("published", stats.published),
        ("publish_failures", stats.publish_failures),
        ("queue_dropped", stats.queue_dropped),
        ("queue_messages", stats.outbox.queued as u64),
        ("queue_bytes", stats.outbox.queued_bytes as u64),
        ("in_flight", stats.outbox.in_flight as u64),
        ("received", stats.received),
        ("duplicates", stats.duplicates),
        ("gaps", stats.gaps),
        ("handler_errors", stats.handler_errors),
        ("acks_sent", stats.acks_sent),
        ("ack_backlog", stats.ack_backlog as u64),
        ("decode_errors", stats.decode_errors),
        ("subscriptions", stats.topics as u64),
    ];
    let times = [
        ("downtime_ms", Some(stats.downtime)),
        ("queue_oldest_ms", stats.outbox.oldest),
        ("publish_latency_ms", stats.publish_latency),
        ("rtt_ms", stats.round_trip),
    ];
    map(&mut out, counts.len() + times.len());
    for (name, count) in counts {
        field_uint(&mut out, name, count);
    }
    for (name, time) in times {
        write::str(&mut out, name);
        match time {
            Some(time) => ms(&mut out, time),
            None => write::token(&mut out, Token::Nil),
        }
    }
    out
}

fn ready(out: &mut Vec<u8>, ready: &Ready, started: Duration) {
    head(out, "ready", 1);
    map(out, 4);
    write::str(out, "resubscribed");
    array(out, ready.resubscribed.len());
    for topic in &ready.resubscribed {
        write::str(out, topic);
    }
    write::str(out, "refused");
    array(out, ready.refused.len());
    for (topic, error) in &ready.refused {
        map(out, 2);
        field_maybe(out, "topic", Some(topic));
        write::str(out, "error");
        self::error(out, error);
    }
    write::str(out, "resumed");
    write::token(out, Token::Bool(ready.resumed));
    write::str(out, "gaps");
    array(out, ready.gaps.len());
    for gap in &ready.gaps {
        self::gap(out, gap, started);
    }
}

fn gap(out: &mut Vec<u8>, gap: &Gap, started: Duration) {
    map(out, 3);
    field_maybe(out, "topic", Some(&gap.topic));
    field_maybe(out, "reason", Some(&gap.reason));
    write::str(out, "since");
    maybe_uint(out, gap.since.map(|since| whole_ms(started + since)));
}

fn receipt(out: &mut Vec<u8>, receipt: &Receipt) {
    map(out, 9);
    field_maybe(out, "msgRef", receipt.msg_ref.as_deref());
    field_maybe(out, "topic", Some(&receipt.topic));
    field_uint(out, "qos", qos(receipt.qos));
    field_uint(out, "effectiveQos", qos(receipt.effective_qos));
    field_maybe(out, "outcome", Some(receipt.outcome.name()));
    field_maybe(out, "level", receipt.level.as_deref());
    field_uint(out, "attempts", receipt.attempts.into());
    write::str(out, "queuedMs");
    ms(out, receipt.queued);
    write::str(out, "latencyMs");
    ms(out, receipt.latency);
}

fn actor(out: &mut Vec<u8>, actor: &Actor) {
    map(out, 9);
    field_maybe(out, "actorTokenId", Some(&actor.actor_id));
    field_maybe(out, "actorType", actor.actor_type.as_deref());
    write::str(out, "presence");
    value(out, &actor.presence);
    write::str(out, "connections");
    array(out, actor.connections.len());
    for data in &actor.connections {
        value(out, data);
    }
    field_maybe(out, "app", actor.room.as_ref().and_then(|room| room.app.as_deref()));
    field_maybe(out, "roomId", actor.room.as_ref().map(|room| &*room.room));
    write::str(out, "joinedAt");
    write::token(out, actor.joined_at.map_or(Token::Nil, Token::F64));
    field_maybe(out, "status", actor.status.as_deref());
    write::str(out, "advertisementVersion");
    maybe_uint(out, actor.advertisement_version);
}

fn lobby(out: &mut Vec<u8>, change: &LobbyChange) {
    head(out, "lobby", 1);
    map(out, 7);
    field_maybe(out, "lobby", change.lobby.as_deref());
    field_maybe(out, "lobbyId", Some(&change.lobby_id));
    field_maybe(out, "room", change.room.as_deref());
    field_maybe(out, "app", change.app.as_deref());
    field_maybe(out, "actorId", Some(&change.actor_id));
    field_maybe(out, "change", Some(change.change.name()));
    write::str(out, "data");
    value(out, &change.data);
}

fn snapshot(out: &mut Vec<u8>, rooms: &LobbySnapshot) {
    map(out, rooms.len());
    for (room, actors) in rooms {
        write::str(out, room);
        map(out, actors.len());
        for (actor, record) in actors {
            write::str(out, actor);
            value(out, record);
        }
    }
}

fn qos(qos: Qos) -> u64 {
    match qos {
        Qos::AtMostOnce => 0,
        Qos::AtLeastOnce => 1,
        Qos::ExactlyOnce => 2,
    }
}

fn warning(warning: Warning) -> &'static str {
    match warning {
        Warning::HeartbeatCut => {
            "heartbeatInterval is cut to 45 s: brokers close connections that are silent for 60 s"
        }
        Warning::QosReduced => "this broker has no quality of service 2: messages are published with 1",
        Warning::PresenceWithoutRoom => {
            "presence without a room is announced to nobody: use setApp(…).setRoom(…).setPresence"
        }
        Warning::AcksDropped => "acknowledgements were dropped: more than 10,000 waited for a connection",
    }
}

/// An item's name, and how many elements follow it.
fn head(out: &mut Vec<u8>, name: &str, rest: usize) {
    array(out, 1 + rest);
    write::str(out, name);
}

#[allow(clippy::cast_possible_truncation)] // of what lies in memory there are fewer than 2^32
fn array(out: &mut Vec<u8>, count: usize) {
    write::token(out, Token::Array(count as u32));
}

#[allow(clippy::cast_possible_truncation)] // as above
fn map(out: &mut Vec<u8>, count: usize) {
    write::token(out, Token::Map(count as u32));
}

fn str_token(text: &str) -> Token<'_> {
    Token::Str(text.as_bytes())
}

fn maybe_str(out: &mut Vec<u8>, text: Option<&str>) {
    write::token(out, text.map_or(Token::Nil, str_token));
}

fn maybe_uint(out: &mut Vec<u8>, number: Option<u64>) {
    write::token(out, number.map_or(Token::Nil, Token::Uint));
}

fn field_maybe(out: &mut Vec<u8>, name: &str, text: Option<&str>) {
    write::str(out, name);
    maybe_str(out, text);
}

fn field_uint(out: &mut Vec<u8>, name: &str, number: u64) {
    write::str(out, name);
    write::uint(out, number);
}

/// Milliseconds, with their fractions.
fn ms(out: &mut Vec<u8>, time: Duration) {
    write::token(out, Token::F64(time.as_secs_f64() * 1_000.0));
}

#[allow(clippy::cast_possible_truncation)] // 2^64 ms are longer than the earth will last
fn whole_ms(time: Duration) -> u64 {
    time.as_millis() as u64
}
