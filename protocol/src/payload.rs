//! What a relay changes in an application's value before it hands it on: as a rule nothing.
//!
//! Both functions walk the tokens in a row: a container's header is copied and what it holds simply
//! follows, so neither keeps a stack.

use crate::msgpack::{Error, Reader, Token, write};

/// A copy in which every `str` that is not valid UTF-8 has become a `bin` of the same bytes.
///
/// MessagePack allows such a `str`, most decoders do not, and a broker must not send one (C-008).
pub fn with_valid_text(value: &[u8]) -> Result<Vec<u8>, Error> {
    let mut out = Vec::with_capacity(value.len() + 8);
    let mut reader = Reader::new(value);
    while !reader.rest().is_empty() {
        let before = reader.rest();
        match reader.token()? {
            Token::Str(bytes) if std::str::from_utf8(bytes).is_err() => {
                write::token(&mut out, Token::Bin(bytes));
            }
            _ => out.extend_from_slice(&before[..before.len() - reader.rest().len()]),
        }
    }
    Ok(out)
}

/// A copy as the broker kraken would relay it, or `None` where it would drop the frame.
///
/// kraken knows one type for `str` and `bin`, and one for all floats; it cannot decode a float that is not
/// finite, nor an extension (wire protocol 4.4 to 4.6).
pub fn as_kraken_relays(value: &[u8]) -> Result<Option<Vec<u8>>, Error> {
    let mut out = Vec::with_capacity(value.len() + 8);
    let mut reader = Reader::new(value);
    while !reader.rest().is_empty() {
        let token = match reader.token()? {
            Token::Str(bytes) | Token::Bin(bytes) if std::str::from_utf8(bytes).is_ok() => Token::Str(bytes),
            Token::Str(bytes) | Token::Bin(bytes) => Token::Bin(bytes),
            Token::F32(n) if n.is_finite() => Token::F64(n.into()),
            Token::F64(n) if n.is_finite() => Token::F64(n),
            Token::F32(_) | Token::F64(_) | Token::Ext(..) => return Ok(None),
            other => other,
        };
        write::token(&mut out, token);
    }
    Ok(Some(out))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broken_text_becomes_bytes_and_the_rest_stays() {
        // {"k": str(c3 28), 1.5f32: [ext]}
        let value = [0x82, 0xa1, b'k', 0xa2, 0xc3, 0x28, 0xca, 0x3f, 0xc0, 0, 0, 0x91, 0xd4, 0x07, 0x01];
        let fixed = with_valid_text(&value).unwrap();
        assert_eq!(
            fixed,
            [0x82, 0xa1, b'k', 0xc4, 2, 0xc3, 0x28, 0xca, 0x3f, 0xc0, 0, 0, 0x91, 0xd4, 0x07, 0x01]
        );
    }

    /// C-014 in the `kraken` profile.
    #[test]
    fn kraken_tells_bytes_and_text_apart_by_content() {
        assert_eq!(as_kraken_relays(&[0xc4, 2, b'h', b'i']), Ok(Some(vec![0xa2, b'h', b'i'])));
        assert_eq!(as_kraken_relays(&[0xc4, 2, 0xc3, 0x28]), Ok(Some(vec![0xc4, 2, 0xc3, 0x28])));
        assert_eq!(
            as_kraken_relays(&[0xca, 0x3f, 0xc0, 0, 0]),
            Ok(Some(vec![0xcb, 0x3f, 0xf8, 0, 0, 0, 0, 0, 0]))
        );
        assert_eq!(as_kraken_relays(&[0xca, 0x7f, 0x80, 0, 0]), Ok(None));
        assert_eq!(as_kraken_relays(&[0x91, 0xd4, 1, 0]), Ok(None));
    }
}
