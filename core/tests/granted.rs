//! What a broker grants beyond the protocol (features 1), on a stepped clock: `batch`, `rooms`, `reauth`, `trace`.

use std::time::Duration;

use nolag_core::Error;
use nolag_core::event::{Change, Event, Room, State};
use nolag_core::options::{Credentials, Options, PublishOptions, Secret};
use nolag_core::session::{Call, Dispatched, Hint, Reply, Token, TokenFailure, TokenReason};
use nolag_protocol::frame::{
    AuthReply, ClientFrame, Data, ErrorReply, Message, PresenceEvent, PresenceList, PresenceUpdated,
    ReauthReply,
};
use rmpv::Value;

#[path = "kit/mod.rs"]
mod kit;
use kit::*;

/// F-12: frames that come in one message are handled in order, as if each had come alone; a bad one ends the message, and those before
/// it stand.
#[test]
fn frames_in_one_message() {
    let mut rig = Rig::granted(quiet(), &["batch"]);
    let subscribe = rig.subscribe("t");
    let frames = [
        subscribed("t").to_vec(),
        message("t", Some("m-1"), &number(1)).to_vec(),
        message("t", Some("m-2"), &number(2)).to_vec(),
    ];
    rig.server_batch(&frames);
    assert!(rig.is_done(subscribe));
    let messages = rig.messages();
    assert_eq!(messages.iter().map(|message| value(&message.data)).collect::<Vec<_>>(), [1, 2]);
    let ids: Vec<_> = messages.iter().map(|message| message.meta().msg_id).collect();
    assert_eq!(ids, [Some("m-1"), Some("m-2")], "each keeps what is its own");
    rig.session.dispatched(rig.now, Dispatched::UpTo(messages[1].delivery));
    rig.drain();
    assert_eq!(rig.frames(), ["subscribe t", "batchAck m-1,m-2"]);

    let before = rig.session.stats();
    let good = |id| message("t", Some(id), &number(1)).to_vec();
    rig.server_batch(&[good("m-3"), good("m-4"), vec![0x81, 0xa4], good("m-5")]);
    assert_eq!(rig.messages().len(), 2, "those before it stand, those behind it are not read");
    let after = rig.session.stats();
    assert_eq!((after.frames_in - before.frames_in, after.decode_errors - before.decode_errors), (3, 1));
}

/// Features 5: several frames in a message are taken, and sent, only where that was granted, on this connection.
#[test]
fn without_the_grant_a_message_is_one_frame() {
    let mut rig = Rig::connected(quiet());
    rig.subscribed("t");
    assert!(!rig.session.may_batch());
    let good = |id| message("t", Some(id), &number(1)).to_vec();
    rig.server_batch(&[good("m-1"), good("m-2")]);
    assert_eq!(rig.messages().len(), 1);
    assert_eq!(rig.session.stats().decode_errors, 1);

    let mut rig = Rig::granted(quiet(), &["batch", "time travel"]);
    assert!(rig.session.may_batch());
    rig.cut();
    rig.wait_for_attempt();
    assert!(!rig.session.may_batch());
    rig.accept();
    assert!(!rig.session.may_batch());
}

fn set(rig: &mut Rig, room: Room, data: Option<u64>) {
    let request = rig.call(Call::SetPresence { room: Some(room), data: data.map(number) });
    assert!(rig.is_done(request));
}

/// The broker's list of a room; it says which app's room it is.
fn list(rig: &mut Rig, app: &str, room: &str, actors: &[&str]) {
    let entry = |id: &&str| {
        Value::Map(vec![("actorTokenId".into(), (*id).into()), ("presence".into(), Value::Map(vec![]))])
    };
    let data = pack(&Value::Array(actors.iter().map(entry).collect()));
    let data = Data::new(&data);
    rig.server(PresenceList { app: Some(app), room_id: Some(room), data, truncated: None, msg_ref: None });
}

fn presence(rig: &mut Rig, event: &str, app: &str, room: &str, actor: &str) {
    let data = map(&[("actor_token_id", actor.into()), ("presence", Value::Map(vec![]))]);
    let data = Data::new(&data);
    rig.server(PresenceEvent { event, app: Some(app), room_id: Some(room), data });
}

