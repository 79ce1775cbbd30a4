//! Grants, by enumeration: a pattern stands for the topics that it spells out.

use std::collections::BTreeSet;

use nolag_protocol::grant::{self, Operation, Permission, Rule};
use nolag_protocol::topic;
use proptest::collection::vec;
use proptest::prelude::*;

/// The levels of topics: a name, an empty one, and `#` where it is a literal.
const LEVELS: [&str; 3] = ["a", "", "#"];
const MAX_LEVELS: usize = 4;

/// Everything of one to `max` levels out of these.
fn addresses(levels: &[&str], max: usize) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    let mut longest: Vec<String> = levels.iter().map(|&level| level.to_owned()).collect();
    for _ in 0..max {
        all.extend_from_slice(&longest);
        let longer =
            |address: &String| levels.iter().map(|level| format!("{address}/{level}")).collect::<Vec<_>>();
        longest = longest.iter().flat_map(longer).collect();
    }
    all
}

fn topics() -> Vec<String> {
    addresses(&LEVELS, MAX_LEVELS)
}

fn patterns() -> Vec<String> {
    addresses(&["a", "", "#", "+"], MAX_LEVELS)
}

/// The topics that a pattern stands for, as far as they are enumerated here: spelt out, not matched.
fn spelt_out(pattern: &str) -> BTreeSet<String> {
    let (fixed, open) = match pattern.strip_suffix("/#") {
        _ if pattern == "#" => return topics().into_iter().collect(),
        Some(fixed) => (fixed, true),
        None => (pattern, false),
    };
    let mut all = vec![String::new()];
    for (at, level) in fixed.split('/').enumerate() {
        let choices = if level == "+" { &LEVELS[..] } else { &[level][..] };
        let slash = if at == 0 { "" } else { "/" };
        let longer =
            |start: &String| choices.iter().map(|c| format!("{start}{slash}{c}")).collect::<Vec<_>>();
        all = all.iter().flat_map(longer).collect();
    }
    if open {
        let room = MAX_LEVELS - fixed.split('/').count();
        let below = |start: &String| {
            addresses(&LEVELS, room).iter().map(|t| format!("{start}/{t}")).collect::<Vec<_>>()
        };
        all.extend(all.iter().flat_map(below).collect::<Vec<_>>());
    }
    all.into_iter().collect()
}

/// C-042: `matches` and the topics spelt out agree, for every small pattern and topic.
#[test]
fn matching_is_membership() {
    let topics = topics();
    for pattern in patterns() {
        let matched: BTreeSet<_> =
            topics.iter().filter(|topic| grant::matches(&pattern, topic)).cloned().collect();
        assert_eq!(matched, spelt_out(&pattern), "{pattern:?}");
    }
}

/// C-042, C-047: a rule that covers a subscription matches every topic that the subscription does.
#[test]
fn covering_is_inclusion() {
    let topics = topics();
    assert!(topics.len() <= 128, "a bit each");
    let matched = |pattern: &String| {
        let bit = |(at, topic): (usize, &String)| u128::from(grant::matches(pattern, topic)) << at;
        topics.iter().enumerate().map(bit).fold(0, |all, bit| all | bit)
    };
    let patterns = patterns();
    let sets: Vec<u128> = patterns.iter().map(matched).collect();
    let mut covered = 0_u32;
    for (rule, all) in patterns.iter().zip(&sets) {
        assert!(grant::covers(rule, rule), "{rule:?} covers itself");
        for (subscription, some) in patterns.iter().zip(&sets) {
            if grant::covers(rule, subscription) {
                assert_eq!(some & !all, 0, "{rule:?} does not match all that {subscription:?} does");
                covered += 1;
            } else if !topic::is_wildcard(subscription) {
                assert!(!grant::matches(rule, subscription), "{rule:?} matches {subscription:?}");
            }
        }
    }
    assert!(covered > 5_000, "only {covered} pairs cover one another");
}

fn rule() -> impl Strategy<Value = Rule> {
    let level = prop::sample::select(&["a", "b", "+"][..]);
    let pattern = (vec(level, 1..4), any::<bool>()).prop_map(|(mut levels, open)| {
        levels.extend(open.then_some("#"));
        levels.join("/")
    });
    let permission = prop::sample::select(&["subscribe", "publish", "pubSub", "admin"][..]);
    let app = prop::option::of(prop::sample::select(&["app-1", "app-2"][..]));
    (pattern, permission, app, any::<bool>()).prop_map(|(pattern, permission, app, mapped)| Rule {
        topic: mapped.then(|| format!("internal/{pattern}")),
        permission: Permission::parse(permission),
        app_id: app.map(str::to_owned),
        room_id: mapped.then(|| "room".to_owned()),
        pattern,
        ..Rule::default()
    })
}

