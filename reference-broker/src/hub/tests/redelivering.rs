//! What a group that redelivers owes is handed out until somebody acknowledges it (features 6).

use std::collections::{BTreeMap, BTreeSet, HashMap};

use nolag_protocol::features::Feature;
use nolag_protocol::frame::Position;
use tempfile::TempDir;
use tokio::time::advance;

use super::super::ledger::MAX_UNACKED;
use super::super::{Joined, Worker};
use super::*;
use crate::outgoing::ConnectionId;
use crate::store::Disk;
use crate::store::disk::Bounds;

const TIMEOUT: Duration = Duration::from_secs(30);

/// What a member of a group asks for.
fn worker(topic: &str) -> Interest {
    let worker = Worker { ack_timeout: TIMEOUT, actor: "worker".into(), client_id: None };
    Interest {
        group: Some("p_app_workers".into()),
        features: Features::NONE.with(Feature::Recover).with(Feature::Redeliver),
        worker: Some(Arc::new(worker)),
        ..interest(topic, Vec::new(), true)
    }
}

fn publish(hub: &Hub, base: &str, count: usize) {
    for _ in 0..count {
        hub.publish(&Publication { keep: true, ..publication(base, None, true) }, None).unwrap();
    }
}

/// A message as a member gets it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Got {
    seq: u64,
    msg_id: String,
    again: bool,
}

/// A connection with subscriptions, and what was handed to it.
struct Member {
    outgoing: Arc<Outgoing>,
    subscription: Option<Subscription>,
}

impl Member {
    fn join(hub: &Hub, id: ConnectionId, interest: Interest) -> Self {
        let outgoing = subscriber(id);
        let subscription = Some(subscribe(hub, &outgoing, interest));
        Self { outgoing, subscription }
    }

    /// The messages since this was asked last; each has to be acknowledged.
    fn got(&self) -> Vec<Got> {
        let frames = drain(&self.outgoing);
        let messages = frames.iter().filter_map(|frame| match ServerFrame::decode(frame) {
            Ok(ServerFrame::Message(message)) => Some(message),
            _ => None,
        });
        let messages = messages.map(|message| {
            assert_eq!(message.requires_ack, Some(true));
            Got {
                seq: message.seq.unwrap(),
                msg_id: message.msg_id.unwrap().to_owned(),
                again: message.redelivered == Some(true),
            }
        });
        messages.collect()
    }

    fn numbers(&self) -> Vec<(u64, bool)> {
        self.got().into_iter().map(|got| (got.seq, got.again)).collect()
    }

    fn acknowledge(&self, hub: &Hub, messages: &[Got]) {
        hub.acknowledge(self.outgoing.id(), messages.iter().map(|got| &*got.msg_id));
    }

    fn leave(&mut self, hub: &Hub) {
        if let Some(subscription) = self.subscription.take() {
            hub.unsubscribe(&subscription);
        }
    }

    /// Closes.
    fn end(mut self, hub: &Hub) {
        self.leave(hub);
        hub.end(self.outgoing.id(), false);
    }

    /// Breaks off.
    fn vanish(mut self, hub: &Hub) {
        self.leave(hub);
        hub.end(self.outgoing.id(), true);
    }
}

/// F-13: what a member held goes to others, once each and marked, and what it acknowledged does not.
#[test]
fn what_a_member_held_goes_to_others() {
    let hub = hub(&Settings::default());
    let members: Vec<_> = (1..=3).map(|id| Member::join(&hub, id, worker("jobs"))).collect();
    publish(&hub, "app/jobs", 30);
    let [one, two, three] = members.try_into().ok().unwrap();
    let held = two.got();
    assert_eq!(held.len(), 10);
    assert!(held.iter().all(|got| !got.again));
    let (done, open) = held.split_at(6);
    two.acknowledge(&hub, done);
    let (mut first, mut third) = (one.got(), three.got());
    assert_eq!((first.len(), third.len()), (10, 10));
    // Another's acknowledgement does not count.
    one.acknowledge(&hub, open);
    two.end(&hub);
    let (more, others) = (one.got(), three.got());
    let mut again: Vec<_> = more.iter().chain(&others).cloned().collect();
    again.sort_by_key(|got| got.seq);
    let expected: Vec<_> = open.iter().map(|got| Got { again: true, ..got.clone() }).collect();
    assert_eq!(again, expected, "each once, with the same id");
    assert_eq!((more.len(), others.len()), (2, 2), "in turns");

    first.extend(more);
    third.extend(others);
    one.acknowledge(&hub, &first);
    three.acknowledge(&hub, &third);
    let back = Member::join(&hub, 2, worker("jobs"));
    assert_eq!(back.numbers(), [], "nothing old");
    publish(&hub, "app/jobs", 3);
    assert_eq!(back.numbers(), [(33, false)], "and its share of what is new");
}

