//! The field cases of the core, on a stepped clock (../shared/spec/field-cases.md).

use std::collections::BTreeSet;
use std::time::Duration;

use nolag_core::Error;
use nolag_core::event::{Event, Outcome, State};
use nolag_core::options::{AckMode, Credentials, Options};
use nolag_core::session::{Call, Dispatched, TokenReason};

#[path = "kit/mod.rs"]
mod kit;
use kit::*;

/// FC-01, K-016, API-072: a fresh token for every attempt, and no subscribe before auth success.
#[test]
fn a_fresh_token_before_authenticating_again() {
    let mut rig = Rig::new(Options { credentials: Credentials::Provider, ..quiet() });
    rig.call(Call::Connect);
    rig.open();
    assert!(rig.frames().is_empty());
    rig.token("T1");
    assert_eq!(rig.frames(), ["auth T1"]);
    rig.server(accepted());
    rig.subscribed("shop/floor/orders");
    rig.subscribed("shop/floor/stock");
    rig.cut();
    while rig.now < ms(3_000) {
        rig.wait_for_attempt();
        rig.transport(nolag_core::session::Transport::Failed {
            code: nolag_core::error::ConnectionCode::Refused,
            message: "refused".into(),
            retry_after: None,
        });
    }
    assert_eq!(rig.token_calls.len(), 1, "no token is fetched for a connection that is not there");
    rig.wait_for_attempt();
    rig.open();
    assert_eq!(rig.token_calls.len(), 2);
    assert_eq!(rig.token_calls[1].1, TokenReason::Reconnect);
    rig.wait(ms(150));
    assert!(rig.frames().is_empty());
    rig.token("T2");
    assert_eq!(rig.frames(), ["auth T2"]);
    rig.server(accepted());
    assert_eq!(rig.frames(), ["subscribe shop/floor/orders", "subscribe shop/floor/stock"]);
    assert_eq!(rig.token_calls.len(), 2);
}

/// FC-02, K-006, K-009, API-020: a refused token ends the attempts.
#[test]
fn a_refused_token_ends_the_attempts() {
    let mut rig = Rig::new(options());
    let connect = rig.call(Call::Connect);
    rig.refuse_auth("access_denied");
    assert_eq!(rig.failure(connect).code(), "access_denied");
    assert!(rig.failure(connect).fatal());
    assert_eq!(rig.state(), State::Failed);
    assert!(rig.link.is_none(), "the client closes what the broker leaves open");
    assert_eq!(rig.errors().len(), 1);
    rig.wait(ms(5_000));
    assert_eq!(rig.frames(), ["auth t-1"]);

    let mut rig = Rig::connected(options());
    rig.cut();
    rig.wait_for_attempt();
    rig.refuse_auth("access_denied");
    assert_eq!(rig.state(), State::Failed);
    rig.wait(ms(5_000));
    assert_eq!(rig.opened.len(), 2);

    for retried in ["broker_unavailable", "authentication_failed", "connection_failed"] {
        let mut rig = Rig::connected(options());
        rig.cut();
        rig.wait_for_attempt();
        rig.refuse_auth(retried);
        assert_eq!(rig.state(), State::Backoff, "{retried} is retried (K-007, API-021)");
        rig.wait_for_attempt();
        rig.accept();
        assert_eq!(rig.state(), State::Connected);
    }
}

/// FC-02, API-074: a provider is asked once more; the same token again, or a second refusal, ends it.
#[test]
fn a_provider_is_asked_once_more() {
    for second in ["T1", "T2"] {
        let mut rig = Rig::new(Options { credentials: Credentials::Provider, ..options() });
        let connect = rig.call(Call::Connect);
        rig.open();
        rig.token("T1");
        rig.server(nolag_protocol::frame::AuthReply {
            success: false,
            error: Some("access_denied"),
            ..accepted()
        });
        assert_eq!(rig.opened, [ms(0), ms(0)], "at once");
        rig.open();
        assert_eq!(rig.token_calls[1].1, TokenReason::Rejected);
        rig.token(second);
        if second == "T2" {
            rig.server(nolag_protocol::frame::AuthReply {
                success: false,
                error: Some("access_denied"),
                ..accepted()
            });
        }
        assert_eq!(rig.failure(connect).code(), "access_denied");
        assert_eq!(rig.state(), State::Failed);
        rig.wait(ms(5_000));
        assert_eq!(rig.opened.len(), 2);
    }
}

