//! The keys of all frames, and the one pass over a frame that finds where their values lie.

use super::fields::{Field, Unfit, text};
use crate::msgpack::{self, Contents, Reader, Token};

macro_rules! keys {
    ($($key:ident $name:literal)*) => {
        /// A key that some frame knows.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(super) enum Key { $($key),* }

        impl Key {
            const COUNT: usize = [$(Key::$key),*].len();

            fn parse(name: &[u8]) -> Option<Self> {
                // Compared as bytes: what is no UTF-8 is no key of ours.
                $(if name == $name.as_bytes() { return Some(Key::$key) })*
                None
            }

            /// The key as it is on the wire.
            pub(super) fn name(self) -> &'static str {
                match self { $(Key::$key => $name),* }
            }
        }
    };
}

keys! {
    Type "type" Topic "topic" Data "data" MsgRef "msgRef" MsgId "msgId" RequiresAck "requiresAck"
    IsReplay "isReplay" From "from" FromType "fromType" Filter "filter" Timestamp "timestamp"
    SourceTopic "sourceTopic" Retained "retained" Seq "seq" Redelivered "redelivered" Trace "trace"
    Qos "qos" Retain "retain" RetainTtl "retainTtl" Echo "echo" Filters "filters"
    Token "token" ProtocolVersion "protocolVersion" ClientId "clientId" Reconnect "reconnect"
    ProjectId "projectId" Features "features" LoadBalance "loadBalance" LoadBalanceGroup "loadBalanceGroup"
    Recover "recover" History "history" Redeliver "redeliver" AckTimeoutMs "ackTimeoutMs" MsgIds "msgIds"
    App "app" RoomId "roomId" LobbyId "lobbyId" LobbyUuid "lobbyUuid" ActorId "actorId"
    Success "success" Error "error" ActorTokenId "actorTokenId" ActorType "actorType"
    RestoredSubscriptions "restoredSubscriptions" Limits "limits" RetryAfterMs "retryAfterMs"
    AuthExpiresAt "authExpiresAt" Epoch "epoch" Recovered "recovered" Gap "gap" Reason "reason"
    Duplicate "duplicate" Level "level" Truncated "truncated" Presence "presence" Event "event"
    FullTopic "fullTopic" Count "count" Replayed "replayed" OldestTimestamp "oldestTimestamp"
    NewestTimestamp "newestTimestamp" Code "code" Hint "hint" Detail "detail" MaxSizeBytes "maxSizeBytes"
    PublishesPerSecond "publishesPerSecond" MaxPayloadBytes "maxPayloadBytes"
}

/// What is wrong with a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The bytes are not one MessagePack value.
    #[error("{0}")]
    Syntax(#[from] msgpack::Error),
    /// The text is not one JSON value.
    #[error("the text is no JSON")]
    Json,
    /// A value, but no map.
    #[error("a frame is a map")]
    NotAMap,
    /// A map whose `type` is absent or no string.
    #[error("a frame has a `type`, a string")]
    NoType,
    /// A field that the frame must have is absent.
    #[error("{frame} needs {field}")]
    Missing {
        /// The frame's `type`.
        frame: &'static str,
        /// The field's key.
        field: &'static str,
    },
    /// A field is there but not what it must be.
    #[error("{field} of {frame} is {expected}")]
    WrongType {
        /// The frame's `type`.
        frame: &'static str,
        /// The field's key.
        field: &'static str,
        /// What belongs there.
        expected: &'static str,
    },
    /// An extension value in a field that is not the application's.
    #[error("{0} holds an extension value")]
    Ext(&'static str),
    /// A `str` that is not valid UTF-8 in a field that is not the application's.
    #[error("{0} holds text that is not UTF-8")]
    BrokenText(&'static str),
}

/// A frame that cannot be used, with what its sender needs to find the request that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{fault}")]
pub struct Malformed<'a> {
    /// What is wrong.
    #[source]
    pub fault: Fault,
    /// The frame's `topic`, if it has one.
    pub topic: Option<&'a str>,
    /// The frame's `msgRef`, if it has one.
    pub msg_ref: Option<&'a str>,
}

impl From<Fault> for Malformed<'_> {
    fn from(fault: Fault) -> Self {
        Self { fault, topic: None, msg_ref: None }
    }
}

