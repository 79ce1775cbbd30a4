//! Connecting, staying connected and closing, on a stepped clock: statements `K-…` of the wire protocol, `API-…` of client-api.

use std::time::Duration;

use bytes::Bytes;
use nolag_core::Error;
use nolag_core::error::ConnectionCode;
use nolag_core::event::{Event, State, Warning};
use nolag_core::options::{Credentials, InitialConnect, Options, Secret};
use nolag_core::session::{Call, Token, TokenReason, Transport};
use nolag_protocol::frame::{AuthReply, ClientFrame, Disconnect, Nilable, ReauthReply};

#[path = "kit/mod.rs"]
mod kit;
use kit::*;

fn failed(code: ConnectionCode) -> Transport {
    Transport::Failed { code, message: "no".into(), retry_after: None }
}

/// K-003, K-019: `auth` first, version 2, the same `clientId` on every connection, and no `reconnect`.
#[test]
fn auth_is_the_first_frame() {
    let mut rig = Rig::new(quiet());
    rig.call(Call::Connect);
    rig.accept();
    rig.cut();
    rig.wait_for_attempt();
    rig.accept();
    let auths: Vec<_> = rig.history.iter().map(|(_, frame)| frame.clone()).collect();
    assert_eq!(auths.len(), 2);
    assert_eq!(auths[0], auths[1]);
    let ClientFrame::Auth(auth) = ClientFrame::decode(&auths[0]).unwrap() else { panic!() };
    assert_eq!((auth.token, auth.protocol_version.0, auth.reconnect.0), ("t-1", 2, None));
    assert_eq!(auth.client_id.map(str::len), Some(16));
}

/// K-005: an unknown actor type and a nil project do not matter.
#[test]
fn whoever_the_actor_is() {
    let mut rig = Rig::new(quiet());
    let connect = rig.call(Call::Connect);
    rig.open();
    rig.server(AuthReply { actor_type: Some("gardener"), project_id: Some(Nilable(None)), ..accepted() });
    assert!(rig.is_done(connect));
}

/// K-006: an unknown reason ends the attempts, and is told as it is.
#[test]
fn an_unknown_reason_is_final() {
    let mut rig = Rig::new(quiet());
    let connect = rig.call(Call::Connect);
    rig.refuse_auth("token_invalid");
    assert_eq!((rig.failure(connect).code(), rig.state()), ("token_invalid", State::Failed));
}

/// K-008, API-022, FC-29: at least 30 s after `connection_limit_reached` and 4002.
#[test]
fn the_connection_limit_is_waited_for() {
    let mut rig = Rig::new(quiet());
    rig.call(Call::Connect);
    rig.refuse_auth("connection_limit_reached");
    assert!(rig.wait_for_attempt() >= Duration::from_secs(30));
    rig.accept();
    rig.close(4002, "connection_limit_reached");
    assert!(rig.wait_for_attempt() >= Duration::from_secs(30));
}

/// K-010: no answer to `auth` within its time fails the attempt, and the socket is closed.
#[test]
fn an_unanswered_auth_fails_the_attempt() {
    let mut rig = Rig::new(quiet());
    rig.call(Call::Connect);
    rig.open();
    rig.wait(Duration::from_secs(10));
    assert_eq!(rig.closed.len(), 1);
    assert!(rig.errors().iter().any(|error| error.code() == "auth_timeout"));
    assert!(rig.is_open(nolag_core::session::RequestId(1)) || rig.state() == State::Backoff);
}

/// K-011, API-068: heartbeats every interval, on a busy connection too, and none is answered.
#[test]
fn heartbeats() {
    let mut rig = Rig::new(Options { heartbeat_interval: Duration::from_secs(30), ..options() });
    rig.call(Call::Connect);
    rig.accept();
    let before = rig.history.len();
    for _ in 0..300 {
        rig.wait(Duration::from_secs(1));
        rig.server(message("nobody's", None, &number(1)));
    }
    let beats: Vec<_> = rig.history[before..].iter().filter(|(_, frame)| frame.is_empty()).collect();
    assert_eq!(beats.len(), 10);
    rig.forget();
    rig.transport(Transport::Frame(Bytes::new()));
    assert!(rig.sent.iter().all(|(_, frame)| !frame.is_empty()), "an echo is not answered");

    let rig = Rig::new(Options { heartbeat_interval: Duration::from_secs(60), ..options() });
    assert_eq!(rig.events.front(), Some(&Event::Warning(Warning::HeartbeatCut)));
}

