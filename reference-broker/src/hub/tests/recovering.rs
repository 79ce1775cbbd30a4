//! A subscription that continues gets exactly what it missed, or is told why it does not (features 2).

use std::collections::BTreeMap;

use nolag_protocol::features::Feature;
use nolag_protocol::frame::Position;

use super::super::{Joined, Reply};
use super::*;

const RECOVER: Features = Features::NONE.with(Feature::Recover);

/// What a subscribe of a test answered.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Answer {
    epoch: String,
    seq: u64,
    recovered: Option<bool>,
    gap: Option<&'static str>,
}

fn join(hub: &Hub, outgoing: &Arc<Outgoing>, interest: Interest, join: &Join<'_>) -> (Subscription, Answer) {
    let mut answer = None;
    let subscription = hub.subscribe(outgoing, interest, None, join, |joined| {
        let Joined { epoch, seq, recovered, gap } = joined.expect("the feature is granted");
        answer = Some(Answer { epoch: epoch.to_owned(), seq, recovered, gap });
        Some(Bytes::new())
    });
    (subscription, answer.unwrap())
}

fn recovering(topic: &str, keys: Vec<String>) -> Interest {
    Interest { features: RECOVER, ..interest(topic, keys, true) }
}

/// A message as it is compared: its number, and whether it is replayed.
fn message(frame: &Bytes) -> Option<(u64, bool)> {
    match ServerFrame::decode(frame) {
        Ok(ServerFrame::Message(message)) => Some((message.seq.unwrap(), message.is_replay == Some(true))),
        _ => None,
    }
}

fn messages(frames: &[Bytes]) -> Vec<(u64, bool)> {
    frames.iter().filter_map(message).collect()
}

fn kept<'a>(base: &'a str, key: Option<&'a str>) -> Publication<'a> {
    Publication { keep: true, ..publication(base, key, true) }
}

fn publish(hub: &Hub, base: &str, count: u64) {
    for _ in 0..count {
        hub.publish(&kept(base, None), None).unwrap();
    }
}

/// A subscription to `app/a` that ended after `seen` messages; the position is where it stopped.
fn position(hub: &Hub) -> (String, u64) {
    let (subscription, answer) = join(hub, &subscriber(1), recovering("a", Vec::new()), &Join::default());
    hub.unsubscribe(&subscription);
    assert_eq!((answer.recovered, answer.gap), (None, None), "nothing was asked");
    (answer.epoch, answer.seq)
}

fn resume(hub: &Hub, topic: &str, (epoch, seq): (&str, u64)) -> (Answer, Vec<Bytes>) {
    let outgoing = subscriber(2);
    let recover = Some(Position { epoch, seq });
    let (subscription, answer) =
        join(hub, &outgoing, recovering(topic, Vec::new()), &Join { recover, ..Join::default() });
    hub.unsubscribe(&subscription);
    let frames = drain(&outgoing);
    (answer, frames[1..].to_vec())
}

fn gap(hub: &Hub, topic: &str, position: (&str, u64)) -> Option<&'static str> {
    let (answer, frames) = resume(hub, topic, position);
    assert_eq!(answer.recovered, Some(answer.gap.is_none()));
    assert!(answer.gap.is_none() || frames.is_empty(), "never a part");
    answer.gap
}

/// F-03: what was missed comes once, in order, between its start and end, and before what is live.
#[test]
fn what_was_missed_comes_first() {
    let hub = hub(&Settings::default());
    publish(&hub, "app/a", 2);
    let (epoch, seq) = position(&hub);
    publish(&hub, "app/a", 2);
    hub.publish(&publication("app/a", None, false), None).unwrap();
    publish(&hub, "app/b", 1);
    publish(&hub, "app/a", 1);

    let outgoing = subscriber(2);
    let recover = Some(Position { epoch: &epoch, seq });
    let (_subscription, answer) =
        join(&hub, &outgoing, recovering("a", Vec::new()), &Join { recover, ..Join::default() });
    publish(&hub, "app/a", 1);
    assert_eq!(answer, Answer { epoch, seq: 7, recovered: Some(true), gap: None });
    let frames = drain(&outgoing);
    assert_eq!(messages(&frames), [(3, true), (4, true), (7, true), (8, false)], "quality 0 is not kept");
    let Ok(ServerFrame::ReplayStart(start)) = ServerFrame::decode(&frames[1]) else { panic!("{frames:?}") };
    assert_eq!((start.topic, start.count), (Some("a"), Some(3)));
    let Ok(ServerFrame::ReplayEnd(end)) = ServerFrame::decode(&frames[5]) else { panic!("{frames:?}") };
    assert_eq!((end.topic, end.replayed), (Some("a"), Some(3)));

    let (answer, frames) = resume(&hub, "a", (&answer.epoch, 8));
    assert_eq!((answer.recovered, frames.len()), (Some(true), 0), "without messages no frames");
}

