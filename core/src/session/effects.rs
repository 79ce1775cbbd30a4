//! What a session answers with: a queue of outputs, and what every part needs to write to it.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::time::Duration;

use bytes::Bytes;
use nolag_protocol::features::Features;

use super::{LinkId, Output, Reply, RequestId, Stats};
use crate::event::{Event, Warning};
use crate::{Error, Options};

/// The time, the outputs so far, and the connection they go to.
pub(super) struct Effects {
    /// Since the start of the session.
    pub(super) now: Duration,
    /// The authenticated connection, if there is one.
    pub(super) link: Option<LinkId>,
    /// What the broker speaks; 1 until it says more (K-004).
    pub(super) protocol_version: u64,
    /// What this connection was granted (features 1).
    pub(super) features: Features,
    pub(super) rng: fastrand::Rng,
    /// What has been counted so far.
    pub(super) counts: Stats,
    out: VecDeque<Output>,
    open_calls: usize,
    ref_prefix: String,
    next_ref: u64,
    warned: Vec<Warning>,
}

impl Effects {
    pub(super) fn new(seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let ref_prefix = (0..8).map(|_| rng.alphanumeric()).collect();
        Self {
            now: Duration::ZERO,
            link: None,
            protocol_version: 1,
            features: Features::NONE,
            rng,
            counts: Stats::default(),
            out: VecDeque::new(),
            open_calls: 0,
            ref_prefix,
            next_ref: 0,
            warned: Vec::new(),
        }
    }

    pub(super) fn push(&mut self, output: Output) {
        self.out.push_back(output);
    }

    pub(super) fn pop(&mut self) -> Option<Output> {
        self.out.pop_front()
    }

    /// Gives back what a burst has left.
    pub(super) fn shrink(&mut self) {
        self.out.shrink_to(4);
    }

    /// How many outputs the host has not fetched yet.
    pub(super) fn len(&self) -> usize {
        self.out.len()
    }

    pub(super) fn event(&mut self, event: Event) {
        self.out.push_back(Output::Event(event));
    }

    pub(super) fn error(&mut self, error: Error) {
        self.event(Event::Error(error));
    }

    /// A warning, once per client.
    pub(super) fn warn(&mut self, warning: Warning) {
        if !self.warned.contains(&warning) {
            self.warned.push(warning);
            self.event(Event::Warning(warning));
        }
    }

    /// Lets a warning be given again: it holds for one connection.
    pub(super) fn forget_warning(&mut self, warning: Warning) {
        self.warned.retain(|given| *given != warning);
    }

    pub(super) fn opened(&mut self) {
        self.open_calls += 1;
    }

    pub(super) fn open_calls(&self) -> usize {
        self.open_calls
    }

    /// Every call comes here exactly once.
    pub(super) fn complete(&mut self, request: RequestId, result: Result<Reply, Error>) {
        self.open_calls = self.open_calls.saturating_sub(1);
        self.out.push_back(Output::Complete { request, result });
    }

    pub(super) fn done(&mut self, request: RequestId) {
        self.complete(request, Ok(Reply::Done));
    }

    /// Sends a frame; without an authenticated connection there is nothing to send on, and it is let go.
    pub(super) fn send(&mut self, frame: Vec<u8>) {
        if let Some(link) = self.link {
            self.send_on(link, frame);
        }
    }

    /// Sends a frame on a connection that need not be authenticated.
    pub(super) fn send_on(&mut self, link: LinkId, frame: Vec<u8>) {
        self.counts.frames_out += 1;
        self.counts.bytes_out += frame.len() as u64;
        self.out.push_back(Output::Send { link, frame: Bytes::from(frame) });
    }

    /// A reference no other request of this client has (features 3).
    pub(super) fn new_ref(&mut self) -> String {
        self.next_ref += 1;
        format!("{}-{}", self.ref_prefix, self.next_ref)
    }

    /// A reference where the broker answers it (wire protocol 6.2).
    pub(super) fn ref_if_understood(&mut self) -> Option<String> {
        (self.protocol_version >= 2).then(|| self.new_ref())
    }

    /// The client's name: the application's, or 16 random hex digits.
    pub(super) fn client_id(&mut self, options: &Options) -> String {
        options.client_id.clone().unwrap_or_else(|| {
            let mut id = String::new();
            let _ = write!(id, "{:016x}", self.rng.u64(..)); // writing to a string cannot fail
            id
        })
    }
}

/// The earliest of many deadlines. It may lie before all of them once the earliest is met; then one wake-up
/// finds nothing to do and looks again.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Earliest(Option<Duration>);

impl Earliest {
    pub(super) fn note(&mut self, deadline: Duration) {
        self.0 = Some(self.0.map_or(deadline, |earliest| earliest.min(deadline)));
    }

    /// Whether some deadline may have come; they are to be looked through and noted again.
    pub(super) fn take_due(&mut self, now: Duration) -> bool {
        let due = self.0.is_some_and(|earliest| earliest <= now);
        if due {
            self.0 = None;
        }
        due
    }

    pub(super) fn get(self) -> Option<Duration> {
        self.0
    }
}

/// The earlier of two deadlines, either of which may be absent.
pub(super) fn earlier(a: Option<Duration>, b: Option<Duration>) -> Option<Duration> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}
