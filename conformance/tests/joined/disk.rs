//! A disk in virtual time: it outlives the broker, syncs what has gathered a moment later, and loses in a crash what it has not synced.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nolag_broker::store::{Accepted, Change, Done, Kept, Mark, Record, Retain, Store, Synced};
use tokio::time::sleep;

/// What is on the disk, and what is on its way there.
pub(crate) struct Disk(Mutex<State>);

struct State {
    rng: fastrand::Rng,
    epoch: String,
    last: u64,
    floor: u64,
    history: BTreeMap<u64, Record>,
    retained: BTreeMap<Arc<str>, Retain>,
    accepted: Vec<Accepted>,
    marks: BTreeMap<Arc<str>, Mark>,
    /// Not synced yet.
    waiting: Vec<(Change, Option<Done>)>,
    /// Counts brokers: what is left of an earlier one writes nothing.
    life: u64,
}

impl Disk {
    pub(crate) fn new(seed: u64) -> Arc<Self> {
        Arc::new(Self(Mutex::new(State {
            rng: fastrand::Rng::with_seed(seed),
            epoch: format!("disk-{seed}"),
            last: 0,
            floor: 0,
            history: BTreeMap::new(),
            retained: BTreeMap::new(),
            accepted: Vec::new(),
            marks: BTreeMap::new(),
            waiting: Vec::new(),
            life: 0,
        })))
    }

    /// What a broker that starts finds, and where it writes.
    pub(crate) fn open(self: &Arc<Self>) -> (Arc<dyn Store>, Kept) {
        let mut state = self.state();
        state.life += 1;
        let kept = Kept {
            epoch: state.epoch.clone(),
            last: state.last,
            floor: state.floor,
            history: state.history.values().cloned().collect(),
            retained: state.retained.values().filter(|retain| retain.record.is_some()).cloned().collect(),
            accepted: state.accepted.clone(),
            marks: state.marks.values().cloned().collect(),
        };
        (Arc::new(Writer { disk: Arc::clone(self), life: state.life }), kept)
    }

    /// The broker is gone, and with it what was not synced.
    pub(crate) fn crash(&self) {
        let mut state = self.state();
        state.life += 1;
        state.waiting.clear();
    }

    /// Writes what has gathered, and tells whoever waits for it.
    pub(crate) fn sync(&self) {
        let done: Vec<Done> = {
            let mut state = self.state();
            let waiting = std::mem::take(&mut state.waiting);
            waiting.into_iter().filter_map(|(change, done)| state.write(change, done)).collect()
        };
        for done in done {
            done(Ok(()));
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn write(&mut self, change: Change, done: Option<Done>) -> Option<Done> {
        let Change { message, retain, accepted, mark } = change;
        if let Some(message) = message.filter(|message| message.seq >= self.floor) {
            self.history.insert(message.seq, Record::clone(&message));
        }
        if let Some(retain) = retain {
            self.retained.insert(retain.key.clone(), retain);
        }
        self.accepted.extend(accepted);
        if let Some(mark) = mark {
            self.marks.insert(mark.group.clone(), mark);
        }
        done
    }
}

/// One broker's way to the disk.
struct Writer {
    disk: Arc<Disk>,
    life: u64,
}

impl Store for Writer {
    fn level(&self) -> &'static str {
        "disk"
    }

    fn is_durable(&self) -> bool {
        true
    }

    fn check(&self) -> Synced {
        Ok(())
    }

    /// The bound on the numbers is on the disk before they are given out.
    fn covers(&self, seq: u64) -> Synced {
        let mut state = self.disk.state();
        if state.life == self.life {
            state.last = state.last.max(seq);
        }
        Ok(())
    }

    fn put(&self, change: Change, done: Option<Done>) {
        let mut state = self.disk.state();
        if state.life != self.life {
            return;
        }
        let is_first = state.waiting.is_empty();
        state.waiting.push((change, done));
        if is_first {
            let (disk, pause, life) = (Arc::clone(&self.disk), state.rng.u64(0..30), self.life);
            tokio::spawn(async move {
                sleep(Duration::from_millis(pause)).await;
                if disk.state().life == life {
                    disk.sync();
                }
            });
        }
    }

    fn trim(&self, seq: u64) {
        let mut state = self.disk.state();
        if state.life == self.life {
            state.floor = state.floor.max(seq);
            state.history = state.history.split_off(&seq);
        }
    }
}
