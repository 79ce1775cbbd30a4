//! The application: what it is handed, what it is done with, and what it must have been handed in the end.

use super::*;
use crate::broker::{Accepted, matches};

/// How far the application is with a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// In the binding's queue, or its handlers run.
    Open,
    Done,
    /// Its handlers failed, or nobody has acknowledged it: a copy may be handed out.
    MayRepeat,
}

/// A message that lies in the binding's queue.
struct Queued {
    delivery: u64,
    topic: String,
    id: String,
    after_handler: bool,
}

/// Numbers as the broker gave them: its run, and within it.
type Number = (u64, u64);

/// A subscription, from its subscribe to its unsubscribe, over any number of connections and crashes.
#[derive(Default)]
struct Life {
    /// When the application was told that it is there.
    since: Option<Duration>,
    /// The calls that may tell.
    calls: HashSet<RequestId>,
    /// It was filtered at some time: then nobody but the broker knows what it should get.
    filtered: bool,
    ids: HashMap<String, Progress>,
    /// Those that count for the position, and are not done.
    open: BTreeSet<Number>,
    last: Option<Number>,
    gaps: Vec<(Duration, Duration)>,
    /// Of a program that crashed: what it had done, and where it continued.
    before: HashSet<String>,
    resumed: Option<Number>,
    crashed: bool,
    gap_since_crash: bool,
}

#[derive(Default)]
pub(super) struct App {
    manual: bool,
    /// The broker marks retained messages, which have no place in the order.
    tells_retained: bool,
    queue: VecDeque<Queued>,
    /// Handlers that run, and when they end.
    running: Vec<(Duration, Queued)>,
    /// When the application looks at the queue next.
    look_at: Option<Duration>,
    lives: BTreeMap<String, Life>,
}

pub(super) fn number_of(id: &str) -> Number {
    let (epoch, seq) = id.split_once('-').expect("an id of the model");
    (epoch.parse().unwrap(), seq.parse().unwrap())
}

fn number_at(position: &Position) -> Number {
    (position.epoch.parse().unwrap(), position.seq)
}

impl App {
    pub(super) fn new(ack_mode: AckMode, tells_retained: bool) -> Self {
        Self { manual: ack_mode == AckMode::Manual, tells_retained, ..Self::default() }
    }

    /// The application subscribes: a new life, or the same with other filters.
    pub(super) fn subscribes(&mut self, topic: &str, filters: &[String], request: RequestId) {
        let life = self.lives.entry(topic.to_owned()).or_default();
        life.calls.insert(request);
        life.filtered |= !filters.is_empty();
    }

    pub(super) fn filters(&mut self, topic: &str, filters: &[String]) {
        if let Some(life) = self.lives.get_mut(topic) {
            life.filtered |= !filters.is_empty();
        }
    }

    pub(super) fn unsubscribes(&mut self, topic: &str) {
        self.lives.remove(topic);
        // What is queued is of a life that is over: it is handed over, and nobody counts it.
    }

    /// A subscribe succeeded, or a subscription was made again.
    pub(super) fn confirmed(&mut self, now: Duration, request: RequestId) {
        for life in self.lives.values_mut().filter(|life| life.calls.contains(&request)) {
            life.is_there(now);
        }
    }

    pub(super) fn resubscribed(&mut self, now: Duration, topic: &str) {
        if let Some(life) = self.lives.get_mut(topic) {
            life.is_there(now);
        }
    }

    /// The application is told that it may have missed what was sent between these times.
    pub(super) fn gap(&mut self, from: Duration, to: Duration, topic: &str) {
        let life = self.lives.get_mut(topic).expect("a gap of what nobody wants");
        life.gaps.push((from, to));
        life.gap_since_crash = true;
        if life.resumed.is_some() {
            life.last = None; // a history may go back to before the crash: ids are remembered by the program that got them
        }
    }

    /// The session hands out a message.
    pub(super) fn handed_out(&mut self, now: Duration, message: &Message, lazy: Duration) {
        let meta = message.meta();
        let id = meta.msg_id.expect("the model's messages have ids").to_owned();
        self.look_at.get_or_insert(now + lazy);
        self.queue.push_back(Queued {
            delivery: message.delivery,
            topic: message.topic.to_string(),
            id: id.clone(),
            after_handler: message.ack_mode == AckMode::AfterHandler,
        });
        let life = self.lives.get_mut(&*message.topic).expect("a message that nobody wants");
        let number = number_of(&id);
        let is_state = meta.retained && !message.is_replay;
        let before = life.ids.insert(id.clone(), Progress::Open);
        let may_repeat = before == Some(Progress::MayRepeat);
        assert!(before.is_none() || may_repeat, "{id} comes twice on {}", message.topic);
        if is_state {
            return;
        }
        if meta.seq.is_some() {
            life.open.insert(number);
        }
        if !life.gap_since_crash && !may_repeat {
            let early = life.resumed.filter(|at| at.0 == number.0 && number.1 <= at.1);
            assert_eq!(early, None, "{id} was handled before the crash");
        }
        if may_repeat || message.is_replay && life.filtered || !self.tells_retained {
            return;
        }
        assert!(life.last < Some(number), "{id} on {} comes after {:?}", message.topic, life.last);
        life.last = Some(number);
    }

