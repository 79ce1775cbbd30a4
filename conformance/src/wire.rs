//! Frames as plain MessagePack values: building them, asking what is in them, and checking their bytes.
//!
//! Nothing here knows the protocol crate; a frame is an [`rmpv::Value`] from the bytes up.

use std::io::Cursor;

use anyhow::{Context, Result, bail, ensure};
use rmpv::Value;

/// Builds a frame, in the order written.
macro_rules! frame {
    ($($key:literal => $value:expr),* $(,)?) => {
        ::rmpv::Value::Map(vec![$((::rmpv::Value::from($key), ::rmpv::Value::from($value))),*])
    };
}
pub(crate) use frame;

/// Builds an array of values of any kinds.
macro_rules! list {
    ($($value:expr),* $(,)?) => { ::rmpv::Value::Array(vec![$(::rmpv::Value::from($value)),*]) };
}
pub(crate) use list;

/// The largest WebSocket message in either direction, in bytes (wire protocol 3).
pub(crate) const MAX_MESSAGE: usize = 1_048_576;

/// The value's canonical MessagePack form.
pub(crate) fn encode(value: &Value) -> Vec<u8> {
    let mut bytes = Vec::new();
    rmpv::encode::write_value(&mut bytes, value).expect("writing to a Vec does not fail");
    bytes
}

/// The one value that `bytes` hold.
pub(crate) fn decode(bytes: &[u8]) -> Result<Value> {
    let mut cursor = Cursor::new(bytes);
    let value = rmpv::decode::read_value(&mut cursor).context("a server frame that is not MessagePack")?;
    ensure!(cursor.position() == bytes.len() as u64, "a server frame with bytes left over");
    Ok(value)
}

/// The bytes of the values that follow one another in a message (features 5).
pub(crate) fn split(mut bytes: &[u8]) -> Result<Vec<&[u8]>> {
    let mut parts = Vec::new();
    while !bytes.is_empty() {
        let mut cursor = Cursor::new(bytes);
        rmpv::decode::read_value(&mut cursor).context("a message with something that is not MessagePack")?;
        let (part, rest) = bytes.split_at(usize::try_from(cursor.position())?);
        parts.push(part);
        bytes = rest;
    }
    Ok(parts)
}

/// The field `key` of a map; `None` when it is absent or the value is no map.
pub(crate) fn get<'a>(value: &'a Value, key: &str) -> Option<&'a Value> {
    value.as_map()?.iter().find(|(name, _)| name.as_str() == Some(key)).map(|(_, value)| value)
}

/// The field `key` as text, empty when it is absent or no text.
pub(crate) fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    get(value, key).and_then(Value::as_str).unwrap_or_default()
}

/// The frame's `type`.
pub(crate) fn kind(frame: &Value) -> &str {
    text(frame, "type")
}

/// The frame with `key` set to `value`, at the end when it is new.
pub(crate) fn with(mut frame: Value, key: &str, value: impl Into<Value>) -> Value {
    let value = value.into();
    if let Value::Map(fields) = &mut frame {
        match fields.iter_mut().find(|(name, _)| name.as_str() == Some(key)) {
            Some((_, old)) => *old = value,
            None => fields.push((Value::from(key), value)),
        }
    }
    frame
}

/// Equality that tells integers from floats and lets NaN equal itself: that of the bytes.
pub(crate) fn same(a: &Value, b: &Value) -> bool {
    encode(a) == encode(b)
}

/// Fails unless the frame holds every field of `expected`, with that value.
pub(crate) fn holds(frame: &Value, expected: &Value) -> Result<()> {
    for (key, want) in expected.as_map().context("the expectation is a map")? {
        let key = key.as_str().unwrap_or_default();
        let found = get(frame, key);
        ensure!(
            found.is_some_and(|found| same(found, want)),
            "expected {}, got {}",
            brief(expected),
            brief(frame)
        );
    }
    Ok(())
}