/// F-04: a history that was trimmed behind the position, by number, time or bytes, says so; other topics' does not matter.
#[tokio::test(start_paused = true)]
async fn a_trimmed_history_is_a_gap() {
    let settings = Settings {
        history_size: 3,
        history_ttl: Duration::from_secs(300),
        recover_limit: 5,
        ..Settings::default()
    };
    let hub = hub(&settings);
    publish(&hub, "app/a", 1);
    let (epoch, seq) = position(&hub);
    let at = (epoch.as_str(), seq);
    publish(&hub, "app/b", 9);
    assert_eq!(gap(&hub, "a", at), None);
    publish(&hub, "app/a", 3);
    assert_eq!(gap(&hub, "a", at), None, "as many as are kept");
    assert_eq!(gap(&hub, "#", at), Some("expired"), "a pattern misses those of b");
    publish(&hub, "app/a", 1);
    assert_eq!(gap(&hub, "a", at), Some("expired"));
    assert_eq!(gap(&hub, "c", at), None, "nothing was published there");
    assert_eq!(gap(&hub, "a", (&epoch, seq + 10)), None, "a position that is new enough");

    publish(&hub, "app/d", 3);
    publish(&hub, "app/e", 3);
    assert_eq!(gap(&hub, "#", (&epoch, 14)), Some("too_many"), "more than RECOVER_LIMIT");
    tokio::time::advance(settings.history_ttl).await;
    assert_eq!(gap(&hub, "d", (&epoch, 14)), Some("expired"));
    assert_eq!(hub.kept(), (0, 0, 0));
    assert_eq!(gap(&hub, "c", at), None);

    assert_eq!(gap(&hub, "a", (&epoch, 21)), Some("epoch"), "a number that was not given out yet");
    assert_eq!(gap(&hub, "a", ("another run", 1)), Some("epoch"), "F-05");
}

/// The bounds as they are written: none, one, and more than there is; bytes count over all topics.
#[test]
fn bounds_are_as_written() {
    let with =
        |history_size, history_max_bytes| Settings { history_size, history_max_bytes, ..Settings::default() };
    for (settings, messages) in
        [(with(0, 1 << 20), 0), (with(1, 1 << 20), 2), (with(usize::MAX, usize::MAX), 20)]
    {
        let hub = hub(&settings);
        publish(&hub, "app/a", 10);
        publish(&hub, "app/b", 10);
        assert_eq!(hub.kept().1, messages);
    }
    let hub = hub(&with(1_000, 3_000));
    publish(&hub, "app/a", 10);
    publish(&hub, "app/b", 5);
    let (_, messages, bytes) = hub.kept();
    assert!(messages > 5 && bytes <= 3_000, "{messages} messages of {bytes} bytes");
    let Answer { epoch, .. } = resume(&hub, "a", ("", 0)).0;
    assert_eq!(gap(&hub, "a", (&epoch, 1)), Some("expired"));
    assert_eq!(gap(&hub, "b", (&epoch, 1)), None);
}

/// F-08, and `history` beside `recover`, which counts only where that fails. Retained messages are not brought twice.
#[test]
fn history_on_join() {
    let hub = hub(&Settings::default());
    publish(&hub, "app/a", 29);
    let retained = Publication { retain: Some(Duration::from_secs(60)), ..kept("app/a", None) };
    hub.publish(&retained, None).unwrap();
    let older = Publication { retain: Some(Duration::from_secs(60)), ..publication("app/a/x", None, false) };
    hub.publish(&older, None).unwrap();
    let get = |recover: Option<(&str, u64)>| {
        let outgoing = subscriber(2);
        let recover = recover.map(|(epoch, seq)| Position { epoch, seq });
        let with = Join { recover, history: Some(20), ..Join::default() };
        let (subscription, answer) = join(&hub, &outgoing, recovering("a", Vec::new()), &with);
        hub.unsubscribe(&subscription);
        (answer, messages(&drain(&outgoing)))
    };
    let newest: Vec<_> = std::iter::once((31, false)).chain((11..=30).map(|seq| (seq, true))).collect();
    let (answer, got) = get(None);
    assert_eq!(got, newest);
    assert_eq!(get(Some(("another run", 1))).1, newest);
    assert_eq!(get(Some((&answer.epoch, 28))).1, [(29, true), (30, true), (31, true)]);
}

