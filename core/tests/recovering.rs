//! Recovery on a stepped clock: positions, gaps, history, redelivery (features 2 and 6; client-api 2.3, 8 and 13).

use std::time::Duration;

use nolag_core::event::{Event, Gap, Message, Ready};
use nolag_core::options::{AckMode, Group, Options, Position, Qos, SubscribeOptions};
use nolag_core::session::{Call, RequestId};
use nolag_protocol::frame::{
    ClientFrame, ErrorReply, Message as MessageFrame, ReplayEnd, ReplayStart, Subscribed, Unsubscribed,
};

#[path = "kit/mod.rs"]
mod kit;
use kit::*;

fn at(seq: u64) -> Position {
    Position { epoch: "e".into(), seq }
}

fn subscribe(topic: &str, options: SubscribeOptions) -> Call {
    Call::Subscribe { topic: topic.into(), options }
}

fn plain() -> SubscribeOptions {
    SubscribeOptions::default()
}

/// A client with a subscription to `t`, which began at number 10.
fn joined(options: Options) -> Rig {
    let mut rig = Rig::granted(options, RECOVER);
    rig.subscribe("t");
    rig.server(subscribed_at("t", 10));
    rig.forget();
    rig
}

/// What the last `subscribe` asked for beside its messages: position and history.
fn join(rig: &Rig) -> (Option<Position>, Option<u64>) {
    let frames = rig.history.iter().rev().map(|(_, frame)| frame).filter(|frame| !frame.is_empty());
    for frame in frames {
        if let ClientFrame::Subscribe(frame) = ClientFrame::decode(frame).unwrap() {
            let recover = frame.recover.map(|at| Position { epoch: at.epoch.into(), seq: at.seq });
            return (recover, frame.history);
        }
    }
    panic!("no subscribe was sent");
}

fn offered(rig: &Rig) -> Option<Position> {
    join(rig).0
}

/// A message with a number, which is its payload and its id too.
fn send(rig: &mut Rig, seq: u64) {
    send_as(rig, seq, |_| {});
}

fn send_as(rig: &mut Rig, seq: u64, change: impl FnOnce(&mut MessageFrame<'_>)) {
    let (id, data) = (format!("m-{seq}"), number(seq));
    let mut frame = MessageFrame { seq: Some(seq), ..message("t", Some(&id), &data) };
    change(&mut frame);
    rig.server(frame);
}

fn replay(rig: &mut Rig, numbers: &[u64]) {
    let count = Some(numbers.len() as u64);
    rig.server(ReplayStart { topic: Some("t"), count, oldest_timestamp: None, newest_timestamp: None });
    for seq in numbers {
        send_as(rig, *seq, |frame| frame.is_replay = Some(true));
    }
    rig.server(ReplayEnd { topic: Some("t"), count, replayed: count });
}

fn numbers(messages: &[Message]) -> Vec<u64> {
    messages.iter().map(|message| value(&message.data)).collect()
}

fn received(rig: &mut Rig) -> Vec<u64> {
    numbers(&rig.messages())
}

fn gaps(events: &[Event]) -> Vec<Gap> {
    let gaps = events.iter().filter_map(|event| match event {
        Event::Gap(gap) => Some(gap.clone()),
        _ => None,
    });
    gaps.collect()
}

fn ready(events: &[Event]) -> Ready {
    let ready = events.iter().find_map(|event| match event {
        Event::Ready(ready) => Some(ready.clone()),
        _ => None,
    });
    ready.expect("it is ready")
}

fn kinds(events: &[Event]) -> Vec<&'static str> {
    let kind = |event: &Event| match event {
        Event::State { .. } => "state",
        Event::Connected { .. } => "connect",
        Event::Disconnected { .. } => "disconnect",
        Event::Reconnecting { .. } => "reconnecting",
        Event::Gap(_) => "gap",
        Event::Ready(_) => "ready",
        Event::Reconnected => "reconnect",
        Event::Message(message) if message.is_replay => "replayed",
        Event::Message(_) => "message",
        Event::ReplayStart { .. } => "replayStart",
        Event::ReplayEnd { .. } => "replayEnd",
        other => panic!("{other:?}"),
    };
    events.iter().map(kind).filter(|kind| *kind != "state").collect()
}

/// F-03, API-024, API-035: a subscription continues behind what has come, dispatched or not; what was missed comes once, in order,
/// before live messages, and nothing that came before comes again.
#[test]
fn a_subscription_continues() {
    let mut rig = joined(quiet());
    for seq in [12, 15] {
        send(&mut rig, seq);
    }
    assert_eq!(rig.session.position("t"), Some(at(10)), "nothing is dispatched yet");
    rig.dispatched(1);
    assert_eq!(rig.session.position("t"), Some(at(12)));
    assert_eq!(received(&mut rig), [12, 15]);
    rig.reconnect(RECOVER);
    assert_eq!(rig.frames(), ["auth t-1", "subscribe t"]);
    assert_eq!(join(&rig), (Some(at(15)), None), "15 is on its way to the application");
    rig.server(recovered("t", 20));
    assert_eq!(rig.session.position("t"), Some(at(12)), "as before");
    replay(&mut rig, &[16, 19]);
    send(&mut rig, 21);
    let events = rig.take_events();
    assert_eq!(
        kinds(&events),
        ["connect", "ready", "reconnect", "replayStart", "replayed", "replayed", "replayEnd", "message"]
    );
    let ready = ready(&events);
    assert_eq!((ready.resumed, ready.gaps.len(), ready.resubscribed.len()), (true, 0, 1));
    rig.dispatched(2);
    assert_eq!(rig.session.position("t"), Some(at(15)));
    rig.dispatched(5);
    assert_eq!(rig.session.position("t"), Some(at(21)));
    assert_eq!(rig.session.stats().gaps, 0);
}

