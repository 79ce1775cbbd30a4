//! What a decoder takes that an encoder of ours would not write, and where it draws the line (wire protocol 4, 6,
//! 10; features 2).

use nolag_protocol::frame::{
    Ack, ClientFrame, Fault, Malformed, Position, Publish, Qos, ServerFrame, Subscribe,
};
use nolag_protocol::msgpack::Contents;
use rmpv::{Value, encode::write_value};

/// A frame of `type` and these fields.
fn frame(kind: &str, fields: &[(&str, Value)]) -> Vec<u8> {
    let mut pairs = vec![(Value::from("type"), Value::from(kind))];
    pairs.extend(fields.iter().map(|(key, value)| (Value::from(*key), value.clone())));
    encode(&Value::Map(pairs))
}

/// What stands for a `str` that is no UTF-8: [`write_value`] would write such a one as `bin`.
const BROKEN: &str = "BROKEN";

fn encode(value: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    write_value(&mut out, value).expect("a vector");
    while let Some(at) = out.windows(BROKEN.len()).position(|bytes| bytes == BROKEN.as_bytes()) {
        out[at..at + BROKEN.len()].fill(0xff);
    }
    out
}

fn ext() -> Value {
    Value::Ext(7, vec![1, 2, 3])
}

fn broken_text() -> Value {
    Value::from(BROKEN)
}

fn topic() -> (&'static str, Value) {
    ("topic", Value::from("a/b"))
}

fn publish(bytes: &[u8]) -> Publish<'_> {
    match ClientFrame::decode(bytes) {
        Ok(ClientFrame::Publish(publish)) => publish,
        other => panic!("{other:?}"),
    }
}

fn subscribe(bytes: &[u8]) -> Subscribe<'_> {
    match ClientFrame::decode(bytes) {
        Ok(ClientFrame::Subscribe(subscribe)) => subscribe,
        other => panic!("{other:?}"),
    }
}

fn refused(bytes: &[u8]) -> Malformed<'_> {
    ClientFrame::decode(bytes).expect_err("malformed")
}

/// 4.1: nil is absence, also of what must be there; but for `data` (C-072, C-100).
#[test]
fn nil() {
    let bytes =
        frame("publish", &[topic(), ("data", Value::Nil), ("filter", Value::Nil), ("qos", Value::Nil)]);
    let decoded = publish(&bytes);
    assert_eq!(decoded.data.bytes, [0xc0]);
    assert_eq!((decoded.filter, decoded.qos), (None, None));
    assert_eq!(
        refused(&frame("subscribe", &[("topic", Value::Nil)])).fault,
        Fault::Missing { frame: "subscribe", field: "topic" }
    );
    assert_eq!(
        refused(&frame("setFilters", &[topic(), ("filters", Value::Nil)])).fault,
        Fault::Missing { frame: "setFilters", field: "filters" }
    );
}

/// C-078: 0, 1 and 2, and anything else for 1; a float is something else (4.3).
#[test]
fn quality_of_service() {
    for (value, qos) in [
        (Value::from(0), Qos::AtMostOnce),
        (Value::from(1), Qos::AtLeastOnce),
        (Value::from(2), Qos::ExactlyOnce),
        (Value::from(3), Qos::AtLeastOnce),
        (Value::from(-1), Qos::AtLeastOnce),
        (Value::from(2.0), Qos::AtLeastOnce),
        (Value::from("2"), Qos::AtLeastOnce),
    ] {
        let bytes = frame("publish", &[topic(), ("data", Value::from(1)), ("qos", value.clone())]);
        assert_eq!(publish(&bytes).qos, Some(qos), "{value}");
    }
}

/// C-020: a `protocolVersion` that is unusable counts as 1.
#[test]
fn protocol_version() {
    for (value, version) in [
        (Value::from(1), 1),
        (Value::from(2), 2),
        (Value::from(99), 99),
        (Value::from(0), 1),
        (Value::from(-2), 1),
        (Value::from(2.0), 1),
        (Value::from("2"), 1),
        (Value::Nil, 1),
    ] {
        let bytes = frame("auth", &[("token", Value::from("t")), ("protocolVersion", value.clone())]);
        let Ok(ClientFrame::Auth(auth)) = ClientFrame::decode(&bytes) else { panic!("{value}") };
        assert_eq!(auth.protocol_version.0, version, "{value}");
    }
}

