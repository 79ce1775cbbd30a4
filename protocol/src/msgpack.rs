//! MessagePack as far as frames need it: where a value ends, and how scalars and headers are written.
//!
//! Nothing here recurses on its input. A value may nest [`MAX_DEPTH`] containers deep; more is refused, so
//! that input cannot exhaust a stack or a decoder behind us (wire protocol 4.3).

use rmp::Marker;

/// How many arrays and maps may stand inside one another within one value.
pub const MAX_DEPTH: usize = 128;

/// The MessagePack encoding of nil.
pub const NIL: &[u8] = &[0xc0];

/// Why bytes are not MessagePack that we take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The input ends inside a value.
    #[error("the MessagePack ends inside a value")]
    Truncated,
    /// The byte 0xc1, which MessagePack never uses.
    #[error("the byte 0xc1 is no MessagePack")]
    Reserved,
    /// More than [`MAX_DEPTH`] containers inside one another.
    #[error("nested deeper than {MAX_DEPTH} levels")]
    TooDeep,
    /// Bytes after the value.
    #[error("bytes are left over after the value")]
    Trailing,
}

/// What a value is made of, learnt while its end was looked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Contents {
    /// Some `str` is not valid UTF-8.
    pub broken_text: bool,
    /// Some value is of an extension type.
    pub ext: bool,
}

