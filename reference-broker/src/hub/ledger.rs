//! What a group that redelivers still owes (features 6): what waits for a member, what is out with whom, and up to where
//! all is done. Knows neither connections' queues nor members.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};

use tokio::time::Instant;

use crate::outgoing::ConnectionId;
use crate::store::Record;

/// How many messages are out with one member at most.
pub(super) const MAX_UNACKED: usize = 256;

/// How many may wait before those that history dropped are looked for among them.
const SWEEP_AT: usize = 1_024;

/// A message for a member.
#[derive(Debug, Clone)]
pub(super) struct Item {
    pub(super) record: Arc<Record>,
    /// The connection that shall not get it.
    pub(super) silent: Option<ConnectionId>,
    /// Who had it last.
    pub(super) holder: Option<ConnectionId>,
    /// How often a member failed to deal with it.
    pub(super) failures: u32,
    /// Nobody gets it before.
    pub(super) rests_until: Option<Instant>,
}

/// A message that is out.
#[derive(Debug)]
struct Out {
    item: Item,
    holder: ConnectionId,
    due: Instant,
}

/// How many messages are out with each connection.
pub(super) type Loads = HashMap<ConnectionId, usize>;

/// The messages of one group, by number.
#[derive(Debug)]
pub(super) struct Ledger {
    /// The newest number that it knows of.
    seen: u64,
    /// Never handed out. History owns them, and with it they go.
    waiting: BTreeMap<u64, (Weak<Record>, Option<ConnectionId>)>,
    /// Taken back from a member that did not acknowledge them.
    returned: BTreeMap<u64, Item>,
    out: BTreeMap<u64, Out>,
    loads: Loads,
    /// When to look for what history dropped.
    sweep_at: usize,
    /// How many history dropped before anybody got them.
    lost: u64,
}

impl Ledger {
    /// One that begins after this number.
    pub(super) fn new(seen: u64) -> Self {
        Self {
            seen,
            waiting: BTreeMap::new(),
            returned: BTreeMap::new(),
            out: BTreeMap::new(),
            loads: HashMap::new(),
            sweep_at: SWEEP_AT,
            lost: 0,
        }
    }

    /// The newest number that it knows of.
    pub(super) fn seen(&self) -> u64 {
        self.seen
    }

    /// All up to here was offered to it, or is none of its business.
    pub(super) fn reach(&mut self, seq: u64) {
        self.seen = self.seen.max(seq);
    }

    /// A message that one member shall get, for as long as somebody else keeps it.
    pub(super) fn offer(&mut self, record: &Arc<Record>, silent: Option<ConnectionId>) {
        self.reach(record.seq);
        self.waiting.insert(record.seq, (Arc::downgrade(record), silent));
        if self.waiting.len() > self.sweep_at {
            let before = self.waiting.len();
            self.waiting.retain(|_, (record, _)| record.strong_count() > 0);
            self.lost += (before - self.waiting.len()) as u64;
            self.sweep_at = SWEEP_AT.max(self.waiting.len() * 2);
        }
    }

    /// Whether nothing waits for a member.
    pub(super) fn is_served(&self) -> bool {
        self.waiting.is_empty() && self.returned.is_empty()
    }

    /// Whether nothing is out.
    pub(super) fn is_idle(&self) -> bool {
        self.out.is_empty()
    }

    /// How many messages are out with each connection.
    pub(super) fn loads(&self) -> &Loads {
        &self.loads
    }

    /// Takes out the first waiting message, oldest first, that somebody is found for.
    pub(super) fn take<M>(
        &mut self,
        now: Instant,
        find: impl Fn(&Item, &Loads) -> Option<M>,
    ) -> Option<(Item, M)> {
        let find = |item: &Item| find(item, &self.loads);
        let rested =
            self.returned.iter().filter(|(_, item)| item.rests_until.is_none_or(|until| until <= now));
        let returned =
            rested.map(|(seq, item)| (*seq, item)).find_map(|(seq, item)| Some((seq, find(item)?)));
        if let Some((seq, member)) = returned {
            return Some((self.returned.remove(&seq)?, member));
        }
        let (mut found, mut gone) = (None, Vec::new());
        for (seq, (record, silent)) in &self.waiting {
            let Some(record) = record.upgrade() else {
                gone.push(*seq);
                continue;
            };
            let item = Item { record, silent: *silent, holder: None, failures: 0, rests_until: None };
            if let Some(member) = find(&item) {
                gone.push(*seq);
                found = Some((item, member));
                break;
            }
        }
        self.lost += (gone.len() - usize::from(found.is_some())) as u64;
        for seq in gone {
            self.waiting.remove(&seq);
        }
        found
    }

    /// A message that was taken out is with a connection now, which has until then to acknowledge it.
    pub(super) fn hand(&mut self, item: Item, holder: ConnectionId, due: Instant) {
        *self.loads.entry(holder).or_default() += 1;
        let item = Item { holder: Some(holder), ..item };
        self.out.insert(item.record.seq, Out { item, holder, due });
    }

    /// Who a message is out with.
    pub(super) fn holder(&self, seq: u64) -> Option<(ConnectionId, &Record)> {
        self.out.get(&seq).map(|out| (out.holder, &*out.item.record))
    }

    /// Takes a message from its holder, for good or to [`Ledger::put_back`]; with when it was due.
    pub(super) fn take_back(&mut self, seq: u64) -> Option<(Item, Instant)> {
        let Out { item, holder, due } = self.out.remove(&seq)?;
        if let Some(load) = self.loads.get_mut(&holder) {
            *load -= 1;
            if *load == 0 {
                self.loads.remove(&holder);
            }
        }
        Some((item, due))
    }

    /// A message that was not acknowledged waits again.
    pub(super) fn put_back(&mut self, item: Item) {
        self.returned.insert(item.record.seq, item);
    }

    /// All up to here is acknowledged or given up.
    pub(super) fn done(&mut self) -> u64 {
        while let Some(first) = self.waiting.first_entry()
            && first.get().0.strong_count() == 0
        {
            first.remove();
            self.lost += 1;
        }
        let firsts = [
            self.waiting.first_key_value().map(|(seq, _)| *seq),
            self.returned.first_key_value().map(|(seq, _)| *seq),
            self.out.first_key_value().map(|(seq, _)| *seq),
        ];
        firsts.into_iter().flatten().min().map_or(self.seen, |first| first - 1)
    }

    /// How many messages wait that were handed out before.
    pub(super) fn returned(&self) -> usize {
        self.returned.len()
    }

    /// How many messages were lost to the bounds of history since this was asked last.
    pub(super) fn lost(&mut self) -> u64 {
        std::mem::take(&mut self.lost)
    }
}