/// Client-api 10.6: a timer that comes late does not declare a loss; what arrived meanwhile has its chance.
#[test]
fn a_late_timer_is_no_loss() {
    let mut rig = Rig::connected(options());
    rig.now += ms(200);
    rig.session.wake(rig.now); // the heartbeat goes out
    rig.drain();
    rig.now += ms(5_000); // the process was not scheduled; the echo lies unread
    rig.session.wake(rig.now);
    rig.drain();
    rig.transport(Transport::Frame(Bytes::new()));
    rig.wait(ms(1_000));
    assert_eq!((rig.state(), rig.opened.len()), (State::Connected, 1));
}

/// API-069: five minutes of sleep lead to one probe, and to a new connection if it is not answered.
#[test]
fn a_clock_jump_is_probed() {
    for alive in [true, false] {
        let mut rig = Rig::connected(options());
        rig.now += Duration::from_secs(300);
        rig.session.wake(rig.now);
        rig.drain();
        assert_eq!(rig.state(), State::Connected);
        if alive {
            rig.transport(Transport::Frame(Bytes::new()));
        }
        rig.pass(ms(2_100), alive);
        assert_eq!(rig.state() == State::Connected, alive);
    }
}

/// Client-api 4: protocol errors are retried three times in a row, then that is all.
#[test]
fn protocol_errors_end_somewhere() {
    let mut rig = Rig::new(quiet());
    rig.call(Call::Connect);
    for _ in 0..3 {
        rig.accept();
        rig.close(1002, "");
        rig.wait_for_attempt();
    }
    rig.accept();
    rig.close(1002, "");
    assert_eq!(rig.state(), State::Failed);
}

/// K-015, API-022, API-073: 4001 and 4003 ask the provider once; without one they end it with the reason.
#[test]
fn a_revoked_token() {
    for (code, reason, told) in
        [(4001, "token_revoked", "token_revoked"), (4003, "token_expired", "token_expired")]
    {
        let mut rig = Rig::connected(quiet());
        let request = rig.publish("t", 1);
        rig.close(code, reason);
        assert_eq!(rig.state(), State::Failed);
        assert_eq!(rig.failure(request).code(), told);
        rig.wait(ms(5_000));
        assert_eq!(rig.opened.len(), 1);

        let mut rig = Rig::new(Options { credentials: Credentials::Provider, ..quiet() });
        rig.call(Call::Connect);
        rig.open();
        rig.token("T1");
        rig.server(accepted());
        rig.close(code, reason);
        assert_eq!(rig.opened.len(), 2, "at once");
        rig.open();
        let expected = if code == 4003 { TokenReason::Expired } else { TokenReason::Rejected };
        assert_eq!(rig.token_calls[1].1, expected);
        rig.token("T2");
        rig.server(accepted());
        assert_eq!(rig.state(), State::Connected);
    }
}

/// K-017: `reauth` before expiry; no answer or a refusal leads to a new connection with a fresh token.
#[test]
fn a_token_is_renewed() {
    for answer in [Some(true), Some(false), None] {
        let mut rig = Rig::new(Options { credentials: Credentials::Provider, ..quiet() });
        rig.call(Call::Connect);
        rig.open();
        let token = |rig: &mut Rig, name: &str| {
            let (call, ..) = *rig.token_calls.last().unwrap();
            let token = Token { secret: Secret::new(name), expires_in: Some(Duration::from_secs(90)) };
            rig.session.token(rig.now, call, Ok(token));
            rig.drain();
        };
        token(&mut rig, "T1");
        rig.server(accepted());
        rig.forget();
        rig.wait(Duration::from_secs(29));
        assert_eq!(rig.token_calls.len(), 1);
        rig.wait(Duration::from_secs(1));
        assert_eq!(rig.token_calls[1].1, TokenReason::Expired);
        token(&mut rig, "T2");
        assert_eq!(rig.frames(), ["reauth T2"]);
        match answer {
            Some(success) => rig.server(ReauthReply { success, auth_expires_at: None, error: None }),
            None => rig.wait(Duration::from_secs(10)),
        }
        if answer == Some(true) {
            assert_eq!(rig.opened.len(), 1);
            rig.wait(Duration::from_secs(30));
            assert_eq!(rig.token_calls.len(), 3, "and again");
        } else {
            assert_eq!(rig.closed, [(1000, "token_refresh", false)]);
            assert_eq!(rig.opened.len(), 2, "at once");
            rig.open();
            assert_eq!(rig.token_calls.len(), 3, "a fresh one");
        }
    }
}