/// F-14, and what waits goes out as there is room.
#[test]
fn a_member_has_a_bound() {
    let hub = hub(&Settings::default());
    let slow = Member::join(&hub, 1, worker("jobs"));
    publish(&hub, "app/jobs", MAX_UNACKED + 10);
    let held = slow.got();
    assert_eq!(held.len(), MAX_UNACKED);
    publish(&hub, "app/jobs", 1);
    assert_eq!(slow.numbers(), []);
    slow.acknowledge(&hub, &held[..2]);
    let next = MAX_UNACKED as u64 + 1;
    assert_eq!(slow.numbers(), [(next, false), (next + 1, false)]);
    slow.acknowledge(&hub, &held[..2]);
    assert_eq!(slow.numbers(), [], "once is enough");
    let other = Member::join(&hub, 2, worker("jobs"));
    assert_eq!(other.got().len(), 9, "what waited is for whoever comes");
}

/// The time to acknowledge passes: it goes to another member, or to the same one where there is no other; an acknowledgement
/// that comes later does not count.
#[tokio::test(start_paused = true)]
async fn what_is_not_acknowledged_in_time_goes_on() {
    let hub = hub(&Settings::default());
    let one = Member::join(&hub, 1, worker("jobs"));
    publish(&hub, "app/jobs", 1);
    let late = one.got();
    advance(Duration::from_millis(29_999)).await;
    assert!(hub.tick().is_some());
    assert_eq!(one.numbers(), []);
    advance(Duration::from_millis(1)).await;
    hub.tick();
    assert_eq!(one.numbers(), [(1, true)], "it is alone");
    let two = Member::join(&hub, 2, worker("jobs"));
    advance(TIMEOUT).await;
    hub.tick();
    assert_eq!((one.numbers(), two.numbers()), (vec![], vec![(1, true)]));
    one.acknowledge(&hub, &late);
    advance(TIMEOUT).await;
    hub.tick();
    assert_eq!((one.numbers(), two.numbers()), (vec![(1, true)], vec![]));
    one.acknowledge(&hub, &late);
    advance(TIMEOUT * 2).await;
    assert_eq!(hub.tick(), None, "nothing is out");
    assert_eq!((one.numbers(), two.numbers()), (vec![], vec![]));
}

/// What could only go to one that was busy goes to those who are left when that leaves.
#[tokio::test(start_paused = true)]
async fn who_leaves_is_not_waited_for() {
    let hub = hub(&Settings::default());
    let one = Member::join(&hub, 1, worker("jobs"));
    publish(&hub, "app/jobs", 1);
    assert_eq!(one.numbers(), [(1, false)]);
    advance(TIMEOUT / 2).await;
    let mut busy = Member::join(&hub, 2, worker("jobs"));
    publish(&hub, "app/jobs", 2 * MAX_UNACKED - 1);
    assert_eq!((one.got().len(), busy.got().len()), (MAX_UNACKED - 1, MAX_UNACKED));
    advance(TIMEOUT / 2).await;
    hub.tick();
    assert_eq!(one.numbers(), [], "it had it last");
    busy.leave(&hub);
    assert_eq!(one.numbers(), [(1, true)]);
}