/// What a client published without echo does not come back to it, but to other clients of its actor.
#[test]
fn what_was_published_without_echo() {
    let hub = hub(&Settings::default());
    let (epoch, seq) = position(&hub);
    let own = Publication { silent: Some(9), silent_client: Some("tab-1"), ..kept("app/a", None) };
    hub.publish(&own, None).unwrap();
    let get = |actor, client_id| {
        let outgoing = subscriber(2);
        let recover = Some(Position { epoch: &epoch, seq });
        let with = Join { recover, actor, client_id, ..Join::default() };
        let (subscription, _) = join(&hub, &outgoing, recovering("a", Vec::new()), &with);
        hub.unsubscribe(&subscription);
        messages(&drain(&outgoing)).len()
    };
    assert_eq!(get("alice", Some("tab-1")), 0);
    assert_eq!(get("alice", Some("tab-2")), 1);
    assert_eq!(get("alice", None), 1);
    assert_eq!(get("bob", Some("tab-1")), 1);
}

/// Groups share messages and do not continue; those without the feature see nothing of it.
#[test]
fn groups_and_others() {
    let hub = hub(&Settings::default());
    let (epoch, seq) = position(&hub);
    publish(&hub, "app/a", 3);
    let outgoing = subscriber(2);
    let recover = Some(Position { epoch: &epoch, seq });
    let group = Interest { group: Some("workers".into()), ..recovering("a", Vec::new()) };
    let (_group, answer) = join(&hub, &outgoing, group, &Join { recover, ..Join::default() });
    assert_eq!((answer.recovered, answer.gap), (Some(false), Some("group")));
    let plain = subscriber(3);
    let _plain = hub.subscribe(&plain, interest("a", Vec::new(), true), None, &Join::default(), |joined| {
        assert!(joined.is_none());
        Some(Bytes::new())
    });
    publish(&hub, "app/a", 1);
    let frames = drain(&plain);
    let Ok(ServerFrame::Message(frame)) = ServerFrame::decode(&frames[1]) else { panic!("{frames:?}") };
    assert_eq!(frame.seq, None);
    assert_eq!(messages(&drain(&outgoing)), [(4, false)]);
}