/// Features 2: without anything missed neither frame of a replay comes, and the position stays until something is handed over.
#[test]
fn nothing_was_missed() {
    let mut rig = joined(quiet());
    rig.reconnect(RECOVER);
    rig.server(recovered("t", 40));
    assert_eq!(rig.session.position("t"), Some(at(10)));
    assert!(ready(&rig.take_events()).resumed);
    rig.reconnect(RECOVER);
    assert_eq!(offered(&rig), Some(at(10)));
    rig.server(recovered("t", 40));
    replay(&mut rig, &[31]);
    rig.dispatched(1);
    assert_eq!(rig.session.position("t"), Some(at(40)), "the end of a replay lifts it");
}

/// F-03, K-045, FC-10, client-api 8.3: a live message that is not newer than the position is dropped; replayed and retained ones go
/// by their id.
#[test]
fn repeats() {
    let mut rig = joined(quiet());
    for seq in [10, 12, 12, 11] {
        send(&mut rig, seq);
    }
    assert_eq!(received(&mut rig), [12]);
    assert_eq!(rig.session.stats().duplicates, 3);
    send_as(&mut rig, 5, |frame| frame.retained = Some(true));
    send_as(&mut rig, 5, |frame| frame.retained = Some(true));
    assert_eq!(received(&mut rig), [5], "retained is older, and not a repeat");
    rig.reconnect(RECOVER);
    rig.server(recovered("t", 14));
    rig.forget();
    replay(&mut rig, &[12, 13, 14]);
    send_as(&mut rig, 14, |frame| frame.is_replay = Some(false)); // held back during the replay, as it says
    send_as(&mut rig, 16, |frame| frame.is_replay = Some(false));
    assert_eq!(received(&mut rig), [13, 14, 16]);
}

/// K-043, API-056: a repeat of what was acknowledged is acknowledged again, one of what is on its way is not.
#[test]
fn repeats_are_acknowledged_again() {
    let mut rig = joined(quiet());
    for seq in [11, 12] {
        send(&mut rig, seq);
    }
    rig.dispatched(1);
    rig.forget();
    for seq in [11, 12] {
        send(&mut rig, seq);
    }
    assert_eq!(rig.frames(), ["ack m-11"]);
    assert!(received(&mut rig).is_empty());
}

/// API-057, API-101, features 2: with acknowledgement after the handlers the position moves when they have finished, and never past
/// one that runs; a failed one holds nothing up. What runs at a loss goes on, and is not asked for again.
#[test]
fn after_the_handlers() {
    let mut rig = joined(Options { ack_mode: AckMode::AfterHandler, ..quiet() });
    for seq in [11, 13, 14, 16] {
        send(&mut rig, seq);
    }
    rig.dispatched(4);
    assert_eq!(rig.session.position("t"), Some(at(10)), "their handlers run");
    rig.finished(&[(2, true)]);
    assert_eq!(rig.session.position("t"), Some(at(10)));
    rig.finished(&[(1, true)]);
    assert_eq!(rig.session.position("t"), Some(at(13)));
    rig.finished(&[(3, false)]);
    assert_eq!(rig.session.position("t"), Some(at(14)));
    assert_eq!(rig.frames(), ["ack m-13", "ack m-11"]);
    rig.reconnect(RECOVER);
    assert_eq!(offered(&rig), Some(at(16)));
    rig.server(recovered("t", 16));
    rig.forget();
    rig.finished(&[(4, true)]);
    assert_eq!(rig.frames(), ["ack m-16"], "on the connection that there is");
    assert_eq!(rig.session.position("t"), Some(at(16)));

    // What finishes while there is no connection is acknowledged on the next.
    send(&mut rig, 17);
    rig.cut();
    rig.finished(&[(5, true)]);
    assert_eq!(rig.session.position("t"), Some(at(17)));
    rig.wait_for_attempt();
    rig.forget();
    rig.accept_with(RECOVER);
    assert_eq!(rig.frames(), ["auth t-1", "subscribe t", "ack m-17"]);

    // The program ends while 19 is handled and 20 is done: the next one gets both again.
    rig.server(recovered("t", 17));
    for seq in [18, 19, 20] {
        send(&mut rig, seq);
    }
    rig.finished(&[(6, true), (8, true)]);
    let stored = rig.session.position("t");
    assert_eq!(stored, Some(at(18)));
    let mut next = Rig::granted(Options { ack_mode: AckMode::AfterHandler, ..quiet() }, RECOVER);
    next.call(subscribe("t", SubscribeOptions { resume_from: stored, ..plain() }));
    assert_eq!(offered(&next), Some(at(18)));
    next.server(recovered("t", 20));
    replay(&mut next, &[19, 20]);
    assert_eq!(received(&mut next), [19, 20]);
}