/// C-061, C-066, C-083: of what counts only exactly, anything else is absent.
#[test]
fn only_exactly() {
    let bytes = frame(
        "publish",
        &[
            topic(),
            ("data", Value::from(1)),
            ("retain", Value::from(1)),
            ("echo", Value::from("false")),
            ("msgRef", Value::from(5)),
        ],
    );
    let decoded = publish(&bytes);
    assert_eq!((decoded.retain.0, decoded.echo.0, decoded.msg_ref.0), (None, None, None));
    let bytes = frame("publish", &[topic(), ("data", Value::from(1)), ("msgRef", Value::from(""))]);
    assert_eq!(publish(&bytes).msg_ref.non_empty(), None);
    let bytes = frame("auth", &[("token", Value::from("t")), ("reconnect", Value::from("true"))]);
    let Ok(ClientFrame::Auth(auth)) = ClientFrame::decode(&bytes) else { panic!("auth") };
    assert!(!auth.reconnect.is(true));
}

/// 4.3: whole numbers may be written as floats, where a number is read.
#[test]
fn numbers() {
    let of = |value: Value| {
        let bytes = frame("subscribe", &[topic(), ("history", value)]);
        ClientFrame::decode(&bytes).map_err(|malformed| malformed.fault).map(|frame| match frame {
            ClientFrame::Subscribe(subscribe) => subscribe.history,
            other => panic!("{other:?}"),
        })
    };
    for (value, number) in [
        (Value::from(20), 20),
        (Value::F32(20.0), 20),
        (Value::F64(-0.0), 0),
        (Value::F64(9_007_199_254_740_992.0), 1 << 53),
        (Value::from(u64::MAX), u64::MAX),
    ] {
        assert_eq!(of(value.clone()), Ok(Some(number)), "{value}");
    }
    for value in [
        Value::from(-1),
        Value::F64(0.5),
        Value::F64(-1.0),
        Value::F64(f64::NAN),
        Value::F64(f64::INFINITY),
        Value::F64(18_446_744_073_709_551_616.0),
        Value::from("20"),
        Value::from(true),
    ] {
        let fault = of(value.clone());
        assert!(matches!(fault, Err(Fault::WrongType { field: "history", .. })), "{value}: {fault:?}");
    }
}

/// 4.3: bytes are read as text where they are UTF-8; what is none makes the frame malformed.
#[test]
fn bytes_for_text() {
    let bin = |text: &str| Value::Binary(text.as_bytes().to_vec());
    let bytes = frame("publish", &[("topic", bin("a/b")), ("data", bin("x")), ("msgRef", bin("r"))]);
    let decoded = publish(&bytes);
    assert_eq!((decoded.topic, decoded.msg_ref.0), ("a/b", Some("r")));
    assert_eq!(decoded.data.bytes, [0xc4, 1, b'x'], "an application's bytes stay bytes");
    let keys = [(bin("type"), bin("ack")), (bin("msgId"), bin("m"))];
    assert_eq!(ClientFrame::decode(&encode(&Value::Map(keys.to_vec()))), Ok(Ack { msg_id: "m" }.into()));
    for key in ["topic", "msgRef", "filter", "qos", "trace"] {
        let fields = [("topic", Value::from("t")), ("data", Value::from(1)), (key, broken_text())];
        assert_eq!(refused(&frame("publish", &fields)).fault, Fault::BrokenText(key));
    }
}