/// F-09: a publish sent three times is one message; each time its publisher hears of it.
#[test]
fn a_publish_sent_again() {
    let hub = hub(&Settings::default());
    let (alice, bob) = (subscriber(1), subscriber(2));
    let _subscription = subscribe(&hub, &bob, interest("a", Vec::new(), true));
    let reply = |msg_ref| Reply { to: &alice, topic: "a", msg_ref, with_level: true };
    let sent = Publication { msg_ref: Some("r-1"), ..kept("app/a", None) };
    for _ in 0..3 {
        hub.publish(&sent, Some(reply("r-1"))).unwrap();
    }
    assert!(hub.repeated("alice", "r-1", Some(reply("r-1"))));
    assert!(!hub.repeated("bob", "r-1", Some(reply("r-1"))), "another actor's");
    assert_eq!(drain(&bob).len(), 2, "the reply and one message");
    let answers: Vec<_> = drain(&alice)
        .iter()
        .map(|frame| match ServerFrame::decode(frame) {
            Ok(ServerFrame::Published(published)) => (published.duplicate, published.level == Some("memory")),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(answers, [(None, true), (Some(true), true), (Some(true), true), (Some(true), true)]);
    let passing = Publication { keep: false, msg_ref: Some("r-2"), ..sent };
    hub.publish(&passing, Some(reply("r-2"))).unwrap();
    let frames = drain(&alice);
    let Ok(ServerFrame::Published(published)) = ServerFrame::decode(&frames[0]) else { panic!("{frames:?}") };
    assert_eq!(published.level, None, "nothing keeps it");
}

/// One client of the random test.
struct Reader {
    wanted: Interest,
    online: Option<(Subscription, Arc<Outgoing>)>,
    position: u64,
    /// What it has, and what it should have.
    got: Vec<u64>,
    due: Vec<u64>,
}

#[derive(Debug, Clone)]
enum Step {
    Publish {
        base: usize,
        key: Option<&'static str>,
        keep: bool,
        retain: bool,
    },
    Cut(usize),
    Return(usize),
    /// It reads so many frames; what is still queued then is lost with the connection.
    Read(usize, usize),
}

fn step() -> impl Strategy<Value = Step> {
    let publish = (0..4_usize, prop::option::of(prop::sample::select(vec!["a", "b"])), 0..8_u8)
        .prop_map(|(base, key, kind)| Step::Publish { base, key, keep: kind > 0, retain: kind == 1 });
    prop_oneof![
        6 => publish,
        1 => (0..3_usize).prop_map(Step::Cut),
        2 => (0..3_usize).prop_map(Step::Return),
        3 => (0..3_usize, 1..6_usize).prop_map(|(reader, count)| Step::Read(reader, count)),
    ]
}

impl Reader {
    fn read(&mut self, queue: &mut BTreeMap<u64, VecDeque<Bytes>>, count: usize) {
        let Some((_, outgoing)) = &self.online else { return };
        let queue = queue.entry(outgoing.id()).or_default();
        queue.extend(drain(outgoing));
        for frame in queue.drain(..count.min(queue.len())) {
            match ServerFrame::decode(&frame) {
                Ok(ServerFrame::Message(message)) => {
                    self.got.push(message.seq.unwrap());
                    self.position = self.position.max(message.seq.unwrap());
                }
                Ok(ServerFrame::ReplayStart(_) | ServerFrame::ReplayEnd(_)) => {}
                other => assert!(frame.is_empty(), "{other:?}"),
            }
        }
    }
}

proptest! {
    /// F-03, F-06: under any order of publishes, cuts and returns, with patterns and filters, each reader has exactly the kept
    /// messages it wanted, each once and in the order of their numbers.
    #[test]
    fn nothing_is_missed_or_doubled(
        interests in prop::collection::vec(wanted(), 3),
        steps in prop::collection::vec(step(), 1..80),
    ) {
        const BASES: [&str; 4] = ["app/a", "app/b", "app/a/b", "app/b/a"];
        let hub = hub(&Settings::default());
        let mut queues = BTreeMap::new();
        let mut next_id = 1;
        let mut arrive = |reader: &mut Reader| {
            let outgoing = subscriber(next_id);
            next_id += 1;
            let epoch = hub.epoch.clone();
            let recover = Some(Position { epoch: &epoch, seq: reader.position });
            let (subscription, answer) =
                join(&hub, &outgoing, reader.wanted.clone(), &Join { recover, ..Join::default() });
            assert_eq!(answer.recovered, Some(true), "{answer:?}");
            reader.online = Some((subscription, outgoing));
        };
        let mut readers: Vec<Reader> = interests
            .into_iter()
            .map(|wanted| Reader {
                wanted: Interest { features: RECOVER, ..wanted },
                online: None,
                position: 0,
                got: Vec::new(),
                due: Vec::new(),
            })
            .collect();
        for reader in &mut readers {
            arrive(reader);
        }
        for step in steps {
            match step {
                Step::Publish { base, key, keep, retain } => {
                    let retain = retain.then_some(Duration::from_secs(60));
                    let message = Publication { keep, retain, ..kept(BASES[base], key) };
                    // Quality 0 reaches whom it reaches; it is left out of the reckoning by reaching nobody.
                    if !keep && message.retain.is_none() {
                        continue;
                    }
                    hub.publish(&message, None).unwrap();
                    let seq = hub.state.lock().seq;
                    for reader in &mut readers {
                        if reader.wanted.wants(&message.message.origin).is_some() {
                            reader.due.push(seq);
                        }
                    }
                }
                Step::Cut(reader) => {
                    if let Some((subscription, outgoing)) = readers[reader].online.take() {
                        hub.unsubscribe(&subscription);
                        queues.remove(&outgoing.id());
                    }
                }
                Step::Return(reader) => {
                    if readers[reader].online.is_none() {
                        arrive(&mut readers[reader]);
                    }
                }
                Step::Read(reader, count) => readers[reader].read(&mut queues, count),
            }
        }
        for reader in &mut readers {
            if reader.online.is_none() {
                arrive(reader);
            }
            reader.read(&mut queues, usize::MAX);
            prop_assert_eq!(&reader.got, &reader.due, "{:?}", reader.wanted);
        }
    }
}