/// A message that nobody acknowledges is handed out `REDELIVER_MAX` times more, then dropped and counted, and published under the
/// name for such messages; from there it goes no further.
#[tokio::test(start_paused = true)]
async fn what_nobody_acknowledges_is_given_up() {
    let settings =
        Settings { redeliver_max: 2, dead_letter_topic: Some("dead".to_owned()), ..Settings::default() };
    let hub = hub(&settings);
    let one = Member::join(&hub, 1, worker("work/jobs"));
    let dead = Member::join(&hub, 2, worker("work/dead"));
    let anybody = subscriber(3);
    let _subscription = subscribe(&hub, &anybody, interest("work/dead", Vec::new(), true));
    drain(&anybody);
    publish(&hub, "app/work/jobs", 1);
    for again in [false, true, true] {
        assert_eq!(one.numbers(), [(1, again)]);
        assert_eq!(dead.numbers(), []);
        advance(TIMEOUT).await;
        hub.tick();
    }
    assert_eq!(one.numbers(), []);
    let buried = drain(&anybody);
    let Ok(ServerFrame::Message(message)) = ServerFrame::decode(&buried[0]) else { panic!("{buried:?}") };
    assert_eq!((message.topic, message.data.bytes, message.from), ("work/dead", &[0x01][..], Some("alice")));
    let counted = |reason| format!("nolag_dropped_total{{reason=\"{reason}\"}} 1");
    assert!(hub.metrics.text().contains(&counted("redeliver_exhausted")), "{}", hub.metrics.text());
    for again in [false, true, true] {
        assert_eq!(dead.numbers(), [(2, again)]);
        advance(TIMEOUT).await;
        hub.tick();
    }
    assert_eq!((dead.numbers(), drain(&anybody).len()), (vec![], 0));
    assert_eq!(hub.tick(), None);
}

/// Members that break off at the same moment do not use up a message's attempts, nor do those that close, or are closed: so a
/// deployment loses nothing. One that breaks off by itself may have failed over what it held.
#[tokio::test(start_paused = true)]
async fn who_goes_with_others_did_not_fail() {
    let hub = hub(&Settings { redeliver_max: 1, ..Settings::default() });
    let rest = Duration::from_millis(200);
    let crowd: Vec<_> = (1..=9).map(|id| Member::join(&hub, id, worker("jobs"))).collect();
    publish(&hub, "app/jobs", 1);
    assert_eq!(crowd[0].numbers(), [(1, false)]);
    for member in crowd {
        assert_eq!(member.numbers(), []);
        member.vanish(&hub);
    }
    let next = Member::join(&hub, 10, worker("jobs"));
    assert_eq!(next.numbers(), [], "it rests");
    advance(rest).await;
    hub.tick();
    assert_eq!(next.numbers(), [(1, true)]);
    next.end(&hub);
    for id in 11..=15 {
        let member = Member::join(&hub, id, worker("jobs"));
        assert_eq!(member.numbers(), [(1, true)]);
        // The broker closes it, so it is given nothing more.
        let closing = Member::join(&hub, 100, worker("jobs"));
        closing.outgoing.close(nolag_protocol::codes::DRAINING.into());
        member.end(&hub);
        assert_eq!(closing.numbers(), []);
        closing.end(&hub);
    }
    let last = Member::join(&hub, 16, worker("jobs"));
    assert_eq!(last.numbers(), [(1, true)]);
    last.vanish(&hub);
    advance(rest).await;
    hub.tick();
    assert!(hub.metrics.text().contains("redeliver_exhausted\"} 1"), "the second that failed over it");
    assert_eq!(Member::join(&hub, 17, worker("jobs")).numbers(), []);
}

/// A group begins with its first member; without members its messages wait within the bounds of history, and it is
/// remembered as long as those are.
#[tokio::test(start_paused = true)]
async fn messages_wait_for_members() {
    let settings = Settings { history_size: 3, ..Settings::default() };
    let hub = hub(&settings);
    publish(&hub, "app/jobs", 1);
    let one = Member::join(&hub, 1, worker("jobs"));
    assert_eq!(one.numbers(), [], "it was there before the group");
    publish(&hub, "app/jobs", 1);
    one.end(&hub);
    publish(&hub, "app/jobs", 2);
    // What is not kept does not wait.
    hub.publish(&publication("app/jobs", None, true), None).unwrap();
    publish(&hub, "app/elsewhere", 1);
    let two = Member::join(&hub, 2, worker("jobs"));
    assert_eq!(two.numbers(), [(2, true), (3, false), (4, false)]);
    two.end(&hub);
    publish(&hub, "app/jobs", 3);
    let three = Member::join(&hub, 3, worker("jobs"));
    let numbers = three.numbers();
    assert_eq!(numbers[3..], [(7, false), (8, false), (9, false)], "as many as history has");
    assert_eq!(numbers[..3], [(2, true), (3, true), (4, true)], "and what was out");
    three.end(&hub);

    advance(settings.history_ttl).await;
    assert_eq!(hub.tick(), None, "the group is forgotten");
    publish(&hub, "app/jobs", 1);
    let four = Member::join(&hub, 4, worker("jobs"));
    assert_eq!(four.numbers(), []);
    assert!(hub.state.lock().table.groups.is_tidy());
}