/// FC-03, K-018, API-014 … API-017: attempts are spread, grow, and start anew only after a stable connection.
#[test]
fn attempts_are_spread() {
    let mut first = Vec::new();
    let (mut sums, mut schedules) = ([0_u128; 4], BTreeSet::new());
    for seed in 0..500 {
        let mut options = quiet();
        options.backoff.base = ms(1_000);
        options.backoff.max = ms(30_000);
        options.connect_timeout = Duration::from_secs(1_000);
        let mut rig = Rig::seeded(options, seed);
        rig.call(Call::Connect);
        rig.accept();
        rig.cut();
        let mut schedule = Vec::new();
        for (n, sum) in sums.iter_mut().enumerate() {
            let delay = rig.wait_for_attempt();
            let full = ms(1_000 << n);
            assert!(delay >= full / 2 && delay <= full + ms(1), "{delay:?} after {n}");
            *sum += delay.as_millis();
            schedule.push(delay);
            rig.transport(nolag_core::session::Transport::Failed {
                code: nolag_core::error::ConnectionCode::Refused,
                message: "refused".into(),
                retry_after: None,
            });
        }
        first.push(schedule[0]);
        schedules.insert(schedule);
    }
    assert!(sums.is_sorted());
    assert_eq!(schedules.len(), 500, "no two clients have the same schedule");
    for window in 0..20 {
        let within = first.iter().filter(|at| (ms(window * 50)..ms(window * 50 + 100)).contains(at)).count();
        assert!(within <= 500 / 3, "{within} in 100 ms");
    }
}

/// FC-03, API-017: a connection that lasted resets the back-off, one that did not leaves it.
#[test]
fn only_a_stable_connection_resets_the_back_off() {
    let mut rig = Rig::new(quiet());
    rig.call(Call::Connect);
    for n in 0..4 {
        rig.accept();
        rig.wait(ms(50));
        rig.cut();
        let delay = rig.wait_for_attempt();
        assert!(delay >= ms(50 << n) && delay <= ms((100 << n) + 1), "{delay:?} after {n} short connections");
    }
    rig.accept();
    rig.wait(Duration::from_secs(10));
    rig.cut();
    assert!(rig.wait_for_attempt() <= ms(101));
}

/// FC-04, API-007: `disconnect()` during back-off is final until `connect()`; twice is harmless.
#[test]
fn disconnect_during_back_off_is_final() {
    let mut rig = Rig::connected(quiet());
    rig.subscribed("a/b/c");
    rig.cut();
    rig.wait(ms(20));
    assert_eq!(rig.state(), State::Backoff);
    let once = rig.call(Call::Disconnect);
    let twice = rig.call(Call::Disconnect);
    assert!(rig.is_done(once) && rig.is_done(twice));
    rig.wait(ms(3_000));
    assert_eq!((rig.state(), rig.opened.len()), (State::Closed, 1));
    rig.call(Call::Connect);
    rig.accept();
    assert_eq!(rig.frames(), ["auth t-1", "subscribe a/b/c"]);
    rig.cut();
    rig.wait_for_attempt();
    assert_eq!(rig.opened.len(), 3);
}