    pub(super) fn deadline(&self) -> Option<Duration> {
        self.running.iter().map(|(at, _)| *at).chain(self.look_at).min()
    }

    /// The application takes what it takes; what the session is told of it.
    pub(super) fn work(&mut self, now: Duration, rng: &mut fastrand::Rng, calm: bool) -> Option<Dispatched> {
        let mut reports = Vec::new();
        for (at, message) in std::mem::take(&mut self.running) {
            if at > now {
                self.running.push((at, message));
            } else {
                let succeeded = calm || rng.u8(0..10) > 0;
                reports.push((message.delivery, succeeded));
                self.done(&message, succeeded);
            }
        }
        let mut in_order = reports.is_empty() && rng.bool();
        if self.look_at.is_some_and(|at| at <= now) {
            for _ in 0..rng.usize(1..=20) {
                let Some(message) = self.queue.pop_front() else { break };
                if message.after_handler {
                    in_order = false;
                    let time = if calm { ms(1) } else { ms(rng.u64(1..400)) };
                    self.running.push((now + time, message));
                } else {
                    reports.push((message.delivery, true));
                    self.done(&message, true);
                }
            }
            let pause = if calm { ms(1) } else { ms(rng.u64(1..100)) };
            self.look_at = (!self.queue.is_empty()).then(|| now + pause);
        }
        let (last, _) = *reports.last()?;
        Some(if in_order { Dispatched::UpTo(last) } else { Dispatched::Finished(reports) })
    }

    fn done(&mut self, message: &Queued, succeeded: bool) {
        let Some(life) = self.lives.get_mut(&message.topic) else { return };
        life.open.remove(&number_of(&message.id));
        if let Some(progress) = life.ids.get_mut(&message.id).filter(|progress| **progress == Progress::Open)
        {
            *progress = if succeeded && !self.manual { Progress::Done } else { Progress::MayRepeat };
        }
    }

    /// The application closed the client: nothing that it is not done with counts as handed over.
    pub(super) fn closed(&mut self, session: &Session) {
        self.queue.clear();
        self.running.clear();
        self.look_at = None;
        for (topic, life) in &mut self.lives {
            life.ids.retain(|_, progress| *progress != Progress::Open);
            life.open.clear();
            life.last = session.position(topic).as_ref().map(number_at);
        }
    }

    /// The program ends; the next one knows the positions alone. What is wanted of it.
    pub(super) fn crashed(&mut self, session: &Session) -> BTreeMap<String, Option<Position>> {
        self.queue.clear();
        self.running.clear();
        self.look_at = None;
        let positions = self.lives.iter_mut().map(|(topic, life)| {
            let position = session.position(topic);
            let done = life.ids.drain().filter(|(_, progress)| *progress != Progress::Open);
            let before = done.map(|(id, _)| id).chain(life.before.drain()).collect();
            *life = match &position {
                Some(position) => Life {
                    since: life.since,
                    filtered: life.filtered,
                    gaps: std::mem::take(&mut life.gaps),
                    before,
                    resumed: Some(number_at(position)),
                    last: Some(number_at(position)),
                    crashed: true,
                    ..Life::default()
                },
                None => Life { filtered: life.filtered, crashed: true, ..Life::default() },
            };
            (topic.clone(), position)
        });
        positions.collect()
    }

    /// A position that the application stores must bring again all that it is not done with (API-101).
    pub(super) fn check_positions(&self, session: &Session) {
        for (topic, life) in &self.lives {
            let Some(position) = session.position(topic) else { continue };
            let at = number_at(&position);
            let passed = life.open.range((at.0, 0)..=at).next();
            assert_eq!(passed, None, "{topic} is at {at:?}, and that is open");
        }
    }

    /// Everything is at rest: what should have been handed over was, or a gap has told of it.
    pub(super) fn check(&self, broker: &Broker, session: &Session) {
        assert!(self.queue.is_empty() && self.running.is_empty());
        for (topic, life) in self.lives.iter().filter(|(_, life)| !life.filtered) {
            let Some(since) = life.since else { panic!("{topic} was never there") };
            let handed_over = |id: &str| life.ids.contains_key(id) || life.before.contains(id);
            let of_topic = |accepted: &&Accepted| matches(topic, &accepted.base);
            for accepted in broker.log.iter().filter(of_topic).filter(|one| one.kept && one.at > since) {
                let told = |(from, to): &(Duration, Duration)| (*from..=*to).contains(&accepted.at);
                assert!(
                    handed_over(&accepted.id) || life.gaps.iter().any(told),
                    "{} of {:?} was missed on {topic}, which is there since {since:?}; gaps {:?}",
                    accepted.id,
                    accepted.at,
                    life.gaps
                );
            }
            for state in broker.retained().iter().filter(of_topic).filter(|_| !life.crashed) {
                assert!(handed_over(&state.id), "the retained {} was missed on {topic}", state.id);
            }
            if let Some(position) = session.position(topic).filter(|_| broker.has("recover")) {
                let (epoch, seq) = number_at(&position);
                let newest = life.last.filter(|last| last.0 == epoch);
                assert!(newest.is_none_or(|last| last.1 <= seq), "{topic} stays at {seq}, behind {newest:?}");
            }
        }
    }
}

impl Life {
    fn is_there(&mut self, now: Duration) {
        self.since.get_or_insert(now);
    }
}
