//! Groups: subscriptions that share the messages of one place (wire protocol 16), and what those that redeliver keep track
//! of (features 6).
//!
//! A group redelivers once a member asked for it. What is handed to such a member is out with its *connection* until that
//! acknowledges it, ends, or lets the time pass; an unsubscribe leaves it the messages that it has. Members that did not ask
//! get their share for good.

use std::collections::{BTreeSet, HashMap};
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use indexmap::IndexMap;
use slab::Slab;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::address::Interest;
use super::envelope::Envelope;
use super::ledger::{Item, Ledger, Loads, MAX_UNACKED};
use super::members::SubscriptionId;
use crate::clock::later;
use crate::outgoing::{ConnectionId, Outgoing};
use crate::store::{Mark, Record};

/// How long a message of a connection that was lost waits, so that members that go at the same moment are gone by then.
const REST: Duration = Duration::from_millis(200);

/// How many groups without members are remembered.
const MAX_REMEMBERED: usize = 100_000;

/// Names a group within this process.
pub(super) type GroupId = usize;

/// By what groups that redeliver go.
#[derive(Debug, Clone)]
pub(super) struct Terms {
    /// How often a message is handed out again after a member failed to deal with it.
    pub(super) redeliver_max: u32,
    /// How long a group without members is remembered.
    pub(super) remembered: Duration,
    /// Numbers up to here are of a time before this process, in which they may have been handed out.
    pub(super) before: u64,
    /// Names the run of numbers.
    pub(super) epoch: Arc<str>,
}

/// What the hub has to carry out, in order.
#[derive(Debug, Default)]
pub(super) struct Effects {
    /// Messages for members.
    pub(super) handed: Vec<Handed>,
    /// How far groups have come.
    pub(super) marks: Vec<Mark>,
    /// Messages that nobody acknowledged, however often they were handed out.
    pub(super) exhausted: Vec<Arc<Record>>,
    /// Messages that history dropped while they waited for a member.
    pub(super) lost: u64,
}

/// A message for a member.
#[derive(Debug)]
pub(super) struct Handed {
    pub(super) outgoing: Arc<Outgoing>,
    pub(super) interest: Arc<Interest>,
    pub(super) record: Arc<Record>,
    pub(super) msg_id: Arc<str>,
    /// It may have been handed out before.
    pub(super) again: bool,
}

/// The messages that are out with a connection, by id: of which groups, and their numbers there.
type Held = HashMap<Arc<str>, Vec<(GroupId, u64)>>;

/// All groups.
#[derive(Debug)]
pub(super) struct Groups {
    terms: Terms,
    all: Slab<Group>,
    /// Those that redeliver, by their full names.
    named: HashMap<Arc<str>, GroupId>,
    /// What each connection holds, by message id.
    held: HashMap<ConnectionId, Held>,
    due: BTreeSet<(Instant, Due)>,
    /// Those without members, by when they are forgotten.
    remembered: BTreeSet<(Instant, GroupId)>,
    /// The newest number given out.
    newest: u64,
    /// For when the clock's owner has been told to look.
    armed: Option<Instant>,
    clock: Arc<Notify>,
    effects: Effects,
    /// Those whose members have changed.
    changed: Vec<Changed>,
}

/// A group that redelivers and has other members than before.
#[derive(Debug)]
pub(super) struct Changed {
    pub(super) group: GroupId,
    /// If it was without members: what it gets, and the newest number that it knows of. What history has kept since then
    /// goes to [`Groups::offer_kept`].
    pub(super) revived: Option<(Interest, u64)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    /// A message is not acknowledged in time.
    Message(GroupId, u64),
    /// Messages have rested.
    Serve(GroupId),
}

#[derive(Debug)]
struct Group {
    /// As its members call it.
    name: Arc<str>,
    members: IndexMap<SubscriptionId, Member>,
    /// Whose turn it is, in join order.
    next: usize,
    redelivery: Option<Redelivery>,
}

