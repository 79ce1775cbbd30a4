//! The types of fields: how each is read and written, and the macro that declares frames made of them.

pub(super) use super::scan::{Fault, Fields, Key, Malformed};
use crate::msgpack::{Contents, Reader, Token, write};

/// Why a field cannot be read.
pub(super) enum Unfit {
    /// It is not there, and must be.
    Absent,
    /// It is something else.
    WrongType,
}

/// A type of field: how it is read, and written where it is present.
pub(super) trait Field<'a>: Sized {
    /// What belongs in the field, for the error.
    const EXPECTED: &'static str;
    /// Whether the value is an application's, which may hold extensions and broken text.
    const OPAQUE: bool = false;
    /// Reads the field under `key`.
    fn read(fields: &Fields<'a>, key: Key) -> Result<Self, Unfit>;
    /// Writes the value, if there is one to write, after the key.
    fn write(&self, map: &mut MapWriter<'_>, key: Key);
}

/// How many pairs a map's header of one byte can count.
pub(super) const MAX_FIELDS: usize = 15;

/// Writes one frame: a map whose pairs are counted while they are written.
///
/// There are never more than [`MAX_FIELDS`], so the header stays one byte.
pub(super) struct MapWriter<'o> {
    out: &'o mut Vec<u8>,
    header: usize,
}

impl<'o> MapWriter<'o> {
    pub(super) fn new(out: &'o mut Vec<u8>) -> Self {
        let header = out.len();
        out.push(0x80);
        Self { out, header }
    }

    pub(super) fn key(&mut self, key: Key) -> &mut Vec<u8> {
        self.out[self.header] += 1;
        write::str(self.out, key.name());
        self.out
    }
}

/// Text of a `str`, or of a `bin` that is UTF-8: kraken does not tell them apart (4.3).
pub(super) fn text(value: &[u8]) -> Option<&str> {
    match Reader::new(value).token() {
        Ok(Token::Str(bytes) | Token::Bin(bytes)) => std::str::from_utf8(bytes).ok(),
        _ => None,
    }
}

/// A whole number that is not negative, however it was written.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)] // checked first
fn uint(value: &[u8]) -> Option<u64> {
    let float = match Reader::new(value).token().ok()? {
        Token::Uint(n) => return Some(n),
        Token::F32(n) => f64::from(n),
        Token::F64(n) => n,
        _ => return None,
    };
    (float >= 0.0 && float < u64::MAX as f64 && float.fract() == 0.0).then_some(float as u64)
}

impl<'a> Field<'a> for &'a str {
    const EXPECTED: &'static str = "a string";
    fn read(fields: &Fields<'a>, key: Key) -> Result<Self, Unfit> {
        text(fields.required(key)?).ok_or(Unfit::WrongType)
    }
    fn write(&self, map: &mut MapWriter<'_>, key: Key) {
        write::str(map.key(key), self);
    }
}

impl<'a> Field<'a> for u64 {
    const EXPECTED: &'static str = "a whole number that is not negative";
    fn read(fields: &Fields<'a>, key: Key) -> Result<Self, Unfit> {
        uint(fields.required(key)?).ok_or(Unfit::WrongType)
    }
    fn write(&self, map: &mut MapWriter<'_>, key: Key) {
        write::uint(map.key(key), *self);
    }
}

/// Required, and exactly true or false.
impl<'a> Field<'a> for bool {
    const EXPECTED: &'static str = "true or false";
    fn read(fields: &Fields<'a>, key: Key) -> Result<Self, Unfit> {
        match Reader::new(fields.required(key)?).token() {
            Ok(Token::Bool(value)) => Ok(value),
            _ => Err(Unfit::WrongType),
        }
    }
    fn write(&self, map: &mut MapWriter<'_>, key: Key) {
        write::token(map.key(key), Token::Bool(*self));
    }
}

/// Optional, and of no account when it is something else: absent then (10.1, 10.4, C-066).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Lenient<T>(pub Option<T>);

impl Lenient<bool> {
    /// Whether it is there and exactly this.
    pub fn is(self, value: bool) -> bool {
        self.0 == Some(value)
    }
}

