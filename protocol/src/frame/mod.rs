//! Frames: one MessagePack map each, told apart by `type` (wire protocol 4, 10 and 11).
//!
//! Decoding passes over the bytes once: it notes where the value of each key that any frame knows lies, and
//! reads only those that the frame at hand has. Encoding writes the canonical form: `type` first, then the
//! fields in the order of their declaration, absent ones left out.
//!
//! - [`ClientFrame`]: what clients send, [`ServerFrame`]: what brokers send, each a table of its fields
//! - `scan`: the keys, and the one pass that finds their values
//! - `fields`: how a field of each type is read and written

mod client;
mod fields;
mod scan;
mod server;

pub use client::*;
pub use fields::{Data, Ids, Lenient, Limits, Nilable, Position, Qos, Raw, Version};
pub use scan::{Fault, Malformed};
pub use server::*;
