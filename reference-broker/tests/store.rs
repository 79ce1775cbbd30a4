//! The broker with a store on disk: what it promised is there after a kill, a restart, and a disk without room.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use kit::process::{Connection, Running, program};
use rmpv::Value;
use tempfile::TempDir;

#[macro_use]
mod kit;

const TOPIC: &str = "demo/general/messages";

/// The program with a store in this folder, and room for all that the tests publish.
fn with_store(folder: &Path) -> Command {
    let mut command = program(folder);
    command.args(["--port", "0", "--store", "store", "--publish-rate-limit", "0", "--history-size", "20000"]);
    command
}

fn login(broker: &Running, token: &str) -> Connection {
    Connection::login(broker.address, token, &["recover", "dedupe"])
}

fn publish(number: u64) -> Value {
    map! {"type": "publish", "topic": TOPIC, "data": number, "qos": 1, "msgRef": format!("test-{number}"), "echo": false}
}

/// What a subscription is told first: its reply.
fn subscribe(connection: &mut Connection, recover: Option<&(String, u64)>) -> Value {
    let mut frame = vec![("type".into(), "subscribe".into()), ("topic".into(), TOPIC.into())];
    if let Some((epoch, seq)) = recover {
        frame.push(("recover".into(), map! {"epoch": &**epoch, "seq": *seq}));
    }
    let reply = connection.ask(&Value::Map(frame));
    assert_eq!(reply["type"], Value::from("subscribed"), "{reply}");
    reply
}

fn position(subscribed: &Value) -> (String, u64) {
    (subscribed["epoch"].as_str().unwrap().to_owned(), subscribed["seq"].as_u64().unwrap())
}

/// The numbers and data of a replay, which must come next.
fn replay(connection: &mut Connection) -> Vec<(u64, u64)> {
    let start = connection.next().unwrap();
    assert_eq!(start["type"], Value::from("replayStart"), "{start}");
    let mut messages = Vec::new();
    loop {
        let frame = connection.next().unwrap();
        match frame["type"].as_str() {
            Some("message") => {
                assert_eq!(frame["isReplay"], Value::from(true), "{frame}");
                messages.push((frame["seq"].as_u64().unwrap(), frame["data"].as_u64().unwrap()));
            }
            Some("replayEnd") => return messages,
            _ => panic!("{frame}"),
        }
    }
}

