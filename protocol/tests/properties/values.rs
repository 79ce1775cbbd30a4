//! Random MessagePack in any form that a decoder must take, canonical or not.

use nolag_protocol::msgpack::Contents;
use proptest::collection::vec;
use proptest::prelude::*;
use rmpv::Value;

/// One value. What rmpv cannot hold or would write otherwise has a form of its own.
#[derive(Debug, Clone)]
pub(crate) enum Node {
    /// A scalar in its shortest form.
    Leaf(Value),
    /// An unsigned integer in 1, 2, 4 or 8 bytes, whether it needs them or not.
    Wide(u64, u8),
    /// A `str` that is not UTF-8.
    Broken(Vec<u8>),
    /// An array, perhaps with the longest header.
    Array(bool, Vec<Node>),
    /// A map of any keys, perhaps with the longest header.
    Map(bool, Vec<(Node, Node)>),
}

impl Node {
    /// The value's bytes.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.write(false, &mut out);
        out
    }

    /// The bytes with a `bin` for every `str` that is not UTF-8.
    pub(crate) fn bytes_with_valid_text(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.write(true, &mut out);
        out
    }

    /// What is in it.
    pub(crate) fn contents(&self) -> Contents {
        let all = |parts: &mut dyn Iterator<Item = &Node>| {
            parts.map(Node::contents).fold(Contents::default(), |a, b| Contents {
                broken_text: a.broken_text | b.broken_text,
                ext: a.ext | b.ext,
            })
        };
        match self {
            Self::Leaf(value) => Contents { broken_text: false, ext: value.is_ext() },
            Self::Wide(..) => Contents::default(),
            Self::Broken(_) => Contents { broken_text: true, ext: false },
            Self::Array(_, items) => all(&mut items.iter()),
            Self::Map(_, pairs) => all(&mut pairs.iter().flat_map(|(key, value)| [key, value])),
        }
    }

    /// The value inside so many arrays.
    pub(crate) fn nested(self, levels: usize) -> Self {
        (0..levels).fold(self, |inner, _| Self::Array(false, vec![inner]))
    }

    fn write(&self, valid_text: bool, out: &mut Vec<u8>) {
        match self {
            Self::Leaf(value) => rmpv::encode::write_value(out, value).expect("a vector"),
            Self::Wide(n, width) => {
                out.push(match width {
                    1 => 0xcc,
                    2 => 0xcd,
                    4 => 0xce,
                    _ => 0xcf,
                });
                out.extend_from_slice(&n.to_be_bytes()[8 - usize::from(*width)..]);
            }
            Self::Broken(bytes) if valid_text => {
                rmp::encode::write_bin(out, bytes).expect("a vector");
            }
            Self::Broken(bytes) => {
                rmp::encode::write_str_len(out, count(bytes.len())).expect("a vector");
                out.extend_from_slice(bytes);
            }
            Self::Array(long, items) => {
                header(*long, 0xdd, items.len(), out, rmp::encode::write_array_len);
                for item in items {
                    item.write(valid_text, out);
                }
            }
            Self::Map(long, pairs) => {
                header(*long, 0xdf, pairs.len(), out, rmp::encode::write_map_len);
                for (key, value) in pairs {
                    key.write(valid_text, out);
                    value.write(valid_text, out);
                }
            }
        }
    }
}

type WriteLen = fn(&mut Vec<u8>, u32) -> Result<rmp::Marker, rmp::encode::ValueWriteError>;

fn header(long: bool, marker: u8, entries: usize, out: &mut Vec<u8>, short: WriteLen) {
    if long {
        out.push(marker);
        out.extend_from_slice(&count(entries).to_be_bytes());
    } else {
        short(out, count(entries)).expect("a vector");
    }
}

fn count(n: usize) -> u32 {
    u32::try_from(n).expect("few")
}

/// How deep [`node`] goes.
pub(crate) const NODE_DEPTH: u32 = 5;

/// Any value at all.
pub(crate) fn node() -> impl Strategy<Value = Node> {
    leaf().prop_recursive(NODE_DEPTH, 40, 6, |inner| {
        prop_oneof![
            (any::<bool>(), vec(inner.clone(), 0..20)).prop_map(|(long, items)| Node::Array(long, items)),
            (any::<bool>(), vec((inner.clone(), inner), 0..18))
                .prop_map(|(long, pairs)| Node::Map(long, pairs)),
        ]
    })
}

fn leaf() -> impl Strategy<Value = Node> {
    let scalar = prop_oneof![
        Just(Value::Nil),
        any::<bool>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<i8>().prop_map(Value::from),
        any_f32().prop_map(Value::F32),
        any_f64().prop_map(Value::F64),
        ".{0,40}".prop_map(Value::from),
        vec(any::<u8>(), 0..40).prop_map(Value::Binary),
        (any::<i8>(), vec(any::<u8>(), 0..20)).prop_map(|(kind, bytes)| Value::Ext(kind, bytes)),
    ];
    let wide = (any::<u64>(), prop::sample::select(&[1_u8, 2, 4, 8][..]))
        .prop_map(|(n, width)| Node::Wide(n >> (64 - 8 * u32::from(width)), width));
    let broken = (vec(any::<u8>(), 0..40), any::<prop::sample::Index>()).prop_map(|(mut bytes, at)| {
        bytes.insert(at.index(bytes.len() + 1), 0xff); // never part of UTF-8
        Node::Broken(bytes)
    });
    prop_oneof![6 => scalar.prop_map(Node::Leaf), 1 => wide, 1 => broken]
}

/// Any bits, and more often those that are no number.
fn any_f32() -> impl Strategy<Value = f32> {
    prop_oneof![any::<u32>().prop_map(f32::from_bits), Just(f32::NAN), Just(f32::INFINITY)]
}

fn any_f64() -> impl Strategy<Value = f64> {
    prop_oneof![any::<u64>().prop_map(f64::from_bits), Just(f64::NAN), Just(f64::NEG_INFINITY)]
}

/// What bytes hold, as an independent decoder reads it, if it reads them to the end.
pub(crate) fn rmpv_reads(mut bytes: &[u8]) -> Option<Value> {
    let value = rmpv::decode::read_value(&mut bytes).ok()?;
    bytes.is_empty().then_some(value)
}

/// The bytes of a value in its shortest form.
pub(crate) fn rmpv_writes(value: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    rmpv::encode::write_value(&mut out, value).expect("a vector");
    out
}
