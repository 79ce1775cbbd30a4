//! Clients.
pub(crate) mod rust;
pub(crate) mod stand_in;
