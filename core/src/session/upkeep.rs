//! What keeps a connection alive, and what is due when: heartbeats, time-outs, renewals, hints (client-api 10).

use std::time::Duration;

use super::connection::{Next, Phase, Pulse, Renewal, SUSPENDED_AT_MOST, jittered};
use super::life::{Down, connection_error, provider_failed};
use super::requests::Kind;
use super::{Hint, LinkId, Output, RequestId, Session, TokenFailure, TokenReason};
use crate::error::{ConnectionCode, Error};

/// How long a connection has to prove itself after a hint (client-api 10.3).
const HINT_PROBE: Duration = Duration::from_secs(2);

impl Session {
    /// What the platform hints at (client-api 10.3).
    pub fn hint(&mut self, now: Duration, hint: Hint) {
        self.begin(now);
        match hint {
            Hint::Offline => self.connection.offline = true,
            Hint::Suspend => {
                self.connection.suspended = true;
                self.inbox.send_acks(&mut self.fx);
            }
            Hint::Online => self.connection.offline = false,
            Hint::Resume => self.connection.suspended = false,
            Hint::Slept(time) => self.connection.slept(time),
            Hint::ReconnectNow => {}
        }
        match hint {
            Hint::Offline | Hint::Suspend => self.suspend(),
            Hint::Online | Hint::Resume if self.connection.offline || self.connection.suspended => {}
            Hint::Online | Hint::Resume | Hint::Slept(_) | Hint::ReconnectNow => self.revive(),
        }
        self.end();
    }

    /// Holds attempts back; a connection that is up stays until it proves dead.
    fn suspend(&mut self) {
        let link = match self.connection.phase {
            Phase::Opening { link, .. } | Phase::Authenticating { link, .. } => Some(link),
            Phase::Backoff { .. } => None,
            _ => return,
        };
        if let Some(link) = link {
            self.fx.push(Output::CloseTransport { link, code: 1000, reason: "", abort: true });
        }
        self.enter(Phase::Suspended { until: self.fx.now + SUSPENDED_AT_MOST }, "suspended", None);
    }

    /// Something may have changed outside: prove the connection, or try at once.
    pub(super) fn revive(&mut self) {
        match self.connection.phase {
            Phase::Up(_) => self.probe(HINT_PROBE),
            Phase::Backoff { .. } => self.attempt("hint", true),
            Phase::Suspended { .. } => self.attempt("hint", false),
            _ => {}
        }
    }

    pub(super) fn probe(&mut self, limit: Duration) {
        let now = self.fx.now;
        if self.connection.up().is_some_and(|up| up.heart.probe(now, limit)) {
            self.fx.send(Vec::new());
            self.subscriptions.beat();
        }
    }

    /// The host reads nothing just now, because it has no room: that the broker cannot be heard is not the broker's fault.
    pub fn unread(&mut self, now: Duration) {
        let timeout = self.options.heartbeat_timeout;
        if let Some(up) = self.connection.up() {
            up.heart.excuse(now, timeout);
        }
    }

    /// Whatever is due by now.
    pub(super) fn due(&mut self) {
        let now = self.fx.now;
        let impatient = |(_, deadline): &mut (RequestId, Option<Duration>)| {
            deadline.is_some_and(|deadline| deadline <= now)
        };
        let last_error = &self.connection.last_error;
        for (waiter, _) in self.connection.waiters.extract_if(.., impatient) {
            let last = last_error.as_ref().map(|last| format!("; the last attempt: {last}"));
            let message = format!("not connected in time{}", last.unwrap_or_default());
            self.fx.complete(waiter, Err(connection_error(ConnectionCode::ConnectTimeout, &message)));
        }
        match self.connection.phase {
            Phase::Opening { link, until } if until <= now => {
                let error =
                    connection_error(ConnectionCode::ConnectTimeout, "the transport did not open in time");
                self.time_out(link, error);
            }
            Phase::Authenticating { link, until, .. } if until <= now => {
                self.time_out(link, Error::auth("auth_timeout"));
            }
            Phase::Backoff { until } if until <= now => self.attempt("backoff", true),
            Phase::Suspended { until } if until <= now => self.attempt("safety", false),
            Phase::Up(_) => self.due_on_connection(),
            _ => {}
        }
        if self.connection.closing.as_ref().is_some_and(|closing| closing.until <= now) {
            self.finish_closing();
        }
        self.inbox.wake(&mut self.fx);
        let timeout = self.options.presence_timeout;
        self.presence.wake(&mut self.fx, &mut self.requests, timeout);
    }

