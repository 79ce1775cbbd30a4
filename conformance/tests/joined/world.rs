//! One run: a broker, a few clients, and a schedule of what they do and what befalls them, all drawn from one seed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nolag_broker::config::{Profile, Settings};
use nolag_core::Client;
use nolag_core::event::{Event, State};
use nolag_core::options::{
    AckMode, Feature, Features, Options, Overflow, PublishOptions, Qos, Qos0, ReceiveOverflow,
};
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout};

use crate::network::{Dialer, Fate, Line};
use crate::place::{ACTORS, Place};
use crate::presence;
use crate::record::{Ended, Got, KEYS, PATTERNS, Promise, Publish, Record, TOPICS, Tenure};

/// How long everything may take to come to rest once nothing goes wrong any more.
const REST: Duration = Duration::from_secs(600);
/// A connection that says nothing for so long is ended by the broker.
const IDLE: Duration = Duration::from_secs(4);

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// What the tasks of a run share.
type Shared = Arc<Mutex<Record>>;

pub(crate) fn lock(record: &Shared) -> MutexGuard<'_, Record> {
    record.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A client of the run.
pub(crate) struct Peer {
    /// Counts clients, those that were replaced included.
    pub(crate) number: usize,
    /// Which of [`ACTORS`] it is.
    pub(crate) actor: usize,
    pub(crate) client: Client,
    line: Arc<Line>,
    /// By room: what it announces of itself.
    pub(crate) present: BTreeMap<&'static str, u64>,
    /// By pattern: the subscription's index in the record, and the task that makes and reads it.
    readers: BTreeMap<usize, (usize, JoinHandle<()>)>,
}

pub(crate) struct World {
    pub(crate) rng: fastrand::Rng,
    promise: Promise,
    place: Arc<Place>,
    pub(crate) record: Shared,
    pub(crate) peers: Vec<Peer>,
    /// Calls whose end is awaited, and what they are.
    calls: Vec<(&'static str, JoinHandle<()>)>,
    /// What goes on beside the schedule: thaws and restarts.
    incidents: JoinSet<()>,
    features: Features,
    delay: Duration,
    /// Whether messages are retained. Those without an id or a mark come again with every subscribe, and nobody can tell.
    retains: bool,
    /// Whether a client can be in several rooms at once.
    pub(crate) many_rooms: bool,
    /// The broker is as kraken.
    pub(crate) kraken: bool,
    /// How often anybody announced anything.
    pub(crate) announced: u64,
}

/// Carries out the schedule of a seed. What is wrong in the end is returned, with what happened if that is wanted.
pub(crate) async fn run(seed: u64, with_story: bool) -> (Vec<String>, Option<String>) {
    let mut world = World::new(seed, with_story);
    let steps = world.rng.usize(5..50);
    for _ in 0..steps {
        for _ in 0..world.rng.usize(1..4) {
            world.act();
        }
        if world.rng.u8(0..100) < 15 {
            world.misfortune();
        }
        let pause = if world.rng.u8(..) < 40 { world.rng.u64(0..3_000) } else { world.rng.u64(0..100) };
        sleep(ms(pause)).await;
    }
    let mut faults = world.settle().await;
    let mut record = lock(&world.record);
    faults.extend(record.faults(world.promise));
    let story = record.story.take();
    (faults, story)
}

impl World {
    fn new(seed: u64, with_story: bool) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut some = |percent: u8| -> Features {
            Feature::ALL.into_iter().filter(|_| rng.u8(0..100) < percent).collect()
        };
        let (granted, features) = (some(80), some(90));
        let defaults = Settings::default();
        let mut settings = Settings {
            features: defaults.features.and(granted),
            publish_rate_limit: 0,
            idle_timeout: IDLE,
            shutdown_grace: ms(500),
            record_messages: rng.u8(..) < 230,
            ..defaults
        };
        if rng.u8(..) < 40 {
            settings.profile = Profile::Kraken;
            settings.features = Features::NONE;
        }
        if rng.u8(..) < 40 {
            settings.max_outbound_bytes = rng.usize(10_000..40_000);
        }
        let in_force = settings.features.and(features);
        let promise =
            Promise { recover: in_force.has(Feature::Recover), dedupe: in_force.has(Feature::Dedupe) };
        let mut world = Self {
            promise,
            kraken: settings.profile == Profile::Kraken,
            retains: settings.record_messages && settings.profile == Profile::Extended,
            place: Place::new(settings),
            record: Arc::new(Mutex::new(Record::new(with_story))),
            peers: Vec::new(),
            calls: Vec::new(),
            incidents: JoinSet::new(),
            many_rooms: in_force.has(Feature::Rooms),
            announced: 0,
            features,
            delay: ms(*rng.choice(&[1, 20, 80]).unwrap()),
            rng,
        };
        for _ in 0..world.rng.usize(2..5) {
            let peer = world.peer();
            world.peers.push(peer);
        }
        world.tell(|| format!("in force: {:?}; {promise:?}", in_force.names()));
        world
    }

