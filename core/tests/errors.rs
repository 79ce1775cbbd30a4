//! API-002, API-094: each error is what the table for all languages says. (That a host, a port or a certificate leads to its code is
//! tested in `refusals.rs`.)

#![cfg(feature = "native")]

use std::time::Duration;

use bytes::Bytes;
use nolag_core::driver::memory::Memory;
use nolag_core::error::ConnectionCode;
use nolag_core::options::{InitialConnect, Options, PublishOptions, Queue};
use nolag_core::session::{Call, RequestId, Transport};
use nolag_core::{Client, Error};
use nolag_protocol::frame::{ErrorReply, Unsubscribed};
use rmpv::Value;

#[path = "kit/mod.rs"]
mod kit;
use kit::*;

const TABLE: &str = include_str!("../../conformance/client-errors.json");

/// How `connect` fails.
fn connecting(options: Options, fail: impl FnOnce(&mut Rig)) -> Error {
    let mut rig = Rig::new(Options { initial_connect: InitialConnect::Background, ..options });
    let connect = rig.call(Call::Connect);
    fail(&mut rig);
    rig.failure(connect).clone()
}

/// How a call fails on a connection.
fn calling(options: Options, call: impl FnOnce(&mut Rig) -> RequestId, then: impl FnOnce(&mut Rig)) -> Error {
    let mut rig = Rig::connected(options);
    let request = call(&mut rig);
    then(&mut rig);
    rig.failure(request).clone()
}

/// How a call fails without a connection.
fn offline(options: Options, call: impl FnOnce(&mut Rig) -> RequestId) -> Error {
    let mut rig = Rig::connected(options);
    rig.cut();
    let request = call(&mut rig);
    rig.freeze(ms(20));
    rig.failure(request).clone()
}

/// The error that the last event of that kind tells of.
fn told(then: impl FnOnce(&mut Rig)) -> Error {
    let mut rig = Rig::connected(options());
    then(&mut rig);
    rig.errors().last().unwrap().clone()
}

fn fails(code: ConnectionCode) -> impl FnOnce(&mut Rig) {
    move |rig| rig.transport(Transport::Failed { code, message: "…".into(), retry_after: None })
}

fn publish(rig: &mut Rig) -> RequestId {
    rig.publish("t", 1)
}

fn watch(rig: &mut Rig) -> RequestId {
    rig.call(Call::WatchLobby { lobby: "l".into() })
}

fn list(rig: &mut Rig) -> RequestId {
    rig.call(Call::FetchPresence { room: room("r") })
}

fn bytes(rig: &mut Rig, len: usize) -> RequestId {
    let payload = pack(&Value::Binary(vec![0; len]));
    rig.call(Call::Publish { topic: "t".into(), payload, options: PublishOptions::default() })
}

/// What the table says of one error.
struct Row<'a>(&'a Value);

