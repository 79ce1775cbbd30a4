//! The subscriptions that one place of a table holds.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use indexmap::IndexMap;

use super::address::{Delivery, Interest, Origin, Relation, wanted_key};
use crate::outgoing::{ConnectionId, Outgoing};

/// Names a subscription within this process.
pub(super) type SubscriptionId = u64;

/// Everybody who subscribed at one base or pattern.
#[derive(Debug, Default)]
pub(super) struct Place {
    /// Those who want everything.
    unfiltered: Members,
    /// Those who want one key; a subscription with several is in each.
    filtered: HashMap<Box<str>, Members>,
}

#[derive(Debug, Default)]
struct Members {
    /// Those who each get every message, by what their frames look like.
    audiences: Vec<Audience>,
    groups: Vec<Group>,
}

/// Receivers of the same frame.
#[derive(Debug)]
struct Audience {
    /// One that stands for all of them.
    interest: Arc<Interest>,
    members: IndexMap<SubscriptionId, Arc<Outgoing>>,
}

/// Receivers that share the messages of one routing pattern.
#[derive(Debug)]
struct Group {
    name: Arc<str>,
    members: IndexMap<SubscriptionId, (Arc<Interest>, Arc<Outgoing>)>,
    /// Whose turn it is, in join order.
    next: usize,
}

impl Place {
    pub(super) fn is_empty(&self) -> bool {
        self.unfiltered.is_empty() && self.filtered.is_empty()
    }

    pub(super) fn insert(&mut self, interest: &Arc<Interest>, id: SubscriptionId, outgoing: &Arc<Outgoing>) {
        if interest.keys.is_empty() {
            self.unfiltered.insert(interest, id, outgoing);
        }
        for key in &interest.keys {
            self.filtered.entry(key.as_str().into()).or_default().insert(interest, id, outgoing);
        }
    }

    pub(super) fn remove(&mut self, interest: &Interest, id: SubscriptionId) {
        if interest.keys.is_empty() {
            self.unfiltered.remove(interest, id);
        }
        for key in &interest.keys {
            if let Some(members) = self.filtered.get_mut(key.as_str()) {
                members.remove(interest, id);
                if members.is_empty() {
                    self.filtered.remove(key.as_str());
                }
            }
        }
    }

    /// Queues a message for those here who want it; returns for how many.
    pub(super) fn deliver<'a>(
        &'a mut self,
        origin: &Origin<'a>,
        relation: Relation<'a>,
        silent: Option<ConnectionId>,
        encode: &impl Fn(&Delivery<'_>) -> Bytes,
    ) -> u64 {
        let keyed = wanted_key(origin, relation).and_then(|key| self.filtered.get_mut(key));
        let members = [Some(&mut self.unfiltered), keyed].into_iter().flatten();
        members.map(|members| members.deliver(origin, relation, silent, encode)).sum()
    }
}

impl Members {
    fn is_empty(&self) -> bool {
        self.audiences.is_empty() && self.groups.is_empty()
    }

    fn insert(&mut self, interest: &Arc<Interest>, id: SubscriptionId, outgoing: &Arc<Outgoing>) {
        if let Some(name) = &interest.group {
            let member = (interest.clone(), outgoing.clone());
            match self.groups.iter_mut().find(|group| group.name == *name) {
                Some(group) => drop(group.members.insert(id, member)),
                None => {
                    let members = IndexMap::from([(id, member)]);
                    self.groups.push(Group { name: name.clone(), members, next: 0 });
                }
            }
        } else {
            let audience =
                match self.audiences.iter().position(|audience| alike(&audience.interest, interest)) {
                    Some(index) => &mut self.audiences[index],
                    None => {
                        self.audiences
                            .push(Audience { interest: interest.clone(), members: IndexMap::new() });
                        self.audiences.last_mut().expect("it was pushed just now")
                    }
                };
            audience.members.insert(id, outgoing.clone());
        }
    }

    fn remove(&mut self, interest: &Interest, id: SubscriptionId) {
        if let Some(name) = &interest.group {
            if let Some(at) = self.groups.iter().position(|group| group.name == *name) {
                self.groups[at].remove(id);
                if self.groups[at].members.is_empty() {
                    self.groups.swap_remove(at);
                }
            }
        } else if let Some(at) =
            self.audiences.iter().position(|audience| alike(&audience.interest, interest))
        {
            let members = &mut self.audiences[at].members;
            members.swap_remove(&id);
            if members.is_empty() {
                self.audiences.swap_remove(at);
            } else if members.capacity() > 64 && members.len() < members.capacity() / 4 {
                members.shrink_to(members.len() * 2);
            }
        }
    }

    fn deliver<'a>(
        &'a mut self,
        origin: &Origin<'a>,
        relation: Relation<'a>,
        silent: Option<ConnectionId>,
        encode: &impl Fn(&Delivery<'_>) -> Bytes,
    ) -> u64 {
        let allowed = |interest: &Interest| !matches!(relation, Relation::Deeper(_)) || interest.descends;
        let mut delivered = 0;
        for audience in self.audiences.iter().filter(|audience| allowed(&audience.interest)) {
            let mut frame = None;
            for outgoing in audience.members.values().filter(|outgoing| Some(outgoing.id()) != silent) {
                let frame =
                    frame.get_or_insert_with(|| encode(&Delivery::new(&audience.interest, origin, relation)));
                outgoing.push(frame.clone());
                delivered += 1;
            }
        }
        for group in &mut self.groups {
            let takes =
                |interest: &Interest, outgoing: &Outgoing| allowed(interest) && Some(outgoing.id()) != silent;
            if let Some((interest, outgoing)) = group.turn(takes) {
                outgoing.push(encode(&Delivery::new(interest, origin, relation)));
                delivered += 1;
            }
        }
        delivered
    }
}

/// Whether two subscriptions at one place get the same frames.
fn alike(a: &Interest, b: &Interest) -> bool {
    a.topic == b.topic
        && a.descends == b.descends
        && a.scope == b.scope
        && a.wildcard == b.wildcard
        && a.features == b.features
}

impl Group {
    fn remove(&mut self, id: SubscriptionId) {
        if let Some((index, ..)) = self.members.shift_remove_full(&id)
            && index < self.next
        {
            self.next -= 1;
        }
    }

    /// The next member in join order that takes the message.
    fn turn(&mut self, takes: impl Fn(&Interest, &Outgoing) -> bool) -> Option<(&Interest, &Outgoing)> {
        let count = self.members.len();
        let at = (self.next..self.next + count).map(|at| at % count).find(|at| {
            let (interest, outgoing) = &self.members[*at];
            takes(interest, outgoing)
        })?;
        self.next = (at + 1) % count;
        let (interest, outgoing) = &self.members[at];
        Some((interest, outgoing))
    }
}