    pub(crate) fn tell(&self, what: impl FnOnce() -> String) {
        lock(&self.record).tell(what);
    }

    /// A new client that connects.
    fn peer(&mut self) -> Peer {
        let number = lock(&self.record).clients;
        lock(&self.record).clients += 1;
        let actor = self.rng.usize(..ACTORS.len());
        let line = Line::new(self.rng.u64(..), self.delay);
        let dialer = Dialer::new(Arc::clone(&line), Arc::clone(&self.place));
        let (features, rng) = (self.features, &mut self.rng);
        let client = Client::builder(ACTORS[actor])
            .transport(dialer)
            .seed(rng.u64(..))
            .options(|options| random_options(options, features, rng))
            .build()
            .expect("a client needs nothing else");
        tokio::spawn(listen(number, client.events(), Arc::clone(&self.record)));
        self.tell(|| format!("client {number} is {}", ACTORS[actor]));
        let peer = Peer { number, actor, client, line, present: BTreeMap::new(), readers: BTreeMap::new() };
        let connecting = peer.client.clone();
        self.call("connect", async move {
            let _ = connecting.connect().await; // it may take longer than this waits, and goes on
        });
        peer
    }

    pub(crate) fn call(&mut self, what: &'static str, call: impl Future<Output = ()> + Send + 'static) {
        self.calls.push((what, tokio::spawn(call)));
    }

    /// One thing that an application does.
    fn act(&mut self) {
        let index = self.rng.usize(..self.peers.len());
        match self.rng.u8(0..100) {
            0..55 => {
                for _ in 0..self.rng.usize(1..6) {
                    self.publish(index);
                }
            }
            55..78 => self.subscribe(index),
            78..86 => self.unsubscribe(index),
            86..90 => {
                let client = self.peers[index].client.clone();
                let limit = self.rng.bool().then(|| ms(500));
                self.call("flush", async move { drop(client.flush(limit).await) });
            }
            90..92 => self.replace(index),
            92..97 => self.announce(index),
            _ => self.ask_who(index),
        }
    }

    fn publish(&mut self, index: usize) {
        let rng = &mut self.rng;
        let topic = rng.usize(..TOPICS.len());
        let key = (rng.u8(..) < 100).then(|| *rng.choice(&KEYS).unwrap());
        let qos =
            *rng.choice(&[Qos::AtMostOnce, Qos::AtLeastOnce, Qos::AtLeastOnce, Qos::ExactlyOnce]).unwrap();
        let retain = self.retains && rng.u8(..) < 20;
        // All that is retained fits the smallest backlog: it comes at once when somebody subscribes.
        let padding =
            if !retain && rng.u8(..) < 30 { "x".repeat(rng.usize(0..5_000)) } else { String::new() };
        let options = PublishOptions {
            qos: Some(qos),
            retain,
            no_echo: false,
            filter: key.map(str::to_owned),
            ..PublishOptions::default()
        };
        let patience = (rng.u8(..) < 10).then(|| ms(rng.u64(0..500)));
        let Peer { number, client, .. } = &self.peers[index];
        let (record, client, client_number) = (Arc::clone(&self.record), client.clone(), *number);
        let publish = {
            let mut record = lock(&record);
            let confirmed = qos != Qos::AtMostOnce;
            record.publishes.push(Publish {
                client: client_number,
                topic,
                key,
                confirmed,
                called: Instant::now(),
                ended: None,
            });
            record.publishes.len() - 1
        };
        self.tell(|| {
            format!("client {client_number} publishes {publish} to {} {key:?} {qos:?}", TOPICS[topic])
        });
        self.call("publish", async move {
            let publishing =
                client.publish(TOPICS[topic], &(publish, padding)).options(options).into_future();
            let result = match patience {
                Some(patience) => timeout(patience, publishing).await.ok(),
                None => Some(publishing.await),
            };
            let ended = match result {
                Some(Ok(_)) if qos == Qos::AtMostOnce => Ended::Written,
                Some(Ok(receipt)) => Ended::Accepted { attempts: receipt.attempts },
                Some(Err(error)) => Ended::Failed(error.code().to_owned()),
                None => Ended::Abandoned,
            };
            let mut record = lock(&record);
            record.tell(|| format!("publish {publish} of client {client_number}: {ended:?}"));
            record.publishes[publish].ended = Some(ended);
        });
    }

