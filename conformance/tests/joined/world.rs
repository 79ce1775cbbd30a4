//! One run: a broker, a few clients, and a schedule of what they do and what befalls them, all drawn from one seed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nolag_broker::config::{Profile, Settings};
use nolag_core::Client;
use nolag_core::options::{AckMode, Feature, Features, Options, Overflow, PublishOptions, Qos, Qos0};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout};

use crate::disk::Disk;
use crate::network::{Dialer, Fate, Line};
use crate::place::{ACTORS, Place};
use crate::readers::{Reader, listen};
use crate::record::{Ended, KEYS, Promise, Publish, Record, TOPICS};

/// A connection that says nothing for so long is ended by the broker.
pub(crate) const IDLE: Duration = Duration::from_secs(4);

pub(crate) fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// What the tasks of a run share.
pub(crate) type Shared = Arc<Mutex<Record>>;

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
    pub(crate) line: Arc<Line>,
    /// A message is done with when the next one is asked for.
    pub(crate) after_handler: bool,
    /// By room: what it announces of itself.
    pub(crate) present: BTreeMap<&'static str, u64>,
    /// By pattern.
    pub(crate) readers: BTreeMap<usize, Reader>,
}

pub(crate) struct World {
    pub(crate) rng: fastrand::Rng,
    promise: Promise,
    pub(crate) place: Arc<Place>,
    pub(crate) record: Shared,
    pub(crate) peers: Vec<Peer>,
    /// Calls whose end is awaited, and what they are.
    pub(crate) calls: Vec<(&'static str, JoinHandle<()>)>,
    /// What goes on beside the schedule: thaws and restarts.
    pub(crate) incidents: JoinSet<()>,
    features: Features,
    pub(crate) delay: Duration,
    /// Whether messages have ids.
    pub(crate) has_ids: bool,
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
        if world.rng.u8(0..100) < 20 {
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
        let bounded = rng.u8(..) < 60;
        if bounded {
            settings.history_size = rng.usize(2..40);
        }
        let limited = rng.u8(..) < 50;
        if limited {
            settings.recover_limit = rng.usize(1..30);
        }
        let disk = rng.bool().then(|| Disk::new(rng.u64(..)));
        let promise = Promise {
            recover: in_force.has(Feature::Recover),
            dedupe: in_force.has(Feature::Dedupe),
            durable: disk.is_some(),
            bounded,
            limited,
        };
        let mut world = Self {
            promise,
            kraken: settings.profile == Profile::Kraken,
            has_ids: settings.record_messages,
            place: Place::new(settings, disk),
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
    pub(crate) fn peer(&mut self) -> Peer {
        let number = lock(&self.record).clients;
        lock(&self.record).clients += 1;
        let actor = self.rng.usize(..ACTORS.len());
        let line = Line::new(self.rng.u64(..), self.delay);
        let dialer = Dialer::new(Arc::clone(&line), Arc::clone(&self.place));
        let (features, rng) = (self.features, &mut self.rng);
        let after_handler = rng.u8(..) < 80;
        let client = Client::builder(ACTORS[actor])
            .transport(dialer)
            .seed(rng.u64(..))
            .options(|options| {
                random_options(options, features, rng);
                if after_handler {
                    options.ack_mode = AckMode::AfterHandler;
                }
            })
            .build()
            .expect("a client needs nothing else");
        tokio::spawn(listen(number, client.events(), Arc::clone(&self.record)));
        self.tell(|| format!("client {number} is {}", ACTORS[actor]));
        let peer = Peer {
            number,
            actor,
            client,
            line,
            after_handler,
            present: BTreeMap::new(),
            readers: BTreeMap::new(),
        };
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

    pub(crate) fn publish(&mut self, index: usize) {
        let rng = &mut self.rng;
        let topic = rng.usize(..TOPICS.len());
        let key = (rng.u8(..) < 100).then(|| *rng.choice(&KEYS).unwrap());
        let qos =
            *rng.choice(&[Qos::AtMostOnce, Qos::AtLeastOnce, Qos::AtLeastOnce, Qos::ExactlyOnce]).unwrap();
        // Without an id or a mark they come again with every subscribe, and nobody can tell.
        let retain = self.has_ids && !self.kraken && rng.u8(..) < 20;
        let silent = !retain && rng.u8(..) < 20;
        // All that is retained fits the smallest backlog: it comes at once when somebody subscribes.
        let padding =
            if !retain && rng.u8(..) < 30 { "x".repeat(rng.usize(0..5_000)) } else { String::new() };
        let options = PublishOptions {
            qos: Some(qos),
            retain,
            no_echo: silent,
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
                silent,
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
            record.publishes[publish].ended = Some((Instant::now(), ended));
        });
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
                let forgets = !(drains && self.promise.durable);
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
                        if forgets {
                            record.losses.push(Instant::now());
                        }
                        record.tell(|| "the broker is gone".to_owned());
                    }
                    sleep(pause).await;
                    place.start();
                    lock(&record).tell(|| "the broker starts".to_owned());
                });
            }
        }
    }
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
        options.receive_buffer = rng.usize(1..50);
    }
}
