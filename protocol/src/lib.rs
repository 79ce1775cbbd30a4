//! The NoLag wire protocol: what travels, and the rules both ends apply to it.
//!
//! This crate is shared by the broker and the client core. It does no I/O, reads no clock and never
//! blocks; everything borrows from the bytes it was given. An application's `data` is one MessagePack
//! value whose extent is found and which is otherwise left alone.
//!
//! | module | decides |
//! | --- | --- |
//! | [`frame`] | every frame of the protocol, decoded in one pass and encoded canonically |
//! | [`msgpack`] | the extent of a value, and the few primitives that frames are made of |
//! | [`payload`] | what a relay must change in an application's value, if anything |
//! | [`json`] | the JSON text fallback, turned into the same MessagePack |
//! | [`topic`] | which addresses are well formed |
//! | [`grant`] | who may do what, and which internal name an address resolves to |
//! | [`filter`] | the keys that filters stand for |
//! | [`codes`] | error and close codes, each with what a client does about it |
//! | [`features`] | what both ends can do beyond the published protocol, each offered and granted by name |
//! | [`trace`] | what names the trace that a publish belongs to |

pub mod codes;
pub mod features;
pub mod filter;
pub mod frame;
pub mod grant;
#[cfg(feature = "json")]
pub mod json;
pub mod msgpack;
pub mod payload;
pub mod topic;
pub mod trace;

/// The highest protocol version that these frames speak (wire protocol 6.2).
pub const PROTOCOL_VERSION: u64 = 2;

/// The largest WebSocket message either side may send, in bytes (wire protocol 3).
pub const MAX_MESSAGE_BYTES: usize = 1_048_576;

/// The largest `data` of a publish where nothing else is set, in bytes of MessagePack (wire protocol 9).
pub const MAX_PAYLOAD_BYTES: usize = 921_600;
