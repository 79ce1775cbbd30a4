//! What holds for any input: random bytes, mutated vectors, random values, and all small topics.
//!
//! A failure prints its smallest input and the seed, which `proptest-regressions/` keeps.

mod filters;
mod frames;
#[cfg(feature = "json")]
mod json;
mod payloads;
mod topics;
mod values;
