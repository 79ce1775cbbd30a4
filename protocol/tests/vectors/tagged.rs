//! The notation of `vectors/generate.py`: JSON, with tagged objects for what JSON cannot say.

use nolag_protocol::msgpack::{Token, write};
use serde_json::Value;

/// The tag of an object that stands for something else, and what it says.
fn tag(node: &Value) -> Option<(&str, &Value)> {
    let object = node.as_object().filter(|object| object.len() == 1)?;
    let (key, value) = object.iter().next()?;
    key.starts_with('$').then_some((key, value))
}

/// Appends what a node stands for in canonical MessagePack, field by field in order.
pub(crate) fn encode(node: &Value, out: &mut Vec<u8>) {
    if let Some((tag, says)) = tag(node) {
        return encode_tagged(tag, says, out);
    }
    match node {
        Value::Null => write::token(out, Token::Nil),
        Value::Bool(value) => write::token(out, Token::Bool(*value)),
        Value::Number(number) => match (number.as_u64(), number.as_i64(), number.as_f64()) {
            (Some(n), ..) => write::uint(out, n),
            (_, Some(n), _) => write::token(out, Token::Int(n)),
            (.., n) => write::token(out, Token::F64(n.expect("the rest are floats"))),
        },
        Value::String(text) => write::str(out, text),
        Value::Array(items) => {
            write::token(out, Token::Array(count(items.len())));
            for item in items {
                encode(item, out);
            }
        }
        Value::Object(pairs) => {
            write::token(out, Token::Map(count(pairs.len())));
            for (key, value) in pairs {
                write::str(out, key);
                encode(value, out);
            }
        }
    }
}

fn encode_tagged(tag: &str, says: &Value, out: &mut Vec<u8>) {
    match tag {
        "$bin" => write::token(out, Token::Bin(&unhex(text(says)))),
        "$binrep" => write::token(out, Token::Bin(&unhex(text(&says[0])).repeat(number(&says[1])))),
        "$ext" => {
            let kind = i8::try_from(says[0].as_i64().expect("an extension has a type")).expect("of 8 bits");
            write::token(out, Token::Ext(kind, &unhex(text(&says[1]))));
        }
        "$int" => match text(says).parse() {
            Ok(n) => write::uint(out, n),
            Err(_) => write::token(out, Token::Int(text(says).parse().expect("64 bits, signed"))),
        },
        "$f64" => write::token(out, Token::F64(text(says).parse().expect("a float"))),
        "$rep" => write::str(out, &repeated(says)),
        "$map" => {
            let pairs = says.as_array().expect("pairs");
            write::token(out, Token::Map(count(pairs.len())));
            for pair in pairs {
                encode(&pair[0], out);
                encode(&pair[1], out);
            }
        }
        other => panic!("the notation has no {other}"),
    }
}

/// The MessagePack of a node.
pub(crate) fn msgpack(node: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    encode(node, &mut out);
    out
}

/// What a node stands for as JSON text, where JSON can say it.
#[cfg(feature = "json")]
pub(crate) fn json(node: &Value) -> Option<String> {
    match tag(node) {
        Some(("$int", says)) => return Some(text(says).to_owned()),
        Some(("$f64", says)) => {
            let finite = text(says).parse::<f64>().is_ok_and(f64::is_finite);
            return finite.then(|| text(says).to_owned());
        }
        Some(("$rep", says)) => return Some(Value::from(repeated(says)).to_string()),
        Some(_) => return None,
        None => {}
    }
    Some(match node {
        Value::Array(items) => {
            let items: Option<Vec<_>> = items.iter().map(json).collect();
            format!("[{}]", items?.join(", "))
        }
        Value::Object(pairs) => {
            let pair = |(key, value): (&String, &Value)| {
                Some(format!("{}: {}", Value::from(key.as_str()), json(value)?))
            };
            let pairs: Option<Vec<_>> = pairs.iter().map(pair).collect();
            format!("{{{}}}", pairs?.join(", "))
        }
        scalar => scalar.to_string(),
    })
}

/// A string, or one that is repeated.
pub(crate) fn string(node: &Value) -> String {
    match tag(node) {
        Some(("$rep", says)) => repeated(says),
        _ => text(node).to_owned(),
    }
}

pub(crate) fn unhex(text: &str) -> Vec<u8> {
    assert!(text.len().is_multiple_of(2), "half a byte");
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).expect("hex")).collect()
}

fn repeated(says: &Value) -> String {
    text(&says[0]).repeat(number(&says[1]))
}

fn text(node: &Value) -> &str {
    node.as_str().expect("text")
}

fn number(node: &Value) -> usize {
    node.as_u64().and_then(|n| n.try_into().ok()).expect("a count")
}

fn count(n: usize) -> u32 {
    u32::try_from(n).expect("vectors are small")
}
