//! The JSON text fallback (wire protocol 4.7): a frame as JSON, turned into the MessagePack of the same frame.
//!
//! Values are written while they are read; no tree of them is built. Nesting is checked before, so that the
//! parser behind us recurses no deeper than a frame may. Numbers that only a float can hold become floats: `-0`, and
//! integers of more than 64 bits.

use serde::de::{DeserializeSeed, MapAccess, SeqAccess, Visitor};

use crate::frame::Fault;
use crate::msgpack::{self, MAX_DEPTH, Token, write};

/// The canonical MessagePack of a JSON text; `None` for a text of nothing but white space.
pub fn to_msgpack(text: &str) -> Result<Option<Vec<u8>>, Fault> {
    if text.trim_ascii().is_empty() {
        return Ok(None);
    }
    check_depth(text)?;
    let mut out = Vec::with_capacity(text.len());
    let mut json = serde_json::Deserializer::from_str(text);
    json.disable_recursion_limit();
    Value(&mut out).deserialize(&mut json).map_err(|_| Fault::Json)?;
    json.end().map_err(|_| Fault::Json)?;
    Ok(Some(out))
}

/// Brackets outside strings, counted: one level for the frame, and what a payload may have.
fn check_depth(text: &str) -> Result<(), Fault> {
    let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
    for byte in text.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'[' | b'{' if !in_string => {
                depth += 1;
                if depth > MAX_DEPTH + 1 {
                    return Err(Fault::Syntax(msgpack::Error::TooDeep));
                }
            }
            b']' | b'}' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    Ok(())
}

struct Value<'o>(&'o mut Vec<u8>);

impl<'de> DeserializeSeed<'de> for Value<'_> {
    type Value = ();
    fn deserialize<D: serde::Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Value<'_> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("JSON")
    }
    fn visit_unit<E>(self) -> Result<(), E> {
        write::token(self.0, Token::Nil);
        Ok(())
    }
    fn visit_bool<E>(self, value: bool) -> Result<(), E> {
        write::token(self.0, Token::Bool(value));
        Ok(())
    }
    fn visit_u64<E>(self, value: u64) -> Result<(), E> {
        write::uint(self.0, value);
        Ok(())
    }
    fn visit_i64<E>(self, value: i64) -> Result<(), E> {
        write::token(self.0, Token::Int(value));
        Ok(())
    }
    fn visit_f64<E>(self, value: f64) -> Result<(), E> {
        write::token(self.0, Token::F64(value));
        Ok(())
    }
    fn visit_str<E>(self, value: &str) -> Result<(), E> {
        write::str(self.0, value);
        Ok(())
    }
    fn visit_seq<A: SeqAccess<'de>>(mut self, mut items: A) -> Result<(), A::Error> {
        let start = self.reserve_header();
        let mut count = 0;
        while items.next_element_seed(Value(self.0))?.is_some() {
            count += 1;
        }
        self.fill_header(start, Token::Array(count));
        Ok(())
    }
    fn visit_map<A: MapAccess<'de>>(mut self, mut pairs: A) -> Result<(), A::Error> {
        let start = self.reserve_header();
        let mut count = 0;
        while let Some(()) = pairs.next_key_seed(Value(self.0))? {
            pairs.next_value_seed(Value(self.0))?;
            count += 1;
        }
        self.fill_header(start, Token::Map(count));
        Ok(())
    }
    fn visit_bytes<E: serde::de::Error>(self, _: &[u8]) -> Result<(), E> {
        Err(E::custom("JSON has no bytes"))
    }
}

impl Value<'_> {
    /// Leaves room for the header of a small container. JSON tells how much one holds only at its end.
    fn reserve_header(&mut self) -> usize {
        self.0.push(0);
        self.0.len() - 1
    }

    /// Writes the header; only that of a container of more than 15 moves what follows it.
    fn fill_header(self, start: usize, header: Token<'_>) {
        let mut bytes = Vec::with_capacity(5);
        write::token(&mut bytes, header);
        self.0.splice(start..=start, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn msgpack(text: &str) -> Vec<u8> {
        to_msgpack(text).unwrap().unwrap()
    }

    #[test]
    fn values_take_their_shortest_form() {
        assert_eq!(msgpack("[1,-1,1.0,true,null,\"a\",{\"k\":[]}]"), {
            let mut want = vec![0x97, 0x01, 0xff, 0xcb, 0x3f, 0xf0, 0, 0, 0, 0, 0, 0];
            want.extend([0xc3, 0xc0, 0xa1, b'a', 0x81, 0xa1, b'k', 0x90]);
            want
        });
        let long = msgpack(&format!("[{}1]", "1,".repeat(16)));
        assert_eq!(long[..4], [0xdc, 0, 17, 1]);
        assert_eq!(msgpack("18446744073709551615"), [0xcf, 255, 255, 255, 255, 255, 255, 255, 255]);
    }

    #[test]
    fn what_is_no_json_is_refused() {
        for text in ["{", "nope", "1 2", "[1,]", "\"\\x\""] {
            assert_eq!(to_msgpack(text), Err(Fault::Json), "{text}");
        }
        assert_eq!(to_msgpack(" \n"), Ok(None));
    }

    #[test]
    fn nesting_ends_where_it_does_in_messagepack() {
        let nest = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        assert!(to_msgpack(&nest(MAX_DEPTH + 1)).is_ok());
        assert_eq!(to_msgpack(&nest(MAX_DEPTH + 2)), Err(Fault::Syntax(msgpack::Error::TooDeep)));
        assert_eq!(to_msgpack(&nest(1_000_000)), Err(Fault::Syntax(msgpack::Error::TooDeep)));
        // Brackets in a string are none, wherever the string ends.
        for string in [r#""["#, r#""\"["#, r#""\\\"["#] {
            assert!(to_msgpack(&format!("{}\"", string.replace('[', &"[".repeat(1000)))).is_ok(), "{string}");
        }
        for string in [r#""""#, r#""\\""#, r#""\"""#] {
            let deep = format!("[{string}, {}]", nest(1000));
            assert_eq!(to_msgpack(&deep), Err(Fault::Syntax(msgpack::Error::TooDeep)), "{string}");
        }
    }
}
