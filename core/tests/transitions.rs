//! The transitions of client-api 2.2, one by one: what brings each about, where it leads, and what is told on the way.

use std::time::Duration;

use nolag_core::error::ConnectionCode;
use nolag_core::event::{Event, State};
use nolag_core::options::{Credentials, InitialConnect, Options};
use nolag_core::session::{Call, Hint, Transport};

#[path = "kit/mod.rs"]
mod kit;
use kit::*;

/// What was told since the last look.
fn story(rig: &mut Rig) -> Vec<String> {
    let told = rig.events.drain(..).map(|event| match event {
        Event::State { to, .. } => format!("→ {to:?}"),
        Event::Connecting => "connecting".into(),
        Event::Connected { .. } => "connect".into(),
        Event::Disconnected { reason, .. } => format!("disconnect: {reason}"),
        Event::Reconnecting { attempt, .. } => format!("reconnecting {attempt}"),
        Event::Ready(_) => "ready".into(),
        Event::Reconnected => "reconnect".into(),
        Event::Error(error) => format!("error {}", error.code()),
        Event::Failed(error) => format!("failed {}", error.code()),
        other => format!("{other:?}"),
    });
    told.collect()
}

fn refused() -> Transport {
    Transport::Failed { code: ConnectionCode::Refused, message: "refused".into(), retry_after: None }
}

fn hint(rig: &mut Rig, hint: Hint) {
    rig.session.hint(rig.now, hint);
    rig.drain();
}

/// A client that waits for its next attempt.
fn in_backoff() -> Rig {
    let mut rig = Rig::connected(quiet());
    rig.cut();
    assert_eq!(rig.state(), State::Backoff);
    rig.forget();
    rig
}

/// T1, API-007, API-018: `connect` begins from idle, closed and failed alike, with the attempts counted anew.
#[test]
fn t1_connect() {
    let mut rig = Rig::new(Options { max_attempts: Some(2), ..quiet() });
    for _ in 0..2 {
        rig.call(Call::Connect);
        assert_eq!(story(&mut rig), ["connecting", "→ Connecting"]);
        rig.transport(refused());
        assert_eq!(story(&mut rig), ["→ Backoff", "error refused", "reconnecting 1"]);
        rig.wait_for_attempt();
        rig.transport(refused());
        assert_eq!(rig.state(), State::Failed);
        rig.forget();
    }
    rig.call(Call::Connect);
    rig.call(Call::Disconnect);
    assert_eq!(rig.state(), State::Closed);
    rig.forget();
    rig.call(Call::Connect);
    assert_eq!(story(&mut rig), ["connecting", "→ Connecting"]);
}

/// T2, T3, K-003, API-005, API-034: the token is fetched when the transport is open, `auth` goes out, and its success connects; then
/// calls of `connect` resolve, and what was asked for before is restored.
#[test]
fn t2_and_t3_authenticating() {
    let mut rig = Rig::new(Options { credentials: Credentials::Provider, ..options() });
    let connect = rig.call(Call::Connect);
    rig.subscribe("t");
    assert!(rig.token_calls.is_empty());
    rig.forget();
    rig.open();
    assert_eq!((rig.token_calls.len(), rig.frames().len()), (1, 0));
    rig.token("T1");
    assert_eq!(rig.frames(), ["auth T1"]);
    assert_eq!(story(&mut rig), ["→ Authenticating"]);
    assert!(rig.is_open(connect));
    rig.server(accepted());
    assert_eq!(rig.session.actor_id(), Some("me"));
    assert!(rig.is_done(connect) && rig.session.is_recovering());
    assert_eq!(
        (story(&mut rig), rig.frames()),
        (vec!["→ Connected".into(), "connect".into()], vec!["subscribe t".into()])
    );
    rig.server(subscribed("t"));
    assert_eq!(story(&mut rig), ["ready"]);
    rig.wait(ms(200));
    assert!(rig.sent.iter().any(|(_, frame)| frame.is_empty()), "the heart beats");
}

/// T4: a failure that may pass is told, and followed by another attempt, from opening and from authenticating.
#[test]
fn t4_another_attempt() {
    let mut rig = Rig::new(quiet());
    rig.call(Call::Connect);
    rig.forget();
    rig.transport(refused());
    assert_eq!(story(&mut rig), ["→ Backoff", "error refused", "reconnecting 1"]);
    rig.wait_for_attempt();
    rig.refuse_auth("broker_unavailable");
    let told =
        ["→ Connecting", "→ Authenticating", "→ Backoff", "error broker_unavailable", "reconnecting 2"];
    assert_eq!(story(&mut rig), told);
}