/// FC-05, K-013, API-019: a close that the application did not ask for is a loss.
#[test]
fn a_clean_close_is_a_loss() {
    for code in [Some(1000), Some(1001), None, Some(1006), Some(1011), Some(1012), Some(4008), Some(4999)] {
        let mut rig = Rig::connected(quiet());
        rig.subscribed("a/b/c");
        match code {
            Some(code) => rig.close(code, ""),
            None => rig.cut(),
        }
        let told = rig
            .events
            .iter()
            .any(|event| matches!(event, Event::Disconnected { close_code, .. } if *close_code == code));
        assert!(told, "{code:?}");
        let delay = rig.wait_for_attempt();
        assert!(delay >= ms(50) && delay <= ms(101), "{delay:?} after {code:?}");
        rig.accept();
        assert_eq!(rig.frames(), ["auth t-1", "subscribe a/b/c"], "{code:?}");
    }
    let mut rig = Rig::connected(quiet());
    rig.call(Call::Disconnect);
    assert_eq!(rig.closed, [(1000, "Client disconnect", false)]);
    rig.wait(ms(5_000));
    assert_eq!(rig.opened.len(), 1);
}

/// FC-06: an unsubscribe while offline settles at once, and nothing is sent for the topic.
#[test]
fn unsubscribe_while_offline() {
    let mut rig = Rig::connected(quiet());
    rig.subscribed("dock/bay-4/events");
    rig.cut();
    let request = rig.unsubscribe("dock/bay-4/events");
    assert!(rig.is_done(request));
    rig.wait_for_attempt();
    rig.accept();
    rig.server(message("dock/bay-4/events", Some("m-1"), &number(1)));
    rig.wait(ms(5_000));
    assert_eq!(rig.frames(), ["auth t-1"]);
    assert!(rig.messages().is_empty());
}

/// FC-07: subscribe, unsubscribe, subscribe in quick succession: the broker is never asked for what it holds.
#[test]
fn quick_subscribe_unsubscribe_subscribe() {
    let mut rig = Rig::connected(quiet());
    let calls = [rig.subscribe("t"), rig.unsubscribe("t"), rig.subscribe("t")];
    assert_eq!(rig.frames(), ["subscribe t"]);
    rig.server(subscribed("t"));
    assert!(calls.iter().all(|call| rig.is_done(*call)));
    assert!(rig.frames().is_empty());
    rig.server(message("t", Some("m-1"), &number(1)));
    assert_eq!(rig.messages().len(), 1);

    // The link is cut between the second and the third.
    let mut rig = Rig::connected(quiet());
    let (first, second) = (rig.subscribe("t"), rig.unsubscribe("t"));
    rig.cut();
    let third = rig.subscribe("t");
    rig.wait_for_attempt();
    rig.forget();
    rig.accept();
    assert_eq!(rig.frames(), ["auth t-1", "subscribe t"]);
    rig.server(subscribed("t"));
    assert!([first, second, third].iter().all(|call| rig.is_done(*call)));

    // All three before the first connection.
    let mut rig = Rig::new(quiet());
    let calls = [rig.subscribe("t"), rig.unsubscribe("t"), rig.subscribe("t")];
    rig.call(Call::Connect);
    rig.accept();
    assert_eq!(rig.frames(), ["auth t-1", "subscribe t"]);
    rig.server(subscribed("t"));
    assert!(calls.iter().all(|call| rig.is_done(*call)));
}

/// After an unsubscribe the broker lets go in between, so that a retained message comes again (decided point 7).
#[test]
fn a_later_life_of_a_topic_is_a_new_subscription() {
    let mut rig = Rig::connected(quiet());
    rig.subscribed("t");
    rig.server(message("t", Some("kept"), &number(1)));
    assert_eq!(rig.messages().len(), 1);
    let calls = [rig.unsubscribe("t"), rig.subscribe("t")];
    assert_eq!(rig.frames(), ["unsubscribe t"]);
    rig.server(unsubscribed("t"));
    assert_eq!(rig.frames(), ["subscribe t"]);
    rig.server(subscribed("t"));
    assert!(calls.iter().all(|call| rig.is_done(*call)));
    rig.server(message("t", Some("kept"), &number(1)));
    assert_eq!(rig.messages().len(), 1);
}