/// Client-api 8.4: in manual mode the application acknowledges, and the position moves when a message was dispatched.
#[test]
fn manual_mode() {
    let mut rig = joined(Options { ack_mode: AckMode::Manual, ..quiet() });
    send(&mut rig, 11);
    rig.dispatched(1);
    assert_eq!(rig.session.position("t"), Some(at(11)));
    assert!(rig.frames().is_empty(), "K-044");
    rig.call(Call::Ack { ids: vec!["m-11".into()] });
    assert_eq!(rig.frames(), ["ack m-11"]);
}

/// API-008, client-api 12.4: after `disconnect()` nothing is handed over any more, so what was on its way comes again when the
/// application connects again; what it had is not repeated.
#[test]
fn a_disconnect_forgets_what_was_on_its_way() {
    let mut rig = joined(Options { ack_mode: AckMode::AfterHandler, ..quiet() });
    for seq in [11, 12, 13] {
        send(&mut rig, seq);
    }
    rig.finished(&[(1, true), (3, true)]);
    rig.call(Call::Disconnect);
    assert_eq!(rig.session.position("t"), Some(at(11)));
    rig.finished(&[(2, true)]);
    assert_eq!(rig.session.position("t"), Some(at(11)), "too late");
    rig.call(Call::Connect);
    rig.forget();
    rig.accept_with(RECOVER);
    assert_eq!(offered(&rig), Some(at(11)));
    rig.server(recovered("t", 14));
    replay(&mut rig, &[12, 13, 14]);
    let messages = rig.messages();
    assert_eq!(numbers(&messages), [12, 14], "13 was handled before");
    rig.finished(&[(messages[0].delivery, true), (messages[1].delivery, true)]);
    assert_eq!(rig.session.position("t"), Some(at(14)));
}

/// A client that has given up, or was lost for good, still hands over what had come: connecting again brings nothing twice.
#[test]
fn what_came_before_the_end_is_handed_over() {
    let give_up = Options { max_attempts: Some(1), ..quiet() };
    for options in [give_up, Options { reconnect: false, ..quiet() }] {
        let mut rig = joined(options);
        send(&mut rig, 11);
        rig.cut();
        if rig.session.state() == nolag_core::event::State::Backoff {
            rig.wait_for_attempt();
            rig.refuse_auth("broker_unavailable");
        }
        rig.dispatched(1);
        assert_eq!(rig.session.position("t"), Some(at(11)));
        rig.call(Call::Connect);
        rig.accept_with(RECOVER);
        assert_eq!(offered(&rig), Some(at(11)));
    }
}

/// Client-api 6, API-101: `resume_from` stands for the position as long as there is none; the gap of a position that the application
/// brought has no `since`.
#[test]
fn resuming() {
    let mut rig = Rig::new(quiet());
    rig.call(Call::Connect);
    let options = SubscribeOptions { resume_from: Some(at(7)), ..plain() };
    let request = rig.call(subscribe("t", options.clone()));
    assert_eq!(rig.session.position("t"), Some(at(7)));
    rig.accept_with(RECOVER);
    assert_eq!(join(&rig), (Some(at(7)), None));
    rig.reconnect(RECOVER);
    assert_eq!(offered(&rig), Some(at(7)), "there was no answer");
    rig.server(recovered("t", 9));
    assert!(rig.is_done(request));
    replay(&mut rig, &[8]);
    assert_eq!(received(&mut rig), [8]);
    rig.dispatched(1);
    assert_eq!(rig.session.position("t"), Some(at(9)));
    rig.call(subscribe("t", options.clone()));
    rig.reconnect(RECOVER);
    assert_eq!(offered(&rig), Some(at(9)), "it has its own");

    let mut rig = Rig::granted(quiet(), RECOVER);
    rig.call(subscribe("t", options.clone()));
    rig.server(unrecovered("t", 20, "epoch"));
    let gap = Gap { topic: "t".into(), reason: "epoch".into(), since: None };
    assert_eq!(gaps(&rig.take_events()), [gap]);
    assert_eq!(rig.session.position("t"), Some(at(20)));

    // A broker that cannot: told too, once a connection.
    let mut rig = Rig::new(quiet());
    rig.call(Call::Connect);
    rig.call(subscribe("t", options));
    rig.accept();
    assert_eq!(join(&rig), (None, None));
    rig.server(subscribed("t"));
    let events = rig.take_events();
    let gap = Gap { topic: "t".into(), reason: "unsupported".into(), since: None };
    assert_eq!((gaps(&events), ready(&events).gaps), (vec![gap.clone()], vec![gap]));
    assert_eq!(rig.session.position("t"), Some(at(7)), "still what the application has");
}

