//! Nothing but nolag-protocol's codec, to see what it weighs as WebAssembly: both directions decoded and encoded, as a
//! browser client and its tests need them, and what little of the standard library comes with any Rust program.

use std::hint::black_box;

use nolag_protocol::frame::{ClientFrame, ServerFrame};

fn main() {
    // The compiler must not know the bytes, or it would leave out what they do not need.
    let bytes: &[u8] = black_box(&[]);
    black_box(ClientFrame::decode(bytes).is_ok_and(|frame| frame.to_vec().is_empty()));
    black_box(ServerFrame::decode(bytes).is_ok_and(|frame| frame.to_vec().is_empty()));
}