/// K-030, API-036, Appendix B: what calls do without a connection.
#[test]
fn calls_without_a_connection() {
    let mut rig = Rig::new(quiet());
    let publish = rig.publish("t", 1);
    assert_eq!(rig.failure(publish), &Error::NotConnected);
    assert_eq!(rig.failure(publish).to_string(), "Not connected");
    let list = rig.call(Call::FetchPresence { room: room("r") });
    assert_eq!(rig.failure(list), &Error::NotConnected);
    let flush = rig.call(Call::Flush { timeout: None });
    assert!(rig.is_done(flush));
    let subscribe = rig.subscribe("t");
    assert!(rig.is_open(subscribe), "wanted, and pending");
    rig.call(Call::Connect);
    let waiting = rig.call(Call::FetchPresence { room: room("r") });
    assert!(rig.is_open(waiting));
    rig.call(Call::Disconnect);
    assert_eq!(rig.failure(subscribe).code(), "closed");
    assert_eq!(rig.failure(waiting).code(), "closed");
    let publish = rig.publish("t", 1);
    assert_eq!(rig.failure(publish).code(), "closed");
    rig.call(Call::Connect);
    rig.accept();
    assert_eq!(rig.frames().last().map(String::as_str), Some("subscribe t"), "still wanted");
}

/// K-058, API-075: no debug output shows the token.
#[test]
fn the_token_is_nowhere_to_be_seen() {
    let mut options = quiet();
    options.credentials = Credentials::Static(Secret::new("s3cret"));
    let token = Token { secret: Secret::new("s3cret"), expires_in: None };
    let call = Call::UpdateToken { token: Secret::new("s3cret") };
    let before = format!("{options:?} {token:?} {call:?}");
    let mut rig = Rig::new(options);
    rig.call(Call::Connect);
    rig.refuse_auth("access_denied");
    let text = format!("{before} {:?} {:?}", rig.events, rig.results);
    assert!(!text.contains("s3cret"), "{text}");
}

/// K-062, F-15: `disconnect` is no close, but its bound on the next attempt holds.
#[test]
fn a_disconnect_frame() {
    let mut rig = Rig::connected(quiet());
    rig.server(Disconnect { reason: "draining", retry_after_ms: Some(7_000) });
    assert_eq!(rig.state(), State::Connected);
    rig.close(1012, "draining");
    assert!(rig.wait_for_attempt() >= Duration::from_secs(7));
    rig.transport(Transport::Failed {
        code: ConnectionCode::HandshakeRejected(503),
        message: "later".into(),
        retry_after: Some(Duration::from_secs(7)),
    });
    assert!(rig.wait_for_attempt() >= Duration::from_secs(7), "API-023");
}

/// F-16: 10,000 clients that a broker sends away, told what `nolag-broker` tells them: one may come back every half millisecond,
/// the first after the wait that all have by themselves. No 100 ms hold more than 5 % of the returns.
#[test]
fn a_drain_brings_nobody_back_together() {
    const CLIENTS: u64 = 10_000;
    let mut returns: Vec<Duration> = (0..CLIENTS)
        .map(|n| {
            let mut rig = Rig::seeded(quiet(), n);
            rig.call(Call::Connect);
            rig.accept();
            rig.server(Disconnect { reason: "draining", retry_after_ms: Some(500 + 5_000 * n / CLIENTS) });
            rig.close(1012, "draining");
            rig.wait_for_attempt()
        })
        .collect();
    returns.sort_unstable();
    let within = |from: Duration| {
        returns.partition_point(|at| *at < from + ms(100)) - returns.partition_point(|at| *at < from)
    };
    let most = returns.iter().map(|at| within(*at)).max();
    assert!(most.is_some_and(|most| most <= 500), "{most:?} of 10,000 in 100 ms");
}

/// API-003, API-010: `connect` joins, and `close` is harmless in any state.
#[test]
fn connect_and_close_twice() {
    let mut rig = Rig::new(quiet());
    let idle = rig.call(Call::Close { flush: true, timeout: ms(10) });
    assert!(rig.is_done(idle));
    let calls = [rig.call(Call::Connect), rig.call(Call::Connect)];
    rig.accept();
    let third = rig.call(Call::Connect);
    assert!(calls.iter().chain([&third]).all(|call| rig.is_done(*call)));
    assert_eq!(rig.opened.len(), 1);
    rig.publish("t", 1);
    let closes = [0, 1].map(|_| rig.call(Call::Close { flush: true, timeout: ms(100) }));
    assert_eq!(rig.state(), State::Closing);
    let refused = rig.publish("t", 2);
    assert_eq!(rig.failure(refused).code(), "closed");
    rig.publish_all();
    assert!(closes.iter().all(|call| rig.is_done(*call)));
    assert_eq!(rig.state(), State::Closed);
}