/// FC-09, API-037, API-043: the queue keeps its order through two losses; at most 20 are in flight.
#[test]
fn the_offline_queue_keeps_its_order() {
    let mut rig = Rig::connected(Options { max_in_flight: 20, ..quiet() });
    rig.cut();
    let mut calls: Vec<_> = (1..=200).map(|n| rig.publish("a/b/c", n)).collect();
    rig.wait_for_attempt();
    rig.accept();
    calls.extend((201..=300).map(|n| rig.publish("a/b/c", n)));
    let mut seen = Vec::new();
    let mut cut = false;
    while seen.len() < 300 {
        assert!(rig.session.stats().outbox.in_flight <= 20);
        let (_, frame) = rig.sent.pop_front().expect("something to read");
        let nolag_protocol::frame::ClientFrame::Publish(publish) =
            nolag_protocol::frame::ClientFrame::decode(&frame).unwrap()
        else {
            continue;
        };
        let n = value(publish.data.bytes);
        if !seen.contains(&n) {
            seen.push(n);
        }
        if n == 120 && !cut {
            cut = true; // received, not answered
            rig.sent.clear();
            rig.cut();
            rig.wait_for_attempt();
            rig.accept();
            continue;
        }
        rig.server(published(publish.topic, publish.msg_ref.0));
    }
    assert!(seen.iter().copied().eq(1..=300), "first sight in order: {seen:?}");
    assert!(calls.iter().all(|call| rig.is_done(*call)));
}

/// FC-10, API-056: a repeated message is acknowledged and not handed over again, over a reconnect too.
#[test]
fn a_repeat_is_acknowledged_and_dropped() {
    let mut rig = Rig::connected(quiet());
    rig.subscribed("t");
    rig.server(message("t", Some("m-1"), &number(1)));
    let delivery = rig.messages()[0].delivery;
    rig.cut();
    rig.session.dispatched(rig.now, Dispatched::UpTo(delivery));
    rig.drain();
    rig.wait_for_attempt();
    rig.accept();
    assert_eq!(rig.frames(), ["auth t-1", "subscribe t", "ack m-1"], "kept over the loss (API-058)");
    rig.server(subscribed("t"));
    rig.server(message("t", Some("m-1"), &number(1)));
    rig.server(message("t", Some("m-1"), &number(1)));
    rig.server(message("t", Some("m-2"), &number(2)));
    let messages = rig.messages();
    assert_eq!(messages.len(), 1);
    rig.session.dispatched(rig.now, Dispatched::UpTo(messages[0].delivery));
    rig.drain();
    assert_eq!(rig.frames(), ["ack m-1", "ack m-1", "ack m-2"]);
    assert_eq!(rig.session.stats().duplicates, 2);
    for n in 0..30_000 {
        rig.server(message("t", Some(&format!("id-{n}")), &number(1)));
        let delivery = rig.messages()[0].delivery;
        rig.session.dispatched(rig.now, Dispatched::UpTo(delivery));
        rig.drain();
        rig.sent.clear();
    }
    assert_eq!(rig.session.stats().remembered_ids, 10_000, "bounded");
}

/// FC-11 (a), (b): a publish without an answer is sent again after a cut, and fails at a disconnect.
#[test]
fn a_publish_without_an_answer_over_a_cut() {
    let mut rig = Rig::connected(quiet());
    let request = rig.publish("t", 7);
    let msg_ref = rig.sent_ref(0);
    rig.cut();
    rig.wait_for_attempt();
    rig.forget();
    rig.accept();
    assert_eq!(rig.frames(), ["auth t-1", "publish t 7"]);
    rig.server(published("t", Some(&msg_ref)));
    assert_eq!(rig.receipt(request).attempts, 2);
    assert_eq!(rig.receipt(request).outcome, Outcome::Accepted);

    let request = rig.publish("t", 8);
    rig.call(Call::Disconnect);
    assert_eq!(rig.failure(request).code(), "closed");
    assert!(rig.failure(request).outcome_unknown());
}