#[derive(Debug)]
struct Redelivery {
    /// Names it over restarts.
    full_name: Arc<str>,
    ledger: Ledger,
    /// What the store was told last.
    told: u64,
    /// When it is forgotten, if it has no members.
    forget_at: Option<Instant>,
}

/// A subscription in a group.
#[derive(Debug, Clone)]
pub(super) struct Member {
    pub(super) interest: Arc<Interest>,
    pub(super) outgoing: Arc<Outgoing>,
}

impl Member {
    /// Whether it may get a message at all.
    fn suits(&self, item: &Item) -> bool {
        item.silent != Some(self.outgoing.id())
            && !self.interest.worker.as_ref().is_some_and(|worker| worker.silenced(&item.record))
            && self.interest.wants(&Envelope::from(&*item.record).origin).is_some()
    }

    fn has_room(&self, loads: &Loads) -> bool {
        let load = || loads.get(&self.outgoing.id()).copied().unwrap_or(0);
        (self.interest.worker.is_none() || load() < MAX_UNACKED) && !self.outgoing.is_closing()
    }
}

/// The full name of a group: what its members call it, and where it is.
fn full_name(name: &str, base: &str, key: Option<&str>) -> Arc<str> {
    // A character that no level and no key can have.
    format!("{name}\n{base}\n{}", key.unwrap_or_default()).into()
}

impl Groups {
    pub(super) fn new(terms: Terms) -> Self {
        Self {
            terms,
            all: Slab::new(),
            named: HashMap::new(),
            held: HashMap::new(),
            due: BTreeSet::new(),
            remembered: BTreeSet::new(),
            newest: 0,
            armed: None,
            clock: Arc::default(),
            effects: Effects::default(),
            changed: Vec::new(),
        }
    }

    /// Remembers the groups of a time before.
    pub(super) fn restore(&mut self, marks: impl IntoIterator<Item = Mark>) {
        for Mark { group, done } in marks {
            let Some(done) = done else { continue };
            // The name before the first line break is what its members call it.
            let name = group.split('\n').next().unwrap_or_default().into();
            let redelivery = Redelivery {
                full_name: group.clone(),
                ledger: Ledger::new(done),
                told: done,
                forget_at: None,
            };
            let members = IndexMap::new();
            let id = self.all.insert(Group { name, members, next: 0, redelivery: Some(redelivery) });
            self.named.insert(group, id);
            self.remember(id);
        }
    }

    /// A number was given out.
    pub(super) fn reach(&mut self, seq: u64) {
        self.newest = seq;
    }

    /// What has come of the calls since this was asked last, if anything has.
    pub(super) fn effects(&mut self) -> Option<Effects> {
        let Effects { handed, marks, exhausted, lost } = &self.effects;
        let nothing = handed.is_empty() && marks.is_empty() && exhausted.is_empty() && *lost == 0;
        (!nothing).then(|| mem::take(&mut self.effects))
    }

    /// Rings when [`Groups::next_due`] has to be asked again.
    pub(super) fn clock(&self) -> Arc<Notify> {
        self.clock.clone()
    }

    /// When to call [`Groups::tick`] next.
    pub(super) fn next_due(&mut self) -> Option<Instant> {
        let firsts = [self.due.first().map(|(at, _)| *at), self.remembered.first().map(|(at, _)| *at)];
        self.armed = firsts.into_iter().flatten().min();
        self.armed
    }

    fn schedule(&mut self, at: Instant, due: Due) {
        self.due.insert((at, due));
        self.arm(at);
    }

    fn arm(&mut self, at: Instant) {
        if self.armed.is_none_or(|armed| at < armed) {
            self.armed = Some(at);
            self.clock.notify_one();
        }
    }

