//! Every field of every frame under its key, each set once: a literal of the type, and the frame as JSON.

#![cfg(feature = "json")]

use nolag_protocol::frame::*;
use nolag_protocol::json;
use serde_json::{Value, json};

/// The value 1.
const ONE: Data<'static> = Data { bytes: &[1], contents: NOTHING };
const NOTHING: nolag_protocol::msgpack::Contents =
    nolag_protocol::msgpack::Contents { broken_text: false, ext: false };
/// The value `["a"]`.
const LIST: Raw<'static> = Raw(&[0x91, 0xa1, b'a']);

fn bytes(frame: &Value) -> Vec<u8> {
    json::to_msgpack(&frame.to_string()).expect("JSON").expect("not empty")
}

fn client(frame: impl Into<ClientFrame<'static>>, json: &Value) {
    let (frame, bytes) = (frame.into(), bytes(json));
    assert_eq!(frame.to_vec(), bytes, "{frame:?} written");
    assert_eq!(ClientFrame::decode(&bytes), Ok(frame), "{json} read");
}

fn server(frame: impl Into<ServerFrame<'static>>, json: &Value) {
    let (frame, bytes) = (frame.into(), bytes(json));
    assert_eq!(frame.to_vec(), bytes, "{frame:?} written");
    assert_eq!(ServerFrame::decode(&bytes), Ok(frame), "{json} read");
}

#[test]
fn frames_of_clients_that_open_a_connection() {
    client(
        Auth {
            token: "t",
            protocol_version: Version(2),
            client_id: Some("c"),
            reconnect: Lenient(Some(false)),
            project_id: Some("p"),
            features: vec!["recover", "x"],
        },
        &json!({"type": "auth", "token": "t", "protocolVersion": 2, "clientId": "c", "reconnect": false,
            "projectId": "p", "features": ["recover", "x"]}),
    );
    client(Reauth { token: "t" }, &json!({"type": "reauth", "token": "t"}));
}

#[test]
fn frames_of_clients_about_topics() {
    client(
        Subscribe {
            topic: "t",
            qos: Some(Qos::ExactlyOnce),
            load_balance: Lenient(Some(true)),
            load_balance_group: Some(Raw(&[0xa1, b'g'])),
            filters: Some(LIST),
            recover: Some(Position { epoch: "e", seq: 7 }),
            history: Some(20),
            redeliver: Lenient(Some(true)),
            ack_timeout_ms: Some(30_000),
            msg_ref: Lenient(Some("r")),
        },
        &json!({"type": "subscribe", "topic": "t", "qos": 2, "loadBalance": true, "loadBalanceGroup": "g",
            "filters": ["a"], "recover": {"epoch": "e", "seq": 7}, "history": 20, "redeliver": true,
            "ackTimeoutMs": 30_000, "msgRef": "r"}),
    );
    client(
        Unsubscribe { topic: "t", msg_ref: Lenient(Some("r")) },
        &json!({"type": "unsubscribe", "topic": "t", "msgRef": "r"}),
    );
    client(
        SetFilters { topic: "t", filters: LIST, msg_ref: Lenient(Some("r")) },
        &json!({"type": "setFilters", "topic": "t", "filters": ["a"], "msgRef": "r"}),
    );
    client(
        Publish {
            topic: "t",
            data: ONE,
            qos: Some(Qos::AtMostOnce),
            retain: Lenient(Some(true)),
            retain_ttl: Some(60),
            echo: Lenient(Some(false)),
            filter: Some(Raw(&[0xa1, b'f'])),
            filters: Some(LIST),
            trace: Some("00-ab-cd-01"),
            msg_ref: Lenient(Some("r")),
        },
        &json!({"type": "publish", "topic": "t", "data": 1, "qos": 0, "retain": true, "retainTtl": 60,
            "echo": false, "filter": "f", "filters": ["a"], "trace": "00-ab-cd-01", "msgRef": "r"}),
    );
    client(Ack { msg_id: "m" }, &json!({"type": "ack", "msgId": "m"}));
    client(BatchAck { msg_ids: Ids(vec!["m", "n"]) }, &json!({"type": "batchAck", "msgIds": ["m", "n"]}));
}