/// C-013, C-015: an application's value may hold what an envelope must not, and it is known then.
#[test]
fn what_only_data_may_hold() {
    let data = Value::Array(vec![ext(), Value::Map(vec![(broken_text(), Value::from(1))])]);
    let bytes = frame("publish", &[topic(), ("data", data.clone())]);
    let decoded = publish(&bytes);
    assert_eq!(decoded.data.bytes, encode(&data));
    assert_eq!(decoded.data.contents, Contents { broken_text: true, ext: true });
    // Presence data in a snapshot is an application's too.
    let bytes = frame("lobbySubscribed", &[("lobbyId", Value::from("l")), ("presence", data.clone())]);
    let Ok(ServerFrame::LobbySubscribed(decoded)) = ServerFrame::decode(&bytes) else { panic!("a snapshot") };
    assert_eq!(decoded.presence.bytes, encode(&data));
    assert_eq!(decoded.presence.contents, Contents { broken_text: true, ext: true });
}

/// C-015, 4.8: an extension in a field of the frame, whatever the field would take otherwise, with what names the
/// request.
#[test]
fn extensions_in_the_envelope() {
    for key in ["qos", "retain", "echo", "filter", "filters", "trace"] {
        let nested = Value::Array(vec![Value::Map(vec![(Value::from("k"), ext())])]);
        for value in [ext(), nested] {
            let fields = [topic(), ("data", Value::from(1)), (key, value), ("msgRef", Value::from("r"))];
            assert_eq!(
                refused(&frame("publish", &fields)),
                Malformed { fault: Fault::Ext(key), topic: Some("a/b"), msg_ref: Some("r") }
            );
        }
    }
}

/// C-009, C-010: what the frame does not know is ignored, whatever it holds.
#[test]
fn unknown_fields_and_types() {
    let odd = Value::Array(vec![ext(), broken_text(), Value::Nil]);
    for key in ["future", "roomId", "msgIds", "presence"] {
        let bytes = frame("subscribe", &[topic(), (key, odd.clone())]);
        assert_eq!(subscribe(&bytes).topic, "a/b", "{key}");
    }
    let bytes = encode(&Value::Map(vec![
        (Value::from(1), odd.clone()),
        (Value::Nil, odd.clone()),
        (odd.clone(), odd.clone()),
        (broken_text(), odd.clone()),
        (Value::from("topic"), Value::from("a/b")),
        (ext(), odd.clone()),
        (Value::from("type"), Value::from("subscribe")),
    ]));
    assert_eq!(subscribe(&bytes).topic, "a/b");
    let bytes = frame("future", &[("topic", odd.clone()), ("data", odd)]);
    assert_eq!(ClientFrame::decode(&bytes), Ok(ClientFrame::Unknown("future")));
    assert_eq!(ServerFrame::decode(&bytes), Ok(ServerFrame::Unknown("future")));
}

/// C-062, 4.8: a malformed frame names its request as far as it can.
#[test]
fn blame() {
    let bytes = frame("publish", &[topic(), ("msgRef", Value::from("r"))]);
    let fault = Fault::Missing { frame: "publish", field: "data" };
    assert_eq!(refused(&bytes), Malformed { fault, topic: Some("a/b"), msg_ref: Some("r") });
    let bytes = frame("subscribe", &[("topic", Value::from(5)), ("msgRef", Value::from("r"))]);
    let fault = Fault::WrongType { frame: "subscribe", field: "topic", expected: "a string" };
    assert_eq!(refused(&bytes), Malformed { fault, topic: None, msg_ref: Some("r") });
}

/// Features 2: a position has a name of at most 64 bytes and a number below 2^53; anything else is malformed.
#[test]
fn positions() {
    let position = |epoch: Value, seq: Value| {
        Value::Map(vec![
            (Value::from("epoch"), epoch),
            (Value::from("seq"), seq),
            (Value::from("x"), Value::Nil),
        ])
    };
    let long = "e".repeat(64);
    let bytes = frame(
        "subscribe",
        &[topic(), ("recover", position(Value::from(long.as_str()), Value::from((1_u64 << 53) - 1)))],
    );
    assert_eq!(subscribe(&bytes).recover, Some(Position { epoch: &long, seq: (1 << 53) - 1 }));
    for (what, recover) in [
        ("too long", position(Value::from("e".repeat(65)), Value::from(1))),
        ("too high", position(Value::from("e"), Value::from(1_u64 << 53))),
        ("negative", position(Value::from("e"), Value::from(-1))),
        ("nil", position(Value::Nil, Value::from(1))),
        ("no text", position(Value::from(1), Value::from(1))),
        ("empty", Value::Map(Vec::new())),
        ("no map", Value::from(7)),
    ] {
        let fault = refused(&frame("subscribe", &[topic(), ("recover", recover)])).fault;
        assert!(matches!(fault, Fault::WrongType { field: "recover", .. }), "{what}: {fault:?}");
    }
}