/// Messages that wait because all members are busy are lost with history, and counted.
#[tokio::test(start_paused = true)]
async fn waiting_has_the_bounds_of_history() {
    let hub = hub(&Settings { history_size: 5, ..Settings::default() });
    let busy = Member::join(&hub, 1, worker("jobs"));
    publish(&hub, "app/jobs", MAX_UNACKED);
    let held = busy.got();
    publish(&hub, "app/jobs", 3_000);
    busy.acknowledge(&hub, &held);
    let last = MAX_UNACKED as u64 + 3_000;
    let waited: Vec<_> = busy.numbers();
    assert_eq!(waited, (last - 4..=last).map(|seq| (seq, false)).collect::<Vec<_>>());
    let lost = "nolag_dropped_total{reason=\"redeliver_expired\"} 2995";
    assert!(hub.metrics.text().contains(lost), "{}", hub.metrics.text());
}

/// An unsubscribe leaves a connection what it works on; a subscribe again is no second member.
#[tokio::test(start_paused = true)]
async fn who_leaves_finishes_its_work() {
    let hub = hub(&Settings::default());
    let mut one = Member::join(&hub, 1, worker("jobs"));
    publish(&hub, "app/jobs", 2);
    let held = one.got();
    one.leave(&hub);
    let two = Member::join(&hub, 2, worker("jobs"));
    assert_eq!(two.numbers(), []);
    one.acknowledge(&hub, &held[..1]);
    advance(TIMEOUT).await;
    hub.tick();
    assert_eq!(two.numbers(), [(2, true)], "only what it did not finish");

    // A subscribe of the same topic takes the place of the one before.
    let before = one.subscription.take();
    assert!(before.is_none());
    let three = subscriber(3);
    let first = subscribe(&hub, &three, worker("jobs"));
    let second = hub.subscribe(&three, worker("jobs"), Some(first), &Join::default(), |_| Some(Bytes::new()));
    drain(&three);
    publish(&hub, "app/jobs", 2);
    assert_eq!(drain(&three).len(), 1, "its share is that of one");
    assert_eq!(two.numbers().len(), 1);
    hub.unsubscribe(&second);
}

/// Members that did not ask for it share the messages and have nothing to acknowledge; C-079 holds for all of them together.
#[test]
fn others_share_the_group() {
    let hub = hub(&Settings::default());
    let mut plain = worker("jobs");
    (plain.worker, plain.features) = (None, Features::NONE);
    let (old, new) = (subscriber(1), Member::join(&hub, 2, worker("jobs")));
    let _subscription = subscribe(&hub, &old, plain);
    drain(&old);
    publish(&hub, "app/jobs", 4);
    let (handed, held) = (drain(&old), new.got());
    assert_eq!((handed.len(), held.len()), (2, 2));
    let Ok(ServerFrame::Message(message)) = ServerFrame::decode(&handed[0]) else { panic!("{handed:?}") };
    assert_eq!((message.requires_ack, message.msg_id), (None, None));
    new.end(&hub);
    assert_eq!(drain(&old).len(), 2, "what a member held goes to whoever is there");
}

/// C-081: a message that its publisher shall not get waits for somebody else.
#[test]
fn a_publisher_does_not_get_its_own() {
    let hub = hub(&Settings::default());
    let one = Member::join(&hub, 1, worker("jobs"));
    let quiet = Publication { keep: true, silent: Some(1), ..publication("app/jobs", None, true) };
    hub.publish(&quiet, None).unwrap();
    publish(&hub, "app/jobs", 1);
    assert_eq!(one.numbers(), [(2, false)], "it holds up nothing");
    let two = Member::join(&hub, 2, worker("jobs"));
    assert_eq!(two.numbers(), [(1, false)]);
    two.end(&hub);
    assert_eq!(one.numbers(), []);

    // The same client on another connection, after a time without members.
    one.end(&hub);
    let quiet = Publication { silent: None, silent_client: Some("tab-1"), ..quiet };
    hub.publish(&quiet, None).unwrap();
    let own = Worker { ack_timeout: TIMEOUT, actor: "alice".into(), client_id: Some("tab-1".into()) };
    let same = Member::join(&hub, 3, Interest { worker: Some(Arc::new(own)), ..worker("jobs") });
    assert_eq!(same.numbers(), [(1, true), (2, true)]);
    let other = Member::join(&hub, 4, worker("jobs"));
    assert_eq!(other.numbers(), [(3, false)]);
}