/// T5: what cannot pass ends it, and so does any failure of the first attempt with `once`; calls and queued items fail.
#[test]
fn t5_given_up() {
    for (initial_connect, failure) in [(InitialConnect::Wait, None), (InitialConnect::Once, Some(refused()))]
    {
        let mut rig = Rig::new(Options { initial_connect, ..quiet() });
        let (connect, queued) = (rig.call(Call::Connect), rig.publish("t", 1));
        rig.forget();
        let code = match failure {
            Some(failure) => {
                rig.transport(failure);
                "refused"
            }
            None => {
                rig.refuse_auth("access_denied");
                assert_eq!(story(&mut rig)[0], "→ Authenticating");
                rig.events.clear();
                "access_denied"
            }
        };
        assert_eq!((rig.failure(connect).code(), rig.failure(queued).code()), (code, code));
        assert_eq!(rig.state(), State::Failed);
    }
}

/// T6, API-005: a loss (closed, or silence) is told once the state says so too, and another attempt follows.
#[test]
fn t6_lost() {
    let mut rig = Rig::connected(options());
    let list = rig.call(Call::FetchPresence { room: room("r") });
    rig.close(1001, "going away");
    assert_eq!(rig.failure(list).code(), "lost");
    assert_eq!(story(&mut rig), ["→ Backoff", "disconnect: going away", "reconnecting 1"]);
    rig.wait_for_attempt();
    rig.accept();
    rig.forget();
    rig.freeze(ms(402));
    let told =
        ["→ Backoff", "disconnect: the broker does not answer", "error heartbeat_timeout", "reconnecting 2"];
    assert_eq!(story(&mut rig), told);
}

/// T7: a close that cannot pass.
#[test]
fn t7_closed_for_good() {
    let mut rig = Rig::connected(quiet());
    let publish = rig.publish("t", 1);
    rig.close(1008, "too_many_auth_failures");
    assert!(rig.failure(publish).outcome_unknown());
    let told = [
        "→ Failed",
        "disconnect: too_many_auth_failures",
        "error too_many_auth_failures",
        "failed too_many_auth_failures",
    ];
    assert_eq!(story(&mut rig), told);
}

/// T8: back-off ends with its time, with `connect`, and with a hint.
#[test]
fn t8_back_off_ends() {
    let mut rig = in_backoff();
    assert!(rig.wait_for_attempt() > ms(0));
    let mut rig = in_backoff();
    rig.call(Call::Connect);
    assert_eq!(rig.state(), State::Connecting);
    for which in [Hint::Online, Hint::Resume, Hint::ReconnectNow, Hint::Slept(Duration::from_secs(60))] {
        let mut rig = in_backoff();
        hint(&mut rig, which);
        assert_eq!(story(&mut rig), ["→ Connecting"], "{which:?}");
    }
    // A wake-up that comes far too late: the process was not running.
    let mut rig = in_backoff();
    rig.now += Duration::from_secs(60);
    rig.session.wake(rig.now);
    rig.drain();
    assert_eq!((rig.state(), rig.opened.len()), (State::Connecting, 2));
}

/// T9, API-070: without a network, or asleep, no attempt is made, and one that runs is aborted.
#[test]
fn t9_suspended() {
    for which in [Hint::Offline, Hint::Suspend] {
        let mut rig = in_backoff();
        hint(&mut rig, which);
        assert_eq!(story(&mut rig), ["→ Suspended"], "{which:?}");
        rig.freeze(Duration::from_secs(299));
        assert_eq!(rig.opened.len(), 1);
        for authenticating in [false, true] {
            let mut rig = in_backoff();
            rig.wait_for_attempt();
            if authenticating {
                rig.open();
            }
            hint(&mut rig, which);
            assert_eq!((rig.state(), rig.link), (State::Suspended, None));
            assert_eq!(rig.closed.last(), Some(&(1000, "", true)), "aborted");
        }
        // A connection that is there is kept until it proves dead; then nothing is tried.
        let mut rig = Rig::connected(quiet());
        hint(&mut rig, which);
        assert_eq!(rig.state(), State::Connected);
        rig.cut();
        assert_eq!(rig.state(), State::Suspended);
    }
}

