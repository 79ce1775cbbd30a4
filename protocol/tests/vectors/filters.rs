//! `filters.json`: the keys that filters stand for, and where they meet.

use nolag_protocol::filter::{self, FilterError, Item};
use nolag_protocol::msgpack;
use serde_json::{Value, json};

use crate::{assert_kinds, cases, of_kind, tagged};

fn all() -> Vec<Value> {
    cases(include_str!("../../vectors/filters.json"))
}

/// The field of that key in MessagePack, where there is one.
fn field(publish: &Value, key: &str) -> Option<Vec<u8>> {
    publish.get(key).map(tagged::msgpack)
}

fn publish_key(publish: &Value) -> Result<Option<String>, FilterError> {
    filter::publish_key(field(publish, "filter").as_deref(), field(publish, "filters").as_deref())
}

fn subscription_keys(filters: &Value) -> Result<Vec<String>, FilterError> {
    filter::subscription_keys(Some(&tagged::msgpack(filters)))
}

#[test]
fn no_kind_is_left_out() {
    assert_kinds(&all(), &["subscribe", "publish", "match"]);
}

/// C-052, C-055, C-056, K-037, K-038: the keys of a subscription's filters. Their order is ours: sorted.
#[test]
fn of_a_subscription() {
    for (id, case) in of_kind(&all(), "subscribe") {
        let keys = subscription_keys(&case["filters"]);
        match case["expect"]["keys"].as_array() {
            Some(want) => {
                let mut want: Vec<_> = want.iter().map(|key| key.as_str().expect("a key")).collect();
                want.sort_unstable();
                assert_eq!(
                    keys.as_deref(),
                    Ok(&want.into_iter().map(str::to_owned).collect::<Vec<_>>()[..]),
                    "{id}"
                );
            }
            None => assert_eq!(keys.map_err(|e| e.to_string()), Err(error(case)), "{id}"),
        }
        // Where kraken decides otherwise it takes the field for none at all.
        if let Some(kraken) = case.get("kraken") {
            assert_eq!(subscription_keys(&case["filters"]), Err(FilterError::WrongType), "{id}");
            assert_eq!(kraken, &json!({"keys": []}), "{id}");
        }
    }
    assert_eq!(filter::subscription_keys(None), Ok(Vec::new()), "without the field");
}

/// C-052, C-055, C-056, K-037, K-038: the key of a publish.
#[test]
fn of_a_publish() {
    for (id, case) in of_kind(&all(), "publish") {
        let key = publish_key(&case["publish"]);
        match case["expect"].get("key") {
            Some(want) => assert_eq!(json!(key.expect(id)), *want, "{id}"),
            None => assert_eq!(key.map_err(|e| e.to_string()), Err(error(case)), "{id}"),
        }
        if let Some(kraken) = case.get("kraken") {
            assert_eq!(publish_key(&case["publish"]), Err(FilterError::WrongType), "{id}");
            assert_eq!(kraken, &json!({"key": null}), "{id}");
        }
    }
}

/// C-052 to C-054: keys meet by equality, and no filters take everything.
#[test]
fn of_both_met() {
    for (id, case) in of_kind(&all(), "match") {
        let keys = subscription_keys(&case["filters"]).expect(id);
        let key = publish_key(&case["publish"]).expect(id);
        let delivered = keys.is_empty() || key.as_ref().is_some_and(|key| keys.contains(key));
        assert_eq!(delivered, case["expect"], "{id}");
        if delivered {
            assert_eq!(json!(key), case["filterField"], "{id}");
        }
    }
}

fn error(case: &Value) -> String {
    case["expect"]["error"].as_str().expect("a case expects keys, a key or an error").to_owned()
}

/// C-056: the hundred counts items, and a group is one of them.
#[test]
fn a_group_counts_once() {
    let group = |n: usize| Item::Group(vec![format!("a{n}"), format!("b{n}")]);
    let items: Vec<_> = (0..filter::MAX_FILTERS).map(group).collect();
    assert_eq!(filter::subscription_keys(Some(&filter::encode(&items))).map(|keys| keys.len()), Ok(100));
    let items: Vec<_> = (0..=filter::MAX_FILTERS).map(group).collect();
    assert_eq!(filter::subscription_keys(Some(&filter::encode(&items))), Err(FilterError::TooMany));
}

/// Nil is absence, and bytes are text where they are UTF-8 (4.1, 4.3).
#[test]
fn nil_and_bytes() {
    assert_eq!(filter::publish_key(Some(msgpack::NIL), Some(msgpack::NIL)), Ok(None));
    let bytes = json!({"filter": {"$bin": "766970"}, "filters": [{"$bin": "7a"}, "A"]});
    assert_eq!(publish_key(&bytes), Ok(Some("vip".to_owned())));
    assert_eq!(subscription_keys(&bytes["filters"]), Ok(vec!["A".to_owned(), "z".to_owned()]));
    assert_eq!(publish_key(&json!({"filter": {"$bin": "c328"}})), Err(FilterError::Chars));
}

/// What [`filter::encode`] writes is what the vectors hold.
#[test]
fn written_as_the_vectors_are() {
    let items = [Item::Group(vec!["Admin".into(), "alice".into()]), Item::Value("bob".into())];
    assert_eq!(filter::encode(&items), tagged::msgpack(&json!([["Admin", "alice"], "bob"])));
    assert_eq!(filter::encode(&[]), tagged::msgpack(&json!([])));
}