    /// Adds a subscription to its group at one place, where `key` is the place's filter key.
    pub(super) fn join(
        &mut self,
        here: &mut Vec<GroupId>,
        key: Option<&str>,
        subscription: SubscriptionId,
        member: Member,
    ) {
        let newest = self.newest;
        let interest = member.interest.clone();
        let Some(name) = &interest.group else { return };
        let known = here.iter().copied().find(|id| self.all[*id].name == *name);
        let full_name = full_name(name, &interest.base, key);
        let id = known.or_else(|| self.named.get(&full_name).copied()).unwrap_or_else(|| {
            let members = IndexMap::new();
            self.all.insert(Group { name: name.clone(), members, next: 0, redelivery: None })
        });
        if known.is_none() {
            here.push(id);
        }
        let group = &mut self.all[id];
        group.members.insert(subscription, member);
        if let Some(redelivery) = &mut group.redelivery {
            let mut revived = None;
            if let Some(at) = redelivery.forget_at.take() {
                self.remembered.remove(&(at, id));
                let keys = key.map(str::to_owned).into_iter().collect();
                revived = Some((Interest { keys, ..(*interest).clone() }, redelivery.ledger.seen()));
            }
            self.changed.push(Changed { group: id, revived });
        } else if interest.worker.is_some() {
            self.named.insert(full_name.clone(), id);
            self.effects.marks.push(Mark { group: full_name.clone(), done: Some(newest) });
            let ledger = Ledger::new(newest);
            group.redelivery = Some(Redelivery { full_name, ledger, told: newest, forget_at: None });
        }
    }

    /// Whether all groups of a subscription redeliver already, so that none was missed while it was away.
    pub(super) fn know(&self, interest: &Interest) -> bool {
        let known = |key| {
            let name = interest.group.as_ref().map(|name| full_name(name, &interest.base, key));
            name.is_some_and(|name| self.named.contains_key(&name))
        };
        let mut keys = interest.keys.iter().map(|key| Some(key.as_str())).peekable();
        if keys.peek().is_none() { known(None) } else { keys.all(known) }
    }

    /// Takes a subscription out of its group at one place.
    pub(super) fn leave(&mut self, here: &mut Vec<GroupId>, name: &str, subscription: SubscriptionId) {
        let Some(at) = here.iter().position(|id| *self.all[*id].name == *name) else { return };
        let id = here[at];
        let group = &mut self.all[id];
        group.remove(subscription);
        if !group.members.is_empty() {
            // What waited for it may have to go to those who are left.
            if group.redelivery.as_ref().is_some_and(|redelivery| !redelivery.ledger.is_served()) {
                self.changed.push(Changed { group: id, revived: None });
            }
            return;
        }
        here.swap_remove(at);
        if group.redelivery.is_none() {
            self.all.remove(id);
            return;
        }
        self.remember(id);
        if self.remembered.len() > MAX_REMEMBERED
            && let Some((_, oldest)) = self.remembered.pop_first()
        {
            self.forget(oldest);
        }
    }

    /// Whether nothing is out, and nothing is kept of what was.
    #[cfg(test)]
    pub(super) fn is_tidy(&self) -> bool {
        let open = |due: &(Instant, Due)| matches!(due.1, Due::Message(..));
        self.held.values().all(HashMap::is_empty) && !self.due.iter().any(open)
    }

    /// Keeps a group without members for a while.
    fn remember(&mut self, id: GroupId) {
        let at = later(Instant::now(), self.terms.remembered);
        if let Some(redelivery) = &mut self.all[id].redelivery {
            redelivery.forget_at = Some(at);
            self.remembered.insert((at, id));
            self.arm(at);
        }
    }

    /// The groups whose members have changed since this was asked last; they are to be served.
    pub(super) fn changed(&mut self) -> Vec<Changed> {
        mem::take(&mut self.changed)
    }

    /// A message that history kept while a group had no members; [`Groups::serve`] hands it out.
    pub(super) fn offer_kept(&mut self, id: GroupId, record: &Arc<Record>) {
        if let Some(redelivery) = &mut self.all[id].redelivery {
            redelivery.ledger.offer(record, None);
        }
    }