/// FC-11 (c), API-049, K-028: silence beyond the ack timeout. The connection is probed; one that lives makes the publish
/// fail, one that is dead makes it go again. A late answer is of no account.
#[test]
fn a_publish_without_an_answer_on_a_live_connection() {
    let mut rig = Rig::connected(quiet());
    let request = rig.publish("t", 7);
    let msg_ref = rig.sent_ref(0);
    rig.wait(ms(499));
    assert!(rig.is_open(request));
    rig.wait(ms(1_002)); // the probe is answered, and one more second passes
    assert_eq!(rig.failure(request).code(), "ack_timeout");
    assert!(rig.failure(request).outcome_unknown());
    rig.server(published("t", Some(&msg_ref)));
    assert_eq!(rig.state(), State::Connected);
    assert_eq!(rig.session.stats().open_calls, 0);

    let request = rig.publish("t", 8);
    rig.freeze(ms(800));
    assert!(rig.is_open(request));
    assert_ne!(rig.state(), State::Connected, "a dead connection");
}

/// FC-11: a thousand of each kind leave nothing behind.
#[test]
fn nothing_is_left_pending() {
    for how in 0..3 {
        let mut rig = Rig::connected(quiet());
        let mut calls = Vec::new();
        for n in 0..1_000 {
            calls.push(rig.publish("t", n));
            calls.push(rig.subscribe(&format!("t/{n}")));
            calls.push(rig.call(Call::FetchPresence { room: room("r") }));
        }
        for n in 0..1_000 {
            calls.push(rig.unsubscribe(&format!("t/{n}")));
        }
        match how {
            0 => drop(rig.call(Call::Disconnect)),
            1 => {
                rig.cut();
                rig.wait_for_attempt();
                rig.accept();
                rig.publish_all();
                rig.wait(ms(30_000));
            }
            _ => {
                // Nothing but heartbeats is answered: the line moves on with each batch that times out.
                for _ in 0..40 {
                    rig.wait(ms(30_000));
                }
            }
        }
        while !rig.sent.is_empty() {
            rig.publish_all();
        }
        rig.wait(ms(400_000));
        assert!(calls.iter().all(|call| !rig.is_open(*call)), "way {how}");
        let stats = rig.session.stats();
        assert_eq!((stats.open_calls, stats.outbox.queued, stats.outbox.in_flight), (0, 0, 0), "way {how}");
    }
}

/// FC-15, K-012, API-067: a half-open link is dropped, without waiting for a close handshake.
#[test]
fn a_half_open_link_is_dropped() {
    let mut rig = Rig::connected(options());
    rig.subscribed("t");
    let request = rig.publish("t", 1);
    rig.freeze(ms(402));
    assert_eq!(rig.state(), State::Backoff);
    assert_eq!(rig.closed, [(1000, "", true)], "aborted");
    assert!(rig.events.iter().any(|event| matches!(event, Event::Disconnected { .. })));
    rig.freeze(ms(300));
    assert_eq!(rig.opened.len(), 2);
    assert!(rig.is_open(request), "unacknowledged, and to be sent again");
    rig.forget();
    rig.accept();
    rig.server(subscribed("t"));
    assert_eq!(rig.frames(), ["auth t-1", "subscribe t", "publish t 1"]);
}

/// FC-20: calls made while a message is being handled need nothing from its handler.
#[test]
fn calls_within_a_handler() {
    let mut rig = Rig::connected(Options { ack_mode: AckMode::AfterHandler, ..quiet() });
    rig.subscribed("rpc/desk/req");
    for n in 0..100 {
        rig.server(message("rpc/desk/req", Some(&format!("m-{n}")), &number(n)));
        let delivery = rig.messages()[0].delivery;
        let answer = rig.publish("rpc/desk/res", n);
        assert_eq!(rig.publish_all(), [n]);
        assert!(rig.is_done(answer), "before the handler has returned");
        rig.session.dispatched(rig.now, Dispatched::Finished(vec![(delivery, true)]));
        rig.drain();
        assert_eq!(rig.frames(), [format!("ack m-{n}")]);
    }
}