/// T10, API-070: what holds attempts back ends with the hint that took it away, with `connect`, and after five minutes in any case;
/// it is no failed attempt.
#[test]
fn t10_no_longer_suspended() {
    let suspended = || {
        let mut rig = in_backoff();
        hint(&mut rig, Hint::Offline);
        hint(&mut rig, Hint::Suspend);
        rig.freeze(Duration::from_secs(100));
        rig.forget();
        rig
    };
    let mut rig = suspended();
    hint(&mut rig, Hint::Online);
    assert_eq!(rig.state(), State::Suspended, "it sleeps still");
    hint(&mut rig, Hint::Resume);
    assert_eq!(story(&mut rig), ["→ Connecting"]);
    rig.transport(refused());
    assert_eq!(story(&mut rig).last().unwrap(), "reconnecting 1", "the count is as before");

    let mut rig = suspended();
    rig.call(Call::Connect);
    assert_eq!(story(&mut rig), ["→ Connecting"]);

    let mut rig = suspended();
    rig.freeze(Duration::from_secs(200));
    assert_eq!(story(&mut rig), ["→ Connecting"]);
    rig.transport(refused());
    assert_eq!(rig.state(), State::Suspended, "and again");
}

/// T11, API-018: attempts are exhausted.
#[test]
fn t11_exhausted() {
    let mut rig = Rig::new(Options { max_attempts: Some(1), ..quiet() });
    rig.call(Call::Connect);
    rig.accept();
    rig.forget();
    rig.cut();
    rig.wait_for_attempt();
    rig.transport(refused());
    let told = story(&mut rig);
    assert_eq!(
        told[4..],
        ["→ Failed", "error reconnect_exhausted", "failed reconnect_exhausted"],
        "{told:?}"
    );
}

/// T12, API-006: `disconnect` closes from every state; what is pending fails first, and the loss is told once.
#[test]
fn t12_disconnect() {
    let connecting = || {
        let mut rig = Rig::new(quiet());
        rig.call(Call::Connect);
        rig
    };
    let authenticating = || {
        let mut rig = connecting();
        rig.open();
        rig
    };
    let suspended = || {
        let mut rig = in_backoff();
        hint(&mut rig, Hint::Offline);
        rig
    };
    let closing = || {
        let mut rig = Rig::connected(quiet());
        rig.publish("t", 0);
        rig.call(Call::Close { flush: true, timeout: ms(1_000) });
        rig
    };
    let connected = || Rig::connected(quiet());
    let states: [&dyn Fn() -> Rig; 6] =
        [&connecting, &authenticating, &connected, &in_backoff, &suspended, &closing];
    for state in states {
        let mut rig = state();
        let before = rig.state();
        let was_up = matches!(before, State::Connected | State::Closing);
        let pending = (before != State::Closing).then(|| rig.publish("t", 1));
        rig.forget();
        let disconnect = rig.call(Call::Disconnect);
        assert!(rig.is_done(disconnect));
        assert_eq!((rig.state(), rig.link), (State::Closed, None), "from {before:?}");
        if let Some(pending) = pending {
            assert_eq!(rig.failure(pending).code(), "closed");
        }
        let told = story(&mut rig);
        let expected = ["→ Closed", "disconnect: Client disconnect"];
        assert_eq!(told, expected[..=usize::from(was_up)], "from {before:?}");
    }
}

/// T13, T14, API-009: `close` drains what was published, takes nothing new, and closes; or is over with its time, or when the broker
/// leaves.
#[test]
fn t13_and_t14_closing() {
    for end in ["drained", "time", "peer"] {
        let mut rig = Rig::connected(quiet());
        let publish = rig.publish("t", 1);
        let close = rig.call(Call::Close { flush: true, timeout: ms(300) });
        assert_eq!(story(&mut rig), ["→ Closing"]);
        let refused = rig.subscribe("t");
        assert_eq!(rig.failure(refused).code(), "closed");
        let reason = match end {
            "drained" => {
                assert_eq!(rig.publish_all(), [1]);
                assert!(rig.is_done(publish));
                "Client disconnect"
            }
            "time" => {
                rig.freeze(ms(300));
                "Client disconnect"
            }
            _ => {
                rig.close(1001, "going away");
                "going away"
            }
        };
        assert!(rig.is_done(close), "{end}");
        assert_eq!(end == "drained", rig.results[&publish].is_ok());
        assert_eq!(story(&mut rig), ["→ Closed".to_owned(), format!("disconnect: {reason}")], "{end}");
    }
}

/// T15: without `reconnect` a loss closes the client, and what is pending fails with `lost`.
#[test]
fn t15_no_reconnect() {
    let mut rig = Rig::connected(Options { reconnect: false, ..quiet() });
    let publish = rig.publish("t", 1);
    rig.cut();
    assert_eq!((rig.failure(publish).code(), rig.failure(publish).outcome_unknown()), ("lost", true));
    assert_eq!(story(&mut rig), ["→ Closed", "disconnect: connection lost"]);
}
