//! States, authentication, back-off with jitter, heartbeats and liveness (client-api 2, 3, 10).
//!
//! What is decided here is when to try, when to give up and when a connection counts as lost; `life.rs` carries it out.

use std::time::Duration;

use nolag_protocol::codes::{self, Verdict};

use super::{LinkId, RequestId};
use crate::error::{ConnectionCode, Error};
use crate::event::State;
use crate::options::{Backoff, Credentials, Options, Secret};

/// A connection that lasted so long starts the back-off anew (client-api 3.1).
pub(super) const STABLE: Duration = Duration::from_secs(10);
/// No attempt sooner than this after `connection_limit_reached` (K-008).
const LIMIT_WAIT: Duration = Duration::from_secs(30);
/// How many protocol errors in a row are retried (client-api 4).
const MAX_PROTOCOL_ERRORS: u32 = 3;
/// Hints are advisory: an attempt is made after this time all the same (client-api 10.3).
pub(super) const SUSPENDED_AT_MOST: Duration = Duration::from_secs(300);
/// The longest heartbeat interval: brokers close what is silent for 60 s.
pub(super) const MAX_HEARTBEAT: Duration = Duration::from_secs(45);
/// A renewal comes no sooner than this after connecting (wire protocol 7).
const EARLIEST_RENEWAL: Duration = Duration::from_secs(5);

/// Where the connection stands, with what each state needs.
#[derive(Debug)]
pub(super) enum Phase {
    Idle,
    Opening {
        link: LinkId,
        until: Duration,
    },
    /// Open; `call` is the token provider's while its token is not here yet.
    Authenticating {
        link: LinkId,
        until: Duration,
        call: Option<u64>,
    },
    Up(Up),
    Backoff {
        until: Duration,
    },
    Suspended {
        until: Duration,
    },
    Closed,
    Failed,
}

/// An authenticated connection.
#[derive(Debug)]
pub(super) struct Up {
    pub(super) link: LinkId,
    pub(super) since: Duration,
    pub(super) heart: Heart,
    pub(super) renewal: Renewal,
    /// How often in a row the provider had no token for it.
    pub(super) not_renewed: u32,
}

/// Heartbeats of one connection.
#[derive(Debug)]
pub(super) struct Heart {
    /// Zero sends none by itself.
    interval: Duration,
    next: Option<Duration>,
    beat: Option<Beat>,
    pub(super) last_received: Duration,
    pub(super) round_trip: Option<Duration>,
}

/// A heartbeat that nothing has come after.
#[derive(Debug)]
struct Beat {
    sent: Duration,
    deadline: Duration,
    /// The deadline has passed once: what lay unread by then has its chance (client-api 10.6).
    suspect: bool,
}

/// What is due on a connection.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Pulse {
    Nothing,
    Beat,
    Dead,
}

impl Heart {
    pub(super) fn new(now: Duration, options: &Options) -> Self {
        let interval = options.heartbeat_interval.min(MAX_HEARTBEAT);
        let next = (!interval.is_zero()).then(|| now + interval);
        Self { interval, next, beat: None, last_received: now, round_trip: None }
    }

    /// Something arrived; `echo` says that it was a heartbeat.
    pub(super) fn received(&mut self, now: Duration, echo: bool) {
        self.last_received = now;
        if let Some(beat) = self.beat.take()
            && echo
        {
            self.round_trip = Some(now.saturating_sub(beat.sent));
        }
    }

    /// Asks the other end for a sign of life within `limit`; true if a heartbeat is to be sent.
    pub(super) fn probe(&mut self, now: Duration, limit: Duration) -> bool {
        let deadline = now + limit;
        match &mut self.beat {
            Some(beat) => {
                // After a sleep the old deadline has passed while nothing could arrive.
                beat.deadline = if beat.deadline <= now { deadline } else { beat.deadline.min(deadline) };
                beat.suspect = false;
                false
            }
            None => {
                self.beat = Some(Beat { sent: now, deadline, suspect: false });
                true
            }
        }
    }

    /// The other end cannot be heard, for reasons of our own: its time starts anew.
    pub(super) fn excuse(&mut self, now: Duration, timeout: Duration) {
        if let Some(beat) = self.beat.as_mut().filter(|beat| beat.deadline <= now) {
            beat.deadline = now + timeout;
            beat.suspect = false;
        }
    }

