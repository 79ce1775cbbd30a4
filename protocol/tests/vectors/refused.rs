//! The frames of `frames.json` that a broker refuses: who decides, and what is answered.
//!
//! `answer` asks this crate in the order that a broker does, as far as frames, topics, grants and filters go.
//! What depends on a connection's state is the broker's, and named here.

use std::collections::BTreeSet;

use nolag_protocol::codes::{self, ErrorCode};
use nolag_protocol::filter::{self, FilterError};
use nolag_protocol::frame::{ClientFrame, ErrorReply, Fault, Publish, Published, Subscribe, Subscribed};
use nolag_protocol::grant::{self, Operation, Rule};
use nolag_protocol::topic;
use rmpv::Value as Msgpack;
use serde_json::{Value, json};

use crate::frames::{Vector, all, field, pairs, value};
use crate::tagged;
use crate::topics::rules;

/// Frames whose answer depends on what the connection did before, on its rooms or its lobbies.
const BROKERS: &[&str] = &[
    "invalid_before_auth",
    "invalid_array_before_auth",
    "invalid_auth_without_token",
    "invalid_auth_token_not_string",
    "invalid_second_auth",
    "invalid_set_filters_not_subscribed",
    "invalid_presence_unknown_room",
    "invalid_lobby_not_allowed",
];

#[derive(Debug, Clone, Copy, PartialEq)]
enum Profile {
    Extended,
    Kraken,
}

fn refused() -> Vec<Vector> {
    all().into_iter().filter(|vector| vector.case.get("expect_error").is_some()).collect()
}

/// The grants that the vectors assume.
fn alice() -> Vec<Rule> {
    rules(&json!([{"pattern": "demo/general/#", "permission": "pubSub", "room_slug": "general"}]))
}

fn error<'a>(code: ErrorCode, topic: Option<&'a str>, msg_ref: Option<&'a str>) -> ErrorReply<'a> {
    ErrorReply {
        code: code.code,
        error: code.name,
        hint: None,
        detail: None,
        topic,
        app: None,
        room_id: None,
        lobby_id: None,
        max_size_bytes: None,
        msg_ref,
    }
}

/// What a broker answers on an authenticated connection; nothing where it drops the frame or has no reply.
fn answer(bytes: &[u8], profile: Profile) -> Option<Vec<u8>> {
    match ClientFrame::decode(bytes) {
        Err(_) if profile == Profile::Kraken => None,
        Err(malformed) => Some(error(codes::INVALID_MESSAGE, malformed.topic, malformed.msg_ref).to_vec()),
        Ok(ClientFrame::Publish(publish)) => answer_publish(&publish, profile),
        Ok(ClientFrame::Subscribe(subscribe)) => answer_subscribe(&subscribe, profile),
        Ok(other) => panic!("{other:?} is not refused here"),
    }
}

fn answer_publish(publish: &Publish<'_>, profile: Profile) -> Option<Vec<u8>> {
    let refuse = |code| Some(error(code, Some(publish.topic), publish.msg_ref.non_empty()).to_vec());
    if profile == Profile::Extended && topic::check_publish(publish.topic).is_err() {
        return refuse(codes::INVALID_TOPIC);
    }
    if grant::resolve(&alice(), Operation::Publish, publish.topic).is_none() {
        return refuse(codes::UNKNOWN_TOPIC);
    }
    match filter::publish_key(publish.filter.map(|raw| raw.0), publish.filters.map(|raw| raw.0)) {
        Err(FilterError::WrongType) if profile == Profile::Kraken => {}
        Err(_) => return refuse(codes::INVALID_FILTER),
        Ok(_) => {}
    }
    let msg_ref = publish.msg_ref.non_empty()?;
    Some(Published { topic: publish.topic, msg_ref: Some(msg_ref), duplicate: None, level: None }.to_vec())
}

fn answer_subscribe(subscribe: &Subscribe<'_>, profile: Profile) -> Option<Vec<u8>> {
    let refuse = |code| Some(error(code, Some(subscribe.topic), subscribe.msg_ref.non_empty()).to_vec());
    if profile == Profile::Extended && topic::check_subscribe(subscribe.topic).is_err() {
        return refuse(codes::INVALID_TOPIC);
    }
    match subscribe.group() {
        Err(_) if profile == Profile::Kraken => return None,
        Err(_) => return refuse(codes::INVALID_MESSAGE),
        // 16: no `/`, `+` or `#`, as in any other name.
        Ok(Some(Some(name))) if profile == Profile::Extended && topic::check_name(name).is_err() => {
            return refuse(codes::INVALID_MESSAGE);
        }
        Ok(_) => {}
    }
    if grant::resolve(&alice(), Operation::Subscribe, subscribe.topic).is_none() {
        return refuse(codes::UNKNOWN_TOPIC);
    }
    let refuse_filter = |code: ErrorCode| match profile {
        Profile::Extended => refuse(code),
        Profile::Kraken => refuse(ErrorCode { code: None, ..code }),
    };
    match filter::subscription_keys(subscribe.filters.map(|raw| raw.0)) {
        Err(FilterError::Chars) => return refuse_filter(codes::INVALID_FILTER_CHARS),
        Err(FilterError::TooMany) => return refuse_filter(codes::TOO_MANY_FILTERS),
        Err(FilterError::WrongType) if profile == Profile::Extended => return refuse(codes::INVALID_FILTER),
        Err(FilterError::WrongType) | Ok(_) => {}
    }
    let load_balance = Some(subscribe.load_balance.is(true));
    Some(
        Subscribed {
            topic: subscribe.topic,
            load_balance,
            epoch: None,
            seq: None,
            recovered: None,
            gap: None,
            msg_ref: subscribe.msg_ref.non_empty(),
        }
        .to_vec(),
    )
}