    fn time_out(&mut self, link: LinkId, error: Error) {
        self.fx.push(Output::CloseTransport { link, code: 1000, reason: "", abort: true });
        let reason = error.to_string();
        self.down(Down { error, next: Next::RETRY, tell: true, reason, close_code: None });
    }

    fn due_on_connection(&mut self) {
        let (now, timeout) = (self.fx.now, self.options.heartbeat_timeout);
        let reading = self.inbox.has_room(&self.options);
        let Some(up) = self.connection.up() else { return };
        let link = up.link;
        if !reading {
            up.heart.excuse(now, timeout); // nothing can arrive while nothing is read (client-api 12.1)
        }
        match up.heart.pulse(now, timeout) {
            Pulse::Nothing => {}
            Pulse::Beat => {
                self.fx.send(Vec::new());
                self.subscriptions.beat();
            }
            Pulse::Dead => {
                self.fx.push(Output::CloseTransport { link, code: 1000, reason: "", abort: true });
                let error = connection_error(ConnectionCode::HeartbeatTimeout, "the broker does not answer");
                let reason = error.to_string();
                return self.down(Down { error, next: Next::RETRY, tell: true, reason, close_code: None });
            }
        }
        let expired = self.requests.expire(now);
        let unanswered = expired.iter().any(|request| !matches!(request.kind, Kind::Presence { .. }));
        for request in expired {
            self.request_overdue(request);
        }
        if self.outbox.overdue(&mut self.fx) || unanswered {
            self.probe(timeout);
        }
        self.renew();
    }

    /// The renewal of the token, where one is due (wire protocol 7).
    fn renew(&mut self) {
        let now = self.fx.now;
        let call = self.connection.number();
        let until = now + self.options.auth_timeout;
        let Some(up) = self.connection.up() else { return };
        match &up.renewal {
            Renewal::Due(at) if *at <= now => {
                up.renewal = Renewal::Asking { call, until };
                self.need_token(call, TokenReason::Expired);
            }
            Renewal::Asking { until, .. } if *until <= now => {
                self.not_renewed(&TokenFailure { message: "no answer in time".into(), fatal: false });
            }
            Renewal::Sent { until, .. } if *until <= now => self.refresh(),
            _ => {}
        }
    }

    /// The provider has no token for the live connection. It is asked again after a while, unless it says that this is of no
    /// use: then the connection lasts as long as its token.
    pub(super) fn not_renewed(&mut self, failure: &TokenFailure) {
        self.fx.error(provider_failed(failure));
        let Some(up) = self.connection.up() else { return };
        up.not_renewed += 1;
        up.renewal = if failure.fatal {
            Renewal::None
        } else {
            let wait = jittered(&mut self.fx.rng, &self.options.backoff, up.not_renewed);
            Renewal::Due(self.fx.now.saturating_add(wait))
        };
    }

    /// The broker's answer to `reauth`.
    pub(super) fn reauth_reply(&mut self, success: bool) {
        let (now, margin) = (self.fx.now, self.options.token_refresh_margin);
        let Some(up) = self.connection.up() else { return };
        let Renewal::Sent { token, .. } = &up.renewal else { return };
        if success {
            let token = token.clone();
            up.renewal = Renewal::before(now, &token, margin);
            self.connection.token = Some(token);
        } else {
            self.refresh();
        }
    }

    /// The broker does not renew: a new connection does (K-017).
    fn refresh(&mut self) {
        let Some(link) = self.connection.link() else { return };
        self.fx.push(Output::CloseTransport { link, code: 1000, reason: "token_refresh", abort: false });
        let error = Error::lost("token_refresh");
        let reason = "token_refresh".to_owned();
        self.down(Down { error, next: Next::Renew, tell: false, reason, close_code: None });
    }
}