#[test]
fn frames_of_clients_about_presence() {
    let (app, msg_ref) = (Some("a"), Lenient(Some("r")));
    client(
        Presence { app, room_id: Some("o"), data: ONE, msg_ref },
        &json!({"type": "presence", "app": "a", "roomId": "o", "data": 1, "msgRef": "r"}),
    );
    client(
        GetPresence { app, room_id: Some("o"), msg_ref },
        &json!({"type": "getPresence", "app": "a", "roomId": "o", "msgRef": "r"}),
    );
    client(
        LobbySubscribe { lobby_id: "l", msg_ref },
        &json!({"type": "lobbySubscribe", "lobbyId": "l", "msgRef": "r"}),
    );
    client(
        LobbyUnsubscribe { lobby_id: "l", msg_ref },
        &json!({"type": "lobbyUnsubscribe", "lobbyId": "l", "msgRef": "r"}),
    );
    client(
        GetLobbyPresence { lobby_id: "l", msg_ref },
        &json!({"type": "getLobbyPresence", "lobbyId": "l", "msgRef": "r"}),
    );
}

#[test]
fn frames_of_brokers_about_the_connection() {
    server(
        AuthReply {
            success: true,
            error: Some("e"),
            actor_token_id: Some("a"),
            project_id: Some(Nilable(Some("p"))),
            actor_type: Some("user"),
            protocol_version: Some(2),
            restored_subscriptions: Some(LIST),
            limits: Some(Limits { publishes_per_second: Some(1000), max_payload_bytes: Some(921_600) }),
            features: vec!["recover"],
            retry_after_ms: Some(5),
        },
        &json!({"type": "auth", "success": true, "error": "e", "actorTokenId": "a", "projectId": "p",
            "actorType": "user", "protocolVersion": 2, "restoredSubscriptions": ["a"],
            "limits": {"publishesPerSecond": 1000, "maxPayloadBytes": 921_600}, "features": ["recover"],
            "retryAfterMs": 5}),
    );
    server(
        ReauthReply { success: false, auth_expires_at: Some(9), error: Some("e") },
        &json!({"type": "reauth", "success": false, "authExpiresAt": 9, "error": "e"}),
    );
    server(
        Disconnect { reason: "draining", retry_after_ms: Some(5) },
        &json!({"type": "disconnect", "reason": "draining", "retryAfterMs": 5}),
    );
    server(
        ErrorReply {
            code: Some(42940),
            error: "e",
            hint: Some("h"),
            detail: Some("d"),
            topic: Some("t"),
            app: Some("a"),
            room_id: Some("o"),
            lobby_id: Some("l"),
            max_size_bytes: Some(1),
            msg_ref: Some("r"),
        },
        &json!({"type": "error", "code": 42940, "error": "e", "hint": "h", "detail": "d", "topic": "t",
            "app": "a", "roomId": "o", "lobbyId": "l", "maxSizeBytes": 1, "msgRef": "r"}),
    );
}

#[test]
fn frames_of_brokers_about_topics() {
    let msg_ref = Some("r");
    server(
        Subscribed {
            topic: "t",
            load_balance: Some(false),
            epoch: Some("e"),
            seq: Some(0),
            recovered: Some(false),
            gap: Some("expired"),
            msg_ref,
        },
        &json!({"type": "subscribed", "topic": "t", "loadBalance": false, "epoch": "e", "seq": 0,
            "recovered": false, "gap": "expired", "msgRef": "r"}),
    );
    server(
        Unsubscribed { topic: "t", reason: Some("not_authorized"), msg_ref },
        &json!({"type": "unsubscribed", "topic": "t", "reason": "not_authorized", "msgRef": "r"}),
    );
    server(
        FiltersUpdated { topic: "t", filters: Some(LIST), msg_ref },
        &json!({"type": "filtersUpdated", "topic": "t", "filters": ["a"], "msgRef": "r"}),
    );
    server(
        Published { topic: "t", msg_ref, duplicate: Some(true), level: Some("disk") },
        &json!({"type": "published", "topic": "t", "msgRef": "r", "duplicate": true, "level": "disk"}),
    );
    server(
        Hydration { topic: "t", data: ONE, full_topic: Some("a/t") },
        &json!({"type": "hydration", "topic": "t", "data": 1, "fullTopic": "a/t"}),
    );
    server(
        ReplayStart {
            topic: Some("t"),
            count: Some(2),
            oldest_timestamp: Some(3),
            newest_timestamp: Some(4),
        },
        &json!({"type": "replayStart", "topic": "t", "count": 2, "oldestTimestamp": 3, "newestTimestamp": 4}),
    );
    server(
        ReplayEnd { topic: Some("t"), count: Some(2), replayed: Some(2) },
        &json!({"type": "replayEnd", "topic": "t", "count": 2, "replayed": 2}),
    );
}