    pub(super) fn pulse(&mut self, now: Duration, timeout: Duration) -> Pulse {
        if let Some(beat) = self.beat.as_mut().filter(|beat| beat.deadline <= now) {
            if beat.suspect {
                return Pulse::Dead;
            }
            beat.suspect = true;
            beat.deadline = now + Duration::from_millis(1);
        }
        if self.next.is_some_and(|next| next <= now) {
            self.next = Some(now + self.interval);
            if self.probe(now, timeout) {
                return Pulse::Beat;
            }
        }
        Pulse::Nothing
    }

    fn deadline(&self) -> Option<Duration> {
        super::effects::earlier(self.next, self.beat.as_ref().map(|beat| beat.deadline))
    }
}

/// The renewal of a token on a live connection (wire protocol 7).
#[derive(Debug)]
pub(super) enum Renewal {
    /// None is planned.
    None,
    /// The provider is asked then.
    Due(Duration),
    /// It is being asked.
    Asking { call: u64, until: Duration },
    /// `reauth` was sent with this token.
    Sent { until: Duration, token: Dated },
}

/// A token, and when it ends, if that is known.
#[derive(Debug, Clone)]
pub(super) struct Dated {
    pub(super) secret: Secret,
    pub(super) ends: Option<Duration>,
}

impl Dated {
    fn aged(&mut self, by: Duration) {
        self.ends = self.ends.map(|ends| ends.saturating_sub(by));
    }
}

impl Renewal {
    /// Planned so long before the token's end, if that is known.
    pub(super) fn before(now: Duration, token: &Dated, margin: Duration) -> Self {
        match token.ends {
            Some(ends) => Self::Due(ends.saturating_sub(margin).max(now + EARLIEST_RENEWAL)),
            None => Self::None,
        }
    }

    /// The token has grown older than session time shows.
    fn aged(&mut self, by: Duration) {
        match self {
            Self::Due(at) => *at = at.saturating_sub(by),
            Self::Sent { token, .. } => token.aged(by),
            Self::None | Self::Asking { .. } => {}
        }
    }

    /// Whether this call of the provider is the one that is awaited.
    pub(super) fn is_asked_by(&self, number: u64) -> bool {
        matches!(self, Self::Asking { call, .. } if *call == number)
    }

    fn deadline(&self) -> Option<Duration> {
        match self {
            Self::None => None,
            Self::Due(at) | Self::Asking { until: at, .. } | Self::Sent { until: at, .. } => Some(*at),
        }
    }
}

/// What follows a failed attempt or a lost connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// Another attempt, after the back-off and not before `floor` has passed.
    Retry {
        floor: Duration,
    },
    /// Another attempt at once, with a new token.
    Renew,
    GiveUp,
}

impl Next {
    pub(super) const RETRY: Self = Self::Retry { floor: Duration::ZERO };
}

/// A close that the application asked for and that still drains.
#[derive(Debug)]
pub(super) struct Closing {
    pub(super) until: Duration,
    pub(super) requests: Vec<RequestId>,
}

/// Attempts, their history and what holds them back.
pub(super) struct Connection {
    pub(super) phase: Phase,
    pub(super) closing: Option<Closing>,
    /// Calls of `connect`, each with its deadline.
    pub(super) waiters: Vec<(RequestId, Option<Duration>)>,
    /// Attempts since the last stable connection.
    pub(super) tries: u32,
    /// How many of them do not count against `max_attempts`, because they brought the connection that was lost.
    pub(super) free_tries: u32,
    /// This is the first attempt since `connect` was called.
    pub(super) first: bool,
    pub(super) ever_connected: bool,
    /// The connection that is up, or comes next, follows a loss.
    pub(super) after_loss: bool,
    /// When the lost connection last received anything.
    pub(super) last_received: Option<Duration>,
    /// When a connection was lost that is not back yet.
    pub(super) lost_at: Option<Duration>,
    pub(super) offline: bool,
    pub(super) suspended: bool,
    /// The token of this attempt.
    pub(super) token: Option<Dated>,
    /// The token that was refused last, while no connection has succeeded since, and why.
    pub(super) rejected: Option<(Secret, Error)>,
    /// How often a new token was tried at once since the last stable connection.
    pub(super) renewals: u32,
    /// The broker's own bound on the next attempt.
    pub(super) retry_after: Option<Duration>,
    pub(super) last_error: Option<Error>,
    protocol_errors: u32,
    next_number: u64,
}