/// Fails when the frame has any of the fields, with whatever value.
pub(crate) fn lacks(frame: &Value, keys: &[&str]) -> Result<()> {
    for key in keys {
        ensure!(get(frame, key).is_none(), "expected no `{key}` in {}", brief(frame));
    }
    Ok(())
}

/// The value for a person's eyes, cut to a line.
pub(crate) fn brief(value: &Value) -> String {
    cut(&value.to_string())
}

/// The text, cut to a line.
pub(crate) fn cut(text: &str) -> String {
    const LONGEST: usize = 240;
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}… ({} bytes)", &text[..end], text.len()),
        None => text.to_owned(),
    }
}

/// Checks that the bytes of a server frame are in the canonical form of wire protocol 4.2, apart from the values that
/// are relayed as their sender wrote them, and that no text in it is anything but UTF-8 (C-008).
///
/// The order of the fields after `type` is not checked: the tables fix it for our encoders, and 4.1 says that it has
/// no meaning.
pub(crate) fn check_canonical(bytes: &[u8]) -> Result<()> {
    let frame = decode(bytes)?;
    let fields = frame.as_map().context("a server frame that is no map")?;
    let first = fields.first().and_then(|(key, _)| key.as_str());
    ensure!(first == Some("type"), "a server frame whose first key is not `type`: {}", brief(&frame));
    let kind = kind(&frame);
    for (at, (key, value)) in fields.iter().enumerate() {
        let key = key.as_str().with_context(|| format!("a key that is no text in {}", brief(&frame)))?;
        ensure!(
            fields[..at].iter().all(|(earlier, _)| earlier.as_str() != Some(key)),
            "the key `{key}` comes twice in {}",
            brief(&frame)
        );
        let may_be_nil =
            matches!((kind, key), ("auth", "projectId") | ("lobbyPresence", "roomId") | (_, "data"));
        ensure!(may_be_nil || !value.is_nil(), "nil instead of an absent `{key}` in {}", brief(&frame));
    }
    let mut scan = Scan { bytes, at: 0, kind };
    scan.value(true, 0).with_context(|| format!("in {}", brief(&frame)))
}

/// A walk over the bytes of a frame that looks at the headers only.
struct Scan<'a> {
    bytes: &'a [u8],
    at: usize,
    kind: &'a str,
}