/// What becomes of a vector's frame.
enum Outcome {
    /// An answer that has these fields, and may have more.
    Reply(Msgpack),
    /// Nothing is sent, and the connection stays.
    Nothing,
    /// The vector leaves it open.
    Unspecified,
}

fn outcome(vector: &Vector, profile: Profile) -> Outcome {
    let profile = if profile == Profile::Extended { "extended" } else { "kraken" };
    match &vector.case["expect_error"][profile] {
        // kraken itself crashes; our broker in its place drops the frame (4.8).
        Value::Object(outcome) if outcome.contains_key("close") => Outcome::Nothing,
        Value::Object(outcome) if outcome.contains_key("unspecified") => Outcome::Unspecified,
        Value::Object(outcome) => match outcome.get("reply").expect("a reply, if nothing else") {
            Value::Null => Outcome::Nothing,
            reply => Outcome::Reply(value(&tagged::msgpack(reply))),
        },
        other => panic!("{}: {other} is no outcome", vector.name),
    }
}

/// C-011, C-012, C-015, C-044, C-056, C-062: the answers of both profiles.
#[test]
fn refused_frames_are_answered() {
    for vector in refused().iter().filter(|vector| !BROKERS.contains(&&*vector.name)) {
        for profile in [Profile::Extended, Profile::Kraken] {
            let context = format!("{}, {profile:?}", vector.name);
            let answer = answer(&vector.bytes, profile);
            match outcome(vector, profile) {
                Outcome::Unspecified => {}
                Outcome::Nothing => assert_eq!(answer, None, "{context}"),
                Outcome::Reply(wanted) => {
                    let answer = value(&answer.expect(&context));
                    for (key, wanted) in pairs(&wanted) {
                        assert_eq!(field(&answer, key), Some(wanted), "{context}: {key}");
                    }
                }
            }
        }
    }
}

/// 4.8: which of the broker's own are malformed, and which are good frames at a wrong moment.
#[test]
fn frames_that_the_broker_judges() {
    let refused = refused();
    let mut judged = BTreeSet::new();
    for vector in refused.iter().filter(|vector| BROKERS.contains(&&*vector.name)) {
        let fault = ClientFrame::decode(&vector.bytes).err().map(|malformed| malformed.fault);
        let expected = match &*vector.name {
            "invalid_array_before_auth" => Some(Fault::NotAMap),
            "invalid_auth_without_token" => Some(Fault::Missing { frame: "auth", field: "token" }),
            // Answered like a token that is not known, so the broker must be able to tell it from the rest.
            "invalid_auth_token_not_string" => {
                Some(Fault::WrongType { frame: "auth", field: "token", expected: "a string" })
            }
            _ => None,
        };
        assert_eq!(fault, expected, "{}", vector.name);
        judged.insert(vector.name.as_str());
    }
    assert_eq!(judged, BROKERS.iter().copied().collect());
}

/// C-011, 4.8: each way of being malformed, told apart.
#[test]
fn faults_say_what_is_wrong() {
    let of = |name: &str| {
        let refused = refused();
        let vector = refused.iter().find(|vector| vector.name == name).expect(name);
        ClientFrame::decode(&vector.bytes).expect_err(name).fault.to_string()
    };
    for (name, says) in [
        ("invalid_truncated_map", "the MessagePack ends inside a value"),
        ("invalid_reserved_byte", "the byte 0xc1 is no MessagePack"),
        ("invalid_trailing_bytes", "bytes are left over after the value"),
        ("invalid_top_level_string", "a frame is a map"),
        ("invalid_no_type", "a frame has a `type`, a string"),
        ("invalid_type_not_string", "a frame has a `type`, a string"),
        ("invalid_publish_without_data", "publish needs data"),
        ("invalid_subscribe_topic_not_string", "topic of subscribe is a string"),
        ("invalid_batch_ack_not_array", "msgIds of batchAck is an array of at most 1,000 strings"),
        ("invalid_ext_in_envelope", "topic holds an extension value"),
        ("invalid_utf8_topic", "topic holds text that is not UTF-8"),
    ] {
        assert_eq!(of(name), says, "{name}");
    }
}