impl Connection {
    pub(super) fn new() -> Self {
        Self {
            phase: Phase::Idle,
            closing: None,
            waiters: Vec::new(),
            tries: 0,
            free_tries: 0,
            first: false,
            ever_connected: false,
            after_loss: false,
            last_received: None,
            lost_at: None,
            offline: false,
            suspended: false,
            token: None,
            rejected: None,
            renewals: 0,
            retry_after: None,
            last_error: None,
            protocol_errors: 0,
            next_number: 0,
        }
    }

    /// A number for a transport or a call of the token provider.
    pub(super) fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    pub(super) fn state(&self) -> State {
        match self.phase {
            Phase::Idle => State::Idle,
            Phase::Opening { .. } => State::Connecting,
            Phase::Authenticating { .. } => State::Authenticating,
            Phase::Up(_) if self.closing.is_some() => State::Closing,
            Phase::Up(_) => State::Connected,
            Phase::Backoff { .. } => State::Backoff,
            Phase::Suspended { .. } => State::Suspended,
            Phase::Closed => State::Closed,
            Phase::Failed => State::Failed,
        }
    }

    /// The transport in use.
    pub(super) fn link(&self) -> Option<LinkId> {
        match &self.phase {
            Phase::Opening { link, .. } | Phase::Authenticating { link, .. } => Some(*link),
            Phase::Up(up) => Some(up.link),
            _ => None,
        }
    }

    pub(super) fn up(&mut self) -> Option<&mut Up> {
        match &mut self.phase {
            Phase::Up(up) => Some(up),
            _ => None,
        }
    }

    /// Whether the client is connected or will be by itself.
    pub(super) fn is_running(&self) -> bool {
        !matches!(self.phase, Phase::Idle | Phase::Closed | Phase::Failed)
    }

    /// What calls that need a running client get instead; nothing if it runs.
    pub(super) fn refusal(&self) -> Option<Error> {
        match self.phase {
            Phase::Idle => Some(Error::NotConnected),
            Phase::Closed | Phase::Failed => Some(Error::closed()),
            _ => self.closing.is_some().then(Error::closed),
        }
    }

    /// The wait before the next attempt: `U(0.5, 1) × min(max, base × factor^(n−1))`, not below the bound that the
    /// broker gave (client-api 3.1).
    pub(super) fn delay(&self, rng: &mut fastrand::Rng, backoff: &Backoff, floor: Duration) -> Duration {
        jittered(rng, backoff, self.tries).max(floor).max(self.retry_after.unwrap_or_default())
    }

    /// The machine has slept for so long, while session time stood still.
    pub(super) fn slept(&mut self, time: Duration) {
        if let Some(token) = &mut self.token {
            token.aged(time);
        }
        if let Some(up) = self.up() {
            up.renewal.aged(time);
        }
    }

    /// What a refused `auth` means (wire protocol 6.4, client-api 4).
    pub(super) fn after_auth_failure(&mut self, reason: &str, options: &Options) -> (Error, Next) {
        let error = Error::auth(reason);
        let next = match codes::error_verdict(reason) {
            Some(Verdict::Reconnect) => Next::RETRY,
            Some(Verdict::ReconnectLate) => Next::Retry { floor: LIMIT_WAIT },
            _ if reason == "auth_timeout" || reason == "auth_unavailable" => Next::RETRY,
            _ => self.reject(&error, options),
        };
        if next == Next::GiveUp { (error.made_fatal(), next) } else { (error, next) }
    }

    /// The token was refused: a provider is asked once more, and that is all (client-api 11).
    fn reject(&mut self, error: &Error, options: &Options) -> Next {
        let token = self.token.take().map(|token| token.secret);
        if matches!(options.credentials, Credentials::Static(_)) || self.rejected.is_some() {
            return Next::GiveUp;
        }
        self.rejected = token.map(|token| (token, error.clone()));
        Next::Renew
    }