fn changes(rig: &mut Rig) -> Vec<(Change, String)> {
    let changes = rig.events.drain(..).filter_map(|event| match event {
        Event::Presence(change, actor) => {
            let room = actor.room.unwrap();
            Some((change, format!("{} in {}/{}", actor.actor_id, room.app.unwrap_or_default(), room.room)))
        }
        Event::PresenceReplaced(room) => panic!("{room:?} was replaced"),
        _ => None,
    });
    changes.collect()
}

fn members(rig: &Rig, room: &Room) -> Vec<String> {
    rig.session.roster(room).map(|actor| actor.actor_id.clone()).collect()
}

/// F-11, API-031: presence in three rooms at once; none ends another, and all come back after a loss, in the order of the last change.
#[test]
fn several_rooms_at_once() {
    let mut rig = Rig::granted(quiet(), &["rooms"]);
    let rooms = ["one", "two", "three"];
    for room in rooms {
        set(&mut rig, room_of("a", room), Some(1));
        assert_eq!(rig.frames(), [format!("presence a/{room}"), format!("getPresence a/{room}")]);
        list(&mut rig, "a", room, &["me"]);
        assert_eq!(changes(&mut rig), [(Change::Join, format!("me in a/{room}"))]);
    }
    set(&mut rig, room_of("a", "one"), Some(2));
    assert_eq!(rig.frames(), ["presence a/one"]);
    for room in rooms {
        presence(&mut rig, "join", "a", room, "ann");
    }
    assert_eq!(changes(&mut rig).len(), 3, "every room is followed");
    rig.cut();
    rig.wait_for_attempt();
    rig.open();
    rig.server(AuthReply { features: vec!["rooms"], ..accepted() });
    let restored = ["two", "three", "one"]
        .iter()
        .flat_map(|room| [format!("presence a/{room}"), format!("getPresence a/{room}")]);
    assert_eq!(rig.frames()[1..], restored.collect::<Vec<_>>());
    for room in ["two", "three", "one"] {
        list(&mut rig, "a", room, &["me"]);
    }
    let gone: Vec<_> = ["two", "three", "one"].map(|room| (Change::Leave, format!("ann in a/{room}"))).into();
    assert_eq!(changes(&mut rig), gone);
    set(&mut rig, room_of("a", "two"), None);
    assert_eq!(rig.frames(), ["presence a/two"]);
    assert_eq!(rig.session.rooms().count(), 2);

    // A broker without the feature: one room, by its slug alone.
    let mut rig = Rig::connected(quiet());
    set(&mut rig, room_of("a", "one"), Some(1));
    set(&mut rig, room_of("a", "two"), Some(1));
    assert_eq!(rig.frames(), ["presence one", "getPresence one", "presence two", "getPresence two"]);
    assert!(rig.events.contains(&Event::PresenceReplaced(room_of("a", "one"))));
}

/// F-17, K-054: equally named rooms of two apps have a roster each, and no event or list of the one touches the other.
#[test]
fn equal_names_in_two_apps() {
    let mut rig = Rig::granted(quiet(), &["rooms"]);
    let (a, b) = (room_of("a", "r"), room_of("b", "r"));
    set(&mut rig, a.clone(), Some(1));
    set(&mut rig, b.clone(), Some(1));
    list(&mut rig, "b", "r", &["me", "bob"]);
    list(&mut rig, "a", "r", &["me"]);
    presence(&mut rig, "join", "a", "r", "ann");
    presence(&mut rig, "join", "b", "r", "ann");
    presence(&mut rig, "leave", "a", "r", "bob");
    presence(&mut rig, "leave", "b", "r", "ann");
    let told: Vec<_> = changes(&mut rig).into_iter().map(|(_, who)| who).collect();
    assert_eq!(told, ["me in b/r", "bob in b/r", "me in a/r", "ann in a/r", "ann in b/r", "ann in b/r"]);
    assert_eq!((members(&rig, &a), members(&rig, &b)), (owned(&["me", "ann"]), owned(&["me", "bob"])));
    rig.forget();
    let lists = [a, b].map(|room| rig.call(Call::FetchPresence { room }));
    assert_eq!(rig.frames(), ["getPresence a/r", "getPresence b/r"]);
    list(&mut rig, "b", "r", &[]);
    assert!(rig.is_open(lists[0]), "API-063: its own answer");
    assert_eq!(rig.results[&lists[1]], Ok(Reply::Presence(vec![])));
}