impl Row<'_> {
    fn get(&self, key: &str) -> Option<&Value> {
        self.0.as_map().unwrap().iter().find(|(name, _)| name.as_str() == Some(key)).map(|(_, value)| value)
    }

    fn text(&self, key: &str) -> Option<&str> {
        self.get(key).and_then(Value::as_str)
    }

    fn number(&self, key: &str) -> Option<u64> {
        self.get(key).and_then(Value::as_u64)
    }

    fn is(&self, key: &str) -> bool {
        self.get(key).and_then(Value::as_bool) == Some(true)
    }

    /// The broker answers what was sent first with this error.
    fn answer(&self, rig: &mut Rig) {
        let msg_ref = rig.sent_ref(0);
        rig.server(ErrorReply {
            code: self.number("serverCode"),
            max_size_bytes: self.number("maxSizeBytes"),
            msg_ref: Some(&msg_ref),
            ..error(self.text("code").unwrap())
        });
    }

    /// Brings it about; nothing where Rust knows no such situation.
    fn happens(&self) -> Option<Error> {
        let when = self.text("when").unwrap();
        if let Some(reason) = when.strip_prefix("auth is answered ") {
            return Some(connecting(quiet(), |rig| rig.refuse_auth(reason)));
        }
        Some(match when {
            "connect without a URL" => Client::builder("t").url("").build().unwrap_err(),
            "connect to ftp://" => Client::builder("t").url("ftp://broker").build().unwrap_err(),
            // Options that do not exist cannot be written in Rust; names that are none can.
            "an option that does not exist" => unconnected().app("a/b").unwrap_err(),
            "a call where the client cannot work" => return None,
            "publish before connect" => {
                let mut rig = Rig::new(quiet());
                let request = publish(&mut rig);
                rig.failure(request).clone()
            }
            "connect to an unknown host" => connecting(quiet(), fails(ConnectionCode::Dns)),
            "connect where nobody listens" => connecting(quiet(), fails(ConnectionCode::Refused)),
            "connect by TLS to a server without" => connecting(quiet(), fails(ConnectionCode::Tls)),
            "connect and be answered 404" => {
                connecting(quiet(), fails(ConnectionCode::HandshakeRejected(404)))
            }
            "connect and be answered 503" => {
                connecting(quiet(), fails(ConnectionCode::HandshakeRejected(503)))
            }
            "connect to a silent port" => connecting(quiet(), |rig| rig.freeze(Duration::from_secs(10))),
            "ask for presence and be cut" => calling(quiet(), list, Rig::cut),
            "publish without reconnection and be cut" => {
                calling(Options { reconnect: false, ..quiet() }, publish, Rig::cut)
            }
            "the broker falls silent" => told(|rig| rig.freeze(ms(402))),
            "the broker closes with 1002" => told(|rig| rig.close(1002, "")),
            "auth is not answered" => connecting(quiet(), |rig| {
                rig.open();
                rig.freeze(Duration::from_secs(10));
            }),
            "publish is answered" => calling(quiet(), publish, |rig| self.answer(rig)),
            "subscribe is answered" => calling(quiet(), |rig| rig.subscribe("t"), |rig| self.answer(rig)),
            "a lobby is answered" => calling(quiet(), watch, |rig| self.answer(rig)),
            "presence is answered" => calling(quiet(), list, |rig| self.answer(rig)),
            "publish more than the limit" => {
                let mut rig = Rig::connected(quiet());
                let request = bytes(&mut rig, 921_600);
                rig.failure(request).clone()
            }
            "publish to a wildcard" => calling(quiet(), |rig| rig.publish("a/+/b", 1), |_| {}),
            "the broker takes a subscription away" => told(|rig| {
                rig.subscribed("t");
                rig.server(Unsubscribed { reason: Some("not_authorized"), ..unsubscribed("t") });
            }),
            "publish is not answered" => calling(quiet(), publish, |rig| rig.wait(ms(1_600))),
            "subscribe is not answered" => {
                calling(quiet(), |rig| rig.subscribe("t"), |rig| rig.wait(ms(500)))
            }
            "presence is not answered" => calling(quiet(), list, |rig| rig.wait(Duration::from_secs(10))),
            "a lobby is not answered" => calling(quiet(), watch, |rig| rig.wait(ms(500))),
            "flush does not end" => {
                let flush = |rig: &mut Rig| {
                    publish(rig);
                    rig.call(Call::Flush { timeout: Some(ms(10)) })
                };
                calling(quiet(), flush, |rig| rig.wait(ms(10)))
            }
            "publish offline into a full queue" => {
                offline(queue(|queue| queue.max_messages = 1), |rig| [publish(rig), publish(rig)][1])
            }
            "wait offline for too long" => offline(queue(|queue| queue.ttl = ms(10)), publish),
            "publish offline more than the queue holds" => {
                offline(queue(|queue| queue.max_bytes = 100), |rig| bytes(rig, 200))
            }
            "publish what cannot be written" => {
                let payload = Bytes::from_static(&[0xc1]);
                let options = PublishOptions::default();
                let call = Call::Publish { topic: "t".into(), payload, options };
                calling(quiet(), |rig| rig.call(call), |_| {})
            }
            "publish after close" => {
                let mut rig = Rig::connected(quiet());
                rig.call(Call::Disconnect);
                let request = publish(&mut rig);
                rig.failure(request).clone()
            }
            "publish and disconnect" => calling(quiet(), publish, |rig| {
                let _ = rig.call(Call::Disconnect);
            }),
            "give up reconnecting" => {
                let mut rig = Rig::connected(Options { max_attempts: Some(1), ..quiet() });
                rig.cut();
                rig.wait_for_attempt();
                fails(ConnectionCode::Refused)(&mut rig);
                rig.errors().last().unwrap().clone()
            }
            other => panic!("no such situation: {other}"),
        })
    }
}

fn queue(change: impl FnOnce(&mut Queue)) -> Options {
    let mut options = quiet();
    change(&mut options.queue);
    options
}

fn unconnected() -> Client {
    let (transport, _) = Memory::new();
    Client::builder("t").transport(transport).build_with_driver().unwrap().0
}

#[test]
fn the_golden_table() {
    let table = nolag_protocol::json::to_msgpack(TABLE).unwrap().unwrap();
    let table = rmpv::decode::read_value(&mut &table[..]).unwrap();
    let rows = Row(&table).get("errors").unwrap().as_array().unwrap().clone();
    let mut seen = 0;
    for row in rows.iter().map(Row) {
        let Some(error) = row.happens() else { continue };
        let what = row.0;
        assert_eq!(
            (error.class(), error.code()),
            (row.text("class").unwrap(), row.text("code").unwrap()),
            "{what}"
        );
        let flags = (error.retryable(), error.fatal(), error.outcome_unknown());
        assert_eq!(
            flags,
            (row.is("retryable"), row.is("fatal"), row.is("outcomeUnknown")),
            "{what}: {error:?}"
        );
        assert_eq!(error.server_code(), row.number("serverCode"), "{what}");
        if let Some(message) = row.text("message") {
            assert_eq!(error.to_string(), message);
        }
        if let Some(max) = row.number("maxSizeBytes") {
            let Error::Server(server) = &error else { panic!("{error:?}") };
            assert_eq!(server.max_size_bytes, Some(max));
        }
        seen += 1;
    }
    assert_eq!(seen, rows.len() - 1);
}