impl Scan<'_> {
    fn take(&mut self, count: usize) -> Result<&[u8]> {
        let end = self.at + count;
        let part = self.bytes.get(self.at..end).context("the frame is cut short")?;
        self.at = end;
        Ok(part)
    }

    fn unsigned(&mut self, count: usize) -> Result<u64> {
        Ok(self.take(count)?.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
    }

    /// Whether what stands below `key` is relayed: a payload, or an actor's presence data.
    fn relayed(&self, key: &str, depth: usize) -> bool {
        match key {
            "data" => depth == 1 && matches!(self.kind, "message" | "lobbyPresence" | "hydration"),
            "presence" => depth > 1,
            _ => false,
        }
    }

    /// Passes one value. `strict`: its form is the broker's own.
    fn value(&mut self, strict: bool, depth: usize) -> Result<()> {
        let head = self.take(1)?[0];
        let number = |least: u64, got: u64| {
            ensure!(!strict || got >= least, "the integer or length {got} is not in its shortest form");
            Ok(())
        };
        match head {
            0x00..=0x7f | 0xe0..=0xff | 0xc0 | 0xc2 | 0xc3 => {}
            0x80..=0x8f => self.map(u64::from(head & 0x0f), strict, depth)?,
            0x90..=0x9f => self.array(u64::from(head & 0x0f), strict, depth)?,
            0xa0..=0xbf => self.str(u64::from(head & 0x1f))?,
            0xc4..=0xc6 => {
                let length = self.unsigned(1 << (head - 0xc4))?;
                number([0, 1 << 8, 1 << 16][usize::from(head - 0xc4)], length)?;
                self.take(usize::try_from(length)?)?;
            }
            0xc7..=0xc9 => {
                ensure!(!strict, "an ext value in an envelope field");
                let length = self.unsigned(1 << (head - 0xc7))?;
                self.take(usize::try_from(length)? + 1)?;
            }
            0xca => {
                ensure!(!strict, "a float32");
                self.take(4)?;
            }
            0xcb => drop(self.take(8)?),
            0xcc..=0xcf => {
                let got = self.unsigned(1 << (head - 0xcc))?;
                number([1 << 7, 1 << 8, 1 << 16, 1 << 32][usize::from(head - 0xcc)], got)?;
            }
            0xd0..=0xd3 => {
                let width = 1_u32 << (head - 0xd0);
                let got = self.unsigned(width as usize)?;
                let shift = 64 - 8 * width;
                let signed = (got << shift).cast_signed() >> shift;
                let bound = [-32, -(1 << 7), -(1 << 15), -(1 << 31)][usize::from(head - 0xd0)];
                ensure!(!strict || signed < bound, "the integer {signed} is not in its shortest form");
            }
            0xd4..=0xd8 => {
                ensure!(!strict, "an ext value in an envelope field");
                self.take((1 << (head - 0xd4)) + 1)?;
            }
            0xd9..=0xdb => {
                let length = self.unsigned(1 << (head - 0xd9))?;
                number([32, 1 << 8, 1 << 16][usize::from(head - 0xd9)], length)?;
                self.str(length)?;
            }
            0xdc | 0xdd => {
                let length = self.unsigned(if head == 0xdc { 2 } else { 4 })?;
                number(if head == 0xdc { 16 } else { 1 << 16 }, length)?;
                self.array(length, strict, depth)?;
            }
            0xde | 0xdf => {
                let length = self.unsigned(if head == 0xde { 2 } else { 4 })?;
                number(if head == 0xde { 16 } else { 1 << 16 }, length)?;
                self.map(length, strict, depth)?;
            }
            0xc1 => bail!("the byte 0xc1, which MessagePack does not use"),
        }
        Ok(())
    }

    fn str(&mut self, length: u64) -> Result<()> {
        let bytes = self.take(usize::try_from(length)?)?;
        ensure!(std::str::from_utf8(bytes).is_ok(), "a str that is not UTF-8");
        Ok(())
    }

    fn array(&mut self, length: u64, strict: bool, depth: usize) -> Result<()> {
        (0..length).try_for_each(|_| self.value(strict, depth + 1))
    }

    fn map(&mut self, length: u64, strict: bool, depth: usize) -> Result<()> {
        for _ in 0..length {
            let start = self.at;
            self.value(strict, depth + 1)?;
            let key = decode(&self.bytes[start..self.at])?;
            let relayed = self.relayed(key.as_str().unwrap_or_default(), depth + 1);
            self.value(strict && !relayed, depth + 1)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The checker of C-007 must not be a rubber stamp.
    #[test]
    fn canonical_form_is_told_from_other_forms() {
        let good = encode(
            &frame! {"type" => "presenceList", "data" => list![frame! {"joinedAt" => 1_700_000_000_u64}]},
        );
        check_canonical(&good).expect("a canonical frame");
        let order = encode(&frame! {"topic" => "x", "type" => "subscribed"});
        assert!(check_canonical(&order).is_err());
        let wide_int = b"\x82\xa4type\xa5error\xa4code\xcd\x00\x07";
        assert!(check_canonical(wide_int).is_err());
        let wide_str = b"\x81\xa4type\xd9\x05error";
        assert!(check_canonical(wide_str).is_err());
        let bad_utf8 = b"\x82\xa4type\xa5error\xa5topic\xa2\xc3\x28";
        assert!(check_canonical(bad_utf8).is_err());
        let relayed = b"\x83\xa4type\xa7message\xa5topic\xa1x\xa4data\xcd\x00\x07";
        check_canonical(relayed).expect("a payload keeps the form it came in");
    }
}
