//! Presence records as they are on the wire, in either spelling of their keys (wire protocol 19.3, 19.4; K-048).

use bytes::Bytes;
use nolag_protocol::msgpack::{NIL, Reader, Token};

use crate::event::Actor;

/// The record of one actor; `None` where it names none.
pub(super) fn actor(bytes: &Bytes, value: &[u8]) -> Option<Actor> {
    let mut reader = Reader::new(value);
    let Ok(Token::Map(pairs)) = reader.token() else { return None };
    let mut actor = Actor {
        room: None,
        actor_id: String::new(),
        actor_type: None,
        presence: Bytes::from_static(NIL),
        connections: Vec::new(),
        joined_at: None,
        status: None,
        advertisement_version: None,
    };
    for _ in 0..pairs {
        let (Ok((key, _)), Ok((value, _))) = (reader.value(), reader.value()) else { return None };
        match text(key) {
            Some("actorTokenId" | "actor_token_id") => text(value)?.clone_into(&mut actor.actor_id),
            Some("actorType" | "actor_type") => actor.actor_type = text(value).map(str::to_owned),
            Some("presence") => actor.presence = bytes.slice_ref(value),
            Some("joinedAt" | "joined_at") => actor.joined_at = number(value),
            Some("status") => actor.status = text(value).map(str::to_owned),
            Some("advertisementVersion" | "advertisement_version") => {
                actor.advertisement_version = match Reader::new(value).token() {
                    Ok(Token::Uint(version)) => Some(version),
                    _ => None,
                };
            }
            _ => {}
        }
    }
    (!actor.actor_id.is_empty()).then_some(actor)
}

/// The records of a list; what is none is left out.
pub(super) fn list(bytes: &Bytes, value: &[u8]) -> Vec<Actor> {
    let mut reader = Reader::new(value);
    let Ok(Token::Array(count)) = reader.token() else { return Vec::new() };
    (0..count).map_while(|_| reader.value().ok()).filter_map(|(value, _)| actor(bytes, value)).collect()
}

/// The pairs of a map whose keys are text.
pub(super) fn pairs(value: &[u8]) -> impl Iterator<Item = (&str, &[u8])> {
    let mut reader = Reader::new(value);
    let count = match reader.token() {
        Ok(Token::Map(count)) => count,
        _ => 0,
    };
    let pairs = (0..count).map_while(move |_| {
        let (key, value) = (reader.value().ok()?.0, reader.value().ok()?.0);
        Some((key, value))
    });
    pairs.filter_map(|(key, value)| Some((text(key)?, value)))
}

/// The presence in a lobby record: of the full form, or the bare data that events carry.
pub(super) fn presence_of(value: &[u8]) -> &[u8] {
    let full = pairs(value).any(|(key, _)| key == "actorTokenId" || key == "actor_token_id");
    let presence = pairs(value).find(|(key, _)| *key == "presence").filter(|_| full);
    presence.map_or(value, |(_, presence)| presence)
}

fn text(value: &[u8]) -> Option<&str> {
    match Reader::new(value).token() {
        Ok(Token::Str(bytes) | Token::Bin(bytes)) => std::str::from_utf8(bytes).ok(),
        _ => None,
    }
}

#[allow(clippy::cast_precision_loss)] // a time; what is lost is less than a millisecond
fn number(value: &[u8]) -> Option<f64> {
    match Reader::new(value).token() {
        Ok(Token::Uint(n)) => Some(n as f64),
        Ok(Token::Int(n)) => Some(n as f64),
        Ok(Token::F32(n)) => Some(n.into()),
        Ok(Token::F64(n)) => Some(n),
        _ => None,
    }
}