    /// Whose turn it is to get a message in a group that does not redeliver; or keeps it in one that does, and hands it out.
    pub(super) fn deliver(
        &mut self,
        id: GroupId,
        silent: Option<ConnectionId>,
        allowed: impl Fn(&Interest) -> bool,
        record: &dyn Fn() -> Arc<Record>,
    ) -> Option<(&Interest, &Outgoing)> {
        if self.all[id].redelivery.is_none() {
            let takes = |member: &Member| allowed(&member.interest) && Some(member.outgoing.id()) != silent;
            return self.all[id].turn(takes);
        }
        let group = &mut self.all[id];
        if let Some(redelivery) = &mut group.redelivery
            && group.members.values().any(|member| allowed(&member.interest))
        {
            redelivery.ledger.offer(&record(), silent);
            self.serve(id);
        }
        None
    }

    /// Hands out what waits in a group, as far as its members have room.
    pub(super) fn serve(&mut self, id: GroupId) {
        let Some(group) = self.all.get_mut(id) else { return };
        let Some(redelivery) = &mut group.redelivery else { return };
        let (members, next) = (&group.members, &mut group.next);
        let now = Instant::now();
        let mut due = Vec::new();
        while !redelivery.ledger.is_served() {
            let loads = redelivery.ledger.loads();
            if !members.values().any(|member| member.has_room(loads)) {
                break;
            }
            let Some((item, at)) =
                redelivery.ledger.take(now, |item, loads| choose(members, *next, item, loads))
            else {
                break;
            };
            *next = (at + 1) % members.len();
            let Member { interest, outgoing } = &members[at];
            let (record, msg_id) = (item.record.clone(), self.terms.msg_id(&item.record));
            let again = item.holder.is_some() || record.seq <= self.terms.before;
            if let Some(worker) = &interest.worker {
                let (holder, until) = (outgoing.id(), now + worker.ack_timeout);
                due.push((until, record.seq));
                let held = self.held.entry(holder).or_default();
                held.entry(msg_id.clone()).or_default().push((id, record.seq));
                redelivery.ledger.hand(item, holder, until);
            }
            let (outgoing, interest) = (outgoing.clone(), interest.clone());
            self.effects.handed.push(Handed { outgoing, interest, record, msg_id, again });
        }
        for (at, seq) in due {
            self.schedule(at, Due::Message(id, seq));
        }
        self.account(id);
    }

    /// Tells how far a group has come.
    fn account(&mut self, id: GroupId) {
        if let Some(redelivery) = &mut self.all[id].redelivery {
            let done = redelivery.ledger.done();
            self.effects.lost += redelivery.ledger.lost();
            if done != redelivery.told {
                redelivery.told = done;
                self.effects.marks.push(Mark { group: redelivery.full_name.clone(), done: Some(done) });
            }
        }
    }

    /// A connection has dealt with a message; it counts if that is out with it.
    pub(super) fn acknowledge(&mut self, connection: ConnectionId, msg_id: &str) {
        let Some(held) = self.held.get_mut(&connection) else { return };
        for (id, seq) in held.remove(msg_id).unwrap_or_default() {
            self.take_back(id, seq);
            self.serve(id);
        }
    }

    /// A connection that is in no group any more has ended: what it holds goes to others. `lost`: it broke off, and that may be
    /// the fault of what it held.
    pub(super) fn end(&mut self, connection: ConnectionId, lost: bool) {
        let held = self.held.remove(&connection).unwrap_or_default();
        let mut places: Vec<_> = held.into_values().flatten().collect();
        places.sort_unstable();
        let rests_until = lost.then(|| Instant::now() + REST);
        for (id, seq) in &places {
            self.give_back(*id, *seq, lost, rests_until);
        }
        places.dedup_by_key(|(id, _)| *id);
        for (id, _) in places {
            self.serve(id);
            if let Some(until) = rests_until {
                self.schedule(until, Due::Serve(id));
            }
        }
    }