/// FC-21, K-041, API-057: a failing handler withholds the acknowledgement in `afterHandler` mode, and the message may come
/// again.
#[test]
fn a_handler_that_fails() {
    let mut rig = Rig::connected(Options { ack_mode: AckMode::AfterHandler, ..quiet() });
    rig.subscribed("t");
    for n in 1..=10 {
        rig.server(message("t", Some(&format!("m-{n}")), &number(n)));
    }
    let messages = rig.messages();
    let report = messages.iter().map(|message| (message.delivery, value(&message.data) != 5)).collect();
    rig.session.dispatched(rig.now, Dispatched::Finished(report));
    rig.drain();
    assert_eq!(rig.frames(), ["batchAck m-1,m-2,m-3,m-4,m-6,m-7,m-8,m-9,m-10"]);
    rig.server(message("t", Some("m-5"), &number(5)));
    rig.server(message("t", Some("m-6"), &number(6)));
    assert_eq!(rig.messages().len(), 1, "the failed one again, the other one not");
    assert_eq!(rig.frames(), ["ack m-6"]);
}

/// FC-22: while too many messages are handed out, the host is told to read no more.
#[test]
fn a_slow_handler_stops_the_reading() {
    let mut rig = Rig::connected(options());
    rig.subscribed("t");
    let mut sent = 0;
    while rig.session.wants_input() {
        sent += 1;
        rig.server(message("t", None, &number(sent)));
        assert!(sent <= 10_000);
    }
    let messages = rig.messages();
    assert_eq!(messages.len(), 1_024);
    rig.freeze(ms(10_000));
    assert_eq!(rig.state(), State::Connected, "silence of our own making is no loss");
    rig.session.dispatched(rig.now, Dispatched::UpTo(messages[0].delivery));
    assert!(rig.session.wants_input());
}

/// FC-23, API-038, API-040: the queue has an end, calls beyond it fail at once, and quality 0 is not kept.
#[test]
fn the_offline_queue_has_an_end() {
    let mut rig = Rig::connected(quiet());
    rig.cut();
    rig.freeze(ms(10));
    let mut kept = Vec::new();
    for n in 0..6_000 {
        if n % 2 == 0 {
            let request = rig.publish_qos0("a/b/c", n);
            assert_eq!(rig.failure(request), &Error::NotConnected);
        } else {
            let request = rig.publish("a/b/c", n);
            if rig.is_open(request) {
                kept.push((n, request));
            } else {
                assert_eq!(rig.failure(request).code(), "queue_full");
            }
        }
    }
    assert_eq!(kept.len(), 1_000);
    rig.wait_for_attempt();
    rig.accept();
    let mut seen = Vec::new();
    while !rig.sent.is_empty() {
        seen.extend(rig.publish_all());
    }
    assert!(seen.iter().eq(kept.iter().map(|(n, _)| n)));
    assert!(kept.iter().all(|(_, request)| rig.is_done(*request)));
}

/// FC-23: by bytes too, and the oldest go first where that is the policy.
#[test]
fn the_oldest_of_the_lowest_quality_goes_first() {
    let mut options = quiet();
    options.queue.max_messages = 3;
    options.queue.overflow = nolag_core::options::Overflow::DropOldest;
    options.queue.qos0 = nolag_core::options::Qos0::Queue;
    let mut rig = Rig::new(options);
    rig.call(Call::Connect);
    let reliable = [rig.publish("t", 1), rig.publish("t", 2)];
    let casual = rig.publish_qos0("t", 3);
    let third = rig.publish("t", 4);
    assert_eq!(rig.failure(casual).code(), "queue_full");
    let fourth = rig.publish("t", 5);
    assert_eq!(rig.failure(reliable[0]).code(), "queue_full");
    rig.accept();
    assert_eq!(rig.publish_all(), [2, 4, 5]);
    assert!([reliable[1], third, fourth].iter().all(|call| rig.is_done(*call)));
}