fn address() -> impl Strategy<Value = String> {
    prop_oneof![3 => "[ab](/[ab]){0,3}", 1 => "[ab+](/[ab+]){0,2}(/#)?"]
}

fn permits(rule: &Rule, operation: Operation) -> bool {
    rule.permission == Some(Permission::PubSub)
        || rule.permission
            == Some(match operation {
                Operation::Subscribe => Permission::Subscribe,
                Operation::Publish => Permission::Publish,
            })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_500))]

    /// C-045, C-046, C-047, 13.3: who is let in, and where an address leads.
    #[test]
    fn resolution(rules in vec(rule(), 0..6), address in address(), publish in any::<bool>()) {
        let operation = if publish { Operation::Publish } else { Operation::Subscribe };
        let wildcard = !publish && topic::is_wildcard(&address);
        let reaches = if wildcard { grant::covers } else { grant::matches };
        let reached = |rule: &&Rule| reaches(&rule.pattern, &address);
        let permitted = rules.iter().filter(reached).any(|rule| permits(rule, operation));
        let resolved = grant::resolve(&rules, operation, &address);
        prop_assert_eq!(resolved.is_some(), permitted);
        let Some(to) = resolved else { return Ok(()) };
        let equal = rules.iter().find(|rule| rule.pattern == address);
        let mapping = equal.or(rules.iter().find(reached)).expect("some rule permitted");
        prop_assert_eq!(&to.app_id, mapping.app());
        let exact = equal.and_then(|rule| rule.topic.clone()).filter(|_| !wildcard);
        prop_assert_eq!(to.exact, exact.is_some());
        prop_assert_eq!(to.room_id, exact.as_ref().and(mapping.room_id.clone()));
        prop_assert_eq!(to.base, exact.unwrap_or_else(|| format!("{}/{address}", mapping.app())));
    }

    /// C-046: an equal rule decides from wherever it stands in the list.
    #[test]
    fn an_equal_rule_wins_anywhere(mut rules in vec(rule(), 0..6), at in any::<prop::sample::Index>()) {
        let address = "a/b/c/d/e"; // longer than any pattern, so nothing else is equal to it
        let exact = Rule {
            pattern: address.to_owned(),
            permission: Some(Permission::PubSub),
            topic: Some("internal".to_owned()),
            ..Rule::default()
        };
        rules.insert(at.index(rules.len() + 1), exact);
        let to = grant::resolve(&rules, Operation::Publish, address).expect("permitted");
        prop_assert_eq!((to.base.as_str(), to.exact), ("internal", true));
    }

    /// C-043, 13.5: a scope changes an address only into one that is known, and only one that is not.
    #[test]
    fn scopes(rules in vec(rule(), 0..6), address in address()) {
        let known = |address: &str| {
            let reaches = if topic::is_wildcard(address) { grant::covers } else { grant::matches };
            rules.iter().any(|rule| rule.permission.is_some() && reaches(&rule.pattern, address))
        };
        prop_assert_eq!(grant::effective(&rules, None, &address), address.as_str());
        let effective = grant::effective(&rules, Some("b"), &address);
        let scoped = address.split_once('/').map(|(app, rest)| format!("{app}/b/{rest}"));
        match scoped {
            Some(scoped) if !known(&address) && known(&scoped) => prop_assert_eq!(effective, scoped),
            _ => prop_assert_eq!(effective, address.as_str()),
        }
    }

    /// C-129, 15.3: deeper messages are for whoever may subscribe to all that is deeper.
    #[test]
    fn descent(rules in vec(rule(), 0..6), address in "[ab](/[ab]){0,2}") {
        if grant::descends(&rules, &address) {
            for below in ["#", "a", "b", "a/a", "x/y/z"] {
                let deeper = format!("{address}/{below}");
                prop_assert!(grant::resolve(&rules, Operation::Subscribe, &deeper).is_some(), "{}", deeper);
            }
        }
    }

    /// C-043, K-037, K-057: the checks, character by character.
    #[test]
    fn validity(text in "[ab/+#é\0]{0,8}", long in prop::option::of(250_usize..260)) {
        let text = long.map_or(text.clone(), |n| format!("{}{text}", "x".repeat(n)));
        let levels: Vec<_> = text.split('/').collect();
        let sound = !text.is_empty() && !text.contains('\0');
        let wild = |level: &str| level.contains(['+', '#']);
        prop_assert_eq!(topic::check_publish(&text).is_ok(), sound && !levels.iter().any(|level| wild(level)));
        let placed = levels.iter().enumerate().all(|(at, level)| {
            !wild(level) || *level == "+" || *level == "#" && at + 1 == levels.len()
        });
        prop_assert_eq!(topic::check_subscribe(&text).is_ok(), sound && placed);
        let plain = !text.contains(['/', '+', '#']) && text.len() <= topic::MAX_NAME_BYTES;
        prop_assert_eq!(topic::check_name(&text).is_ok(), sound && plain);
    }
}
