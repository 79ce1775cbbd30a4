//! Which publishes were accepted lately, so that one that is sent again goes no further (features 3).

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

/// How many of one actor are known.
const MAX_OF_ACTOR: usize = 100_000;

/// How many of all actors are known.
const MAX: usize = 1_000_000;

/// What a pair of actor and reference is known by: two hashes of it, with keys of this process. Pairs that are not the same meet
/// once in 2^128, and a million of these are a fraction of the texts.
type Pair = [u64; 2];

/// The publishes of the last minutes, by their numbers.
#[derive(Debug)]
pub(super) struct Repeats {
    window: Duration,
    known: HashMap<Pair, u64>,
    by_seq: BTreeMap<u64, (Instant, Pair, Arc<str>)>,
    of_actors: HashMap<Arc<str>, VecDeque<u64>>,
    hashers: [RandomState; 2],
}

impl Repeats {
    /// Recognises what was accepted within `window`.
    pub(super) fn new(window: Duration) -> Self {
        Self {
            window,
            known: HashMap::new(),
            by_seq: BTreeMap::new(),
            of_actors: HashMap::new(),
            hashers: [RandomState::new(), RandomState::new()],
        }
    }

    /// The number under which this was accepted before.
    pub(super) fn find(&mut self, now: Instant, actor: &str, msg_ref: &str) -> Option<u64> {
        while let Some((seq, (at, ..))) = self.by_seq.first_key_value()
            && now.saturating_duration_since(*at) >= self.window
        {
            let seq = *seq;
            self.forget(seq);
        }
        self.known.get(&self.pair(actor, msg_ref)).copied()
    }

    /// Remembers one that [`Repeats::find`] did not find.
    pub(super) fn insert(&mut self, at: Instant, actor: &str, msg_ref: &str, seq: u64) {
        let pair = self.pair(actor, msg_ref);
        let actor = match self.of_actors.get_key_value(actor) {
            Some((actor, _)) => actor.clone(),
            None => Arc::from(actor),
        };
        self.known.insert(pair, seq);
        self.by_seq.insert(seq, (at, pair, actor.clone()));
        let own = self.of_actors.entry(actor).or_default();
        own.push_back(seq);
        if own.len() > MAX_OF_ACTOR
            && let Some(oldest) = own.front().copied()
        {
            self.forget(oldest);
        }
        if self.by_seq.len() > MAX
            && let Some((oldest, _)) = self.by_seq.first_key_value()
        {
            let oldest = *oldest;
            self.forget(oldest);
        }
    }

    fn forget(&mut self, seq: u64) {
        let Some((_, pair, actor)) = self.by_seq.remove(&seq) else { return };
        self.known.remove(&pair);
        if let Some(own) = self.of_actors.get_mut(&actor) {
            // The oldest of all, or of an actor, is the first of its actor.
            own.pop_front();
            if own.is_empty() {
                self.of_actors.remove(&actor);
            }
        }
    }

    fn pair(&self, actor: &str, msg_ref: &str) -> Pair {
        self.hashers.each_ref().map(|hasher| hasher.hash_one((actor, msg_ref)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_hold_for_each_actor_and_in_time() {
        let (start, window) = (Instant::now(), Duration::from_secs(600));
        let mut repeats = Repeats::new(window);
        repeats.insert(start, "bob", "r-1", 1);
        for n in 0..=MAX_OF_ACTOR as u64 {
            repeats.insert(start + Duration::from_secs(1), "alice", &format!("r-{n}"), n + 2);
        }
        assert_eq!(repeats.find(start, "alice", "r-0"), None, "one more than are known of an actor");
        assert_eq!(repeats.find(start, "alice", "r-1"), Some(3));
        assert_eq!(repeats.find(start, "bob", "r-1"), Some(1), "other actors keep theirs");
        assert_eq!(repeats.find(start + window, "bob", "r-1"), None, "the window is over");
        assert_eq!(repeats.find(start + window, "alice", "r-1"), Some(3));
        assert_eq!(repeats.find(start + window + Duration::from_secs(1), "alice", "r-1"), None);
        assert!(repeats.of_actors.is_empty() && repeats.known.is_empty() && repeats.by_seq.is_empty());
    }
}