/// F-04, F-05, features 2, client-api 13: one gap for each ordinary subscription that could not continue, in the broker's words,
/// before `ready`; the position begins anew.
#[test]
fn gaps_are_told() {
    for reason in ["epoch", "expired", "too_many"] {
        let mut rig = joined(quiet());
        rig.subscribe("u");
        rig.server(subscribed_at("u", 10));
        rig.call(subscribe("g", SubscribeOptions { group: Some(Group::OfActor), ..plain() }));
        rig.server(Subscribed { load_balance: Some(true), ..subscribed_at("g", 10) });
        rig.wait(ms(50));
        send(&mut rig, 11);
        let heard = rig.now;
        rig.wait(ms(50));
        rig.reconnect(RECOVER);
        rig.server(unrecovered("t", 70, reason));
        rig.server(recovered("u", 70));
        rig.server(Subscribed { load_balance: Some(true), ..subscribed_at("g", 70) });
        let events = rig.take_events();
        assert_eq!(kinds(&events), ["connect", "gap", "ready", "reconnect"]);
        let gap = Gap { topic: "t".into(), reason: reason.into(), since: Some(heard) };
        assert_eq!(gaps(&events), std::slice::from_ref(&gap));
        let ready = ready(&events);
        assert_eq!((ready.resumed, ready.gaps), (false, vec![gap]));
        assert_eq!(rig.session.position("t"), Some(at(10)), "11 is on its way");
        rig.dispatched(1);
        assert_eq!(rig.session.position("t"), Some(at(70)));
        assert_eq!(rig.session.stats().gaps, 1);
    }
}

/// F-05: in another run of numbers nothing of the old one counts.
#[test]
fn another_epoch() {
    let mut rig = joined(quiet());
    send(&mut rig, 11);
    assert_eq!(received(&mut rig), [11]);
    rig.reconnect(RECOVER);
    rig.server(Subscribed { epoch: Some("f"), ..unrecovered("t", 3, "epoch") });
    assert_eq!(rig.session.position("t"), Some(Position { epoch: "f".into(), seq: 3 }));
    send_as(&mut rig, 4, |frame| frame.msg_id = Some("other-4"));
    assert_eq!(received(&mut rig), [4]);
    rig.dispatched(1);
    assert_eq!(rig.session.position("t"), Some(Position { epoch: "f".into(), seq: 3 }));
    rig.dispatched(2);
    assert_eq!(rig.session.position("t"), Some(Position { epoch: "f".into(), seq: 4 }));
}

/// F-01, API-035: with a broker without the feature each subscription that was confirmed before the loss has one gap, and nothing is
/// offered; the same where a broker no longer has it.
#[test]
fn without_the_feature() {
    let mut rig = Rig::connected(quiet());
    rig.subscribe("t");
    rig.server(subscribed("t"));
    rig.subscribe("u"); // never confirmed
    let heard = rig.now;
    rig.reconnect(&[]);
    assert_eq!(join(&rig), (None, None));
    rig.server(subscribed("t"));
    rig.server(subscribed("u"));
    let events = rig.take_events();
    let gap = |reason: &str, since| Gap { topic: "t".into(), reason: reason.into(), since: Some(since) };
    assert_eq!(gaps(&events), [gap("unsupported", heard)]);
    assert!(!ready(&events).resumed);
    assert_eq!(rig.session.position("t"), None);

    // It gains the feature: there is nothing to offer yet.
    rig.unsubscribe("u");
    let heard = rig.now;
    rig.reconnect(RECOVER);
    assert_eq!(join(&rig), (None, None));
    rig.server(subscribed_at("t", 5));
    assert_eq!(gaps(&rig.take_events()), [gap("unsupported", heard)]);
    assert_eq!(rig.session.position("t"), Some(at(5)));

    // It loses it again, and once more has it: what was missed at first would come behind what came since.
    let heard = rig.now;
    rig.reconnect(&[]);
    rig.server(subscribed("t"));
    assert_eq!(gaps(&rig.take_events()), [gap("unsupported", heard)]);
    assert_eq!(rig.session.position("t"), Some(at(5)), "so far the application had all");
    rig.reconnect(RECOVER);
    assert_eq!(join(&rig), (None, None));
    rig.server(subscribed_at("t", 9));
    assert_eq!(gaps(&rig.take_events()).len(), 1);
    assert_eq!(rig.session.position("t"), Some(at(9)));
}

/// Features 2: what is told as `since` is of the last connection that had the subscription, however many came between.
#[test]
fn since_the_connection_that_had_it() {
    let mut rig = joined(quiet());
    let heard = rig.now;
    rig.wait(ms(10));
    rig.reconnect(RECOVER);
    rig.wait(ms(10));
    rig.reconnect(RECOVER);
    rig.server(unrecovered("t", 70, "expired"));
    assert_eq!(gaps(&rig.take_events())[0].since, Some(heard));

    // Of one that the application closed, too.
    let heard = rig.now;
    rig.call(Call::Disconnect);
    rig.wait(ms(500));
    rig.call(Call::Connect);
    rig.accept_with(RECOVER);
    rig.server(unrecovered("t", 90, "expired"));
    let events = rig.take_events();
    assert_eq!(gaps(&events)[0].since, Some(heard));
    assert!(!events.contains(&Event::Reconnected), "it was not lost");
}

/// Client-api 2.3: a subscription without an answer in time is not resumed; its answer tells later how it stands.
#[test]
fn a_late_answer() {
    for recovers in [true, false] {
        let mut rig = joined(quiet());
        rig.reconnect(RECOVER);
        rig.wait(ms(500));
        let events = rig.take_events();
        let (gaps_before, ready) = (gaps(&events), ready(&events));
        assert_eq!((gaps_before.len(), ready.resumed, ready.resubscribed.len()), (0, false, 0));
        rig.server(if recovers { recovered("t", 12) } else { unrecovered("t", 12, "expired") });
        assert_eq!(gaps(&rig.take_events()).len(), usize::from(!recovers));
        if recovers {
            replay(&mut rig, &[12]);
            assert_eq!(received(&mut rig), [12]);
        }
    }
}

