//! Who may do what, and which internal name an address stands for (wire protocol 13.2 to 13.5).
//!
//! Permission and mapping are decided apart: *any* rule may permit an operation, and the rule whose pattern
//! equals the address, else the *first* that matches, says where it leads.

use std::borrow::Cow;

use crate::topic::is_wildcard;

/// What a rule permits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Permission {
    /// Subscribing only.
    Subscribe,
    /// Publishing only.
    Publish,
    /// Both.
    PubSub,
}

impl Permission {
    /// The permission of that name in authorization data; anything else grants nothing.
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "subscribe" => Some(Self::Subscribe),
            "publish" => Some(Self::Publish),
            "pubSub" => Some(Self::PubSub),
            _ => None,
        }
    }
}

/// What an actor wants to do with an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Receive from it.
    Subscribe,
    /// Send to it.
    Publish,
}

/// One entry of an actor's allowed topics.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rule {
    /// The pattern it is about: levels, `+` for any one, `#` at the end for all the rest, none included.
    pub pattern: String,
    /// What it permits; `None` for a permission nobody knows.
    pub permission: Option<Permission>,
    /// The internal topic, used where the pattern equals the address.
    pub topic: Option<String>,
    /// The app whose name space a pattern without `topic` lives in.
    pub app_id: Option<String>,
    /// The room for presence and lobbies.
    pub room_id: Option<String>,
    /// What clients call that room.
    pub room_slug: Option<String>,
    /// What clients call the app that the room is in, where that is not the pattern's first level.
    pub app_slug: Option<String>,
}

impl Rule {
    fn permits(&self, operation: Operation) -> bool {
        matches!(
            (self.permission, operation),
            (Some(Permission::PubSub), _)
                | (Some(Permission::Subscribe), Operation::Subscribe)
                | (Some(Permission::Publish), Operation::Publish)
        )
    }

    /// What clients call the app (features 4).
    pub fn app_slug(&self) -> &str {
        let first = || self.pattern.split('/').next().unwrap_or_default();
        self.app_slug.as_deref().unwrap_or_else(first)
    }

    /// The app id in the names of bases and groups.
    pub fn app(&self) -> &str {
        self.app_id.as_deref().unwrap_or("unscoped")
    }
}

/// Whether `topic` is one of those that `pattern` stands for (13.2).
pub fn matches(pattern: &str, topic: &str) -> bool {
    let mut patterns = pattern.split('/').peekable();
    let mut levels = topic.split('/');
    loop {
        let want = patterns.next();
        if want == Some("#") && patterns.peek().is_none() {
            return true;
        }
        match (want, levels.next()) {
            (None, None) => return true,
            (Some("+"), Some(_)) => {}
            (Some(want), Some(level)) if want == level => {}
            _ => return false,
        }
    }
}

/// Whether `pattern` stands for everything that the wildcard `subscription` does (13.4).
pub fn covers(pattern: &str, subscription: &str) -> bool {
    let mut patterns = pattern.split('/').peekable();
    let mut levels = subscription.split('/').peekable();
    loop {
        let want = patterns.next();
        if want == Some("#") && patterns.peek().is_none() {
            return true;
        }
        match (want, levels.next()) {
            (None, None) => return true,
            (_, Some("#")) if levels.peek().is_none() => return false,
            (Some("+"), Some(_)) => {}
            (Some(want), Some(level)) if want == level => {}
            _ => return false,
        }
    }
}

/// Whether `pattern` reaches what is addressed: `covers` for a wildcard subscription, else `matches`.
fn reaches(pattern: &str, address: &str, wildcard: bool) -> bool {
    if wildcard { covers(pattern, address) } else { matches(pattern, address) }
}

/// Where an address leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolution {
    /// The internal name that publishers and subscribers meet at.
    pub base: String,
    /// The app of the rule that mapped it.
    pub app_id: String,
    /// The room, for an exactly mapped topic.
    pub room_id: Option<String>,
    /// Mapped by a rule's own `topic`, so that no wildcard sees it.
    pub exact: bool,
}

/// Resolves an effective pattern for one operation; `None` when it is denied.
///
/// A subscription with wildcards needs one rule that covers it, and never takes a rule's `topic`.
pub fn resolve(rules: &[Rule], operation: Operation, address: &str) -> Option<Resolution> {
    let wildcard = operation == Operation::Subscribe && is_wildcard(address);
    if !rules.iter().any(|rule| rule.permits(operation) && reaches(&rule.pattern, address, wildcard)) {
        return None;
    }
    let equal = rules.iter().find(|rule| rule.pattern == address);
    let rule = equal.or_else(|| rules.iter().find(|rule| reaches(&rule.pattern, address, wildcard)))?;
    let app_id = rule.app().to_owned();
    Some(match &rule.topic {
        Some(topic) if equal.is_some() && !wildcard => {
            Resolution { base: topic.clone(), app_id, room_id: rule.room_id.clone(), exact: true }
        }
        _ => Resolution { base: format!("{app_id}/{address}"), app_id, room_id: None, exact: false },
    })
}

/// Whether some rule permits publishing to exactly this topic.
pub fn may_publish(rules: &[Rule], topic: &str) -> bool {
    rules.iter().any(|rule| rule.permits(Operation::Publish) && matches(&rule.pattern, topic))
}

/// Whether a subscription to `address` may see the messages of deeper topics: some rule that permits
/// subscribing covers everything below it (15.3).
pub fn descends(rules: &[Rule], address: &str) -> bool {
    if address == "#" || address.ends_with("/#") {
        return true;
    }
    let below = format!("{address}/#");
    rules.iter().any(|rule| rule.permits(Operation::Subscribe) && covers(&rule.pattern, &below))
}

/// The effective pattern: the address, or the address with the scope after its first level (13.5).
pub fn effective<'a>(rules: &[Rule], scope_slug: Option<&str>, address: &'a str) -> Cow<'a, str> {
    let known = |address: &str| {
        let wildcard = is_wildcard(address);
        rules.iter().any(|rule| rule.permission.is_some() && reaches(&rule.pattern, address, wildcard))
    };
    if let Some(slug) = scope_slug
        && let Some((app, rest)) = address.split_once('/')
        && !known(address)
    {
        let scoped = format!("{app}/{slug}/{rest}");
        if known(&scoped) {
            return Cow::Owned(scoped);
        }
    }
    Cow::Borrowed(address)
}

/// The full name of a load-balanced group (16).
///
/// `group` is the client's name for it, or the actor's token id where it gave none.
pub fn share_group(project_id: Option<&str>, app_id: &str, group: &str) -> String {
    format!("{}_{app_id}_{group}", project_id.unwrap_or("default"))
}
