//! The NoLag broker as a library: tests run it whole, in memory, on a paused clock, or on a free port.
//!
//! | module | decides |
//! | --- | --- |
//! | [`config`] | settings, from flags and environment variables |
//! | [`auth`] | who a token stands for; the seam to other backends |
//! | [`http`] | what the port answers, and the upgrade to WebSocket |
//! | `connection` | one connection's life, and what each of its frames does |
//! | `outgoing` | the bounded queue of each connection, which everybody pushes to |
//! | `hub` | who is subscribed to what; fan-out, groups, filters, retained messages |
//! | `presence` | who is in which room, and who watches |
//! | [`store`] | what outlives the moment, or the process |
//! | `organizations` | how many connections an organization has |
//! | `metrics` | what is counted |
//! | [`clock`] | the date |

pub mod auth;
mod broker;
pub mod clock;
pub mod config;
mod connection;
pub mod http;
mod hub;
mod metrics;
mod organizations;
mod outgoing;
mod presence;
mod resume;
pub mod store;

pub use broker::Broker;
pub use connection::serve;