/// One header or scalar, without what a container holds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Token<'a> {
    /// nil.
    Nil,
    /// true or false.
    Bool(bool),
    /// A non-negative integer.
    Uint(u64),
    /// A negative integer.
    Int(i64),
    /// A float of 32 bits.
    F32(f32),
    /// A float of 64 bits.
    F64(f64),
    /// The bytes of a `str`, not yet known to be UTF-8.
    Str(&'a [u8]),
    /// The bytes of a `bin`.
    Bin(&'a [u8]),
    /// An array of so many values, which follow.
    Array(u32),
    /// A map of so many pairs, which follow.
    Map(u32),
    /// An extension type and its bytes.
    Ext(i8, &'a [u8]),
}

/// Reads tokens off the front of a slice.
#[derive(Debug, Clone)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// A reader at the start of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// What has not been read yet.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Fails unless everything was read.
    pub fn finish(&self) -> Result<(), Error> {
        if self.rest.is_empty() { Ok(()) } else { Err(Error::Trailing) }
    }

    fn take(&mut self, n: usize) -> Result<&'a [u8], Error> {
        let (head, rest) = self.rest.split_at_checked(n).ok_or(Error::Truncated)?;
        self.rest = rest;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let (head, rest) = self.rest.split_first_chunk::<N>().ok_or(Error::Truncated)?;
        self.rest = rest;
        Ok(*head)
    }

    fn len<const N: usize>(&mut self) -> Result<usize, Error> {
        let mut wide = [0; 8];
        wide[8 - N..].copy_from_slice(&self.array::<N>()?);
        // At most 32 bits wide, so it fits wherever this crate runs.
        usize::try_from(u64::from_be_bytes(wide)).map_err(|_| Error::Truncated)
    }

    fn ext(&mut self, len: usize) -> Result<Token<'a>, Error> {
        let [kind] = self.array()?;
        Ok(Token::Ext(i8::from_be_bytes([kind]), self.take(len)?))
    }

    /// The next token, whatever it is.
    #[allow(clippy::cast_possible_truncation)] // lengths of 32 bits at most
    pub fn token(&mut self) -> Result<Token<'a>, Error> {
        let [first] = self.array()?;
        Ok(match Marker::from_u8(first) {
            Marker::Null => Token::Nil,
            Marker::True => Token::Bool(true),
            Marker::False => Token::Bool(false),
            Marker::FixPos(n) => Token::Uint(n.into()),
            Marker::FixNeg(n) => Token::Int(n.into()),
            Marker::U8 => Token::Uint(u8::from_be_bytes(self.array()?).into()),
            Marker::U16 => Token::Uint(u16::from_be_bytes(self.array()?).into()),
            Marker::U32 => Token::Uint(u32::from_be_bytes(self.array()?).into()),
            Marker::U64 => Token::Uint(u64::from_be_bytes(self.array()?)),
            Marker::I8 => int(i8::from_be_bytes(self.array()?).into()),
            Marker::I16 => int(i16::from_be_bytes(self.array()?).into()),
            Marker::I32 => int(i32::from_be_bytes(self.array()?).into()),
            Marker::I64 => int(i64::from_be_bytes(self.array()?)),
            Marker::F32 => Token::F32(f32::from_be_bytes(self.array()?)),
            Marker::F64 => Token::F64(f64::from_be_bytes(self.array()?)),
            Marker::FixStr(n) => Token::Str(self.take(n.into())?),
            Marker::Str8 => self.len::<1>().and_then(|n| self.take(n)).map(Token::Str)?,
            Marker::Str16 => self.len::<2>().and_then(|n| self.take(n)).map(Token::Str)?,
            Marker::Str32 => self.len::<4>().and_then(|n| self.take(n)).map(Token::Str)?,
            Marker::Bin8 => self.len::<1>().and_then(|n| self.take(n)).map(Token::Bin)?,
            Marker::Bin16 => self.len::<2>().and_then(|n| self.take(n)).map(Token::Bin)?,
            Marker::Bin32 => self.len::<4>().and_then(|n| self.take(n)).map(Token::Bin)?,
            Marker::FixArray(n) => Token::Array(n.into()),
            Marker::Array16 => Token::Array(self.len::<2>()? as u32),
            Marker::Array32 => Token::Array(self.len::<4>()? as u32),
            Marker::FixMap(n) => Token::Map(n.into()),
            Marker::Map16 => Token::Map(self.len::<2>()? as u32),
            Marker::Map32 => Token::Map(self.len::<4>()? as u32),
            Marker::FixExt1 => self.ext(1)?,
            Marker::FixExt2 => self.ext(2)?,
            Marker::FixExt4 => self.ext(4)?,
            Marker::FixExt8 => self.ext(8)?,
            Marker::FixExt16 => self.ext(16)?,
            Marker::Ext8 => self.len::<1>().and_then(|n| self.ext(n))?,
            Marker::Ext16 => self.len::<2>().and_then(|n| self.ext(n))?,
            Marker::Ext32 => self.len::<4>().and_then(|n| self.ext(n))?,
            Marker::Reserved => return Err(Error::Reserved),
        })
    }

    /// The bytes of the next whole value, and what was seen in it.
    pub fn value(&mut self) -> Result<(&'a [u8], Contents), Error> {
        let start = self.rest;
        let mut contents = Contents::default();
        if let Some(held) = self.step(&mut contents)? {
            // How many values each open container still expects, innermost last.
            let mut open = [0_u64; MAX_DEPTH];
            open[0] = held;
            let mut depth = 1;
            while depth > 0 {
                let left = &mut open[depth - 1];
                if *left == 0 {
                    depth -= 1;
                    continue;
                }
                *left -= 1;
                if let Some(held) = self.step(&mut contents)? {
                    *open.get_mut(depth).ok_or(Error::TooDeep)? = held;
                    depth += 1;
                }
            }
        }
        Ok((&start[..start.len() - self.rest.len()], contents))
    }

    /// Reads one token; a container says how many values it holds.
    fn step(&mut self, contents: &mut Contents) -> Result<Option<u64>, Error> {
        match self.token()? {
            Token::Array(n) => return Ok(Some(n.into())),
            Token::Map(n) => return Ok(Some(u64::from(n) * 2)),
            Token::Str(bytes) => contents.broken_text |= std::str::from_utf8(bytes).is_err(),
            Token::Ext(..) => contents.ext = true,
            _ => {}
        }
        Ok(None)
    }
}

/// Integers are told apart by sign, not by how they were written.
fn int(n: i64) -> Token<'static> {
    u64::try_from(n).map_or(Token::Int(n), Token::Uint)
}

/// The extent of exactly one value that fills `bytes`.
pub fn single(bytes: &[u8]) -> Result<Contents, Error> {
    let mut reader = Reader::new(bytes);
    let (_, contents) = reader.value()?;
    reader.finish()?;
    Ok(contents)
}