    /// What the clock brings: messages that were not acknowledged in time, and groups that nobody came back to.
    pub(super) fn tick(&mut self) {
        let now = Instant::now();
        let mut touched = BTreeSet::new();
        while let Some((at, due)) = self.due.first().copied()
            && at <= now
        {
            self.due.pop_first();
            match due {
                Due::Message(id, seq) => {
                    self.release(id, seq);
                    self.give_back(id, seq, true, None);
                    touched.insert(id);
                }
                Due::Serve(id) => {
                    touched.insert(id);
                }
            }
        }
        while let Some((at, id)) = self.remembered.first().copied()
            && at <= now
        {
            self.remembered.pop_first();
            self.forget(id);
        }
        for id in touched {
            self.serve(id);
        }
    }

    /// Takes a message off its holder's list.
    fn release(&mut self, id: GroupId, seq: u64) {
        let ledger = self.all[id].redelivery.as_ref().map(|redelivery| &redelivery.ledger);
        let Some((holder, record)) = ledger.and_then(|ledger| ledger.holder(seq)) else { return };
        let msg_id = self.terms.msg_id(record);
        if let Some(held) = self.held.get_mut(&holder)
            && let Some(places) = held.get_mut(&msg_id)
        {
            places.retain(|place| *place != (id, seq));
            if places.is_empty() {
                held.remove(&msg_id);
            }
        }
    }

    fn take_back(&mut self, id: GroupId, seq: u64) -> Option<Item> {
        let redelivery = self.all.get_mut(id)?.redelivery.as_mut()?;
        let (item, at) = redelivery.ledger.take_back(seq)?;
        self.due.remove(&(at, Due::Message(id, seq)));
        Some(item)
    }

    /// A message that was not acknowledged waits for another member, unless members failed to deal with it often enough.
    fn give_back(&mut self, id: GroupId, seq: u64, failed: bool, rests_until: Option<Instant>) {
        let Some(item) = self.take_back(id, seq) else { return };
        let item = Item { failures: item.failures + u32::from(failed), rests_until, ..item };
        if item.failures > self.terms.redeliver_max {
            self.effects.exhausted.push(item.record);
        } else if let Some(redelivery) = &mut self.all[id].redelivery {
            redelivery.ledger.put_back(item);
        }
    }

    /// Forgets a group that nobody came back to, unless a connection that left it still works on something.
    fn forget(&mut self, id: GroupId) {
        let Some(redelivery) = &self.all[id].redelivery else { return };
        if !redelivery.ledger.is_idle() {
            return self.remember(id);
        }
        self.effects.lost += redelivery.ledger.returned() as u64;
        let full_name = redelivery.full_name.clone();
        self.all.remove(id);
        self.named.remove(&full_name);
        self.effects.marks.push(Mark { group: full_name, done: None });
    }
}

impl Terms {
    /// The id of a message, which a group needs also where messages are not recorded.
    fn msg_id(&self, record: &Record) -> Arc<str> {
        record.msg_id.clone().unwrap_or_else(|| format!("{}-{}", self.epoch, record.seq).into())
    }
}

impl Group {
    fn remove(&mut self, subscription: SubscriptionId) {
        if let Some((index, ..)) = self.members.shift_remove_full(&subscription)
            && index < self.next
        {
            self.next -= 1;
        }
    }

    /// The next member in join order that takes a message.
    fn turn(&mut self, takes: impl Fn(&Member) -> bool) -> Option<(&Interest, &Outgoing)> {
        let count = self.members.len();
        let at = (self.next..self.next + count).map(|at| at % count).find(|at| takes(&self.members[*at]))?;
        self.next = (at + 1) % count;
        let Member { interest, outgoing } = &self.members[at];
        Some((interest, outgoing))
    }
}

/// The next member in join order that a message can go to: not the one that had it last, where another could get it.
fn choose(
    members: &IndexMap<SubscriptionId, Member>,
    next: usize,
    item: &Item,
    loads: &Loads,
) -> Option<usize> {
    let had_it = |member: &Member| item.holder == Some(member.outgoing.id());
    let spare = item.holder.is_some() && members.values().any(|member| !had_it(member) && member.suits(item));
    let count = members.len();
    (next..next + count).map(|at| at % count).find(|at| {
        let member = &members[*at];
        !(spare && had_it(member)) && member.has_room(loads) && member.suits(item)
    })
}