/// API-009: a close that drains is over when its time is, whatever the broker does.
#[test]
fn a_close_has_an_end() {
    let mut rig = Rig::connected(quiet());
    let publish = rig.publish("t", 1);
    let close = rig.call(Call::Close { flush: true, timeout: ms(300) });
    rig.freeze(ms(299));
    assert!(rig.is_open(close));
    rig.freeze(ms(1));
    assert!(rig.is_done(close));
    assert!(rig.failure(publish).outcome_unknown());
}

/// Client-api 3.2: what the first attempt's failure means for `connect`.
#[test]
fn the_first_attempt() {
    for (initial_connect, state) in [
        (InitialConnect::Background, State::Backoff),
        (InitialConnect::Once, State::Failed),
        (InitialConnect::Wait, State::Backoff),
    ] {
        let mut rig = Rig::new(Options { initial_connect, ..quiet() });
        let connect = rig.call(Call::Connect);
        rig.transport(failed(ConnectionCode::Refused));
        assert_eq!(rig.state(), state);
        if initial_connect == InitialConnect::Wait {
            assert!(rig.is_open(connect));
            rig.freeze(Duration::from_secs(10));
            assert_eq!(rig.failure(connect).code(), "connect_timeout");
        } else {
            assert_eq!(rig.failure(connect).code(), "refused");
        }
    }
    // What cannot succeed fails at once while the client was never connected.
    for code in [ConnectionCode::Tls, ConnectionCode::HandshakeRejected(404)] {
        let mut rig = Rig::new(quiet());
        let connect = rig.call(Call::Connect);
        rig.transport(failed(code));
        assert!(rig.failure(connect).fatal());
        assert_eq!(rig.state(), State::Failed);
    }
}

/// API-018: a limit on attempts, after which `connect` works again.
#[test]
fn attempts_can_be_limited() {
    let mut rig = Rig::new(Options { max_attempts: Some(3), ..quiet() });
    let connect = rig.call(Call::Connect);
    let queued = rig.publish("t", 1);
    for n in 1..=3 {
        rig.transport(failed(ConnectionCode::Refused));
        if n < 3 {
            rig.wait_for_attempt();
        }
    }
    assert_eq!((rig.state(), rig.opened.len()), (State::Failed, 3));
    assert_eq!(rig.failure(connect).code(), "reconnect_exhausted");
    assert_eq!(rig.failure(queued).code(), "reconnect_exhausted");
    rig.call(Call::Connect);
    rig.accept();
    assert_eq!(rig.state(), State::Connected);
}

/// API-008 for the session: after `disconnect` nothing comes but what was pending; what the application never saw may come
/// again later.
#[test]
fn silence_after_disconnect() {
    let mut rig = Rig::connected(quiet());
    rig.subscribed("t");
    rig.server(message("t", Some("m-1"), &number(1)));
    let link = rig.link.unwrap();
    rig.call(Call::Disconnect);
    rig.forget();
    let frame = Bytes::from(message("t", Some("m-2"), &number(2)).to_vec());
    rig.session.transport(rig.now, link, Transport::Frame(frame));
    rig.drain();
    assert!(rig.events.is_empty());
    rig.call(Call::Connect);
    rig.accept();
    rig.server(subscribed("t"));
    rig.server(message("t", Some("m-1"), &number(1)));
    assert_eq!(rig.messages().len(), 1, "it was handed over, but never reported as dispatched");
}

/// Times that never come are no trouble: options may be as long as they like.
#[test]
fn endless_times() {
    let mut options = quiet();
    let times = [
        &mut options.connect_timeout,
        &mut options.auth_timeout,
        &mut options.ack_timeout,
        &mut options.presence_timeout,
        &mut options.heartbeat_timeout,
        &mut options.ack_batch_interval,
        &mut options.backoff.base,
        &mut options.backoff.max,
        &mut options.queue.ttl,
        &mut options.dedupe.window,
        &mut options.token_refresh_margin,
    ];
    for time in times {
        *time = Duration::MAX;
    }
    options.heartbeat_interval = Duration::from_secs(30);
    let mut rig = Rig::new(options);
    rig.wait(Duration::from_secs(1));
    rig.call(Call::Connect);
    rig.accept();
    rig.subscribed("t");
    for _ in 0..2 {
        rig.server(message("t", Some("m-1"), &number(1)));
    }
    assert_eq!(rig.messages().len(), 1);
    rig.publish("t", 1);
    let flush = rig.call(Call::Flush { timeout: Some(Duration::MAX) });
    let close = rig.call(Call::Close { flush: true, timeout: Duration::MAX });
    rig.wait(Duration::from_secs(3_600));
    assert!(rig.is_open(flush) && rig.is_open(close));
    rig.cut();
    rig.wait(Duration::from_secs(3_600));
    assert_eq!(rig.state(), State::Closed);
}
