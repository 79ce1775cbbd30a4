//! `topics.json`: which addresses are well formed, who may use them, and where they lead.

use nolag_protocol::grant::{self, Operation, Permission, Rule};
use nolag_protocol::topic;
use serde_json::{Value, json};

use crate::{assert_kinds, cases, of_kind, tagged};

fn all() -> Vec<Value> {
    cases(include_str!("../../vectors/topics.json"))
}

fn text<'c>(case: &'c Value, key: &str) -> &'c str {
    case[key].as_str().unwrap_or_else(|| panic!("{key} of {case}"))
}

pub(crate) fn rules(list: &Value) -> Vec<Rule> {
    let rule = |rule: &Value| {
        let optional = |key: &str| rule.get(key).and_then(Value::as_str).map(str::to_owned);
        Rule {
            pattern: text(rule, "pattern").to_owned(),
            permission: Permission::parse(text(rule, "permission")),
            topic: optional("topic"),
            app_id: optional("app_id"),
            room_id: optional("room_id"),
            room_slug: optional("room_slug"),
            app_slug: None,
        }
    };
    list.as_array().expect("rules").iter().map(rule).collect()
}

/// `deliver` is the hub's to decide (C-059); all the rest is decided here.
#[test]
fn no_kind_is_left_out() {
    let decided = ["grant", "cover", "valid", "resolve", "scope", "shareGroup", "topicName", "descend"];
    assert_kinds(&all(), &[&decided[..], &["deliver"]].concat());
}

/// C-042: grants.
#[test]
fn grants() {
    for (id, case) in of_kind(&all(), "grant") {
        assert_eq!(grant::matches(text(case, "pattern"), text(case, "topic")), case["expect"], "{id}");
    }
}

/// C-042, C-047: a wildcard subscription needs one rule that covers it, in both profiles (13.4).
#[test]
fn coverage() {
    for (id, case) in of_kind(&all(), "cover") {
        let covers = grant::covers(text(case, "pattern"), text(case, "subscription"));
        assert_eq!(covers, case["expect"], "{id}");
        // What kraken does there, and we do not: it takes the wildcard for a text.
        if let Some(kraken) = case.get("kraken") {
            let matches = grant::matches(text(case, "pattern"), text(case, "subscription"));
            assert_eq!(matches, *kraken, "{id}");
        }
    }
}

/// C-043, K-037, K-057: what is well formed in a publish, in a subscribe, and as one name.
#[test]
fn validity() {
    for (id, case) in of_kind(&all(), "valid") {
        let topic = tagged::string(&case["topic"]);
        let checked = match text(case, "use") {
            "publish" => topic::check_publish(&topic),
            "subscribe" => topic::check_subscribe(&topic),
            "segment" => topic::check_name(&topic),
            other => panic!("nothing checks the use {other}"),
        };
        assert_eq!(checked.is_ok(), case["expect"], "{id}: {checked:?}");
    }
}

/// C-042, C-045, C-046: which rules permit an operation, and which one maps the address.
#[test]
fn resolution() {
    for (id, case) in of_kind(&all(), "resolve") {
        let operation = match text(case, "op") {
            "publish" => Operation::Publish,
            "subscribe" => Operation::Subscribe,
            other => panic!("no operation {other}"),
        };
        let resolved = match grant::resolve(&rules(&case["rules"]), operation, text(case, "topic")) {
            None => json!({"kind": "denied"}),
            Some(to) => {
                let kind = if to.exact { "exact" } else { "wildcard" };
                json!({"kind": kind, "base": to.base, "appId": to.app_id, "roomId": to.room_id})
            }
        };
        assert_eq!(resolved, case["expect"], "{id}");
    }
}

/// C-129: whether a subscription sees the messages of deeper topics (15.3).
#[test]
fn descent() {
    for (id, case) in of_kind(&all(), "descend") {
        let descends = grant::descends(&rules(&case["rules"]), text(case, "subscription"));
        assert_eq!(descends, case["expect"], "{id}");
    }
}

/// C-043: the scope goes in after the first level, where only that makes the address known (13.5).
#[test]
fn scope_injection() {
    for (id, case) in of_kind(&all(), "scope") {
        let scope = case["scopeSlug"].as_str();
        let effective = grant::effective(&rules(&case["rules"]), scope, text(case, "topic"));
        assert_eq!(effective, text(case, "expect"), "{id}");
    }
}

/// C-080: the full name of a load-balanced group.
#[test]
fn share_groups() {
    for (id, case) in of_kind(&all(), "shareGroup") {
        let group = case["group"].as_str().unwrap_or(text(case, "actorTokenId"));
        let name = grant::share_group(case["projectId"].as_str(), text(case, "appId"), group);
        assert_eq!(name, text(case, "expect"), "{id}");
    }
    assert_eq!(grant::share_group(None, "app", "g"), "default_app_g", "a token without project");
}

/// 13.1: the topic name is the last level.
#[test]
fn topic_names() {
    for (id, case) in of_kind(&all(), "topicName") {
        assert_eq!(topic::name(text(case, "topic")), text(case, "expect"), "{id}");
    }
}

/// The worked example of 13.3.
#[test]
fn the_worked_example() {
    let rules = rules(&json!([
        {"pattern": "demo/#", "permission": "publish", "app_id": "app-a"},
        {"pattern": "demo/general/#", "permission": "subscribe", "app_id": "app-b"},
        {"pattern": "demo/general/news", "permission": "pubSub", "topic": "room-7/news", "app_id": "app-b"},
    ]));
    let base = |operation, topic| grant::resolve(&rules, operation, topic).map(|to| to.base);
    let at = |base: &str| Some(base.to_owned());
    assert_eq!(base(Operation::Subscribe, "demo/general/chat"), at("app-a/demo/general/chat"));
    assert_eq!(base(Operation::Publish, "demo/general/chat"), at("app-a/demo/general/chat"));
    assert_eq!(base(Operation::Subscribe, "demo/general/news"), at("room-7/news"));
    assert_eq!(base(Operation::Publish, "demo/other/x"), at("app-a/demo/other/x"));
    assert_eq!(base(Operation::Subscribe, "demo/other/x"), None);
}
