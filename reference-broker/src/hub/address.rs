//! What a subscription and a message are to each other (wire protocol 13.4, 14.3, 15.3).
//!
//! [`Interest::wants`] decides it for one pair, and is what retained messages are matched with. The
//! [`table`](super::table) finds the same pairs without looking at every subscription.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use nolag_protocol::features::Features;

use crate::store::Record;

/// What a subscription asks for, resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Interest {
    /// The subscription string, byte for byte.
    pub(crate) topic: Arc<str>,
    /// The internal name: of one topic, or for a wildcard `<app id>/<pattern>`.
    pub(crate) base: Arc<str>,
    /// How many levels of the base are the app id's, in which `+` and `#` mean nothing.
    pub(crate) app_levels: usize,
    /// The base is a pattern.
    pub(crate) wildcard: bool,
    /// The base is a rule's own topic: no deeper topics, no wildcards.
    pub(crate) exact: bool,
    /// The filter keys it wants; none means everything.
    pub(crate) keys: Vec<String>,
    /// The full name of the group it shares messages with.
    pub(crate) group: Option<Arc<str>>,
    /// It may see the messages of deeper topics.
    pub(crate) descends: bool,
    /// The scope that was put into the address, and that its owner does not see.
    pub(crate) scope: Option<Arc<str>>,
    /// What its owner was granted, as far as its frames depend on that.
    pub(crate) features: Features,
    /// What is handed to it is acknowledged, or handed out again (features 6); only in a group.
    pub(crate) worker: Option<Arc<Worker>>,
}

/// A member of a group that redelivers.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Worker {
    /// How long it may take to acknowledge a message.
    pub(crate) ack_timeout: Duration,
    /// Whose it is: what an actor's client instance published without echo does not come back to it.
    pub(crate) actor: Arc<str>,
    /// The client instance.
    pub(crate) client_id: Option<Arc<str>>,
}

impl Worker {
    /// Whether a message that waited is its own, and shall not come back.
    pub(super) fn silenced(&self, record: &Record) -> bool {
        record.silent.is_some() && record.silent == self.client_id && record.from == self.actor
    }
}

/// Where a message was published.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Origin<'a> {
    /// The internal name.
    pub(crate) base: &'a str,
    /// The address, scope included: what `base` ends with unless it is a rule's own topic.
    pub(crate) topic: &'a str,
    /// The base is a rule's own topic.
    pub(crate) exact: bool,
    /// The message's filter key.
    pub(crate) key: Option<&'a str>,
    /// The publisher may publish to the topic that the key would be one more level of.
    pub(crate) reaches_below: bool,
}

/// How a message's topic lies to the place that a subscription has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Relation<'a> {
    /// At it.
    Own,
    /// Below it, by these levels.
    Deeper(&'a str),
    /// One level above it, and the key is that level.
    ByKey,
    /// Anywhere under a pattern that ends in `#`.
    Under,
}

/// A message that a subscription wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Delivery<'a> {
    pub(super) interest: &'a Interest,
    /// The `filter` field.
    pub(super) filter: Option<Cow<'a, str>>,
    /// The message's topic, where it is not the subscription's.
    other_topic: Option<&'a str>,
}

impl<'a> Delivery<'a> {
    /// The delivery to an interest whose keys let the message through.
    pub(super) fn new(interest: &'a Interest, origin: &Origin<'a>, relation: Relation<'a>) -> Self {
        let filter = match (relation, origin.key) {
            (Relation::Own | Relation::Under, key) => key.map(Cow::Borrowed),
            (Relation::Deeper(rest), None) => Some(Cow::Borrowed(rest)),
            (Relation::Deeper(rest), Some(key)) => Some(Cow::Owned(format!("{rest}/{key}"))),
            (Relation::ByKey, _) => None,
        };
        let same = relation == Relation::Own && !interest.wildcard;
        Self { interest, filter, other_topic: (!same).then_some(origin.topic) }
    }

    /// The `sourceTopic` field, as the receiver writes addresses: without a scope that was put in for it.
    pub(super) fn source_topic(&self) -> Option<Cow<'a, str>> {
        let topic = self.other_topic?;
        let scoped = self.interest.scope.as_deref().and_then(|scope| {
            let (app, rest) = topic.split_once('/')?;
            let rest = rest.strip_prefix(scope)?.strip_prefix('/')?;
            Some(Cow::Owned(format!("{app}/{rest}")))
        });
        Some(scoped.unwrap_or(Cow::Borrowed(topic)))
    }
}