impl<'a> Lenient<&'a str> {
    /// The text, unless it is empty.
    pub fn non_empty(self) -> Option<&'a str> {
        self.0.filter(|text| !text.is_empty())
    }
}

impl<'a, T: Field<'a>> Field<'a> for Lenient<T> {
    const EXPECTED: &'static str = T::EXPECTED;
    fn read(fields: &Fields<'a>, key: Key) -> Result<Self, Unfit> {
        Ok(Self(T::read(fields, key).ok()))
    }
    fn write(&self, map: &mut MapWriter<'_>, key: Key) {
        if let Some(value) = &self.0 {
            value.write(map, key);
        }
    }
}

/// A protocol version: 1 where it is absent or unusable, and then not written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u64);

impl<'a> Field<'a> for Version {
    const EXPECTED: &'static str = "a positive integer";
    fn read(fields: &Fields<'a>, key: Key) -> Result<Self, Unfit> {
        match fields.slot(key).map(|value| Reader::new(value).token()) {
            Some(Ok(Token::Uint(version @ 1..))) => Ok(Self(version)),
            _ => Ok(Self(1)),
        }
    }
    fn write(&self, map: &mut MapWriter<'_>, key: Key) {
        if self.0 > 1 {
            self.0.write(map, key);
        }
    }
}

macro_rules! optional {
    ($($inner:ty),*) => { $(
        impl<'a> Field<'a> for Option<$inner> {
            const EXPECTED: &'static str = <$inner as Field<'a>>::EXPECTED;
            fn read(fields: &Fields<'a>, key: Key) -> Result<Self, Unfit> {
                fields.slot(key).map(|_| <$inner as Field<'a>>::read(fields, key)).transpose()
            }
            fn write(&self, map: &mut MapWriter<'_>, key: Key) {
                if let Some(value) = self {
                    value.write(map, key);
                }
            }
        }
    )* };
}
optional!(&'a str, u64, bool, Raw<'a>, Position<'a>, Nilable<'a>, Limits);

/// One MessagePack value as it came, whatever it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Raw<'a>(pub &'a [u8]);

impl<'a> Field<'a> for Raw<'a> {
    const EXPECTED: &'static str = "a value";
    fn read(fields: &Fields<'a>, key: Key) -> Result<Self, Unfit> {
        fields.required(key).map(Raw)
    }
    fn write(&self, map: &mut MapWriter<'_>, key: Key) {
        map.key(key).extend_from_slice(self.0);
    }
}

/// An application's value, left as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Data<'a> {
    /// Its MessagePack.
    pub bytes: &'a [u8],
    /// What was seen in it on the way through. Writing does not look at it.
    pub contents: Contents,
}

impl<'a> Data<'a> {
    /// A value that is known to be one: what an encoder of ours made.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, contents: Contents::default() }
    }
}

impl<'a> Field<'a> for Data<'a> {
    const EXPECTED: &'static str = "a value";
    const OPAQUE: bool = true;
    fn read(fields: &Fields<'a>, key: Key) -> Result<Self, Unfit> {
        Ok(Self { bytes: fields.required(key)?, contents: fields.contents(key) })
    }
    fn write(&self, map: &mut MapWriter<'_>, key: Key) {
        map.key(key).extend_from_slice(self.bytes);
    }
}

/// A string that is written as nil, not left out, where there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Nilable<'a>(pub Option<&'a str>);

impl<'a> Field<'a> for Nilable<'a> {
    const EXPECTED: &'static str = "a string or nil";
    fn read(fields: &Fields<'a>, key: Key) -> Result<Self, Unfit> {
        Ok(Self(Option::<&str>::read(fields, key)?))
    }
    fn write(&self, map: &mut MapWriter<'_>, key: Key) {
        match self.0 {
            Some(text) => write::str(map.key(key), text),
            None => map.key(key).push(0xc0),
        }
    }
}

/// Quality of service. The wire accepts 0, 1 and 2 and takes anything else for 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, PartialOrd, Ord)]
pub enum Qos {
    /// 0: sent once, not confirmed, not kept.
    AtMostOnce,
    /// 1: confirmed, and sent again until it is.
    #[default]
    AtLeastOnce,
    /// 2: as 1, and handed over once.
    ExactlyOnce,
}

