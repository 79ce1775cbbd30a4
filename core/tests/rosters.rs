//! Rosters on a stepped clock: field cases FC-12 and FC-13, statements of client-api 9.

use std::collections::BTreeSet;
use std::time::Duration;

use nolag_core::Error;
use nolag_core::event::{Change, Event};
use nolag_core::session::Call;
use nolag_protocol::frame::{Data, PresenceEvent, PresenceList};
use rmpv::Value;

#[path = "kit/mod.rs"]
mod kit;
use kit::*;

fn listed(actors: &[(&str, &str)]) -> wire::List {
    wire::List::new(actors)
}

/// Presence lists and events as a broker writes them.
mod wire {
    use super::*;

    pub(crate) struct List(bytes::Bytes);

    impl List {
        pub(crate) fn new(actors: &[(&str, &str)]) -> Self {
            let entry = |(id, status): &(&str, &str)| {
                Value::Map(vec![
                    ("actorTokenId".into(), (*id).into()),
                    ("presence".into(), Value::Map(vec![("status".into(), (*status).into())])),
                    ("joinedAt".into(), 1.into()),
                ])
            };
            Self(pack(&Value::Array(actors.iter().map(entry).collect())))
        }

        pub(crate) fn frame<'a>(&'a self, room: &'a str) -> PresenceList<'a> {
            let data = Data::new(&self.0);
            PresenceList { app: None, room_id: Some(room), data, truncated: None, msg_ref: None }
        }
    }

    /// An event in the room `r`, in snake case.
    pub(crate) fn presence(rig: &mut Rig, event: &str, actor: &str, status: &str) {
        tagged(rig, event, actor, status, Some("r"));
    }

    pub(crate) fn tagged(rig: &mut Rig, event: &str, actor: &str, status: &str, room: Option<&str>) {
        let mut pairs = vec![("actor_token_id", actor.into())];
        if event != "leave" {
            pairs.push(("presence", Value::Map(vec![("status".into(), status.into())])));
        }
        let data = map(&pairs);
        rig.server(PresenceEvent { event, app: None, room_id: room, data: Data::new(&data) });
    }
}
use wire::{presence, tagged};

fn changes(rig: &mut Rig) -> Vec<(Change, String)> {
    let changes = rig.events.drain(..).filter_map(|event| match event {
        Event::Presence(change, actor) => Some((change, actor.actor_id)),
        _ => None,
    });
    changes.collect()
}

fn in_room(rig: &mut Rig) {
    rig.call(Call::SetPresence { room: Some(room("r")), data: Some(number(1)) });
    assert_eq!(rig.frames(), ["presence r", "getPresence r"]);
    rig.server(listed(&[("me", "here")]).frame("r"));
    assert_eq!(changes(rig), [(Change::Join, "me".into())]);
}

fn members(rig: &Rig) -> Vec<String> {
    let mut members: Vec<_> = rig.session.roster(&room("r")).map(|actor| actor.actor_id.clone()).collect();
    members.sort_unstable();
    members
}

/// FC-12, K-049, K-050, K-053, K-054: events and lists in any order give alternating joins and leaves, and the truth.
#[test]
fn a_change_that_overtakes_the_list() {
    for seed in 0..40 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut rig = Rig::connected(quiet());
        in_room(&mut rig);
        // The truth: how many connections each of 20 actors has in the room.
        let mut truth = [0_usize; 20];
        let mut known = BTreeSet::from(["me".to_owned()]);
        for step in 0..400 {
            let actor = rng.usize(0..20);
            let name = format!("a{actor}");
            if truth[actor] == 0 || truth[actor] == 1 && rng.u8(..) < 40 {
                truth[actor] += 1;
                presence(&mut rig, "join", &name, "here");
                presence(&mut rig, "update", &name, "here");
            } else {
                truth[actor] -= 1;
                presence(&mut rig, "leave", &name, "");
            }
            if step % 40 == 0 {
                rig.call(Call::FetchPresence { room: room("r") });
            }
            if step == 150 || step == 300 {
                rig.cut();
                rig.wait_for_attempt();
                rig.accept();
            }
            // Each list that was asked for is answered, with the truth of that moment.
            while rig.frames().iter().any(|frame| frame == "getPresence r") {
                answer_lists(&mut rig, &truth);
            }
            for (change, actor) in changes(&mut rig) {
                match change {
                    Change::Join => assert!(known.insert(actor), "seed {seed}: two joins in a row"),
                    Change::Leave => assert!(known.remove(&actor), "seed {seed}: a leave without a join"),
                    Change::Update | Change::Waking => assert!(known.contains(&actor), "seed {seed}"),
                }
            }
        }
        let mut expected: Vec<_> = (0..20).filter(|n| truth[*n] > 0).map(|n| format!("a{n}")).collect();
        expected.push("me".into());
        expected.sort_unstable();
        assert_eq!(members(&rig), expected, "seed {seed}");
        assert_eq!(known.into_iter().collect::<Vec<_>>(), expected, "seed {seed}: what the events told");
        for actor in rig.session.roster(&room("r")) {
            let connections =
                actor.actor_id.strip_prefix('a').map_or(1, |n| truth[n.parse::<usize>().unwrap()]);
            assert_eq!(actor.connections.len(), connections, "seed {seed}: {}", actor.actor_id);
        }
    }
}