fn owned(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// Client-api 9, features 4: a room set without an app takes it from the answer, and is the room of that name from then on.
#[test]
fn a_room_without_an_app_takes_it_from_the_answer() {
    let mut rig = Rig::granted(quiet(), &["rooms"]);
    set(&mut rig, room("r"), Some(1));
    let msg_ref = rig.sent_ref(0);
    assert_eq!(rig.frames(), ["presence r", "getPresence r"]);
    presence(&mut rig, "join", "a", "r", "me"); // older than the list
    rig.server(PresenceUpdated { app: Some("a"), room_id: Some("r"), msg_ref: Some(&msg_ref) });
    list(&mut rig, "a", "r", &["me"]);
    presence(&mut rig, "join", "a", "r", "ann");
    let joined = ["me in a/r", "ann in a/r"].map(|who| (Change::Join, who.to_owned()));
    assert_eq!(changes(&mut rig), joined);
    assert_eq!(rig.session.rooms().collect::<Vec<_>>(), [&room_of("a", "r")]);
    assert_eq!(members(&rig, &room("r")), ["me", "ann"], "and can still be asked for without it");
    set(&mut rig, room("r"), Some(2));
    rig.call(Call::FetchPresence { room: room("r") });
    assert_eq!(rig.frames(), ["presence a/r", "getPresence a/r"]);

    // Named both ways before anybody knew that it is one room: the later word counts.
    let mut rig = Rig::new(quiet());
    set(&mut rig, room("r"), Some(1));
    set(&mut rig, room_of("a", "r"), Some(2));
    rig.call(Call::Connect);
    rig.open();
    rig.server(AuthReply { features: vec!["rooms"], ..accepted() });
    rig.frames();
    list(&mut rig, "a", "r", &["me"]);
    list(&mut rig, "a", "r", &["me"]);
    assert_eq!(changes(&mut rig), [(Change::Join, "me in a/r".to_owned())]);
    rig.cut();
    rig.wait_for_attempt();
    rig.open();
    rig.server(AuthReply { features: vec!["rooms"], ..accepted() });
    assert_eq!(rig.frames()[1..], ["presence a/r", "getPresence a/r"]);
}

/// API-095: a room that the broker does not know is told once, though its list does not have this connection either.
#[test]
fn an_unknown_room_is_told_once() {
    let mut rig = Rig::granted(quiet(), &["rooms"]);
    set(&mut rig, room_of("a", "r"), Some(1));
    let msg_ref = rig.sent_ref(0);
    let refusal =
        ErrorReply { app: Some("a"), room_id: Some("r"), msg_ref: Some(&msg_ref), ..error("unknown_room") };
    rig.server(refusal);
    list(&mut rig, "a", "r", &[]);
    assert_eq!(rig.errors().iter().map(Error::code).collect::<Vec<_>>(), ["unknown_room"]);
}

/// The provider answers its last call; the token is valid for so long.
fn provide(rig: &mut Rig, token: &str, seconds: u64) {
    let (call, ..) = *rig.token_calls.last().unwrap();
    let token = Token { secret: Secret::new(token), expires_in: Some(Duration::from_secs(seconds)) };
    rig.session.token(rig.now, call, Ok(token));
    rig.drain();
}

/// A client whose token is valid for five minutes, on a connection that grants `reauth`.
fn with_a_token_for_five_minutes() -> Rig {
    let mut rig = Rig::new(Options { credentials: Credentials::Provider, ..quiet() });
    rig.call(Call::Connect);
    rig.open();
    provide(&mut rig, "T1", 300);
    rig.server(AuthReply { features: vec!["reauth"], ..accepted() });
    rig.forget();
    rig
}

/// K-017: a token is renewed a minute before its end, on the live connection; then again before the new one's.
#[test]
fn a_token_is_renewed_in_time() {
    let mut rig = with_a_token_for_five_minutes();
    rig.wait(Duration::from_secs(239));
    assert_eq!(rig.token_calls.len(), 1);
    rig.wait(Duration::from_secs(1));
    assert_eq!(rig.token_calls[1].1, TokenReason::Expired);
    provide(&mut rig, "T2", 300);
    rig.wait(Duration::from_secs(9));
    rig.server(ReauthReply { success: true, auth_expires_at: None, error: None });
    rig.wait(Duration::from_secs(230));
    assert_eq!(rig.token_calls.len(), 2, "not before it is due");
    rig.wait(Duration::from_secs(1));
    assert_eq!(rig.token_calls.len(), 3, "as long as the token is old, not as long as its answer");
    assert_eq!((rig.frames(), rig.opened.len()), (vec!["reauth T2".to_owned()], 1));
}

/// K-017, client-api 10.3: a token grows older while the machine sleeps, whether session time goes on or not.
#[test]
fn a_token_is_renewed_after_a_sleep() {
    for clock_goes_on in [true, false] {
        let mut rig = with_a_token_for_five_minutes();
        rig.wait(Duration::from_secs(60));
        let slept = Duration::from_secs(200);
        if clock_goes_on {
            rig.now += slept;
            rig.session.wake(rig.now);
        } else {
            rig.session.hint(rig.now, Hint::Slept(slept));
        }
        rig.drain();
        assert_eq!(rig.token_calls.len(), 2, "{clock_goes_on}");
        assert!(rig.sent.iter().any(|(_, frame)| frame.is_empty()), "and the connection is probed");
        provide(&mut rig, "T2", 300);
        assert_eq!(rig.frames(), ["reauth T2"]);
        assert_eq!(rig.state(), State::Connected);
    }
}

/// Client-api 11: a provider that fails or hangs is asked again after a wait; one that says that this is of no use is not.
#[test]
fn a_provider_that_has_no_token_for_a_renewal() {
    let mut rig = with_a_token_for_five_minutes();
    rig.wait(Duration::from_secs(240));
    let fail = |rig: &mut Rig, fatal| {
        let (call, ..) = *rig.token_calls.last().unwrap();
        rig.session.token(rig.now, call, Err(TokenFailure { message: "down".into(), fatal }));
        rig.drain();
    };
    fail(&mut rig, false);
    assert_eq!(rig.errors().iter().map(Error::to_string).collect::<Vec<_>>(), ["no token: down"]);
    rig.wait(ms(101));
    assert_eq!(rig.token_calls.len(), 3, "again");
    rig.wait(Duration::from_secs(10)); // no answer
    rig.wait(ms(201));
    assert_eq!(rig.token_calls.len(), 4, "and again");
    fail(&mut rig, true);
    rig.wait(Duration::from_secs(3_600));
    assert_eq!(rig.token_calls.len(), 4);
    assert_eq!((rig.state(), rig.errors().len()), (State::Connected, 3));
}

/// Features 1, K-037: a publish names its trace where that was granted, and the receiver finds it; what is no `traceparent` is
/// refused before it is sent.
#[test]
fn a_publish_names_its_trace() {
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    for (features, expected) in [(&["trace"][..], Some(trace)), (&[], None)] {
        let mut rig = Rig::granted(quiet(), features);
        rig.publish_with("t", 1, PublishOptions { trace: Some(trace.into()), ..PublishOptions::default() });
        let (_, frame) = rig.sent.pop_front().unwrap();
        let ClientFrame::Publish(publish) = ClientFrame::decode(&frame).unwrap() else { panic!() };
        assert_eq!(publish.trace, expected);
    }
    let mut rig = Rig::granted(quiet(), &["trace"]);
    rig.subscribed("t");
    rig.server(Message { trace: Some(trace), ..message("t", None, &number(1)) });
    assert_eq!(rig.messages()[0].meta().trace, Some(trace));
    let none = PublishOptions { trace: Some("none".into()), ..PublishOptions::default() };
    let refused = rig.publish_with("t", 1, none);
    assert_eq!(rig.failure(refused).code(), "invalid_message");
    let retained = |seconds| PublishOptions {
        retain: true,
        retain_ttl: Some(Duration::from_secs(seconds)),
        ..PublishOptions::default()
    };
    for seconds in [0, 31_536_001] {
        let refused = rig.publish_with("t", 1, retained(seconds));
        assert_eq!(rig.failure(refused).code(), "invalid_message", "{seconds} s");
    }
    assert!(rig.frames().is_empty());
    rig.publish_with("t", 1, retained(31_536_000));
    assert_eq!(rig.frames(), ["publish t 1"]);
}