    fn subscribe(&mut self, index: usize) {
        let rng = &mut self.rng;
        let pattern = rng.usize(..PATTERNS.len());
        let filters: Vec<_> =
            if rng.u8(..) < 80 { KEYS.into_iter().filter(|_| rng.bool()).collect() } else { Vec::new() };
        // Some read as fast as they can, some slowly, from a small buffer.
        let (buffer, pause) =
            if rng.u8(..) < 50 { (rng.usize(1..20), ms(rng.u64(1..200))) } else { (1_024, ms(0)) };
        let peer = &mut self.peers[index];
        peer.readers.retain(|_, (_, reader)| !reader.is_finished());
        if peer.readers.contains_key(&pattern) {
            return;
        }
        let tenure = {
            let mut record = lock(&self.record);
            record.tenures.push(Tenure {
                client: peer.number,
                pattern,
                slow: !pause.is_zero(),
                filters: filters.clone(),
                began: None,
                ended: None,
                got: Vec::new(),
                gaps: Vec::new(),
            });
            let tenure = record.tenures.len() - 1;
            record.tell(|| {
                format!("client {} subscribes to {}, {filters:?}: {tenure}", peer.number, PATTERNS[pattern].0)
            });
            tenure
        };
        let subscribing = peer.client.subscribe(PATTERNS[pattern].0).filters(filters).buffer(buffer);
        let reading =
            read(subscribing.overflow(ReceiveOverflow::Pause), pause, tenure, Arc::clone(&self.record));
        peer.readers.insert(pattern, (tenure, tokio::spawn(reading)));
    }

    /// Ends a subscription: by letting go of it, or by name.
    fn unsubscribe(&mut self, index: usize) {
        let by_name = self.rng.bool();
        let peer = &mut self.peers[index];
        let patterns: Vec<_> = peer.readers.keys().copied().collect();
        let Some(pattern) = self.rng.choice(&patterns).copied() else { return };
        let Some((tenure, reader)) = peer.readers.remove(&pattern) else { return };
        end(&self.record, tenure, "unsubscribed");
        if by_name {
            let client = peer.client.clone();
            self.call("unsubscribe", async move { drop(client.unsubscribe(PATTERNS[pattern].0).await) });
            self.calls.push(("reading after unsubscribe", reader));
        } else {
            reader.abort();
        }
    }

    /// Another client takes the place of one, which is let go of, or closes.
    fn replace(&mut self, index: usize) {
        let new = self.peer();
        let old = std::mem::replace(&mut self.peers[index], new);
        self.tell(|| format!("client {} goes", old.number));
        let closes = self.rng.bool();
        for (tenure, reader) in old.readers.into_values() {
            end(&self.record, tenure, "its client went");
            if closes {
                self.calls.push(("reading after close", reader));
            } else {
                reader.abort();
            }
        }
        if closes {
            let client = old.client;
            self.call("close", async move { drop(client.close().await) });
        }
    }

