//! Filters and the keys they stand for (wire protocol 14).
//!
//! A message has at most one key, a subscription a set of them, and they meet by equality. A group of values
//! is one key: lowercased, sorted by bytes, joined with `|`.
//!
//! Everything here works on the MessagePack of a field, as it came, because what a wrong type means depends
//! on the reader: see [`FilterError::WrongType`].

use crate::msgpack::{Reader, Token, write};

/// How many items a list of filters may have; a group counts once.
pub const MAX_FILTERS: usize = 100;

/// What is wrong with a filter. The texts of the first two are identifiers on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FilterError {
    /// A value is empty, no string, or contains a character that filters do not; or a group is too small.
    #[error("invalid_filter_chars (/, #, +, | not allowed)")]
    Chars,
    /// More than [`MAX_FILTERS`] items.
    #[error("too_many_filters (max 100)")]
    TooMany,
    /// Not a string, or not an array, where one belongs. kraken takes it for no filter at all.
    #[error("invalid_filter")]
    WrongType,
}

/// The keys of a subscription's `filters`, sorted and each once; none means everything.
///
/// An item is a value, kept as it is, or a group of at least two.
pub fn subscription_keys(filters: Option<&[u8]>) -> Result<Vec<String>, FilterError> {
    let mut keys = Vec::new();
    let Some((mut reader, count)) = array(filters)? else { return Ok(keys) };
    for _ in 0..count {
        match reader.token() {
            Ok(Token::Array(values @ 2..)) => {
                let values = (0..values).map(|_| value(&mut reader)).collect::<Result<Vec<_>, _>>()?;
                keys.push(composite(values.into_iter()));
            }
            Ok(Token::Str(text) | Token::Bin(text)) => keys.push(text_value(text)?.to_owned()),
            _ => return Err(FilterError::Chars),
        }
    }
    keys.sort_unstable();
    keys.dedup();
    Ok(keys)
}

/// The key of a publish: its `filter` as it is, else the group of its `filters`, else none.
pub fn publish_key(filter: Option<&[u8]>, filters: Option<&[u8]>) -> Result<Option<String>, FilterError> {
    match filter.map(|field| Reader::new(field).token()) {
        None | Some(Ok(Token::Nil)) => {}
        Some(Ok(Token::Str(text) | Token::Bin(text))) if text.is_empty() => {}
        Some(Ok(Token::Str(text) | Token::Bin(text))) => {
            return text_value(text).map(|key| Some(key.to_owned()));
        }
        Some(_) => return Err(FilterError::WrongType),
    }
    let Some((mut reader, count)) = array(filters)? else { return Ok(None) };
    let values = (0..count).map(|_| value(&mut reader)).collect::<Result<Vec<_>, _>>()?;
    Ok((!values.is_empty()).then(|| composite(values.into_iter())))
}

/// The key that a group of values stands for.
///
/// Lowercasing goes character by character: what the standard library does to a whole string treats a final
/// sigma specially, and would give another key than every other client.
pub fn composite<'a>(values: impl Iterator<Item = &'a str>) -> String {
    let mut values: Vec<String> = values.map(|v| v.chars().flat_map(char::to_lowercase).collect()).collect();
    values.sort_unstable();
    values.join("|")
}

/// Whether a text may be a filter value.
pub fn check_value(text: &str) -> Result<(), FilterError> {
    if text.is_empty() || text.contains(['/', '#', '+', '|']) { Err(FilterError::Chars) } else { Ok(()) }
}

/// One item of a subscription's filters, for whoever writes them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item {
    /// A single value.
    Value(String),
    /// Values that must all be there.
    Group(Vec<String>),
}

/// Writes a `filters` field. It is checked by [`subscription_keys`], not here.
pub fn encode(items: &[Item]) -> Vec<u8> {
    // More than MAX_FILTERS items are refused by whoever reads them, long before they overflow.
    let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let mut out = Vec::new();
    write::token(&mut out, Token::Array(count(items.len())));
    for item in items {
        match item {
            Item::Value(text) => write::str(&mut out, text),
            Item::Group(texts) => {
                write::token(&mut out, Token::Array(count(texts.len())));
                for text in texts {
                    write::str(&mut out, text);
                }
            }
        }
    }
    out
}

/// The items of an array field that is there, none for nil.
fn array(field: Option<&[u8]>) -> Result<Option<(Reader<'_>, u32)>, FilterError> {
    let Some(field) = field else { return Ok(None) };
    let mut reader = Reader::new(field);
    match reader.token() {
        Ok(Token::Nil) => Ok(None),
        Ok(Token::Array(n)) if n as usize > MAX_FILTERS => Err(FilterError::TooMany),
        Ok(Token::Array(n)) => Ok(Some((reader, n))),
        _ => Err(FilterError::WrongType),
    }
}

fn value<'a>(reader: &mut Reader<'a>) -> Result<&'a str, FilterError> {
    match reader.token() {
        Ok(Token::Str(text) | Token::Bin(text)) => text_value(text),
        _ => Err(FilterError::Chars),
    }
}

fn text_value(bytes: &[u8]) -> Result<&str, FilterError> {
    let text = std::str::from_utf8(bytes).map_err(|_| FilterError::Chars)?;
    check_value(text)?;
    Ok(text)
}
