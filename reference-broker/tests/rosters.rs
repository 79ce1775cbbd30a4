//! FC-12, the broker's part: a list and the events around it never contradict each other, whatever happens beside.

mod kit;

use std::collections::BTreeMap;
use std::sync::Arc;

use kit::{Client, broker_with};
use nolag_broker::Broker;
use nolag_broker::auth::AllowAll;
use nolag_broker::config::Settings;
use rmpv::Value;

/// Who is there, and with how many connections.
type Roster = BTreeMap<String, u32>;

/// Joins and leaves in ways that differ between actors and times, half of the times by cutting the connection.
async fn come_and_go(broker: Arc<Broker>, actor: String, way: u64) {
    for n in 0..20_u64 {
        let mut client = Client::login(&broker, &actor).await;
        client.send(map! {"type": "presence", "roomId": "hall", "data": n}).await;
        for _ in 0..(n * 7 + way) % 3 {
            client.send(map! {"type": "presence", "roomId": "hall", "data": n + 100}).await;
        }
        if (n + way).is_multiple_of(2) {
            client
                .send(map! {"type": "presence", "roomId": "hall", "data": Value::Nil, "msgRef": "gone"})
                .await;
            while client.next().await["type"] != Value::from("presenceUpdated") {}
        }
    }
}

/// Takes an event into account; what it says must be possible.
fn apply(roster: &mut Roster, event: &Value) {
    let actor = event["data"]["actor_token_id"].as_str().unwrap().to_owned();
    match event["event"].as_str().unwrap() {
        "join" => *roster.entry(actor).or_default() += 1,
        "update" => assert!(roster.contains_key(&actor), "an update of somebody who is not there: {event}"),
        "leave" => {
            let count = roster.get_mut(&actor).unwrap_or_else(|| panic!("a leave before a join: {event}"));
            *count -= 1;
            if *count == 0 {
                roster.remove(&actor);
            }
        }
        other => panic!("{other}"),
    }
}

fn listed(list: &Value) -> Roster {
    let mut roster = Roster::new();
    for entry in list["data"].as_array().unwrap() {
        *roster.entry(entry["actorTokenId"].as_str().unwrap().to_owned()).or_default() += 1;
    }
    roster
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn lists_and_events_agree() {
    let broker = broker_with(Settings::default(), Arc::new(AllowAll));
    let mut observer = Client::login(&broker, "observer").await;
    observer.send(map! {"type": "presence", "roomId": "hall", "data": 0}).await;
    let mut roster = Roster::new();
    for _ in ["join", "update"] {
        apply(&mut roster, &observer.next().await);
    }
    // Every actor comes over two connections, so that one of them leaving does not make it gone.
    let actors: Vec<_> =
        (0..20).map(|n| tokio::spawn(come_and_go(broker.clone(), format!("actor-{}", n / 2), n))).collect();

    let mut lists = 0;
    while lists < 50 {
        observer.send(map! {"type": "getPresence", "roomId": "hall"}).await;
        loop {
            let frame = observer.next().await;
            if frame["type"] == Value::from("presenceList") {
                assert_eq!(listed(&frame), roster, "list {lists}");
                lists += 1;
                break;
            }
            apply(&mut roster, &frame);
        }
    }
    for actor in actors {
        actor.await.unwrap();
    }
    // The last connections may still be ending; their leaves come as events.
    while roster.len() > 1 {
        apply(&mut roster, &observer.next().await);
    }
    assert_eq!(roster, Roster::from([("observer".to_owned(), 1)]));
}