/// Features 2: history is asked for where a subscription begins, and beside a position, in case that is of no use.
#[test]
fn history_on_join() {
    let mut rig = Rig::granted(quiet(), RECOVER);
    rig.call(subscribe("t", SubscribeOptions { history: Some(3), ..plain() }));
    assert_eq!(join(&rig), (None, Some(3)));
    rig.server(subscribed_at("t", 10));
    replay(&mut rig, &[4, 8, 9]);
    send(&mut rig, 11);
    assert_eq!(received(&mut rig), [4, 8, 9, 11]);
    assert_eq!(rig.session.position("t"), Some(at(3)), "none of them is dispatched");
    rig.dispatched(2);
    assert_eq!(rig.session.position("t"), Some(at(8)));
    rig.dispatched(4);
    assert_eq!(rig.session.position("t"), Some(at(11)));
    let other = SubscribeOptions { qos: Some(Qos::AtMostOnce), history: Some(3), ..plain() };
    rig.call(subscribe("t", other));
    assert_eq!(join(&rig), (None, None), "it has begun");
    rig.server(subscribed_at("t", 12));
    rig.reconnect(RECOVER);
    assert_eq!(join(&rig), (Some(at(11)), Some(3)));
    rig.server(unrecovered("t", 30, "expired"));
    replay(&mut rig, &[11, 28, 30]);
    assert_eq!(received(&mut rig), [28, 30]);
    rig.dispatched(6);
    assert_eq!(rig.session.position("t"), Some(at(30)));

    // With a broker that has none to give, the first that has gives it no more: the subscription has begun.
    let mut rig = Rig::connected(quiet());
    rig.call(subscribe("t", SubscribeOptions { history: Some(3), ..plain() }));
    assert_eq!(join(&rig), (None, None));
    rig.reconnect(RECOVER);
    assert_eq!(join(&rig), (None, Some(3)), "it was not confirmed");
    rig.server(subscribed_at("t", 5));
    rig.reconnect(&[]);
    rig.server(subscribed("t"));
    assert_eq!(join(&rig), (None, None));
}

/// F-03: a connection that ends amid a replay is followed by the rest of it, be it a recovery or the history of a join.
#[test]
fn a_loss_amid_a_replay() {
    for joins in [true, false] {
        let mut rig = joined(quiet());
        let first = if joins {
            rig.call(Call::Unsubscribe { topic: "t".into() });
            rig.server(unsubscribed("t"));
            rig.call(subscribe("t", SubscribeOptions { history: Some(3), ..plain() }));
            rig.server(subscribed_at("t", 30));
            22
        } else {
            rig.reconnect(RECOVER);
            rig.server(recovered("t", 30));
            22
        };
        rig.forget();
        rig.server(ReplayStart {
            topic: Some("t"),
            count: Some(3),
            oldest_timestamp: None,
            newest_timestamp: None,
        });
        send_as(&mut rig, first, |frame| frame.is_replay = Some(true));
        assert_eq!(received(&mut rig), [22]);
        rig.reconnect(RECOVER);
        assert_eq!(offered(&rig), Some(at(22)));
        rig.server(recovered("t", 31));
        replay(&mut rig, &[25, 28, 31]);
        assert_eq!(received(&mut rig), [25, 28, 31]);
        rig.dispatched(4);
        assert_eq!(rig.session.position("t"), Some(at(31)));
    }
}

/// Features 2: the first subscribe of a topic on a connection offers its position; one that takes the place of another while that
/// replays offers what has come; later ones nothing, and they change nothing of the position.
#[test]
fn subscribing_again_on_a_connection() {
    let mode = |qos| SubscribeOptions { qos: Some(qos), ..plain() };
    let mut rig = joined(quiet());
    rig.call(subscribe("t", mode(Qos::ExactlyOnce)));
    assert_eq!(offered(&rig), None);
    rig.server(subscribed_at("t", 14));
    for seq in [13, 14, 15] {
        send(&mut rig, seq);
    }
    assert_eq!(received(&mut rig), [13, 14, 15], "what comes tells what has come");
    rig.reconnect(RECOVER);
    rig.server(recovered("t", 30));
    rig.server(ReplayStart {
        topic: Some("t"),
        count: Some(3),
        oldest_timestamp: None,
        newest_timestamp: None,
    });
    send_as(&mut rig, 22, |frame| frame.is_replay = Some(true));
    rig.call(subscribe("t", mode(Qos::AtMostOnce)));
    assert_eq!(offered(&rig), Some(at(22)));
    rig.server(recovered("t", 30));
    rig.forget();
    replay(&mut rig, &[25, 30]);
    assert_eq!(received(&mut rig), [25, 30]);
    rig.call(subscribe("t", mode(Qos::AtLeastOnce)));
    assert_eq!(offered(&rig), None);
}