/// F-10, F-05: `kill -9` in the middle of 10,000 publishes, three times, and at their end. Nothing that was acknowledged with level `disk` is
/// missing afterwards, no number is given out twice, and what is sent again is there once.
#[test]
fn a_kill_loses_nothing_that_was_acknowledged() {
    const PUBLISHES: u64 = 10_000;
    const IN_FLIGHT: usize = 400;
    let folder = TempDir::new().unwrap();
    let mut open: BTreeSet<u64> = (0..PUBLISHES).collect();
    let mut acknowledged = BTreeSet::new();
    // What subscribers saw live, whether it was synced or not.
    let mut numbers = BTreeMap::new();
    let mut begin = None;
    for kill_at in [Some(1_500), Some(4_000), Some(7_000), None] {
        let broker = Running::start(&mut with_store(folder.path()));
        let mut subscriber = login(&broker, "dev-token-bob");
        let subscribed = subscribe(&mut subscriber, begin.as_ref());
        if begin.is_some() {
            assert_eq!(subscribed["recovered"], Value::from(true), "{subscribed}");
            let kept: BTreeMap<_, _> = replay(&mut subscriber).into_iter().collect();
            let data: BTreeSet<_> = kept.values().copied().collect();
            assert!(
                data.is_superset(&acknowledged),
                "{:?}",
                acknowledged.difference(&data).collect::<Vec<_>>()
            );
            assert_eq!(data.len(), kept.len(), "each is there once");
            for (number, data) in &kept {
                assert_eq!(*numbers.entry(*number).or_insert(*data), *data, "number {number}");
            }
            // The newest number is above all that were given out, also to what was lost.
            assert!(numbers.last_key_value().unwrap().0 <= &position(&subscribed).1);
        }
        begin = begin.or_else(|| Some(position(&subscribed)));

        let mut publisher = login(&broker, "dev-token-alice");
        let mut left: Vec<u64> = open.iter().rev().copied().collect();
        let mut in_flight = 0;
        loop {
            if kill_at.is_some_and(|count| acknowledged.len() >= count) || (left.is_empty() && in_flight == 0)
            {
                break;
            }
            if in_flight < IN_FLIGHT
                && let Some(number) = left.pop()
            {
                publisher.send(&publish(number)).unwrap();
                in_flight += 1;
                continue;
            }
            let reply = publisher.next().unwrap();
            assert_eq!((&reply["type"], &reply["level"]), (&"published".into(), &"disk".into()), "{reply}");
            let number = reply["msgRef"].as_str().unwrap().strip_prefix("test-").unwrap().parse().unwrap();
            in_flight -= 1;
            open.remove(&number);
            acknowledged.insert(number);
        }
        broker.kill();
        // All that reached the subscriber before its connection broke.
        while let Ok(frame) = subscriber.next() {
            if frame["type"] == Value::from("message") {
                let (number, data) = (frame["seq"].as_u64().unwrap(), frame["data"].as_u64().unwrap());
                assert_eq!(
                    *numbers.entry(number).or_insert(data),
                    data,
                    "number {number} was given out twice"
                );
            }
        }
    }
    assert!(open.is_empty());
    let broker = Running::start(&mut with_store(folder.path()));
    let mut subscriber = login(&broker, "dev-token-bob");
    subscribe(&mut subscriber, begin.as_ref());
    let mut data: Vec<_> = replay(&mut subscriber).into_iter().map(|(_, data)| data).collect();
    data.sort_unstable();
    assert!(data.into_iter().eq(0..PUBLISHES), "each once");
}

/// F-05, F-09: a restart keeps the epoch, history, retained messages and the window of repeats.
#[test]
fn a_restart_keeps_what_the_broker_knew() {
    const RETAINED: &str = "demo/general/state";
    let folder = TempDir::new().unwrap();
    let broker = Running::start(&mut with_store(folder.path()));
    let mut subscriber = login(&broker, "dev-token-bob");
    let before = position(&subscribe(&mut subscriber, None));
    let mut publisher = login(&broker, "dev-token-alice");
    for number in 0..5 {
        let reply = publisher.ask(&publish(number));
        assert_eq!((&reply["level"], &reply["duplicate"]), (&"disk".into(), &Value::Nil), "{reply}");
    }
    let retained = |data| map! {"type": "publish", "topic": RETAINED, "data": data, "qos": 0, "retain": true, "msgRef": data};
    assert_eq!(publisher.ask(&retained("old"))["type"], Value::from("published"));
    assert_eq!(publisher.ask(&retained("new"))["type"], Value::from("published"));
    assert_eq!(broker.stop().0, Some(0));

    let broker = Running::start(&mut with_store(folder.path()));
    let mut subscriber = login(&broker, "dev-token-bob");
    let subscribed = subscribe(&mut subscriber, Some(&before));
    assert_eq!(subscribed["recovered"], Value::from(true), "{subscribed}");
    let after = position(&subscribed);
    assert_eq!(after.0, before.0);
    let (numbers, data): (Vec<_>, Vec<_>) = replay(&mut subscriber).into_iter().unzip();
    assert_eq!(data, [0, 1, 2, 3, 4]);
    assert!(numbers.is_sorted() && numbers.iter().all(|number| (before.1..=after.1).contains(number)));

    let mut publisher = login(&broker, "dev-token-alice");
    let repeated = publisher.ask(&publish(4));
    assert_eq!((&repeated["duplicate"], &repeated["level"]), (&true.into(), &"disk".into()), "{repeated}");
    let fresh = publisher.ask(&publish(5));
    assert_eq!(fresh["duplicate"], Value::Nil, "{fresh}");
    let live = subscriber.next().unwrap();
    assert_eq!(live["data"], Value::from(5), "the repeat went no further: {live}");
    assert!(live["seq"].as_u64().unwrap() > after.1, "{live}");

    let mut late = login(&broker, "dev-token-bob");
    let reply = late.ask(&map! {"type": "subscribe", "topic": RETAINED});
    assert_eq!(reply["type"], Value::from("subscribed"), "{reply}");
    let kept = late.next().unwrap();
    assert_eq!((&kept["data"], &kept["retained"]), (&"new".into(), &true.into()), "{kept}");
}

