//! Frames: decoding never panics, and what it yields can be written and read again.

use std::sync::LazyLock;

use nolag_protocol::frame::{ClientFrame, Fault, ServerFrame};
use nolag_protocol::msgpack::{self, Error, MAX_DEPTH};
use nolag_protocol::{filter, payload};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use rmpv::Value;

use crate::values::{NODE_DEPTH, Node, node, rmpv_reads, rmpv_writes};

/// The bytes of all frames of `vectors/frames.json`, refused ones too.
static VECTORS: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let json = include_str!("../../vectors/frames.json");
    let cases: Vec<serde_json::Value> = serde_json::from_str(json).expect("an array");
    let bytes = |hex: &str| {
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hex")).collect()
    };
    cases.iter().map(|case| bytes(case["msgpack_hex"].as_str().expect("bytes"))).collect()
});

fn vector() -> impl Strategy<Value = Vec<u8>> {
    any::<Index>().prop_map(|at| at.get(&VECTORS).clone())
}

/// One thing that goes wrong with bytes on their way.
#[derive(Debug, Clone)]
enum Mutation {
    Flip(Index, u8),
    Cut(Index),
    Insert(Index, Vec<u8>),
    Remove(Index, usize),
    /// The end of another frame in place of the end of this one.
    Splice(Index, Vec<u8>, Index),
}

impl Mutation {
    fn apply(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::Flip(..) if bytes.is_empty() => {}
            Self::Flip(at, mask) => *at.get_mut(bytes) ^= mask,
            Self::Cut(at) => bytes.truncate(at.index(bytes.len() + 1)),
            Self::Insert(at, new) => {
                let at = at.index(bytes.len() + 1);
                bytes.splice(at..at, new.iter().copied());
            }
            Self::Remove(at, n) => {
                let at = at.index(bytes.len() + 1);
                bytes.drain(at..bytes.len().min(at + n));
            }
            Self::Splice(at, other, from) => {
                bytes.truncate(at.index(bytes.len() + 1));
                bytes.extend_from_slice(&other[from.index(other.len() + 1)..]);
            }
        }
    }
}

fn mutation() -> impl Strategy<Value = Mutation> {
    prop_oneof![
        (any::<Index>(), 1_u8..).prop_map(|(at, mask)| Mutation::Flip(at, mask)),
        any::<Index>().prop_map(Mutation::Cut),
        (any::<Index>(), vec(any::<u8>(), 1..6)).prop_map(|(at, new)| Mutation::Insert(at, new)),
        (any::<Index>(), 1_usize..8).prop_map(|(at, n)| Mutation::Remove(at, n)),
        (any::<Index>(), vector(), any::<Index>())
            .prop_map(|(at, other, from)| Mutation::Splice(at, other, from)),
    ]
}