/// The key under which a filtered subscription must have asked for a message, if any would do.
pub(super) fn wanted_key<'a>(origin: &Origin<'a>, relation: Relation<'a>) -> Option<&'a str> {
    match relation {
        Relation::Own | Relation::Under => origin.key,
        // A filter and one deeper level share one name space (15.3).
        Relation::Deeper(rest) if origin.key.is_none() && !rest.contains('/') => Some(rest),
        Relation::Deeper(_) | Relation::ByKey => None,
    }
}

/// How a base lies to an interest, whatever the messages published there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// Its messages are among the interest's, if their filter keys are.
    Within,
    /// One level above; only messages whose key is that level are.
    Above,
    /// None are.
    Elsewhere,
}

impl Interest {
    /// The levels before the first wildcard: what every base begins with that it concerns, except for its messages with keys.
    pub(super) fn fixed_levels(&self) -> &str {
        let levels = self.base.split('/').enumerate();
        let fixed: usize = levels
            .take_while(|(index, level)| {
                !self.wildcard || *index < self.app_levels || !matches!(*level, "+" | "#")
            })
            .map(|(_, level)| level.len() + 1)
            .sum();
        &self.base[..fixed.saturating_sub(1)]
    }

    /// How a base lies to it. Whether the base is a rule's own topic is left out of account.
    pub(super) fn place(&self, base: &str) -> Place {
        let next = self.base.split('/').nth(base.split('/').count());
        let origin = Origin { base, topic: base, exact: false, key: next, reaches_below: true };
        let relation =
            if self.wildcard { self.pattern_relation(&origin) } else { self.topic_relation(&origin) };
        match relation {
            Some(Relation::Own | Relation::Under) => Place::Within,
            Some(Relation::Deeper(_)) if self.descends => Place::Within,
            Some(Relation::ByKey) => Place::Above,
            Some(Relation::Deeper(_)) | None => Place::Elsewhere,
        }
    }

    /// How it gets a message, if it does.
    pub(super) fn wants<'a>(&'a self, origin: &Origin<'a>) -> Option<Delivery<'a>> {
        let relation =
            if self.wildcard { self.pattern_relation(origin) } else { self.topic_relation(origin) }?;
        let allowed = match relation {
            Relation::Own | Relation::Under => true,
            Relation::Deeper(_) => self.descends,
            Relation::ByKey => origin.reaches_below,
        };
        let passes = self.keys.is_empty()
            || wanted_key(origin, relation).is_some_and(|wanted| self.keys.iter().any(|key| key == wanted));
        (allowed && passes).then(|| Delivery::new(self, origin, relation))
    }

    fn topic_relation<'a>(&self, origin: &Origin<'a>) -> Option<Relation<'a>> {
        if origin.base == &*self.base {
            return Some(Relation::Own);
        }
        if self.exact || origin.exact {
            return None;
        }
        if let Some(rest) = origin.base.strip_prefix(&*self.base) {
            return rest.strip_prefix('/').map(Relation::Deeper);
        }
        let last = self.base.strip_prefix(origin.base)?.strip_prefix('/')?;
        (Some(last) == origin.key).then_some(Relation::ByKey)
    }

    fn pattern_relation<'a>(&self, origin: &Origin<'a>) -> Option<Relation<'a>> {
        if origin.exact {
            return None;
        }
        let mut wanted = self.base.split('/').enumerate().peekable();
        let mut rest = Some(origin.base);
        while let Some((index, want)) = wanted.next() {
            let literal = index < self.app_levels;
            if want == "#" && !literal && wanted.peek().is_none() {
                return Some(Relation::Under);
            }
            let fits = |level: &str| level == want || (want == "+" && !literal);
            match rest {
                Some(levels) => {
                    let (level, below) = levels.split_once('/').map_or((levels, None), |(l, b)| (l, Some(b)));
                    if !fits(level) {
                        return None;
                    }
                    rest = below;
                }
                // The topic is used up: the key may be the one level that is missing.
                None => {
                    let by_key = origin.key.is_some_and(fits);
                    let ends = match wanted.next() {
                        None => true,
                        Some((_, "#")) => wanted.next().is_none(),
                        Some(_) => false,
                    };
                    return (by_key && ends).then_some(Relation::ByKey);
                }
            }
        }
        Some(rest.map_or(Relation::Own, Relation::Deeper))
    }
}