impl<'a> Field<'a> for Option<Qos> {
    const EXPECTED: &'static str = "0, 1 or 2";
    fn read(fields: &Fields<'a>, key: Key) -> Result<Self, Unfit> {
        Ok(fields.slot(key).map(|value| match Reader::new(value).token() {
            Ok(Token::Uint(0)) => Qos::AtMostOnce,
            Ok(Token::Uint(2)) => Qos::ExactlyOnce,
            _ => Qos::AtLeastOnce,
        }))
    }
    fn write(&self, map: &mut MapWriter<'_>, key: Key) {
        if let Some(qos) = self {
            write::uint(map.key(key), *qos as u64);
        }
    }
}

/// Where a subscription stopped (features 2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position<'a> {
    /// The run of numbers it is in, at most 64 bytes.
    pub epoch: &'a str,
    /// The last number that was handed over.
    pub seq: u64,
}

impl<'a> Field<'a> for Position<'a> {
    const EXPECTED: &'static str = "a map of epoch (text of at most 64 bytes) and seq (up to 2^53-1)";
    fn read(fields: &Fields<'a>, key: Key) -> Result<Self, Unfit> {
        let fields = Fields::scan(fields.required(key)?).map_err(|_| Unfit::WrongType)?;
        let epoch = fields.slot(Key::Epoch).and_then(text).filter(|epoch| epoch.len() <= 64);
        let seq = fields.slot(Key::Seq).and_then(uint).filter(|seq| *seq < 1 << 53);
        epoch.zip(seq).map(|(epoch, seq)| Self { epoch, seq }).ok_or(Unfit::WrongType)
    }
    fn write(&self, map: &mut MapWriter<'_>, key: Key) {
        let mut inner = MapWriter::new(map.key(key));
        self.epoch.write(&mut inner, Key::Epoch);
        self.seq.write(&mut inner, Key::Seq);
    }
}

/// What holds for a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limits {
    /// Publishes per second; none or 0 means no limit.
    pub publishes_per_second: Option<u64>,
    /// The largest `data`, in bytes of MessagePack.
    pub max_payload_bytes: Option<u64>,
}

impl<'a> Field<'a> for Limits {
    const EXPECTED: &'static str = "a map of limits";
    fn read(fields: &Fields<'a>, key: Key) -> Result<Self, Unfit> {
        let fields = Fields::scan(fields.required(key)?).map_err(|_| Unfit::WrongType)?;
        Ok(Self {
            publishes_per_second: Field::read(&fields, Key::PublishesPerSecond)?,
            max_payload_bytes: Field::read(&fields, Key::MaxPayloadBytes)?,
        })
    }
    fn write(&self, map: &mut MapWriter<'_>, key: Key) {
        let mut inner = MapWriter::new(map.key(key));
        self.publishes_per_second.write(&mut inner, Key::PublishesPerSecond);
        self.max_payload_bytes.write(&mut inner, Key::MaxPayloadBytes);
    }
}

/// Strings; what is none in the array is left out of account, as names of features are.
impl<'a> Field<'a> for Vec<&'a str> {
    const EXPECTED: &'static str = "an array of strings";
    fn read(fields: &Fields<'a>, key: Key) -> Result<Self, Unfit> {
        let Some(slot) = fields.slot(key) else { return Ok(Vec::new()) };
        let mut reader = Reader::new(slot);
        let Ok(Token::Array(count)) = reader.token() else { return Err(Unfit::WrongType) };
        // The slot is one whole value, so this reads to its end and no further.
        Ok((0..count).map_while(|_| reader.value().ok()).filter_map(|(value, _)| text(value)).collect())
    }
    fn write(&self, map: &mut MapWriter<'_>, key: Key) {
        if !self.is_empty() {
            strings(map.key(key), self);
        }
    }
}

/// The ids of a `batchAck`, at most 1,000 (9): written even when there is none, and every one a string.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ids<'a>(pub Vec<&'a str>);