/// API-029, FC-07: an unsubscribe ends it: who subscribes again begins anew, and gets nothing that was sent to the one before.
#[test]
fn another_life() {
    let mut rig = joined(quiet());
    rig.unsubscribe("t");
    assert_eq!(rig.session.position("t"), None);
    let again = rig.subscribe("t");
    send(&mut rig, 11); // it crosses the unsubscribe
    rig.server(unsubscribed("t"));
    assert_eq!(join(&rig), (None, None));
    rig.server(subscribed_at("t", 12));
    assert!(rig.is_done(again));
    assert!(received(&mut rig).is_empty());
    assert_eq!(rig.session.position("t"), Some(at(12)));

    // While there is no connection, too.
    rig.cut();
    rig.unsubscribe("t");
    rig.subscribe("t");
    rig.wait_for_attempt();
    rig.forget();
    rig.accept_with(RECOVER);
    assert_eq!(join(&rig), (None, None));
    rig.server(subscribed_at("t", 20));
    let events = rig.take_events();
    assert_eq!((gaps(&events).len(), ready(&events).resumed), (0, true), "nothing was to continue");

    // An answer that is one to the life before serves a later one only where neither asked for more.
    rig.reconnect(RECOVER);
    rig.unsubscribe("t");
    let again = rig.subscribe("t");
    rig.server(recovered("t", 21));
    assert_eq!(rig.frames(), ["auth t-1", "subscribe t", "unsubscribe t"]);
    replay(&mut rig, &[21]);
    assert!(rig.is_open(again) && received(&mut rig).is_empty());
    rig.server(unsubscribed("t"));
    rig.server(subscribed_at("t", 21));
    assert!(rig.is_done(again));
}

/// F-07, K-063: a subscription that lost its grant offers its position when it is asked for again, and the broker decides.
#[test]
fn a_lost_grant() {
    let mut rig = joined(quiet());
    rig.server(Unsubscribed { reason: Some("not_authorized"), ..unsubscribed("t") });
    rig.subscribe("t");
    assert_eq!(offered(&rig), Some(at(10)));
    rig.server(unrecovered("t", 30, "expired"));
    assert_eq!(gaps(&rig.take_events()).len(), 1);

    rig.reconnect(RECOVER);
    rig.server(ErrorReply { topic: Some("t"), ..error("unknown_topic") });
    let events = rig.take_events();
    assert_eq!((gaps(&events).len(), ready(&events).resumed), (0, false));
    assert_eq!(offered(&rig), Some(at(30)), "asked once more, after `ready`");
    rig.server(recovered("t", 31));
    replay(&mut rig, &[31]);
    assert_eq!(received(&mut rig), [31]);
}

/// Features 2: subscriptions of a group have no position, offer none and miss nothing; a change to one and back begins anew.
#[test]
fn groups_have_no_position() {
    let group = || SubscribeOptions { group: Some(Group::OfActor), ..plain() };
    let mut rig = joined(quiet());
    rig.call(subscribe("t", group()));
    assert_eq!((offered(&rig), rig.session.position("t")), (None, None));
    rig.server(Subscribed { load_balance: Some(true), ..subscribed_at("t", 12) });
    for seq in [15, 13] {
        send(&mut rig, seq);
    }
    assert_eq!(received(&mut rig), [15, 13], "13 was another member's before");
    rig.reconnect(RECOVER);
    assert_eq!(join(&rig), (None, None));
    rig.server(Subscribed { load_balance: Some(true), ..subscribed_at("t", 20) });
    let events = rig.take_events();
    assert_eq!((gaps(&events).len(), ready(&events).resumed), (0, true));
    rig.call(subscribe("t", plain()));
    assert_eq!(offered(&rig), None);
    rig.server(subscribed_at("t", 22));
    assert_eq!(rig.session.position("t"), Some(at(22)));
}

/// K-037, API-099: what makes no sense is refused at the call.
#[test]
fn options_are_checked() {
    let mut rig = Rig::granted(quiet(), RECOVER);
    let group = || SubscribeOptions { group: Some(Group::OfActor), ..plain() };
    let position = |epoch: &str, seq| Some(Position { epoch: epoch.into(), seq });
    let second = Duration::from_secs(1);
    let bad = [
        SubscribeOptions { history: Some(0), ..plain() },
        SubscribeOptions { history: Some(1_001), ..plain() },
        SubscribeOptions { history: Some(1), ..group() },
        SubscribeOptions { resume_from: position(&"e".repeat(65), 1), ..plain() },
        SubscribeOptions { resume_from: position("e", 1 << 53), ..plain() },
        SubscribeOptions { resume_from: position("e", 1), ..group() },
        SubscribeOptions { redeliver: true, ..plain() },
        SubscribeOptions { ack_timeout: Some(second), ..group() },
        SubscribeOptions { redeliver: true, ack_timeout: Some(ms(999)), ..group() },
        SubscribeOptions { redeliver: true, ack_timeout: Some(second * 3_600 + ms(1)), ..group() },
    ];
    for options in bad {
        let request = rig.call(subscribe("t", options.clone()));
        assert_eq!(rig.failure(request).code(), "bad_option", "{options:?}");
    }
    assert!(rig.frames().is_empty());
    let good = [
        SubscribeOptions {
            history: Some(1_000),
            resume_from: position(&"e".repeat(64), (1 << 53) - 1),
            ..plain()
        },
        SubscribeOptions { redeliver: true, ack_timeout: Some(second * 3_600), ..group() },
    ];
    for options in good {
        rig.call(subscribe("t", options));
        assert_eq!(rig.frames().len(), 1);
        rig.server(subscribed("t"));
        rig.unsubscribe("t");
        rig.server(unsubscribed("t"));
        rig.forget();
    }
}

