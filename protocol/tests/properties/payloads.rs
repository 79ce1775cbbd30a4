//! What a relay does to an application's value.

use nolag_protocol::{msgpack, payload};
use proptest::prelude::*;
use rmpv::Value;

use crate::values::{node, rmpv_reads, rmpv_writes};

/// What kraken makes of a value; nothing where it drops the frame.
fn kraken(value: &Value) -> Option<Value> {
    let text = |bytes: &[u8]| match std::str::from_utf8(bytes) {
        Ok(text) => Value::from(text),
        Err(_) => Value::from(bytes),
    };
    Some(match value {
        Value::String(string) => text(string.as_bytes()),
        Value::Binary(bytes) => text(bytes),
        Value::F32(n) if n.is_finite() => Value::F64(f64::from(*n)),
        Value::F64(n) if n.is_finite() => Value::F64(*n),
        Value::F32(_) | Value::F64(_) | Value::Ext(..) => return None,
        Value::Array(items) => Value::Array(items.iter().map(kraken).collect::<Option<_>>()?),
        Value::Map(pairs) => {
            let pair = |(key, value): &(Value, Value)| Some((kraken(key)?, kraken(value)?));
            Value::Map(pairs.iter().map(pair).collect::<Option<_>>()?)
        }
        other => other.clone(),
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// C-008: text is valid afterwards, and nothing but broken text has changed.
    #[test]
    fn text_is_made_valid(value in node()) {
        let bytes = value.bytes();
        let fixed = payload::with_valid_text(&bytes).expect("a value");
        prop_assert_eq!(&fixed, &value.bytes_with_valid_text());
        prop_assert!(!msgpack::single(&fixed).expect("a value").broken_text);
        if !value.contents().broken_text {
            prop_assert_eq!(fixed, bytes);
        }
    }

    /// C-014: the `kraken` profile's value, in its shortest form.
    #[test]
    fn kraken_is_mimicked(value in node()) {
        let bytes = value.bytes();
        let relayed = payload::as_kraken_relays(&bytes).expect("a value");
        let expected = kraken(&rmpv_reads(&bytes).expect("a value"));
        prop_assert_eq!(relayed, expected.as_ref().map(rmpv_writes));
    }
}
