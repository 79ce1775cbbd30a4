//! The primitives: every form that MessagePack has is read, and the shortest is written (wire protocol 4.2).

use nolag_protocol::msgpack::{Error, Reader, Token, single, write};
use rmpv::Value;

/// The bytes of a token with what a container holds: as many nils as it needs.
fn written(token: Token<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    write::token(&mut out, token);
    out.resize(out.len() + held(token), 0xc0);
    out
}

fn held(token: Token<'_>) -> usize {
    match token {
        Token::Array(n) => n as usize,
        Token::Map(n) => n as usize * 2,
        _ => 0,
    }
}

/// The same by way of another library, which keeps to the shortest forms.
fn written_by_rmpv(token: Token<'_>) -> Vec<u8> {
    let value = match token {
        Token::Nil => Value::Nil,
        Token::Bool(value) => Value::from(value),
        Token::Uint(n) => Value::from(n),
        Token::Int(n) => Value::from(n),
        Token::F32(n) => Value::F32(n),
        Token::F64(n) => Value::F64(n),
        Token::Str(text) => Value::from(std::str::from_utf8(text).expect("text")),
        Token::Bin(bytes) => Value::from(bytes),
        Token::Array(n) => Value::Array(vec![Value::Nil; n as usize]),
        Token::Map(n) => Value::Map(vec![(Value::Nil, Value::Nil); n as usize]),
        Token::Ext(kind, bytes) => Value::Ext(kind, bytes.to_vec()),
    };
    let mut out = Vec::new();
    rmpv::encode::write_value(&mut out, &value).expect("a vector");
    out
}

/// Reads the token off the front, and its whole value.
fn assert_read(bytes: &[u8], token: Token<'_>) {
    let shown = &bytes[..bytes.len().min(12)];
    let mut reader = Reader::new(bytes);
    assert_eq!(reader.token(), Ok(token), "{shown:02x?}");
    assert_eq!(reader.rest().len(), held(token), "{shown:02x?}");
    assert!(single(bytes).is_ok(), "{shown:02x?}");
    assert_eq!(single(&bytes[..bytes.len() - 1]), Err(Error::Truncated), "{shown:02x?}");
}

/// K-001, C-013: at every boundary between two forms.
#[test]
fn the_shortest_form_is_written_and_read() {
    let data = vec![b'x'; 65_537];
    let mut tokens =
        vec![Token::Nil, Token::Bool(false), Token::Bool(true), Token::F32(-1.5), Token::F64(1.0)];
    for power in 0..64 {
        let n = 1_u64 << power;
        tokens.extend([n - 1, n, n + 1].map(Token::Uint));
        let n = -1_i64 << power;
        tokens.extend(
            [Some(n), n.checked_sub(1), n.checked_add(1)]
                .into_iter()
                .flatten()
                .filter(|n| *n < 0)
                .map(Token::Int),
        );
    }
    tokens.push(Token::Uint(u64::MAX));
    for len in [0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 255, 256, 257, 65_535, 65_536, 65_537] {
        let (bytes, n) = (&data[..len], u32::try_from(len).expect("short"));
        tokens.extend([Token::Str(bytes), Token::Bin(bytes), Token::Array(n), Token::Map(n)]);
        tokens.extend([-128, -1, 0, 7, 127].map(|kind| Token::Ext(kind, bytes)));
    }
    for token in tokens {
        let bytes = written(token);
        assert!(bytes == written_by_rmpv(token), "{:02x?}", &bytes[..bytes.len().min(12)]);
        assert_read(&bytes, token);
    }
}

/// 4.2: forms that are longer than they need to be.
#[test]
fn every_longer_form_is_read() {
    let integer = |marker: u8, width: usize, n: i64| [&[marker], &n.to_be_bytes()[8 - width..]].concat();
    for (marker, width) in [(0xcc, 1), (0xcd, 2), (0xce, 4), (0xcf, 8)] {
        for n in [0_u8, 1, 127] {
            assert_read(&integer(marker, width, n.into()), Token::Uint(n.into()));
        }
    }
    for (marker, width) in [(0xd0, 1), (0xd1, 2), (0xd2, 4), (0xd3, 8)] {
        for n in [-128_i8, -33, -32, -1] {
            assert_read(&integer(marker, width, n.into()), Token::Int(n.into()));
        }
        // Told apart by sign, not by how they were written.
        assert_read(&integer(marker, width, 5), Token::Uint(5));
    }
    let sized = |marker: u8, width: usize, n: usize, rest: &[u8]| {
        [&[marker], &n.to_be_bytes()[size_of::<usize>() - width..], rest].concat()
    };
    for n in [0, 1, 4, 16] {
        let (data, count) = (vec![b'x'; n], u32::try_from(n).expect("short"));
        let ext = [&[0xfb], &data[..]].concat();
        for (at, width) in [(0, 1), (1, 2), (2, 4)] {
            assert_read(&sized(0xd9 + at, width, n, &data), Token::Str(&data));
            assert_read(&sized(0xc4 + at, width, n, &data), Token::Bin(&data));
            assert_read(&sized(0xc7 + at, width, n, &ext), Token::Ext(-5, &data));
        }
        for (at, width) in [(0, 2), (1, 4)] {
            assert_read(&sized(0xdc + at, width, n, &vec![0xc0; n]), Token::Array(count));
            assert_read(&sized(0xde + at, width, n, &vec![0xc0; n * 2]), Token::Map(count));
        }
    }
}

#[test]
fn the_one_byte_that_is_nothing() {
    assert_eq!(Reader::new(&[0xc1]).token(), Err(Error::Reserved));
    assert_eq!(Reader::new(&[]).token(), Err(Error::Truncated));
    for byte in (0..=u8::MAX).filter(|byte| *byte != 0xc1) {
        assert_ne!(Reader::new(&[byte]).token(), Err(Error::Reserved), "{byte:02x}");
    }
}