/// Features 2 and 6: a member that comes back has missed nothing, unless its group was forgotten or the numbers are others.
#[tokio::test(start_paused = true)]
async fn a_member_needs_no_recovery() {
    let settings = Settings::default();
    let hub = hub(&settings);
    let resume = |id, epoch: &str, seq| {
        let (outgoing, mut answer) = (subscriber(id), None);
        let join = Join { recover: Some(Position { epoch, seq }), history: Some(10), ..Join::default() };
        let subscription = hub.subscribe(&outgoing, worker("jobs"), None, &join, |joined| {
            let Joined { recovered, gap, .. } = joined.unwrap();
            answer = Some((recovered, gap));
            Some(Bytes::new())
        });
        let frames = drain(&outgoing).len() - 1;
        (answer.unwrap(), frames, Member { outgoing, subscription: Some(subscription) })
    };
    let one = Member::join(&hub, 1, worker("jobs"));
    publish(&hub, "app/jobs", 2);
    one.end(&hub);
    let epoch = hub.epoch.to_string();
    let (answer, frames, two) = resume(2, &epoch, 0);
    assert_eq!((answer, frames), ((Some(true), None), 2), "what waited, and no history");
    let (answer, _, three) = resume(3, "another", 0);
    assert_eq!(answer, (Some(false), Some("epoch")));
    two.end(&hub);
    three.end(&hub);
    advance(settings.history_ttl).await;
    hub.tick();
    let (answer, _, _four) = resume(4, &epoch, 0);
    assert_eq!(answer, (Some(false), Some("expired")));
}

/// With a store on disk the oldest number that was not acknowledged survives a restart; what lies above it is handed out again.
#[test]
fn a_restart_hands_out_what_was_open() {
    let folder = TempDir::new().unwrap();
    let start = || {
        let (disk, kept) = Disk::open(&folder.path().join("store"), Bounds::default()).unwrap();
        let disk = Arc::new(disk);
        let hub = Hub::new(&Settings::default(), Arc::default(), disk.clone(), kept, Duration::ZERO);
        (hub, disk)
    };
    let (hub, disk) = start();
    let one = Member::join(&hub, 1, worker("jobs"));
    let (mut keyed, mut publication) = (worker("jobs"), publication("app/jobs", Some("vip"), true));
    keyed.keys = vec!["vip".to_owned()];
    let vip = Member::join(&hub, 2, keyed.clone());
    publish(&hub, "app/jobs", 4);
    publication.keep = true;
    hub.publish(&publication, None).unwrap();
    let (held, vips) = (one.got(), vip.got());
    assert_eq!((held.len(), vips.len()), (5, 1));
    one.acknowledge(&hub, &[held[0].clone(), held[1].clone(), held[3].clone()]);
    vip.acknowledge(&hub, &vips);
    disk.close();

    let (hub, disk) = start();
    publish(&hub, "app/jobs", 1);
    let one = Member::join(&hub, 1, worker("jobs"));
    let open = one.got();
    let again: Vec<_> = open.iter().map(|got| got.again).collect();
    assert_eq!(
        open[..3].iter().map(|got| got.seq).collect::<Vec<_>>(),
        [3, 4, 5],
        "from the oldest open one on"
    );
    assert_eq!(again, [true, true, true, false]);
    assert_eq!(open[0].msg_id, held[2].msg_id);
    let vip = Member::join(&hub, 2, keyed);
    assert_eq!(vip.numbers(), [], "the group of a filter key has a mark of its own");
    one.acknowledge(&hub, &open);
    disk.close();

    let (hub, _disk) = start();
    let one = Member::join(&hub, 1, worker("jobs"));
    assert_eq!(one.numbers(), []);
    publish(&hub, "app/jobs", 1);
    assert_eq!(one.numbers().len(), 1);
}

#[derive(Debug, Clone)]
enum Step {
    Publish(usize),
    Join,
    End(usize, bool),
    Leave(usize),
    Acknowledge(usize, usize),
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (1..200_usize).prop_map(Step::Publish),
        2 => Just(Step::Join),
        1 => (any::<usize>(), any::<bool>()).prop_map(|(who, lost)| Step::End(who, lost)),
        1 => any::<usize>().prop_map(Step::Leave),
        3 => (any::<usize>(), 0..300_usize).prop_map(|(who, count)| Step::Acknowledge(who, count)),
        2 => (1..20_u64).prop_map(Step::Wait),
    ]
}