impl<'a> Field<'a> for Ids<'a> {
    const EXPECTED: &'static str = "an array of at most 1,000 strings";
    fn read(fields: &Fields<'a>, key: Key) -> Result<Self, Unfit> {
        let Ok(Token::Array(count @ 0..=1_000)) = Reader::new(fields.required(key)?).token() else {
            return Err(Unfit::WrongType);
        };
        let items = Vec::<&str>::read(fields, key)?;
        if items.len() == count as usize { Ok(Self(items)) } else { Err(Unfit::WrongType) }
    }
    fn write(&self, map: &mut MapWriter<'_>, key: Key) {
        strings(map.key(key), &self.0);
    }
}

fn strings(out: &mut Vec<u8>, items: &[&str]) {
    write::token(out, Token::Array(u32::try_from(items.len()).unwrap_or(u32::MAX)));
    for item in items {
        write::str(out, item);
    }
}

/// Declares the frames of one direction: the structs, the enum, decoding and encoding.
///
/// A frame is `Variant "type" { field: Type = Key, … }`, its fields in the order they are written in.
macro_rules! frames {
    (
        $(#[$enum_doc:meta])*
        pub enum $enum:ident {
            $( $(#[$doc:meta])* $frame:ident $kind:literal {
                $( $(#[$field_doc:meta])* $field:ident : $type:ty = $key:ident ),* $(,)?
            } )*
        }
    ) => {
        $(
            $(#[$doc])*
            #[derive(Debug, Clone, PartialEq, Eq)]
            pub struct $frame<'a> {
                $( $(#[$field_doc])* pub $field: $type, )*
            }

            impl<'a> $frame<'a> {
                fn read(fields: &Fields<'a>) -> Result<Self, Fault> {
                    Ok(Self { $( $field: fields.field($kind, Key::$key)?, )* })
                }

                /// Appends the frame's canonical MessagePack.
                pub fn encode(&self, out: &mut Vec<u8>) {
                    const { assert!([Key::Type, $(Key::$key),*].len() <= MAX_FIELDS) };
                    let mut map = MapWriter::new(out);
                    $kind.write(&mut map, Key::Type);
                    $( self.$field.write(&mut map, Key::$key); )*
                }

                /// The frame's canonical MessagePack.
                pub fn to_vec(&self) -> Vec<u8> {
                    let mut out = Vec::with_capacity(128); // most frames but for their data
                    self.encode(&mut out);
                    out
                }
            }

            impl<'a> From<$frame<'a>> for $enum<'a> {
                fn from(frame: $frame<'a>) -> Self {
                    Self::$frame(frame)
                }
            }
        )*

        $(#[$enum_doc])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum $enum<'a> {
            $( #[doc = concat!("`", $kind, "`")] $frame($frame<'a>), )*
            /// A `type` that this version does not know; receivers ignore it.
            Unknown(&'a str),
        }

        impl<'a> $enum<'a> {
            /// Decodes one frame that fills `bytes`.
            pub fn decode(bytes: &'a [u8]) -> Result<Self, Malformed<'a>> {
                Self::read(&Fields::scan(bytes)?)
            }

            /// Decodes the frame that `bytes` begins with, and tells what comes behind it (`batch`, features 5): nothing
            /// once there is no telling where the next frame begins.
            pub fn decode_first(bytes: &'a [u8]) -> (Result<Self, Malformed<'a>>, &'a [u8]) {
                match Fields::scan_first(bytes) {
                    Ok((fields, rest)) => (Self::read(&fields), rest),
                    Err(fault) => (Err(fault.into()), &[]),
                }
            }

            fn read(fields: &Fields<'a>) -> Result<Self, Malformed<'a>> {
                let frame = match fields.kind() {
                    $( Ok($kind) => $frame::read(fields).map(Self::$frame), )*
                    Ok(other) => Ok(Self::Unknown(other)),
                    Err(fault) => Err(fault),
                };
                frame.map_err(|fault| fields.blame(fault))
            }

            /// The frame's canonical MessagePack; nothing for an unknown one.
            pub fn to_vec(&self) -> Vec<u8> {
                match self {
                    $( Self::$frame(frame) => frame.to_vec(), )*
                    Self::Unknown(_) => Vec::new(),
                }
            }

            /// The frame's `type`, if it is one of these.
            pub fn known_kind(&self) -> Option<&'static str> {
                match self {
                    $( Self::$frame(_) => Some($kind), )*
                    Self::Unknown(_) => None,
                }
            }
        }
    };
}
pub(super) use frames;