/// Writers of the canonical form (wire protocol 4.2).
pub mod write {
    use rmp::encode::{self, ByteBuf};

    use super::Token;

    /// A token in its shortest form; what a container holds is written after it.
    ///
    /// A `Str` must be valid UTF-8: whoever has bytes writes `Bin`.
    ///
    /// # Panics
    ///
    /// On a string, a binary or an extension of more than 4 GiB.
    pub fn token(out: &mut Vec<u8>, token: Token<'_>) {
        // Of all that rmp writes to, this says in its type that it cannot fail.
        let mut buffer = ByteBuf::from_vec(std::mem::take(out));
        let to = &mut buffer;
        match token {
            Token::Nil => to.as_mut_vec().push(0xc0),
            Token::Bool(v) => to.as_mut_vec().push(if v { 0xc3 } else { 0xc2 }),
            Token::Uint(n) => {
                let Ok(_) = encode::write_uint(to, n);
            }
            Token::Int(n) => {
                let Ok(_) = encode::write_sint(to, n);
            }
            Token::F32(n) => {
                let Ok(()) = encode::write_f32(to, n);
            }
            Token::F64(n) => {
                let Ok(()) = encode::write_f64(to, n);
            }
            Token::Str(bytes) => {
                let Ok(_) = encode::write_str_len(to, len(bytes));
                to.as_mut_vec().extend_from_slice(bytes);
            }
            Token::Bin(bytes) => {
                let Ok(()) = encode::write_bin(to, bytes);
            }
            Token::Array(n) => {
                let Ok(_) = encode::write_array_len(to, n);
            }
            Token::Map(n) => {
                let Ok(_) = encode::write_map_len(to, n);
            }
            Token::Ext(kind, bytes) => {
                let Ok(_) = encode::write_ext_meta(to, len(bytes), kind);
                to.as_mut_vec().extend_from_slice(bytes);
            }
        }
        *out = buffer.into_vec();
    }

    /// Text.
    pub fn str(out: &mut Vec<u8>, text: &str) {
        token(out, Token::Str(text.as_bytes()));
    }

    /// A non-negative integer.
    pub fn uint(out: &mut Vec<u8>, n: u64) {
        token(out, Token::Uint(n));
    }

    /// MessagePack counts in 32 bits, and a message is at most a mebibyte.
    fn len(bytes: &[u8]) -> u32 {
        u32::try_from(bytes.len()).expect("no value of a frame is longer than 4 GiB")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nesting_ends_at_the_limit() {
        for (byte, what) in [(0x91_u8, "arrays"), (0x81, "maps")] {
            let nest = |levels: usize| {
                let mut bytes = Vec::new();
                for _ in 0..levels {
                    bytes.push(byte);
                    if byte == 0x81 {
                        bytes.push(0xa0);
                    }
                }
                bytes.push(0xc0);
                bytes
            };
            assert_eq!(single(&nest(MAX_DEPTH)), Ok(Contents::default()), "{what}");
            assert_eq!(single(&nest(MAX_DEPTH + 1)), Err(Error::TooDeep), "{what}");
            assert_eq!(single(&nest(1_000_000)), Err(Error::TooDeep), "{what}");
        }
    }

    #[test]
    fn a_container_that_promises_more_than_there_is() {
        assert_eq!(single(&[0xdd, 0xff, 0xff, 0xff, 0xff, 0x01]), Err(Error::Truncated));
        assert_eq!(single(&[0xdf, 0xff, 0xff, 0xff, 0xff]), Err(Error::Truncated));
        assert_eq!(single(&[0xc6, 0xff, 0xff, 0xff, 0xff]), Err(Error::Truncated));
    }

    #[test]
    fn every_truncation_of_a_value_is_noticed() {
        let value =
            [0x93, 0xa3, b'a', b'b', b'c', 0xcd, 0x01, 0x00, 0x81, 0xa1, b'k', 0xd6, 0x07, 1, 2, 3, 4];
        assert_eq!(single(&value), Ok(Contents { broken_text: false, ext: true }));
        for end in 0..value.len() {
            assert_eq!(single(&value[..end]), Err(Error::Truncated), "cut at {end}");
        }
    }
}