/// F-10, features 8: where the disk has no room (a limit on the file's size stands in for it) publishes are answered with 42970, the broker
/// lives, and goes on when there is room again; what it acknowledged is there after a kill.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_refuses_and_is_survived() {
    const LIMIT_KIB: u64 = 4 * 1024;
    let folder = TempDir::new().unwrap();
    let plain = with_store(folder.path());
    // A write past the limit is an error then, like one without room, and not the end of the process.
    let mut command = Command::new("sh");
    command.env_clear().current_dir(folder.path());
    command.args(["-c", "trap '' XFSZ; ulimit -S -f $0; exec \"$@\"", &(LIMIT_KIB * 2).to_string()]);
    command.arg(plain.get_program()).args(plain.get_args());
    let broker = Running::start(&mut command);
    let mut subscriber = login(&broker, "dev-token-bob");
    let begin = position(&subscribe(&mut subscriber, None));
    let mut publisher = login(&broker, "dev-token-alice");
    let payload = |number: u64| map! {"number": number, "filler": "x".repeat(50_000)};
    let large = |number| {
        map! {
            "type": "publish", "topic": TOPIC, "data": payload(number), "qos": 1, "msgRef": format!("large-{number}")
        }
    };
    let mut acknowledged = Vec::new();
    let refused = (0..1_000).find(|number| {
        let reply = publisher.ask(&large(*number));
        match reply["type"].as_str() {
            Some("published") => acknowledged.push(*number),
            _ => assert_eq!(
                (&reply["code"], &reply["error"]),
                (&42970.into(), &"store_full".into()),
                "{reply}"
            ),
        }
        reply["type"] != Value::from("published")
    });
    let refused = refused.expect("the limit is reached");
    assert!(!acknowledged.is_empty());
    assert!(broker.get("/health").starts_with("HTTP/1.1 200"));
    // What is never kept needs no room.
    let unkept = map! {"type": "publish", "topic": TOPIC, "data": 1, "qos": 0, "msgRef": "unkept"};
    assert_eq!(publisher.ask(&unkept)["type"], Value::from("published"));

    let pid = i32::try_from(broker.pid()).unwrap();
    let (mut soft, mut hard) = (0, 0);
    rlimit::prlimit(pid, rlimit::Resource::FSIZE, None, Some((&mut soft, &mut hard))).unwrap();
    rlimit::prlimit(pid, rlimit::Resource::FSIZE, Some((hard, hard)), None).unwrap();
    // It looks again by itself, and the publisher sends the same once more, as clients do.
    let mut attempts = 0;
    let accepted = loop {
        attempts += 1;
        let reply = publisher.ask(&large(refused));
        if reply["type"] == Value::from("published") {
            break reply;
        }
        assert_eq!(reply["code"], Value::from(42970), "{reply}");
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert!(attempts < 3_000, "it does not go on");
    };
    assert_eq!(accepted["level"], Value::from("disk"), "{accepted}");
    acknowledged.push(refused);
    broker.kill();

    let broker = Running::start(&mut with_store(folder.path()));
    let mut subscriber = login(&broker, "dev-token-bob");
    assert_eq!(subscribe(&mut subscriber, Some(&begin))["recovered"], Value::from(true));
    let numbers = |frame: &Value| frame["data"]["number"].as_u64();
    let mut kept = Vec::new();
    loop {
        let frame = subscriber.next().unwrap();
        match frame["type"].as_str() {
            Some("message") => kept.push(numbers(&frame).unwrap()),
            Some("replayEnd") => break,
            _ => {}
        }
    }
    assert_eq!(kept, acknowledged);
}
