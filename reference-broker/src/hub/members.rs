//! The subscriptions that one place of a table holds: everybody, and which [`groups`](super::groups) share there.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use indexmap::IndexMap;

use super::address::{Delivery, Interest, Origin, Relation, wanted_key};
use super::groups::{GroupId, Groups, Member};
use crate::outgoing::{ConnectionId, Outgoing};
use crate::store::Record;

/// Names a subscription within this process.
pub(super) type SubscriptionId = u64;

/// All groups, and the message under way as those need it that keep it.
pub(super) struct Shared<'g> {
    pub(super) groups: &'g mut Groups,
    pub(super) record: &'g dyn Fn() -> Arc<Record>,
}

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
    groups: Vec<GroupId>,
}

/// Receivers of the same frame.
#[derive(Debug)]
struct Audience {
    /// One that stands for all of them.
    interest: Arc<Interest>,
    members: IndexMap<SubscriptionId, Arc<Outgoing>>,
}

impl Place {
    pub(super) fn is_empty(&self) -> bool {
        self.unfiltered.is_empty() && self.filtered.is_empty()
    }

    pub(super) fn insert(&mut self, member: &Member, id: SubscriptionId, groups: &mut Groups) {
        if member.interest.keys.is_empty() {
            self.unfiltered.insert(None, member, id, groups);
        }
        for key in &member.interest.keys {
            self.filtered.entry(key.as_str().into()).or_default().insert(Some(key), member, id, groups);
        }
    }

    pub(super) fn remove(&mut self, interest: &Interest, id: SubscriptionId, groups: &mut Groups) {
        if interest.keys.is_empty() {
            self.unfiltered.remove(interest, id, groups);
        }
        for key in &interest.keys {
            if let Some(members) = self.filtered.get_mut(key.as_str()) {
                members.remove(interest, id, groups);
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
        shared: &mut Shared<'_>,
    ) -> u64 {
        let keyed = wanted_key(origin, relation).and_then(|key| self.filtered.get_mut(key));
        let members = [Some(&mut self.unfiltered), keyed].into_iter().flatten();
        members.map(|members| members.deliver(origin, relation, silent, encode, shared)).sum()
    }
}

impl Members {
    fn is_empty(&self) -> bool {
        self.audiences.is_empty() && self.groups.is_empty()
    }

    fn insert(&mut self, key: Option<&str>, member: &Member, id: SubscriptionId, groups: &mut Groups) {
        let Member { interest, outgoing } = member;
        if interest.group.is_some() {
            groups.join(&mut self.groups, key, id, member.clone());
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

    fn remove(&mut self, interest: &Interest, id: SubscriptionId, groups: &mut Groups) {
        if let Some(name) = &interest.group {
            groups.leave(&mut self.groups, name, id);
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
        shared: &mut Shared<'_>,
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
        for group in &self.groups {
            if let Some((interest, outgoing)) = shared.groups.deliver(*group, silent, allowed, shared.record)
            {
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
