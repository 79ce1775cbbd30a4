//! The valid frames of `frames.json`, in both directions.

use std::collections::BTreeSet;

use nolag_protocol::frame::{ClientFrame, ServerFrame};
use rmpv::Value as Msgpack;
use serde_json::Value;

use crate::tagged::{self, unhex};

pub(crate) struct Vector {
    pub(crate) name: String,
    pub(crate) case: Value,
    pub(crate) bytes: Vec<u8>,
}

impl Vector {
    fn is_from_server(&self) -> bool {
        match self.case["direction"].as_str() {
            Some("server") => true,
            Some("client") => false,
            other => panic!("{}: direction {other:?}", self.name),
        }
    }

    fn is_canonical(&self) -> bool {
        self.case.get("decode_only").is_none()
    }

    fn is_valid(&self) -> bool {
        self.case.get("expect_error").is_none()
    }

    fn value(&self) -> Msgpack {
        value(&self.bytes)
    }
}

/// What bytes hold, as an independent decoder reads it.
pub(crate) fn value(mut bytes: &[u8]) -> Msgpack {
    let value = rmpv::decode::read_value(&mut bytes).expect("MessagePack");
    assert!(bytes.is_empty(), "bytes are left over");
    value
}

/// The fields of a frame.
pub(crate) fn pairs(frame: &Msgpack) -> impl Iterator<Item = (&str, &Msgpack)> {
    let pairs = frame.as_map().expect("a frame is a map");
    pairs.iter().map(|(key, value)| (key.as_str().expect("its keys are strings"), value))
}

/// One field of a frame; of a repeated key the last value counts.
pub(crate) fn field<'f>(frame: &'f Msgpack, key: &str) -> Option<&'f Msgpack> {
    pairs(frame).filter(|(name, _)| *name == key).last().map(|(_, value)| value)
}

/// All frames of the file.
pub(crate) fn all() -> Vec<Vector> {
    let vector = |case: Value| Vector {
        name: case["name"].as_str().expect("a vector has a name").to_owned(),
        bytes: unhex(case["msgpack_hex"].as_str().expect("a vector has bytes")),
        case,
    };
    crate::cases(include_str!("../../vectors/frames.json")).into_iter().map(vector).collect()
}

fn valid() -> Vec<Vector> {
    all().into_iter().filter(Vector::is_valid).collect()
}