/// What connections know of the messages of a group.
#[derive(Default)]
struct Model {
    published: usize,
    done: BTreeSet<u64>,
    /// By number: who has it, and until when.
    out: BTreeMap<u64, (ConnectionId, u64)>,
    seen: BTreeSet<u64>,
    ids: HashMap<u64, String>,
    /// In ms.
    now: u64,
}

impl Model {
    fn take(&mut self, id: ConnectionId, got: &Got) {
        assert!(!self.done.contains(&got.seq), "{} was acknowledged", got.seq);
        assert_eq!(got.again, !self.seen.insert(got.seq), "{got:?}");
        assert_eq!(*self.ids.entry(got.seq).or_insert_with(|| got.msg_id.clone()), got.msg_id);
        let before = self.out.insert(got.seq, (id, self.now + 30_000));
        assert_eq!(before, None, "{} is with somebody", got.seq);
    }

    fn held(&self, id: ConnectionId) -> Vec<u64> {
        self.out.iter().filter(|(_, (holder, _))| *holder == id).map(|(seq, _)| *seq).collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    /// F-13, F-14: whatever members do, a message is with one of them or waits only while nobody has room; none is handed out after it
    /// was acknowledged, and in the end all are, once each.
    #[test]
    fn everything_is_done_once(steps in prop::collection::vec(step(), 1..60)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let settings = Settings {
                redeliver_max: u32::MAX, history_size: usize::MAX, history_ttl: Duration::from_secs(1 << 30),
                ..Settings::default()
            };
            let hub = hub(&settings);
            let mut model = Model::default();
            let mut members = vec![Member::join(&hub, 0, worker("jobs"))];
            let mut next = 1;
            let finish = [Step::Join].into_iter().chain((0..200).map(|who| Step::Acknowledge(who, usize::MAX)));
            for step in steps.into_iter().chain(finish) {
                let mut wait = 0;
                match step {
                    Step::Publish(count) => {
                        publish(&hub, "app/jobs", count);
                        model.published += count;
                    }
                    Step::Join => {
                        members.push(Member::join(&hub, next, worker("jobs")));
                        next += 1;
                    }
                    Step::End(who, lost) if !members.is_empty() => {
                        let member = members.remove(who % members.len());
                        let id = member.outgoing.id();
                        if lost { member.vanish(&hub) } else { member.end(&hub) }
                        model.out.retain(|_, (holder, _)| *holder != id);
                        wait = u64::from(lost) * 200;
                    }
                    Step::Leave(who) if !members.is_empty() => {
                        let at = who % members.len();
                        members[at].leave(&hub);
                    }
                    Step::Acknowledge(who, count) if !members.is_empty() => {
                        let member = &members[who % members.len()];
                        let held = model.held(member.outgoing.id());
                        let seqs = &held[..count.min(held.len())];
                        hub.acknowledge(member.outgoing.id(), seqs.iter().map(|seq| &*model.ids[seq]));
                        for seq in seqs {
                            model.out.remove(seq);
                            model.done.insert(*seq);
                        }
                    }
                    Step::Wait(seconds) => wait = seconds * 1_000,
                    _ => {}
                }
                if wait > 0 {
                    advance(Duration::from_millis(wait)).await;
                    model.now += wait;
                    let now = model.now;
                    model.out.retain(|_, (_, due)| *due > now);
                    hub.tick();
                }
                for member in &members {
                    for got in member.got() {
                        model.take(member.outgoing.id(), &got);
                    }
                }
                let there: Vec<_> = members.iter().filter(|member| member.subscription.is_some()).collect();
                let loads: Vec<_> = there.iter().map(|member| model.held(member.outgoing.id()).len()).collect();
                prop_assert!(loads.iter().all(|load| *load <= MAX_UNACKED));
                let waits = model.published - model.done.len() - model.out.len();
                // One that has room may be the one that did not acknowledge what waits.
                let free = loads.iter().filter(|load| **load < MAX_UNACKED).count();
                prop_assert!(waits == 0 || free <= usize::from(loads.len() > 1), "{waits} wait, {loads:?}");
            }
            prop_assert_eq!(model.done.len(), model.published);
            for member in members {
                member.end(&hub);
            }
            prop_assert!(hub.state.lock().table.groups.is_tidy());
            Ok(())
        })?;
    }
}