/// One thing that a peer does differently with the fields of a frame.
#[derive(Debug, Clone)]
enum Change {
    /// Another value in a field's place.
    Replace(Index, Node),
    /// A second value for a field.
    Repeat(Index, Node),
    Leave(Index),
    Swap(Index, Index),
    /// A field of this or another frame.
    Add(&'static str, Node),
}

type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

impl Change {
    fn apply(&self, pairs: &mut Pairs) {
        match self {
            Self::Add(key, value) => pairs.push((rmpv_writes(&Value::from(*key)), value.bytes())),
            _ if pairs.is_empty() => {}
            Self::Replace(at, value) => at.get_mut(pairs).1 = value.bytes(),
            Self::Repeat(at, value) => pairs.push((at.get(pairs).0.clone(), value.bytes())),
            Self::Leave(at) => {
                pairs.remove(at.index(pairs.len()));
            }
            Self::Swap(a, b) => {
                let (a, b) = (a.index(pairs.len()), b.index(pairs.len()));
                pairs.swap(a, b);
            }
        }
    }
}

fn change() -> impl Strategy<Value = Change> {
    let key = prop::sample::select(
        &["type", "topic", "data", "msgRef", "filters", "recover", "limits", "features", "presence", "x"][..],
    );
    prop_oneof![
        (any::<Index>(), node()).prop_map(|(at, value)| Change::Replace(at, value)),
        (any::<Index>(), node()).prop_map(|(at, value)| Change::Repeat(at, value)),
        any::<Index>().prop_map(Change::Leave),
        (any::<Index>(), any::<Index>()).prop_map(|(a, b)| Change::Swap(a, b)),
        (key, node()).prop_map(|(key, value)| Change::Add(key, value)),
    ]
}

fn map(pairs: &Pairs) -> Vec<u8> {
    let mut out = Vec::new();
    rmp::encode::write_map_len(&mut out, u32::try_from(pairs.len()).expect("few")).expect("a vector");
    for (key, value) in pairs {
        out.extend_from_slice(key);
        out.extend_from_slice(value);
    }
    out
}

/// A frame that decodes is written in one way, which decodes to the same. One that does not is malformed for the
/// reason given.
macro_rules! assert_settled {
    ($frame:ident, $bytes:expr) => {
        match $frame::decode($bytes) {
            Ok($frame::Unknown(_)) => {}
            Ok(frame) => {
                let written = frame.to_vec();
                let again = $frame::decode(&written);
                prop_assert_eq!(again.as_ref(), Ok(&frame));
                prop_assert_eq!(again.expect("just compared").to_vec(), written);
            }
            Err(malformed) => {
                let syntax = matches!(malformed.fault, Fault::Syntax(_));
                let valid = msgpack::single($bytes);
                // The frame's own map is a level more than a value may have.
                prop_assert!(valid == Err(Error::TooDeep) || valid.is_err() == syntax, "{malformed:?}");
            }
        }
    };
}

/// Everything that a peer's bytes are put into.
fn assert_survived(bytes: &[u8]) -> Result<(), TestCaseError> {
    assert_settled!(ClientFrame, bytes);
    assert_settled!(ServerFrame, bytes);
    let _ = filter::subscription_keys(Some(bytes));
    let _ = filter::publish_key(Some(bytes), Some(bytes));
    let _ = payload::with_valid_text(bytes);
    let _ = payload::as_kraken_relays(bytes);
    // rmpv takes the reserved byte for nil, and other depths.
    let single = msgpack::single(bytes);
    if !matches!(single, Err(Error::Reserved | Error::TooDeep)) {
        prop_assert_eq!(single.is_ok(), rmpv_reads(bytes).is_some(), "{:?}", single);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_500))]

    /// C-127: bytes that are nothing.
    #[test]
    fn random_bytes_are_survived(bytes in vec(any::<u8>(), 0..200)) {
        assert_survived(&bytes)?;
    }

    /// C-127: bytes that are almost a frame.
    #[test]
    fn mutated_vectors_are_survived(mut bytes in vector(), mutations in vec(mutation(), 1..5)) {
        for mutation in &mutations {
            mutation.apply(&mut bytes);
        }
        assert_survived(&bytes)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// C-127, 4.8: frames with any value in any field, fields twice, missing, in any order.
    #[test]
    fn changed_frames_are_survived(bytes in vector(), changes in vec(change(), 1..4)) {
        let Some(Value::Map(pairs)) = rmpv_reads(&bytes) else { return Ok(()) };
        let mut pairs = pairs.iter().map(|(key, value)| (rmpv_writes(key), rmpv_writes(value))).collect();
        for change in &changes {
            change.apply(&mut pairs);
        }
        assert_survived(&map(&pairs))?;
    }

    /// C-013, C-014, C-015: `data` comes out as it went in, wherever it stands in the frame.
    #[test]
    fn data_is_left_as_it_is(
        value in node(),
        levels in 0..=MAX_DEPTH - NODE_DEPTH as usize,
        at in 0_usize..3,
    ) {
        let value = value.nested(levels);
        let (data, contents) = (value.bytes(), value.contents());
        prop_assert_eq!(msgpack::single(&data), Ok(contents));
        let text = |text: &str| rmpv_writes(&Value::from(text));
        for kind in ["publish", "message"] {
            let mut pairs = vec![(text("type"), text(kind)), (text("topic"), text("a/b"))];
            pairs.insert(at, (text("data"), data.clone()));
            let frame = map(&pairs);
            let decoded = match (ClientFrame::decode(&frame), ServerFrame::decode(&frame)) {
                (Ok(ClientFrame::Publish(publish)), _) => publish.data,
                (_, Ok(ServerFrame::Message(message))) => message.data,
                other => panic!("{other:?}"),
            };
            prop_assert_eq!(decoded.bytes, &data[..]);
            prop_assert_eq!(decoded.contents, contents);
        }
    }

    /// 4.8: a frame that ends early or late is no frame.
    #[test]
    fn neither_less_nor_more_will_do(bytes in vector(), at in any::<Index>(), more in any::<u8>()) {
        prop_assume!(msgpack::single(&bytes).is_ok());
        let cut = &bytes[..at.index(bytes.len())];
        prop_assert_eq!(ClientFrame::decode(cut).map_err(|m| m.fault), Err(Fault::Syntax(Error::Truncated)));
        let longer = [&bytes[..], &[more]].concat();
        prop_assert_eq!(ClientFrame::decode(&longer).map_err(|m| m.fault), Err(Fault::Syntax(Error::Trailing)));
    }
}
