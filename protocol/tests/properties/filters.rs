//! Filter keys: what they depend on, and what they do not.

use nolag_protocol::filter::{self, FilterError, Item};
use proptest::collection::vec;
use proptest::prelude::*;
use rmpv::Value;

use crate::values::{Node, node, rmpv_reads};

/// A filter value. Letters that lowercase oddly are common.
fn value() -> impl Strategy<Value = String> {
    "[a-cA-C0-9 éÉΣσςİıẞßǅ🚀]{1,6}"
}

fn shuffled(values: Vec<String>) -> impl Strategy<Value = (Vec<String>, Vec<String>)> {
    (Just(values.clone()), Just(values).prop_shuffle())
}

fn item() -> impl Strategy<Value = Item> {
    prop_oneof![value().prop_map(Item::Value), vec(value(), 2..5).prop_map(Item::Group)]
}

/// A `filters` field that is often almost right.
fn field() -> impl Strategy<Value = Node> {
    let text = prop_oneof![4 => value(), 1 => "[a/#+|]{0,2}"].prop_map(|text| Node::Leaf(Value::from(text)));
    let group =
        vec(prop_oneof![8 => text.clone(), 1 => node()], 0..4).prop_map(|texts| Node::Array(false, texts));
    let items = vec(prop_oneof![8 => text, 4 => group, 1 => node()], 0..6);
    prop_oneof![8 => items.prop_map(|items| Node::Array(false, items)), 1 => node()]
}

/// The text of a value, where it may be a filter.
fn text(value: &Value) -> Option<&str> {
    let bytes = match value {
        Value::String(string) => string.as_bytes(),
        Value::Binary(bytes) => bytes,
        _ => return None,
    };
    std::str::from_utf8(bytes).ok().filter(|text| !text.is_empty() && !text.contains(['/', '#', '+', '|']))
}

fn key(texts: Vec<&str>) -> String {
    let lower = |text: &str| text.chars().map(|c| c.to_lowercase().to_string()).collect::<String>();
    let mut texts: Vec<_> = texts.into_iter().map(|text| lower(text).into_bytes()).collect();
    texts.sort();
    String::from_utf8(texts.join(&b'|')).expect("joined texts")
}

/// 14.2 over values: the keys of a subscription.
fn keys_of(filters: &Value) -> Result<Vec<String>, FilterError> {
    let items = match filters {
        Value::Nil => return Ok(Vec::new()),
        Value::Array(items) if items.len() > 100 => return Err(FilterError::TooMany),
        Value::Array(items) => items,
        _ => return Err(FilterError::WrongType),
    };
    let keys: Option<std::collections::BTreeSet<_>> = items
        .iter()
        .map(|item| match item {
            Value::Array(group) if group.len() >= 2 => group.iter().map(text).collect::<Option<_>>().map(key),
            single => text(single).map(str::to_owned),
        })
        .collect();
    keys.map(|keys| keys.into_iter().collect()).ok_or(FilterError::Chars)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// C-055, K-038: a group is the same key in any order, and publisher and subscriber meet in it.
    #[test]
    fn order_in_a_group_does_not_matter((one, other) in vec(value(), 2..6).prop_flat_map(shuffled)) {
        let composite = filter::composite(one.iter().map(String::as_str));
        prop_assert_eq!(&composite, &key(one.iter().map(String::as_str).collect()));
        let subscribed = filter::subscription_keys(Some(&filter::encode(&[Item::Group(one)])));
        prop_assert_eq!(subscribed, Ok(vec![composite.clone()]));
        let values: Vec<_> = other.into_iter().map(Item::Value).collect();
        prop_assert_eq!(filter::publish_key(None, Some(&filter::encode(&values))), Ok(Some(composite)));
    }

    /// The keys of a subscription are a set.
    #[test]
    fn order_of_items_does_not_matter(items in vec(item(), 0..8), at in any::<prop::sample::Index>()) {
        let keys = filter::subscription_keys(Some(&filter::encode(&items)));
        let mut turned = items.clone();
        turned.rotate_left(at.index(items.len() + 1));
        turned.extend(items);
        prop_assert_eq!(keys, filter::subscription_keys(Some(&filter::encode(&turned))));
    }

    /// C-052: what is no filter is refused for the right reason, and the rest has the right keys.
    #[test]
    fn fields_are_judged(field in field()) {
        let bytes = field.bytes();
        let expected = keys_of(&rmpv_reads(&bytes).expect("a value"));
        prop_assert_eq!(filter::subscription_keys(Some(&bytes)), expected);
    }
}

/// C-055: lowercasing is per character, for every character there is.
#[test]
fn characters_lowercase_alone() {
    let composite = |text: &str| filter::composite([text].into_iter());
    let all: Vec<char> = (char::MIN..=char::MAX).collect();
    for some in all.chunks(4_096) {
        let lower: String = some.iter().flat_map(|c| c.to_lowercase()).collect();
        assert_eq!(composite(&some.iter().collect::<String>()), lower);
    }
    // At the end of a word too, where a library may treat a sigma in its own way.
    for c in all.into_iter().filter(|c| c.is_uppercase()) {
        assert_eq!(composite(&format!("a{c}")), format!("a{}", c.to_lowercase()));
    }
}
