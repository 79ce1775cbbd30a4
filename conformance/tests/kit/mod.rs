//! What tests against real processes share: the broker's program, and a proxy that does to a connection what networks do.

// Each test file uses its own part of the kit, and is a crate of its own.
#![allow(dead_code, unreachable_pub)]

pub mod program;
pub mod proxy;

use std::time::Duration;

use nolag_core::Event;
use tokio::sync::broadcast;

/// Longer than anything takes that happens at all.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Waits for what must happen.
pub async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("it takes too long: {what}"))
}

/// Waits for an event.
pub async fn event(
    what: &str,
    events: &mut broadcast::Receiver<Event>,
    is_it: impl Fn(&Event) -> bool,
) -> Event {
    soon(what, async {
        loop {
            match events.recv().await {
                Ok(event) if is_it(&event) => return event,
                Ok(_) => {}
                Err(error) => panic!("{what}: {error}"),
            }
        }
    })
    .await
}