/// 10.1, 16: the group counts only with `loadBalance`; empty or nil it is the actor's own.
#[test]
fn groups() {
    let of = |load_balance: Value, group: Value| {
        let fields = [topic(), ("loadBalance", load_balance), ("loadBalanceGroup", group)];
        subscribe(&frame("subscribe", &fields)).group().map(|group| group.map(|name| name.map(str::to_owned)))
    };
    let (yes, no) = (Value::from(true), Value::from(1));
    assert_eq!(of(yes.clone(), Value::from("g")), Ok(Some(Some("g".to_owned()))));
    assert_eq!(of(yes.clone(), Value::from("")), Ok(Some(None)));
    assert_eq!(of(yes.clone(), Value::Nil), Ok(Some(None)));
    assert_eq!(of(no.clone(), Value::from("g")), Ok(None));
    assert_eq!(of(no, Value::from(5)), Ok(None), "not read");
    assert!(of(yes, Value::from(5)).is_err());
}

/// Features 1: names that are none are ignored; 10.8: ids that are none are not.
#[test]
fn lists_of_text() {
    let list =
        || Value::Array(vec![Value::from("a"), Value::from(1), Value::Array(Vec::new()), Value::from("b")]);
    let bytes = frame("auth", &[("token", Value::from("t")), ("features", list())]);
    let Ok(ClientFrame::Auth(auth)) = ClientFrame::decode(&bytes) else { panic!("auth") };
    assert_eq!(auth.features, ["a", "b"]);
    let fault = refused(&frame("batchAck", &[("msgIds", list())])).fault;
    assert!(matches!(fault, Fault::WrongType { field: "msgIds", .. }), "{fault:?}");
}

/// K-005, K-046: what brokers before ours leave out, or send as nil.
#[test]
fn replies_of_other_brokers() {
    let bytes = frame("auth", &[("success", Value::from(true)), ("projectId", Value::Nil)]);
    let Ok(ServerFrame::AuthReply(reply)) = ServerFrame::decode(&bytes) else { panic!("auth") };
    assert_eq!((reply.protocol_version, reply.project_id, reply.features.len()), (None, None, 0));
    for fields in [&[("count", Value::from(2))][..], &[("replayed", Value::from(2))], &[]] {
        let bytes = frame("replayEnd", fields);
        assert!(matches!(ServerFrame::decode(&bytes), Ok(ServerFrame::ReplayEnd(_))), "{fields:?}");
    }
}

/// F-12, as far as it is a matter of reading.
#[test]
fn frames_that_come_together_are_read_one_after_another() {
    let first = ClientFrame::from(nolag_protocol::frame::Unsubscribe {
        topic: "a",
        msg_ref: nolag_protocol::frame::Lenient(None),
    });
    let unfit = b"\x81\xa4type\xa9subscribe";
    let both = [&*first.to_vec(), unfit, &first.to_vec()[..5]].concat();
    let (read, rest) = ClientFrame::decode_first(&both);
    assert_eq!(read, Ok(first));
    let (read, rest) = ClientFrame::decode_first(rest);
    assert!(matches!(read.unwrap_err().fault, Fault::Missing { field: "topic", .. }));
    let (read, rest) = ClientFrame::decode_first(rest);
    assert!(matches!(read.unwrap_err().fault, Fault::Syntax(_)));
    assert!(rest.is_empty(), "where a next frame would begin cannot be told");
    assert!(ClientFrame::decode(&both).is_err());
}