/// Some of the keys, one bit each.
#[derive(Debug, Clone, Copy, Default)]
struct Keys(u128);

const _: () = assert!(Key::COUNT <= 128);

impl Keys {
    fn set(&mut self, key: Key, member: bool) {
        let bit = 1 << key as u32;
        self.0 = if member { self.0 | bit } else { self.0 & !bit };
    }

    fn has(self, key: Key) -> bool {
        self.0 & (1 << key as u32) != 0
    }
}

/// Where the value of each key of a frame lies, and what was seen in it.
pub(super) struct Fields<'a> {
    slots: [Option<&'a [u8]>; Key::COUNT],
    ext: Keys,
    broken_text: Keys,
}

impl<'a> Fields<'a> {
    /// Passes over one frame that fills `bytes`.
    pub(super) fn scan(bytes: &'a [u8]) -> Result<Self, Fault> {
        let (fields, rest) = Self::scan_first(bytes)?;
        if rest.is_empty() { Ok(fields) } else { Err(msgpack::Error::Trailing.into()) }
    }

    /// Passes over the frame that `bytes` begins with, and tells what comes behind it. Of a repeated key the last
    /// value counts; nil is absence, but for `data`.
    pub(super) fn scan_first(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), Fault> {
        let mut reader = Reader::new(bytes);
        let Token::Map(pairs) = reader.token()? else {
            msgpack::single(bytes)?;
            return Err(Fault::NotAMap);
        };
        let mut fields =
            Self { slots: [None; Key::COUNT], ext: Keys::default(), broken_text: Keys::default() };
        for _ in 0..pairs {
            let key = key(&mut reader)?;
            let (value, contents) = reader.value()?;
            let Some(key) = key else { continue };
            fields.slots[key as usize] = (key == Key::Data || value != msgpack::NIL).then_some(value);
            fields.ext.set(key, contents.ext);
            fields.broken_text.set(key, contents.broken_text);
        }
        Ok((fields, reader.rest()))
    }

    /// The value of a key.
    pub(super) fn slot(&self, key: Key) -> Option<&'a [u8]> {
        self.slots[key as usize]
    }

    /// What was seen in the value of a key.
    pub(super) fn contents(&self, key: Key) -> Contents {
        Contents { broken_text: self.broken_text.has(key), ext: self.ext.has(key) }
    }

    /// The value of a key that must be there.
    pub(super) fn required(&self, key: Key) -> Result<&'a [u8], Unfit> {
        self.slot(key).ok_or(Unfit::Absent)
    }

    /// The frame's `type`.
    pub(super) fn kind(&self) -> Result<&'a str, Fault> {
        self.slot(Key::Type).and_then(text).ok_or(Fault::NoType)
    }

    /// One field of a frame of the type `frame`.
    pub(super) fn field<T: Field<'a>>(&self, frame: &'static str, key: Key) -> Result<T, Fault> {
        let field = key.name();
        match self.contents(key) {
            Contents { ext: true, .. } if !T::OPAQUE => return Err(Fault::Ext(field)),
            Contents { broken_text: true, .. } if !T::OPAQUE => return Err(Fault::BrokenText(field)),
            _ => {}
        }
        T::read(self, key).map_err(|unfit| match unfit {
            Unfit::Absent => Fault::Missing { frame, field },
            Unfit::WrongType => Fault::WrongType { frame, field, expected: T::EXPECTED },
        })
    }

    /// Names the request that a fault belongs to.
    pub(super) fn blame(&self, fault: Fault) -> Malformed<'a> {
        let named = |key| self.slot(key).and_then(text);
        Malformed { fault, topic: named(Key::Topic), msg_ref: named(Key::MsgRef) }
    }
}

/// The next key of a map, if some frame knows it. It may be any value at all.
fn key(reader: &mut Reader<'_>) -> Result<Option<Key>, msgpack::Error> {
    let mut after = reader.clone();
    Ok(match after.token()? {
        Token::Str(name) | Token::Bin(name) => {
            *reader = after;
            Key::parse(name)
        }
        _ => {
            reader.value()?;
            None
        }
    })
}
