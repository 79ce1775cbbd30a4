//! Subscriptions by base, and by pattern.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use slab::Slab;

use super::address::{Delivery, Interest, Origin, Relation};
use super::groups::{Groups, Member};
use super::members::{Place, Shared, SubscriptionId};
use crate::outgoing::{ConnectionId, Outgoing};
use crate::store::Record;

/// All subscriptions.
#[derive(Debug)]
pub(super) struct Table {
    /// Of one topic each, by its base.
    topics: HashMap<Arc<str>, Place>,
    patterns: Patterns,
    pub(super) groups: Groups,
}

impl Table {
    pub(super) fn new(groups: Groups) -> Self {
        Self { topics: HashMap::new(), patterns: Patterns::default(), groups }
    }

    pub(super) fn insert(&mut self, interest: &Arc<Interest>, id: SubscriptionId, outgoing: &Arc<Outgoing>) {
        let place = if interest.wildcard {
            self.patterns.place(interest)
        } else {
            self.topics.entry(interest.base.clone()).or_default()
        };
        let member = Member { interest: interest.clone(), outgoing: outgoing.clone() };
        place.insert(&member, id, &mut self.groups);
    }

    pub(super) fn remove(&mut self, interest: &Interest, id: SubscriptionId) {
        if interest.wildcard {
            self.patterns.remove(interest, id, &mut self.groups);
        } else if let Some(place) = self.topics.get_mut(&interest.base) {
            place.remove(interest, id, &mut self.groups);
            if place.is_empty() {
                self.topics.remove(&interest.base);
                if self.topics.capacity() > 1_024 && self.topics.len() < self.topics.capacity() / 4 {
                    self.topics.shrink_to(self.topics.len() * 2);
                }
            }
        }
    }

    /// Whether nobody is subscribed to anything, and nothing is kept for them.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.topics.is_empty()
            && self.patterns.branches.len() == 1
            && self.patterns.branches[ROOT].all.is_empty()
    }

    /// Queues a message for everybody who wants it; returns for how many.
    pub(super) fn deliver<'a>(
        &'a mut self,
        origin: &Origin<'a>,
        silent: Option<ConnectionId>,
        encode: impl Fn(&Delivery<'_>) -> Bytes,
        record: &dyn Fn() -> Arc<Record>,
    ) -> u64 {
        let groups = &mut Shared { groups: &mut self.groups, record };
        let mut delivered = 0;
        if let Some(place) = self.topics.get_mut(origin.base) {
            delivered += place.deliver(origin, Relation::Own, silent, &encode, groups);
        }
        if origin.exact {
            return delivered;
        }
        for (at, _) in origin.base.match_indices('/') {
            if let Some(place) = self.topics.get_mut(&origin.base[..at]) {
                let relation = Relation::Deeper(&origin.base[at + 1..]);
                delivered += place.deliver(origin, relation, silent, &encode, groups);
            }
        }
        if let Some(key) = origin.key
            && origin.reaches_below
            && let Some(place) = self.topics.get_mut(&*format!("{}/{key}", origin.base))
        {
            delivered += place.deliver(origin, Relation::ByKey, silent, &encode, groups);
        }
        for (place, relation) in self.patterns.matching(origin) {
            let place = self.patterns.place_mut(place);
            delivered += place.deliver(origin, relation, silent, &encode, groups);
        }
        delivered
    }
}

/// A tree of the levels of patterns, its branches by number so that nothing recurses on their depth.
#[derive(Debug)]
struct Patterns {
    branches: Slab<Branch>,
}

#[derive(Debug, Default)]
struct Branch {
    /// The branch it hangs on, and the level it stands for there; the root has none.
    parent: Option<(usize, Level)>,
    children: HashMap<Level, usize>,
    /// Those whose pattern ends here.
    here: Place,
    /// Those whose pattern ends in a `#` below here.
    all: Place,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Level {
    Literal(Box<str>),
    Any,
}

/// One place of the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    Here(usize),
    All(usize),
}

const ROOT: usize = 0;

impl Default for Patterns {
    fn default() -> Self {
        let mut branches = Slab::new();
        branches.insert(Branch::default());
        Self { branches }
    }
}

/// The levels of a pattern, and whether it ends in `#`.
fn levels(interest: &Interest) -> (impl Iterator<Item = Level>, bool) {
    let path = interest.base.strip_suffix("/#");
    let levels = path.unwrap_or(&interest.base).split('/').enumerate().map(|(index, level)| match level {
        "+" if index >= interest.app_levels => Level::Any,
        literal => Level::Literal(literal.into()),
    });
    (levels, path.is_some())
}

impl Patterns {
    /// The place of a pattern, made if it is not there.
    fn place(&mut self, interest: &Interest) -> &mut Place {
        let mut at = ROOT;
        let (levels, open) = levels(interest);
        for level in levels {
            at = match self.branches[at].children.get(&level) {
                Some(child) => *child,
                None => {
                    let child = self
                        .branches
                        .insert(Branch { parent: Some((at, level.clone())), ..Branch::default() });
                    self.branches[at].children.insert(level, child);
                    child
                }
            };
        }
        self.place_mut(if open { At::All(at) } else { At::Here(at) })
    }

    fn place_mut(&mut self, at: At) -> &mut Place {
        match at {
            At::Here(branch) => &mut self.branches[branch].here,
            At::All(branch) => &mut self.branches[branch].all,
        }
    }

    fn remove(&mut self, interest: &Interest, id: SubscriptionId, groups: &mut Groups) {
        let mut at = ROOT;
        let (levels, open) = levels(interest);
        for level in levels {
            let Some(child) = self.branches[at].children.get(&level) else { return };
            at = *child;
        }
        self.place_mut(if open { At::All(at) } else { At::Here(at) }).remove(interest, id, groups);
        // Branches that lead nowhere go, from the tip inwards.
        while let Branch { parent: Some((parent, level)), children, here, all } = &self.branches[at]
            && children.is_empty()
            && here.is_empty()
            && all.is_empty()
        {
            let (parent, level) = (*parent, level.clone());
            self.branches.remove(at);
            self.branches[parent].children.remove(&level);
            at = parent;
        }
    }

    /// The places whose patterns a message's topic fits, each once.
    fn matching<'a>(&self, origin: &Origin<'a>) -> Vec<(At, Relation<'a>)> {
        let mut found = Vec::new();
        if self.branches.len() == 1 {
            return found;
        }
        // Branches to look at, with the levels that are left below them.
        let mut open = vec![(ROOT, Some(origin.base))];
        while let Some((at, rest)) = open.pop() {
            let branch = &self.branches[at];
            found.push((At::All(at), Relation::Under));
            found.push((At::Here(at), rest.map_or(Relation::Own, Relation::Deeper)));
            match rest {
                Some(levels) => {
                    let (level, below) = levels.split_once('/').map_or((levels, None), |(l, b)| (l, Some(b)));
                    open.extend(branch.steps(level).map(|child| (child, below)));
                }
                None => {
                    let key = origin.key.filter(|_| origin.reaches_below);
                    for child in key.into_iter().flat_map(|key| branch.steps(key)) {
                        found.push((At::All(child), Relation::ByKey));
                        found.push((At::Here(child), Relation::ByKey));
                    }
                }
            }
        }
        found
    }
}

impl Branch {
    /// The branches that a level leads to.
    fn steps(&self, level: &str) -> impl Iterator<Item = usize> {
        let literal = self.children.get(&Level::Literal(level.into()));
        literal.into_iter().chain(self.children.get(&Level::Any)).copied()
    }
}
