//! JSON text and the MessagePack that it becomes.

use nolag_protocol::frame::Fault;
use nolag_protocol::json::to_msgpack;
use nolag_protocol::msgpack;
use proptest::collection::vec;
use proptest::prelude::*;
use rmpv::Value;
use serde_json::Value as Json;

use crate::values::rmpv_writes;

fn json() -> impl Strategy<Value = Json> {
    let leaf = prop_oneof![
        Just(Json::Null),
        any::<bool>().prop_map(Json::from),
        any::<u64>().prop_map(Json::from),
        any::<i64>().prop_map(Json::from),
        any::<i8>().prop_map(Json::from),
        any::<f64>().prop_map(Json::from),
        any::<u64>().prop_map(|bits| Json::from(f64::from_bits(bits))),
        ".{0,40}".prop_map(Json::from),
    ];
    leaf.prop_recursive(5, 60, 20, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..20).prop_map(Json::from),
            vec((".{0,5}", inner), 0..20).prop_map(|pairs| Json::Object(pairs.into_iter().collect())),
        ]
    })
}

/// The same value, by way of another library.
fn value(json: &Json) -> Value {
    match json {
        Json::Null => Value::Nil,
        Json::Bool(value) => Value::from(*value),
        Json::Number(n) if n.is_f64() => Value::F64(n.as_f64().expect("a float")),
        Json::Number(n) => n.as_u64().map(Value::from).or(n.as_i64().map(Value::from)).expect("an integer"),
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(items) => Value::Array(items.iter().map(value).collect()),
        Json::Object(pairs) => {
            Value::Map(pairs.iter().map(|(key, json)| (Value::from(key.as_str()), value(json))).collect())
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// C-003, C-013: the same value, canonically, floats to the last bit, however the text is spaced.
    #[test]
    fn values_stay_what_they_are(json in json()) {
        let canonical = rmpv_writes(&value(&json));
        for text in [json.to_string(), format!("{json:#}"), format!(" \n{json}\t")] {
            prop_assert_eq!(to_msgpack(&text), Ok(Some(canonical.clone())), "{}", text);
        }
    }

    /// 4.7: what is JSON to others is JSON to us, and nothing else is.
    #[test]
    fn texts_are_judged(
        json in json(),
        at in any::<prop::sample::Index>(),
        removed in 0_usize..3,
        inserted in r#"[\[\]{}",:0-9eE.+\-\\u tn]{0,3}"#,
    ) {
        let mut text: Vec<char> = json.to_string().chars().collect();
        let at = at.index(text.len() + 1);
        text.splice(at..text.len().min(at + removed), inserted.chars());
        let text: String = text.into_iter().collect();
        let ours = to_msgpack(&text);
        if text.trim_ascii().is_empty() {
            prop_assert_eq!(ours, Ok(None));
        } else if serde_json::from_str::<Json>(&text).is_ok() {
            let bytes = ours.expect("JSON").expect("not empty");
            prop_assert!(msgpack::single(&bytes).is_ok());
        } else {
            prop_assert_eq!(ours, Err(Fault::Json));
        }
    }

    /// C-127: a text that is nothing.
    #[test]
    fn random_text_is_survived(text in any::<String>()) {
        let _ = to_msgpack(&text);
    }
}