    /// Something that befalls the network or the broker.
    fn misfortune(&mut self) {
        let index = self.rng.usize(..self.peers.len());
        let (number, line) = (self.peers[index].number, Arc::clone(&self.peers[index].line));
        let duration = ms(self.rng.u64(0..8_000));
        match self.rng.u8(0..100) {
            0..35 => {
                self.tell(|| format!("client {number} is cut"));
                line.end(Fate::Cut);
            }
            35..60 => {
                self.tell(|| format!("client {number} freezes for {duration:?}"));
                line.freeze(true);
                self.incidents.spawn(async move {
                    sleep(duration).await;
                    line.freeze(false);
                });
            }
            60..70 => {
                self.tell(|| format!("client {number} is gone, and the broker does not know"));
                line.end(Fate::ClientGone);
            }
            70..80 => {
                self.tell(|| format!("client {number} does not know that the broker is gone"));
                line.end(Fate::BrokerGone);
            }
            kind => {
                let drains = kind >= 90;
                let (place, record, pause) =
                    (Arc::clone(&self.place), Arc::clone(&self.record), duration / 4);
                self.tell(|| format!("the broker {}", if drains { "drains" } else { "is killed" }));
                self.incidents.spawn(async move {
                    if drains {
                        place.drain().await;
                    } else {
                        place.kill();
                    }
                    {
                        let mut record = lock(&record);
                        record.losses.push(Instant::now());
                        record.tell(|| "the broker is gone".to_owned());
                    }
                    sleep(pause).await;
                    place.start();
                    lock(&record).tell(|| "the broker starts".to_owned());
                });
            }
        }
    }

    /// Nothing goes wrong any more: everything comes to rest, and is as it is wanted.
    async fn settle(&mut self) -> Vec<String> {
        while self.incidents.join_next().await.is_some() {}
        self.tell(|| "calm".to_owned());
        for peer in &self.peers {
            peer.line.slow_to(ms(5));
        }
        let deadline = Instant::now() + REST;
        while let Some(restless) = self.restless() {
            if Instant::now() > deadline {
                return vec![restless];
            }
            sleep(ms(500)).await;
        }
        // Until the broker has noticed who is gone, and slow readers have read what they have.
        sleep(IDLE * 2).await;
        let mut faults = self.probe().await;
        sleep(IDLE).await; // until the broker has seen the probing client go
        faults.extend(self.remains());
        faults.extend(self.presence_faults().await);
        faults
    }

    /// What is not done yet.
    fn restless(&mut self) -> Option<String> {
        self.calls.retain(|(_, call)| !call.is_finished());
        if let Some((what, _)) = self.calls.first() {
            return Some(format!("{} calls never end, the first of which is {what}", self.calls.len()));
        }
        let record = lock(&self.record);
        for peer in &self.peers {
            let (state, stats) = (peer.client.state(), peer.client.stats());
            let depth = &stats.outbox;
            let idle =
                depth.queued + depth.in_flight + depth.held + stats.open_calls + stats.ack_backlog == 0;
            let answered = |(tenure, _): &(usize, JoinHandle<()>)| {
                let tenure = &record.tenures[*tenure];
                tenure.began.is_some() || tenure.ended.is_some()
            };
            if state != State::Connected || !idle || !peer.readers.values().all(answered) {
                return Some(format!("client {} does not come to rest: {state:?}, {stats:?}", peer.number));
            }
        }
        None
    }

    /// Publishes one message of each kind, from a client that nothing has happened to: it reaches whoever wants it, which the
    /// record tells.
    async fn probe(&mut self) -> Vec<String> {
        self.delay = ms(1);
        let mut peer = self.peer();
        if let Err(error) = peer.client.connect().await {
            return vec![format!("a new client cannot connect: {error}")];
        }
        std::mem::swap(&mut peer, &mut self.peers[0]);
        let first = lock(&self.record).publishes.len();
        for _ in 0..40 {
            self.publish(0);
            sleep(ms(50)).await; // its queue may be short
        }
        std::mem::swap(&mut peer, &mut self.peers[0]);
        sleep(IDLE * 2).await;
        self.calls.retain(|(_, call)| !call.is_finished());
        let record = lock(&self.record);
        let failed = |publish: &Publish| matches!(&publish.ended, Some(Ended::Failed(_)) | None);
        let mut failed = record.publishes[first..].iter().filter(|publish| failed(publish));
        failed
            .next()
            .map(|publish| format!("a publish in calm weather: {:?}", publish.ended))
            .into_iter()
            .collect()
    }

