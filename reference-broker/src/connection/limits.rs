//! What a connection may publish (wire protocol 9).

use nolag_protocol::frame::Limits as ToldLimits;

use crate::auth::Identity;
use crate::config::Settings;

/// The limits of one connection, and how much of them is used.
#[derive(Debug)]
pub(super) struct Limits {
    /// The largest payload, in bytes of MessagePack.
    pub(super) payload_bytes: usize,
    per_second: Option<u64>,
    /// The wall-clock second that is being counted, and the publishes accepted in it.
    second: u64,
    accepted: u64,
}

impl Limits {
    pub(super) fn new(settings: &Settings, identity: &Identity) -> Self {
        Self {
            payload_bytes: settings.payload_limit(identity.max_payload_bytes),
            per_second: settings.publish_rate(identity.publishes_per_second),
            second: 0,
            accepted: 0,
        }
    }

    /// Takes over changed limits; what was accepted in this second still counts.
    pub(super) fn renew(&mut self, settings: &Settings, identity: &Identity) {
        let Self { second, accepted, .. } = *self;
        *self = Self { second, accepted, ..Self::new(settings, identity) };
    }

    /// As the client is told.
    pub(super) fn told(&self) -> ToldLimits {
        ToldLimits {
            publishes_per_second: self.per_second,
            max_payload_bytes: u64::try_from(self.payload_bytes).ok(),
        }
    }

    /// Whether one more publish fits into this second. The window is a wall-clock second (wire protocol 9).
    pub(super) fn admits(&mut self, second: u64) -> bool {
        if self.second != second {
            (self.second, self.accepted) = (second, 0);
        }
        self.per_second.is_none_or(|limit| self.accepted < limit)
    }

    /// One more publish was accepted in this second; refused ones do not count.
    pub(super) fn count(&mut self) {
        self.accepted += 1;
    }
}