/// Either direction, so that one test goes over both.
#[derive(Debug, PartialEq)]
enum Frame<'a> {
    Client(ClientFrame<'a>),
    Server(ServerFrame<'a>),
}

impl<'a> Frame<'a> {
    fn decode(vector: &Vector, bytes: &'a [u8]) -> Self {
        let decoded = if vector.is_from_server() {
            ServerFrame::decode(bytes).map(Self::Server)
        } else {
            ClientFrame::decode(bytes).map(Self::Client)
        };
        decoded.unwrap_or_else(|malformed| panic!("{}: {malformed}", vector.name))
    }

    fn to_vec(&self) -> Vec<u8> {
        match self {
            Self::Client(frame) => frame.to_vec(),
            Self::Server(frame) => frame.to_vec(),
        }
    }

    fn kind(&self) -> Option<&str> {
        match self {
            Self::Client(frame) => frame.known_kind(),
            Self::Server(frame) => frame.known_kind(),
        }
    }

    fn is_unknown(&self) -> bool {
        matches!(self, Self::Client(ClientFrame::Unknown(_)) | Self::Server(ServerFrame::Unknown(_)))
    }
}

/// Valid frames that a decoded frame does not write again byte for byte, and the fields that it then lacks or
/// writes otherwise.
const REWRITTEN: &[(&str, &[&str], &str)] = &[
    ("auth_extra_fields", &["sdk", "future"], "unknown fields"),
    ("auth_python_sdk_reconnect", &["loadBalance", "loadBalanceGroup"], "fields of another frame"),
    ("publish_unknown_fields", &["ttl", "x"], "unknown fields"),
    ("subscribe_go_sdk_dialect", &["id"], "unknown field"),
    ("message_unknown_fields", &["traceId", "hops"], "unknown fields"),
    ("subscribe_group_nil", &["loadBalanceGroup"], "nil is absence"),
    ("subscribe_filters_nil", &["filters"], "nil is absence"),
    ("auth_ok_unknown_actor_type", &["projectId"], "nil is absence"),
    ("subscribe_qos_out_of_range", &["qos"], "unusable, so 1"),
    ("decode_wide_ints", &[], "wide integer"),
    ("decode_wide_map_and_str", &[], "long headers"),
    ("decode_duplicate_key_last_wins", &[], "repeated key"),
    ("decode_keys_in_other_order", &[], "order"),
    ("error_invalid_filter_subscribe", &[], "kraken's order"),
];

/// Frames of a type that nobody knows: they are recognised as such, and there is nothing to write.
const UNKNOWN: &[&str] = &["unknown_type", "unknown_server_type"];

/// K-001, C-007: the writers give exactly the bytes of another encoder, the fields in their order.
#[test]
fn primitives_are_written_canonically() {
    for vector in all().iter().filter(|vector| vector.is_canonical()) {
        if !vector.case["frame"].is_null() {
            assert_eq!(tagged::msgpack(&vector.case["frame"]), vector.bytes, "{}", vector.name);
        }
    }
}

/// C-006, C-007, K-001, K-002: every frame decodes, and is written again as it was, but for the few named above.
#[test]
fn frames_are_decoded_and_written_again() {
    let vectors = valid();
    let (mut rewritten, mut unknown) = (BTreeSet::new(), BTreeSet::new());
    for vector in &vectors {
        let frame = Frame::decode(vector, &vector.bytes);
        let written = frame.to_vec();
        if frame.is_unknown() {
            assert!(written.is_empty());
            unknown.insert(vector.name.as_str());
            continue;
        }
        assert_eq!(frame.kind(), vector.case["frame"]["type"].as_str(), "{}", vector.name);
        if written != vector.bytes {
            assert_eq!(Frame::decode(vector, &written), frame, "{}", vector.name);
            rewritten.insert(vector.name.as_str());
        }
    }
    assert_eq!(unknown, UNKNOWN.iter().copied().collect());
    assert_eq!(rewritten, REWRITTEN.iter().map(|(name, ..)| *name).collect());
}

/// C-006, C-009, K-002: what a rewritten frame holds is what the vector says, but for the fields named above.
#[test]
fn rewritten_frames_keep_all_that_is_known() {
    for vector in &valid() {
        let Some((name, lost, _)) = REWRITTEN.iter().find(|(name, ..)| *name == vector.name) else {
            continue;
        };
        let was = vector.value();
        let is = value(&Frame::decode(vector, &vector.bytes).to_vec());
        for (key, kept) in pairs(&is) {
            assert_ne!(field(&was, key) == Some(kept), lost.contains(&key), "{name}: {key}");
        }
        for (key, _) in pairs(&was) {
            assert!(field(&is, key).is_some() || lost.contains(&key), "{name}: {key} is gone");
        }
    }
}

/// C-013, C-014, C-015: an application's value is the bytes that came, whatever form they have.
#[test]
fn data_is_left_as_it_is() {
    for vector in &valid() {
        let data = match Frame::decode(vector, &vector.bytes) {
            Frame::Client(ClientFrame::Publish(publish)) => publish.data,
            Frame::Client(ClientFrame::Presence(presence)) => presence.data,
            Frame::Server(ServerFrame::Message(message)) => message.data,
            Frame::Server(ServerFrame::PresenceEvent(event)) => event.data,
            Frame::Server(ServerFrame::PresenceList(list)) => list.data,
            Frame::Server(ServerFrame::LobbyPresence(event)) => event.data,
            Frame::Server(ServerFrame::Hydration(hydration)) => hydration.data,
            _ => continue,
        };
        if vector.is_canonical() {
            assert_eq!(data.bytes, tagged::msgpack(&vector.case["frame"]["data"]), "{}", vector.name);
        } else {
            assert_eq!(field(&vector.value(), "data"), Some(&value(data.bytes)), "{}", vector.name);
        }
    }
}

/// C-003, C-004: a frame as JSON text becomes the bytes of the same frame, wherever JSON can say it (4.7).
#[cfg(feature = "json")]
#[test]
fn json_text_becomes_the_same_bytes() {
    let mut said = 0;
    for vector in all().iter().filter(|vector| vector.is_canonical()) {
        let frame = &vector.case["frame"];
        if frame.is_null() {
            continue;
        }
        let Some(text) = tagged::json(frame) else { continue };
        let bytes = nolag_protocol::json::to_msgpack(&text);
        assert_eq!(bytes.as_ref(), Ok(&Some(vector.bytes.clone())), "{}: {text}", vector.name);
        said += 1;
    }
    assert!(said > 150, "only {said} vectors were put into JSON");
}