/// What a broker says that makes no sense is not kept, nor sent back to it.
#[test]
fn a_position_of_nonsense() {
    let long = "e".repeat(65);
    for (epoch, seq) in [(long.as_str(), 1), ("e", 1 << 53)] {
        let mut rig = Rig::granted(quiet(), RECOVER);
        rig.subscribe("t");
        rig.server(Subscribed { epoch: Some(epoch), seq: Some(seq), ..subscribed("t") });
        send(&mut rig, 5);
        assert_eq!((rig.session.position("t"), received(&mut rig)), (None, vec![5]));
        rig.reconnect(RECOVER);
        assert_eq!(offered(&rig), None);
    }
}

/// Wire protocol 15.5: retained messages follow the confirmation, and nothing tells their end. Where a connection was lost before
/// they can all have come, the subscription continues, and then asks for them; where they have come, it does not.
#[test]
fn retained_messages_are_not_lost_with_a_connection() {
    let mut rig = joined(quiet());
    rig.reconnect(RECOVER);
    rig.server(recovered("t", 12));
    assert!(
        rig.sent.back().is_some_and(|(_, frame)| frame.is_empty()),
        "a heartbeat asks whether all has come"
    );
    rig.server(ReplayStart {
        topic: Some("t"),
        count: Some(1),
        oldest_timestamp: None,
        newest_timestamp: None,
    });
    rig.transport(nolag_core::session::Transport::Frame(bytes::Bytes::new()));
    rig.forget();
    assert!(rig.frames().is_empty(), "not amid a replay");
    send_as(&mut rig, 12, |frame| frame.is_replay = Some(true));
    rig.server(ReplayEnd { topic: Some("t"), count: Some(1), replayed: Some(1) });
    rig.session.hint(rig.now, nolag_core::session::Hint::Online); // probes the connection
    rig.drain();
    rig.forget();
    rig.transport(nolag_core::session::Transport::Frame(bytes::Bytes::new()));
    assert_eq!(rig.frames(), ["subscribe t"]);
    assert_eq!(join(&rig), (None, None));
    rig.server(subscribed_at("t", 13));
    send_as(&mut rig, 4, |frame| frame.retained = Some(true));
    send(&mut rig, 13);
    assert_eq!(received(&mut rig), [4, 13]);
    assert!(gaps(&rig.take_events()).is_empty());
    // They have come: a heartbeat was sent and answered since.
    rig.session.hint(rig.now, nolag_core::session::Hint::Online);
    rig.drain();
    rig.transport(nolag_core::session::Transport::Frame(bytes::Bytes::new()));
    rig.reconnect(RECOVER);
    rig.frames();
    rig.server(recovered("t", 13));
    rig.wait(ms(5_000));
    assert!(rig.sent.is_empty());
}

/// Client-api 12.4: a retained message that was on its way at a `disconnect()` comes after the next `connect()`.
#[test]
fn a_retained_message_is_handed_over_after_all() {
    let mut rig = joined(quiet());
    send_as(&mut rig, 4, |frame| frame.retained = Some(true));
    rig.session.hint(rig.now, nolag_core::session::Hint::Online);
    rig.drain();
    rig.transport(nolag_core::session::Transport::Frame(bytes::Bytes::new()));
    rig.call(Call::Disconnect);
    rig.call(Call::Connect);
    rig.forget();
    rig.accept_with(RECOVER);
    rig.frames();
    rig.server(recovered("t", 10));
    rig.transport(nolag_core::session::Transport::Frame(bytes::Bytes::new()));
    assert_eq!(rig.frames(), ["subscribe t"]);
    rig.server(subscribed_at("t", 10));
    send_as(&mut rig, 4, |frame| frame.retained = Some(true));
    assert_eq!(received(&mut rig), [4]);
}

/// A client of a group with redelivery.
fn worker(options: Options) -> Rig {
    let mut rig = Rig::granted(options, &["redeliver"]);
    let group = SubscribeOptions {
        group: Some(Group::Named("g".into())),
        redeliver: true,
        ack_timeout: Some(Duration::from_secs(2)),
        ..plain()
    };
    rig.call(subscribe("t", group));
    let ClientFrame::Subscribe(frame) = ClientFrame::decode(&rig.sent[0].1).unwrap() else { panic!() };
    assert_eq!((frame.redeliver.0, frame.ack_timeout_ms), (Some(true), Some(2_000)));
    rig.server(Subscribed { load_balance: Some(true), ..subscribed("t") });
    rig.forget();
    rig
}

fn redeliver(rig: &mut Rig, seq: u64) {
    send_as(rig, seq, |frame| frame.redelivered = Some(true));
}