    /// What a close means (wire protocol 12.4). The error is told only where the application could do something.
    pub(super) fn after_close(
        &mut self,
        code: Option<u16>,
        reason: &str,
        options: &Options,
    ) -> (Error, Next, bool) {
        let text =
            |code: u16| if reason.is_empty() { format!("closed with {code}") } else { reason.to_owned() };
        let Some(code) = code else {
            return (
                Error::lost(if reason.is_empty() { "connection lost" } else { reason }),
                Next::RETRY,
                false,
            );
        };
        match code {
            1002 | 1003 | 1007 | 1009 => {
                let (error, next) = self.after_protocol_error(&text(code));
                (error, next, true)
            }
            1008 => (Error::auth(text(code)).made_fatal(), Next::GiveUp, true),
            4001 | 4003 => {
                let reason = match (code, reason) {
                    (4003, _) => "token_expired",
                    (_, "") => "token_revoked",
                    (_, reason) => reason,
                };
                let error = Error::auth(reason);
                match self.reject(&error, options) {
                    Next::GiveUp => (error.made_fatal(), Next::GiveUp, true),
                    next => (error, next, true),
                }
            }
            4002 => {
                let error = Error::auth("connection_limit_reached");
                (error, Next::Retry { floor: LIMIT_WAIT }, true)
            }
            4004 => (Error::auth("auth_unavailable"), Next::RETRY, true),
            _ => (Error::lost(text(code)), Next::RETRY, code >= 4000),
        }
    }

    fn after_protocol_error(&mut self, message: &str) -> (Error, Next) {
        self.protocol_errors += 1;
        let fatal = self.protocol_errors > MAX_PROTOCOL_ERRORS;
        let code = ConnectionCode::ProtocolError;
        let error = Error::Connection { code, message: message.to_owned(), fatal, outcome_unknown: false };
        (error, if fatal { Next::GiveUp } else { Next::RETRY })
    }

    /// What a transport that did not open, or broke, means.
    pub(super) fn after_failure(
        &mut self,
        code: ConnectionCode,
        message: &str,
        retry_after: Option<Duration>,
    ) -> (Error, Next) {
        if code == ConnectionCode::ProtocolError {
            return self.after_protocol_error(message);
        }
        let fatal = code.is_hopeless() && !self.ever_connected;
        let error = Error::Connection { code, message: message.to_owned(), fatal, outcome_unknown: false };
        let floor = retry_after.unwrap_or_default();
        (error, if fatal { Next::GiveUp } else { Next::Retry { floor } })
    }

    /// A connection ended that was up since then; one that lasted clears the record.
    pub(super) fn ended(&mut self, now: Duration, since: Duration) {
        if now.saturating_sub(since) >= STABLE {
            (self.tries, self.free_tries) = (1, 1);
            self.renewals = 0;
            self.protocol_errors = 0;
        }
    }

    pub(super) fn deadline(&self) -> Option<Duration> {
        let phase = match &self.phase {
            Phase::Opening { until, .. }
            | Phase::Authenticating { until, .. }
            | Phase::Backoff { until }
            | Phase::Suspended { until } => Some(*until),
            Phase::Up(up) => super::effects::earlier(up.heart.deadline(), up.renewal.deadline()),
            Phase::Idle | Phase::Closed | Phase::Failed => None,
        };
        let waiters = self.waiters.iter().filter_map(|(_, deadline)| *deadline).min();
        let closing = self.closing.as_ref().map(|closing| closing.until);
        super::effects::earlier(super::effects::earlier(phase, waiters), closing)
    }
}

/// The wait after the n-th failure in a row (client-api 3.1).
pub(super) fn jittered(rng: &mut fastrand::Rng, backoff: &Backoff, n: u32) -> Duration {
    let exponent = i32::try_from(n.max(1) - 1).unwrap_or(i32::MAX);
    let grown = backoff.base.as_secs_f64() * backoff.factor.max(1.0).powi(exponent);
    let full = grown.min(backoff.max.as_secs_f64()).max(0.0);
    Duration::try_from_secs_f64(full * (0.5 + rng.f64() / 2.0)).unwrap_or(backoff.max)
}