/// The frame with the most fields there are room for in a header of one byte.
#[test]
fn a_message() {
    server(
        Message {
            topic: "t",
            data: ONE,
            msg_id: Some("m"),
            requires_ack: Some(true),
            is_replay: Some(false),
            from: Some("a"),
            from_type: Some("actor"),
            filter: Some("f"),
            timestamp: Some(1_780_000_000_123),
            source_topic: Some("s"),
            retained: Some(true),
            seq: Some(8),
            redelivered: Some(true),
            trace: Some("00-ab-cd-01"),
        },
        &json!({"type": "message", "topic": "t", "data": 1, "msgId": "m", "requiresAck": true,
            "isReplay": false, "from": "a", "fromType": "actor", "filter": "f",
            "timestamp": 1_780_000_000_123_u64, "sourceTopic": "s", "retained": true, "seq": 8,
            "redelivered": true, "trace": "00-ab-cd-01"}),
    );
}

#[test]
fn frames_of_brokers_about_presence() {
    let (app, room_id, truncated, msg_ref) = (Some("a"), Some("o"), Some(true), Some("r"));
    server(
        PresenceUpdated { app, room_id, msg_ref },
        &json!({"type": "presenceUpdated", "app": "a", "roomId": "o", "msgRef": "r"}),
    );
    server(
        PresenceList { app, room_id, data: ONE, truncated, msg_ref },
        &json!({"type": "presenceList", "app": "a", "roomId": "o", "data": 1, "truncated": true,
            "msgRef": "r"}),
    );
    server(
        PresenceEvent { event: "join", app, room_id, data: ONE },
        &json!({"type": "presence", "event": "join", "app": "a", "roomId": "o", "data": 1}),
    );
    server(
        LobbySubscribed { lobby_id: "l", presence: ONE, truncated, msg_ref },
        &json!({"type": "lobbySubscribed", "lobbyId": "l", "presence": 1, "truncated": true, "msgRef": "r"}),
    );
    server(
        LobbyPresenceList { lobby_id: "l", presence: ONE, truncated, msg_ref },
        &json!({"type": "lobbyPresenceList", "lobbyId": "l", "presence": 1, "truncated": true,
            "msgRef": "r"}),
    );
    server(
        LobbyUnsubscribed { lobby_id: "l", msg_ref },
        &json!({"type": "lobbyUnsubscribed", "lobbyId": "l", "msgRef": "r"}),
    );
    server(
        LobbyPresence {
            event: "join",
            lobby_id: "l",
            room_id: Some(Nilable(Some("o"))),
            actor_id: "x",
            data: ONE,
            lobby_uuid: Some("u"),
            app,
        },
        &json!({"type": "lobbyPresence", "event": "join", "lobbyId": "l", "roomId": "o", "actorId": "x",
            "data": 1, "lobbyUuid": "u", "app": "a"}),
    );
}

/// 6.3, 20.3: where a table says "or nil", nil is written.
#[test]
fn nil_is_written_where_it_belongs() {
    let frame = LobbyPresence {
        event: "leave",
        lobby_id: "l",
        room_id: Some(Nilable(None)),
        actor_id: "x",
        data: Data::new(&[0x80]),
        lobby_uuid: None,
        app: None,
    };
    let json = json!({"type": "lobbyPresence", "event": "leave", "lobbyId": "l", "roomId": null,
        "actorId": "x", "data": {}});
    assert_eq!(frame.to_vec(), bytes(&json));
}
