//! The application's values, in a form that every decoder takes.
//!
//! A decoder in another language may stop at what it does not know, and a batch that it stops in is lost. It may also give
//! extension types a meaning of its own, which is not for a peer to choose.

use std::fmt::Write as _;

use nolag_protocol::msgpack::{MAX_DEPTH, Reader, Token, write};

/// The extension type that stands for all but timestamps.
const ANY: i8 = 1;
/// Points in time, which every decoder knows.
const TIMESTAMP: i8 = -1;

/// Writes a value, fit to be decoded; see the [module of the door](super).
pub(super) fn out(out: &mut Vec<u8>, bytes: &[u8]) {
    if !matches!(bytes.first(), Some(0x80..=0x9f | 0xc7..=0xc9 | 0xd4..=0xd8 | 0xdc..=0xdf)) {
        return scalar(out, bytes); // the greater part, and nothing can be in it
    }
    let mut reader = Reader::new(bytes);
    // What each open container still expects, and whether every other of them is a key, innermost last.
    let mut open: Vec<(u64, bool)> = Vec::new();
    while !reader.rest().is_empty() && open.len() <= MAX_DEPTH {
        let is_key = open.last().is_some_and(|(left, is_map)| *is_map && left % 2 == 0);
        if let Some((left, _)) = open.last_mut() {
            *left -= 1;
        }
        if is_key {
            key(out, &mut reader);
        } else {
            match reader.token() {
                Ok(Token::Str(text)) if std::str::from_utf8(text).is_err() => {
                    write::token(out, Token::Bin(text));
                }
                Ok(Token::Ext(kind, data)) if kind != TIMESTAMP => {
                    let wrapped = [&kind.to_be_bytes(), data].concat();
                    write::token(out, Token::Ext(ANY, &wrapped));
                }
                Ok(token) => {
                    write::token(out, token);
                    match token {
                        Token::Array(count) => open.push((count.into(), false)),
                        Token::Map(count) => open.push((u64::from(count) * 2, true)),
                        _ => {}
                    }
                }
                // What the session hands over was read as one value before.
                Err(_) => return,
            }
        }
        while open.last().is_some_and(|(left, _)| *left == 0) {
            open.pop();
        }
    }
}

fn scalar(out: &mut Vec<u8>, bytes: &[u8]) {
    match Reader::new(bytes).token() {
        Ok(Token::Str(text)) if std::str::from_utf8(text).is_err() => write::token(out, Token::Bin(text)),
        Ok(_) => out.extend_from_slice(bytes),
        Err(_) => write::token(out, Token::Nil),
    }
}

/// A key of a map: as it is where it is text or another scalar, else as text.
fn key(out: &mut Vec<u8>, reader: &mut Reader<'_>) {
    let Ok((bytes, _)) = reader.value() else { return };
    match Reader::new(bytes).token() {
        Ok(Token::Str(text)) if std::str::from_utf8(text).is_ok() => out.extend_from_slice(bytes),
        Ok(Token::Nil | Token::Bool(_) | Token::Uint(_) | Token::Int(_) | Token::F32(_) | Token::F64(_)) => {
            out.extend_from_slice(bytes);
        }
        _ => {
            let mut text = String::from("0x");
            for byte in bytes {
                let _ = write!(text, "{byte:02x}"); // writing to a string cannot fail
            }
            write::str(out, &text);
        }
    }
}

/// The same value with its extensions as they were before [`out`].
pub(super) fn back(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    let mut reader = Reader::new(bytes);
    while let Ok(token) = reader.token() {
        write::token(
            &mut out,
            match token {
                Token::Ext(ANY, [kind, data @ ..]) => Token::Ext(i8::from_be_bytes([*kind]), data),
                token => token,
            },
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fit(bytes: &[u8]) -> Vec<u8> {
        let mut fit = Vec::new();
        out(&mut fit, bytes);
        fit
    }

    #[test]
    fn what_decoders_take_stays_as_it_is() {
        for value in [
            &[0xc0][..],
            &[0x05],
            &[0xa1, b'x'],
            &[0x82, 0xa1, b'a', 0x93, 1, 2, 0x80, 0x01, 0x81, 0xc3, 0x90],
            &[0xd6, 0xff, 1, 2, 3, 4],
            &[0x90],
        ] {
            assert_eq!(fit(value), value);
        }
    }

    #[test]
    fn broken_text_becomes_bytes() {
        assert_eq!(fit(&[0xa1, 0xff]), [0xc4, 1, 0xff]);
        assert_eq!(fit(&[0x91, 0xa1, 0xff]), [0x91, 0xc4, 1, 0xff]);
    }

    #[test]
    fn keys_become_text() {
        assert_eq!(fit(&[0x81, 0x91, 1, 2]), [&[0x81, 0xa6], &b"0x9101"[..], &[2]].concat());
        assert_eq!(
            fit(&[0x81, 0xa1, 0xff, 0x91, 0xc4, 0]),
            [&[0x81, 0xa6], &b"0xa1ff"[..], &[0x91, 0xc4, 0]].concat()
        );
    }

    /// Extensions go out under one type, and come back as they were.
    #[test]
    fn extensions_there_and_back() {
        for value in [&[0xd4, 0x73, 7][..], &[0xc7, 3, 0x80, 1, 2, 3], &[0x81, 0xa1, b'k', 0xc7, 0, 1]] {
            let fit = fit(value);
            let mut canonical = Vec::new();
            let mut reader = Reader::new(value);
            while let Ok(token) = reader.token() {
                write::token(&mut canonical, token);
            }
            assert_eq!(back(&fit), canonical);
        }
        assert_eq!(fit(&[0xd4, 0x73, 7]), [0xd5, 1, 0x73, 7]);
    }
}