    /// What the broker and the clients hold in the end: no more than what is wanted.
    fn remains(&self) -> Vec<String> {
        let broker = self.place.broker();
        let mut faults = Vec::new();
        let mut compare = |what: &str, found: usize, wanted: usize| {
            if found != wanted {
                faults.push(format!("{found} {what}, and {wanted} are wanted"));
            }
        };
        compare("connections", broker.connections(), self.peers.len());
        let live = lock(&self.record).tenures.iter().filter(|tenure| tenure.is_live()).count();
        compare("subscriptions at the broker", gauge(&broker.metrics_text(), "nolag_subscriptions"), live);
        for peer in &self.peers {
            let topics = lock(&self.record);
            let wanted = topics
                .tenures
                .iter()
                .filter(|tenure| tenure.client == peer.number && tenure.is_live())
                .count();
            compare("topics of a client", peer.client.stats().topics, wanted);
        }
        faults
    }
}

/// The value of a metric without labels.
fn gauge(metrics: &str, name: &str) -> usize {
    let value = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.and_then(|value| value.parse().ok()).unwrap_or(usize::MAX)
}

fn random_options(options: &mut Options, features: Features, rng: &mut fastrand::Rng) {
    options.features = features;
    options.heartbeat_interval = ms(2_000);
    options.heartbeat_timeout = ms(1_000);
    options.connect_timeout = ms(5_000);
    options.auth_timeout = ms(2_000);
    options.ack_timeout = ms(rng.u64(500..3_000));
    options.backoff.base = ms(100);
    options.backoff.max = ms(2_000);
    options.max_in_flight = rng.usize(1..20);
    options.queue.max_messages = rng.usize(5..200);
    if rng.bool() {
        options.queue.qos0 = Qos0::Queue;
    }
    if rng.u8(..) < 80 {
        options.queue.overflow = if rng.bool() { Overflow::Block } else { Overflow::DropOldest };
    }
    if rng.u8(..) < 80 {
        options.ack_mode = AckMode::AfterHandler;
    }
    if rng.u8(..) < 80 {
        options.receive_buffer = rng.usize(1..50);
    }
}

/// Marks a subscription as given up.
fn end(record: &Shared, tenure: usize, why: &str) {
    let mut record = lock(record);
    record.tell(|| format!("subscription {tenure} ends: {why}"));
    record.tenures[tenure].ended.get_or_insert_with(Instant::now);
}

/// Subscribes, and reads until there is no more.
async fn read(subscribing: nolag_core::client::Subscribe, pause: Duration, tenure: usize, record: Shared) {
    let mut subscription = match subscribing.await {
        Ok(subscription) => subscription,
        Err(error) => return end(&record, tenure, error.code()),
    };
    {
        let mut record = lock(&record);
        record.tell(|| format!("subscription {tenure} begins"));
        record.tenures[tenure].began = Some(Instant::now());
    }
    while let Some(next) = subscription.next().await {
        let message = match next {
            Ok(message) => message,
            Err(error) => return end(&record, tenure, error.code()),
        };
        let (publish, _) = message.decode::<(usize, String)>().expect("one of our payloads");
        let retained = message.meta().retained;
        {
            let mut record = lock(&record);
            record.tell(|| format!("subscription {tenure} gets {publish}"));
            record.tenures[tenure].got.push(Got { at: Instant::now(), publish, retained });
        }
        if !pause.is_zero() {
            sleep(pause).await;
        }
    }
    end(&record, tenure, "nothing more comes");
}

/// Notes what a client is told, until it is gone.
async fn listen(number: usize, events: broadcast::Receiver<Event>, record: Shared) {
    let mut events = events;
    loop {
        let event = match events.recv().await {
            Ok(event) => event,
            Err(RecvError::Closed) => return,
            Err(RecvError::Lagged(missed)) => panic!("{missed} events were missed"),
        };
        let mut record = lock(&record);
        match event {
            Event::Gap(gap) => {
                record.tell(|| format!("client {number}: {gap:?}"));
                for tenure in &mut record.tenures {
                    if tenure.client == number
                        && PATTERNS[tenure.pattern].0 == &*gap.topic
                        && tenure.ended.is_none()
                    {
                        tenure.gaps.push((Instant::now(), gap.reason.clone()));
                    }
                }
            }
            Event::Presence(change, actor) => presence::told(&mut record, number, change, &actor),
            Event::State { to, reason, .. } => record.tell(|| format!("client {number}: {to:?} ({reason})")),
            Event::Error(error) => record.tell(|| format!("client {number}: {error}")),
            _ => {}
        }
    }
}