fn answer_lists(rig: &mut Rig, truth: &[usize; 20]) {
    let mut entries = vec![("me".to_owned(), "here")];
    for (n, count) in truth.iter().enumerate() {
        entries.extend(std::iter::repeat_n((format!("a{n}"), "here"), *count));
    }
    let entries: Vec<_> = entries.iter().map(|(id, status)| (id.as_str(), *status)).collect();
    // One for each that may have been asked for; those beyond are of no account.
    for _ in 0..3 {
        rig.server(listed(&entries).frame("r"));
    }
}

/// FC-13: an update is an update; the one that repeats a join is dropped (client-api 9).
#[test]
fn an_update_is_an_update() {
    let mut rig = Rig::connected(quiet());
    in_room(&mut rig);
    presence(&mut rig, "join", "a", "online");
    presence(&mut rig, "update", "a", "online");
    assert_eq!(changes(&mut rig), [(Change::Join, "a".into())]);
    for status in ["away", "away", "online", "online", "online"] {
        presence(&mut rig, "update", "a", status);
    }
    assert_eq!(changes(&mut rig), vec![(Change::Update, "a".into()); 5]);
    assert_eq!(members(&rig), ["a", "me"]);
    assert!(rig.frames().is_empty(), "one connection needs no list");
}

/// K-049: an actor with two connections goes with the last; each change of them is settled by a list.
#[test]
fn an_actor_goes_with_its_last_connection() {
    let mut rig = Rig::connected(quiet());
    in_room(&mut rig);
    presence(&mut rig, "join", "a", "1");
    presence(&mut rig, "join", "a", "2");
    assert_eq!(changes(&mut rig), [(Change::Join, "a".into()), (Change::Update, "a".into())]);
    assert_eq!(rig.frames(), ["getPresence r"]);
    rig.server(listed(&[("me", "here"), ("a", "1"), ("a", "2")]).frame("r"));
    assert!(changes(&mut rig).is_empty());
    presence(&mut rig, "leave", "a", "");
    assert_eq!(rig.frames(), ["getPresence r"]);
    rig.server(listed(&[("me", "here"), ("a", "2")]).frame("r"));
    presence(&mut rig, "leave", "a", "");
    assert_eq!(changes(&mut rig).last(), Some(&(Change::Leave, "a".into())));
    assert_eq!(members(&rig), ["me"]);
}

/// K-051, client-api 9: untagged events belong to the room set last; before its list has come they are older than it.
#[test]
fn untagged_events_belong_to_the_room_set_last() {
    let mut rig = Rig::connected(quiet());
    rig.call(Call::SetPresence { room: Some(room("r")), data: Some(number(1)) });
    rig.forget();
    tagged(&mut rig, "join", "early", "", None);
    assert!(changes(&mut rig).is_empty());
    rig.server(listed(&[("me", "here")]).frame("r"));
    assert_eq!(rig.frames(), ["getPresence r"], "the list misses somebody who may have come after it");
    rig.server(listed(&[("me", "here"), ("early", "")]).frame("r"));
    tagged(&mut rig, "join", "late", "", None);
    let joined: Vec<_> = changes(&mut rig).into_iter().map(|(_, actor)| actor).collect();
    assert_eq!(joined, ["me", "early", "late"]);
}

/// Client-api 9: a first list without the own connection is `unknown_room`; one that never comes is `presence_timeout`.
#[test]
fn a_room_that_is_none() {
    let mut rig = Rig::connected(quiet());
    rig.call(Call::SetPresence { room: Some(room("r")), data: Some(number(1)) });
    rig.server(listed(&[]).frame("r"));
    assert_eq!(rig.errors().iter().map(Error::code).collect::<Vec<_>>(), ["unknown_room"]);

    let mut rig = Rig::connected(quiet());
    rig.call(Call::SetPresence { room: Some(room("r")), data: Some(number(1)) });
    rig.wait(Duration::from_secs(100));
    assert_eq!(rig.errors().iter().map(Error::code).collect::<Vec<_>>(), ["presence_timeout"]);
    let asked = rig
        .history
        .iter()
        .filter(|(_, frame)| !frame.is_empty())
        .filter(|(_, f)| describe(f) == "getPresence r");
    assert_eq!(asked.count(), 4, "once, and three times more");
}