/// F-13, features 6, FC-28: messages of such a group are acknowledged when their handlers have succeeded, in automatic mode too. A
/// copy of one whose handlers run is dropped, one of one that is done is acknowledged again, one of one that failed is dispatched.
#[test]
fn redelivery() {
    for ack_mode in [AckMode::Auto, AckMode::AfterHandler] {
        let mut rig = worker(Options { ack_mode, ..quiet() });
        rig.subscribe("ordinary");
        rig.server(subscribed("ordinary"));
        rig.forget();
        for seq in [5, 6] {
            send(&mut rig, seq);
        }
        rig.server(message("ordinary", None, &number(1)));
        let messages = rig.messages();
        let modes: Vec<_> = messages.iter().map(|message| message.ack_mode).collect();
        assert_eq!(modes, [AckMode::AfterHandler, AckMode::AfterHandler, ack_mode]);
        rig.dispatched(3);
        assert!(rig.frames().is_empty(), "their handlers run");
        redeliver(&mut rig, 5);
        assert!(rig.frames().is_empty() && rig.messages().is_empty());
        rig.finished(&[(1, true), (2, false)]);
        assert_eq!(rig.frames(), ["ack m-5"]);
        redeliver(&mut rig, 5);
        assert_eq!(rig.frames(), ["ack m-5"], "again, for the broker has not seen it");
        redeliver(&mut rig, 6);
        let again = rig.messages();
        assert_eq!(numbers(&again), [6], "its handler failed");
        assert!(again[0].meta().redelivered);
        rig.finished(&[(again[0].delivery, true)]);
        assert_eq!(rig.frames(), ["ack m-6"]);
    }
}

/// Features 6: in manual mode the application acknowledges; what it has acknowledged is acknowledged again by itself.
#[test]
fn redelivery_in_manual_mode() {
    let mut rig = worker(Options { ack_mode: AckMode::Manual, ..quiet() });
    send(&mut rig, 5);
    rig.dispatched(1);
    redeliver(&mut rig, 5);
    assert_eq!(received(&mut rig), [5, 5], "nobody has acknowledged it");
    rig.dispatched(2);
    assert!(rig.frames().is_empty());
    rig.call(Call::Ack { ids: vec!["m-5".into()] });
    rig.frames();
    redeliver(&mut rig, 5);
    assert_eq!((rig.frames(), received(&mut rig)), (vec!["ack m-5".to_owned()], vec![]));
}

/// A handler may run for longer than ids are remembered: a copy that comes meanwhile is known.
#[test]
fn a_long_job() {
    let mut options = quiet();
    options.dedupe.window = Duration::from_secs(60);
    let mut rig = worker(options);
    for seq in [5, 6] {
        send(&mut rig, seq);
    }
    rig.finished(&[(2, true)]);
    rig.forget();
    rig.wait(Duration::from_secs(200));
    for seq in [5, 6] {
        redeliver(&mut rig, seq);
    }
    assert_eq!(received(&mut rig), [6], "that is long forgotten");
}

/// F-01: without the feature nothing of it is sent, and messages are acknowledged as the client is set.
#[test]
fn redelivery_without_the_feature() {
    let mut rig = Rig::connected(quiet());
    let group = SubscribeOptions { group: Some(Group::OfActor), redeliver: true, ..plain() };
    rig.call(subscribe("t", group));
    let ClientFrame::Subscribe(frame) = ClientFrame::decode(&rig.sent[0].1).unwrap() else { panic!() };
    assert_eq!((frame.redeliver.0, frame.ack_timeout_ms), (None, None));
    rig.server(Subscribed { load_balance: Some(true), ..subscribed("t") });
    rig.forget();
    send(&mut rig, 5);
    assert_eq!(rig.messages()[0].ack_mode, AckMode::Auto);
    rig.dispatched(1);
    assert_eq!(rig.frames(), ["ack m-5"]);
}

/// F-02: what the client asks for is what it can use, within what it is told to; what it did not ask for it does not use.
#[test]
fn features_are_asked_for() {
    let asked = |options: Options| {
        let mut rig = Rig::new(options);
        rig.call(Call::Connect);
        rig.open();
        let ClientFrame::Auth(frame) = ClientFrame::decode(&rig.sent[0].1).unwrap() else { panic!() };
        frame.features.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()
    };
    let all = asked(quiet());
    for name in ["recover", "dedupe", "redeliver"] {
        assert!(all.iter().any(|asked| asked == name));
    }
    let none = || Options { features: nolag_core::options::Features::NONE, ..quiet() };
    assert!(asked(none()).is_empty());
    let mut rig = Rig::granted(none(), &["recover", "time travel"]);
    rig.subscribe("t");
    rig.server(subscribed_at("t", 10));
    rig.reconnect(&["recover", "time travel"]);
    assert_eq!(offered(&rig), None);
}

/// API-092, API-005: hosts that keep positions beside the session hear of each move once.
#[test]
fn moves_are_told_once() {
    let mut rig = joined(quiet());
    let moved = |rig: &mut Rig| {
        let moved = rig.session.take_moved().map(|(topic, at)| (topic.to_string(), at.map(|at| at.seq)));
        moved.collect::<Vec<_>>()
    };
    assert_eq!(moved(&mut rig), [("t".to_owned(), Some(10))]);
    for seq in 11..100 {
        send(&mut rig, seq);
    }
    assert!(moved(&mut rig).is_empty());
    rig.dispatched(50);
    rig.dispatched(60);
    assert_eq!(moved(&mut rig), [("t".to_owned(), Some(70))]);
    rig.call(Call::Disconnect);
    assert_eq!(moved(&mut rig), [("t".to_owned(), Some(70))]);
    rig.unsubscribe("t");
    assert_eq!(moved(&mut rig), [("t".to_owned(), None)]);
    assert!(rig.results.contains_key(&RequestId(1)));
}
