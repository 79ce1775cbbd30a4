//! How a connection begins, lives and ends: the transitions of client-api 2.2, carried out.

use std::time::Duration;

use nolag_protocol::PROTOCOL_VERSION;
use nolag_protocol::features::Features;
use nolag_protocol::frame::{Auth, AuthReply, Lenient, Reauth, Version};

use super::connection::{Closing, Dated, Heart, Next, Phase, Renewal, SUSPENDED_AT_MOST, Up};
use super::requests::{Kind, ListFor};
use super::{LinkId, Output, RequestId, Session, Token, TokenFailure, TokenReason, TokenRequest};
use crate::error::{ConnectionCode, Ended, Error};
use crate::event::{CLIENT_DISCONNECT, Event, Ready};
use crate::options::{Credentials, InitialConnect};

/// A wake-up that is later than this was slept through (client-api 10.3).
const CLOCK_JUMP: Duration = Duration::from_secs(10);
/// How long `reauth` may stay unanswered (wire protocol 7).
const REAUTH_TIMEOUT: Duration = Duration::from_secs(10);

/// The end of an attempt or of a connection.
pub(super) struct Down {
    pub(super) error: Error,
    pub(super) next: Next,
    /// The application should see the error although the client tries again.
    pub(super) tell: bool,
    pub(super) reason: String,
    pub(super) close_code: Option<u16>,
}

impl Session {
    /// Every input begins here: time moves, never back.
    pub(super) fn begin(&mut self, now: Duration) {
        let slept = self.told_deadline.is_some_and(|deadline| now > deadline.saturating_add(CLOCK_JUMP));
        self.fx.now = now.max(self.fx.now);
        if slept {
            self.revive();
        }
    }

    /// And ends here: whatever is due is done, and what has become possible.
    pub(super) fn end(&mut self) {
        self.due();
        if self.recovery.is_some() && self.requests.recovering() == 0 {
            self.recovered();
        }
        self.outbox.advance(&mut self.fx, &self.options, &self.requests);
        if self.connection.closing.is_some() && self.outbox.is_empty() {
            self.finish_closing();
        }
    }

    pub(super) fn enter(&mut self, phase: Phase, reason: &str, close_code: Option<u16>) {
        self.connection.phase = phase;
        self.report(reason, close_code);
    }

    fn report(&mut self, reason: &str, close_code: Option<u16>) {
        let to = self.connection.state();
        if to != self.reported {
            let from = std::mem::replace(&mut self.reported, to.clone());
            self.fx.event(Event::State { from, to, reason: reason.to_owned(), close_code });
        }
        if let Some(loss) = self.loss.take() {
            self.fx.event(loss);
        }
    }

    pub(super) fn connect(&mut self, request: RequestId) {
        if self.connection.closing.is_some() {
            return self.fx.complete(request, Err(Error::closed()));
        }
        match self.connection.phase {
            Phase::Up(_) => return self.fx.done(request),
            Phase::Idle | Phase::Closed | Phase::Failed => {
                (self.connection.tries, self.connection.free_tries) = (0, 0);
                self.connection.renewals = 0;
                self.connection.first = true;
                self.connection.after_loss = false;
                self.connection.rejected = None;
                self.connection.retry_after = None;
                self.fx.event(Event::Connecting);
                self.attempt("connect", true);
            }
            Phase::Backoff { .. } => self.attempt("connect", true),
            Phase::Suspended { .. } => self.attempt("connect", false),
            Phase::Opening { .. } | Phase::Authenticating { .. } => {}
        }
        let patience = (self.options.initial_connect == InitialConnect::Wait)
            .then(|| self.fx.now + self.options.connect_timeout);
        self.connection.waiters.push((request, patience));
    }

    pub(super) fn attempt(&mut self, reason: &str, counts: bool) {
        self.connection.tries = self.connection.tries.saturating_add(u32::from(counts));
        self.connection.retry_after = None;
        self.fx.features = Features::NONE; // until this one is granted some
        let link = LinkId(self.connection.number());
        self.enter(Phase::Opening { link, until: self.fx.now + self.options.connect_timeout }, reason, None);
        self.fx.push(Output::OpenTransport { link });
    }

    /// The transport is open: the token is fetched, afresh for each attempt (K-016, FC-01).
    pub(super) fn opened(&mut self, link: LinkId) {
        let until = self.fx.now + self.options.auth_timeout;
        let token = match &self.options.credentials {
            Credentials::Static(token) => Some(token.clone()),
            Credentials::Provider => None,
        };
        let call = token.is_none().then(|| self.connection.number());
        self.enter(Phase::Authenticating { link, until, call }, "opened", None);
        match (token, call) {
            (Some(secret), _) => self.authenticate(link, Dated { secret, ends: None }),
            (None, Some(call)) => {
                let reason = match &self.connection.rejected {
                    Some((_, error)) if error.code() == "token_expired" => TokenReason::Expired,
                    Some(_) => TokenReason::Rejected,
                    None if self.connection.ever_connected => TokenReason::Reconnect,
                    None => TokenReason::Initial,
                };
                self.need_token(call, reason);
            }
            (None, None) => {}
        }
    }

    pub(super) fn need_token(&mut self, call: u64, reason: TokenReason) {
        let attempt = self.connection.tries.max(1);
        let last_error = self.connection.last_error.clone();
        self.fx.push(Output::NeedToken { call, request: TokenRequest { reason, attempt, last_error } });
    }

    /// The token provider's answer to [`Output::NeedToken`]; one to an earlier call is of no account.
    pub fn token(&mut self, now: Duration, call: u64, token: Result<Token, TokenFailure>) {
        self.begin(now);
        match &mut self.connection.phase {
            Phase::Authenticating { link, until, call: waiting } if *waiting == Some(call) => {
                let link = *link;
                *waiting = None;
                *until = self.fx.now + self.options.auth_timeout;
                self.provided(link, token);
            }
            Phase::Up(up) if up.renewal.is_asked_by(call) => match token {
                Ok(token) => {
                    let token = dated(self.fx.now, token);
                    self.fx.send(Reauth { token: token.secret.reveal() }.to_vec());
                    up.renewal = Renewal::Sent { until: self.fx.now + REAUTH_TIMEOUT, token };
                    up.not_renewed = 0;
                }
                Err(failure) => self.not_renewed(&failure),
            },
            _ => {}
        }
        self.end();
    }

    fn provided(&mut self, link: LinkId, token: Result<Token, TokenFailure>) {
        match token {
            Ok(token) => match &self.connection.rejected {
                Some((refused, error)) if *refused == token.secret => {
                    let error = error.clone().made_fatal(); // asking with it again would be refused again (API-074)
                    self.abandon(link, error, Next::GiveUp);
                }
                _ => self.authenticate(link, dated(self.fx.now, token)),
            },
            Err(failure) => {
                let error = provider_failed(&failure);
                let next = if failure.fatal { Next::GiveUp } else { Next::RETRY };
                self.abandon(link, error, next);
            }
        }
    }

    fn authenticate(&mut self, link: LinkId, token: Dated) {
        let frame = Auth {
            token: token.secret.reveal(),
            protocol_version: Version(PROTOCOL_VERSION),
            client_id: Some(&self.client_id),
            reconnect: Lenient(None),
            project_id: self.options.project_id.as_deref(),
            features: self.options.features.names(),
        };
        let frame = frame.to_vec();
        self.connection.token = Some(token);
        self.fx.send_on(link, frame);
    }

    /// The broker's answer to `auth`.
    pub(super) fn auth_reply(&mut self, frame: &AuthReply<'_>) {
        let Phase::Authenticating { link, call: None, .. } = self.connection.phase else { return };
        if !frame.success {
            self.connection.retry_after = frame.retry_after_ms.map(Duration::from_millis);
            let reason = frame.error.unwrap_or("access_denied");
            let (error, next) = self.connection.after_auth_failure(reason, &self.options);
            self.abandon(link, error, next); // the broker may leave it open (K-009)
            return;
        }
        self.connection.first = false;
        if !self.connection.after_loss {
            self.connection.free_tries = self.connection.tries;
        }
        self.connection.ever_connected = true;
        self.connection.rejected = None;
        self.connection.last_error = None;
        self.fx.counts.connects += 1;
        let away = self.connection.lost_at.take().map(|at| self.fx.now.saturating_sub(at));
        self.fx.counts.downtime += away.unwrap_or_default();
        self.actor_id = frame.actor_token_id.map(str::to_owned);
        self.fx.link = Some(link);
        self.fx.protocol_version = frame.protocol_version.unwrap_or(1);
        self.fx.features = Features::named(frame.features.iter().copied()).and(self.options.features);
        let renewal = match (&self.options.credentials, &self.connection.token) {
            (Credentials::Provider, Some(token)) => {
                Renewal::before(self.fx.now, token, self.options.token_refresh_margin)
            }
            _ => Renewal::None,
        };
        let heart = Heart::new(self.fx.now, &self.options);
        self.enter(
            Phase::Up(Up { link, since: self.fx.now, heart, renewal, not_renewed: 0 }),
            "authenticated",
            None,
        );
        self.outbox.connected(frame.limits);
        self.recovery = Some(Ready::default());
        let (ack_timeout, presence_timeout) = (self.options.ack_timeout, self.options.presence_timeout);
        let (fx, requests) = (&mut self.fx, &mut self.requests);
        self.subscriptions.restore(fx, requests, ack_timeout);
        self.presence.restore(fx, requests, presence_timeout);
        self.lobbies.restore(fx, requests, ack_timeout);
        self.inbox.send_acks(fx);
        self.fx.event(Event::Connected {
            actor_id: self.actor_id.clone(),
            actor_type: frame.actor_type.map(str::to_owned),
            project_id: frame.project_id.and_then(|id| id.0).map(str::to_owned),
            protocol_version: self.fx.protocol_version,
            features: self.fx.features,
        });
        for (waiter, _) in std::mem::take(&mut self.connection.waiters) {
            self.fx.done(waiter);
        }
    }

    /// Everything that was sent after connecting has been answered, or given up (client-api 2.3, steps 7 and 8).
    fn recovered(&mut self) {
        let Some(mut ready) = self.recovery.take() else { return };
        let after_loss = std::mem::take(&mut self.connection.after_loss);
        let continues = ready.gaps.is_empty() && !self.subscriptions.is_interrupted();
        ready.resumed = after_loss && continues && ready.refused.is_empty();
        self.outbox.open();
        self.fx.event(Event::Ready(ready));
        if after_loss {
            self.fx.counts.reconnects += 1;
            self.fx.event(Event::Reconnected);
        }
        let timeout = self.options.ack_timeout;
        self.subscriptions.retry_refused(&mut self.fx, &mut self.requests, timeout);
    }

    /// Ends an attempt from our side.
    fn abandon(&mut self, link: LinkId, error: Error, next: Next) {
        self.fx.push(Output::CloseTransport { link, code: 1000, reason: "", abort: false });
        let reason = error.to_string();
        self.down(Down { error, next, tell: true, reason, close_code: None });
    }

    pub(super) fn closed_by_peer(&mut self, code: Option<u16>, reason: &str) {
        let (error, next, tell) = self.connection.after_close(code, reason, &self.options);
        let reason = if reason.is_empty() { error.to_string() } else { reason.to_owned() };
        self.down(Down { error, next, tell, reason, close_code: code });
    }

    pub(super) fn transport_failed(&mut self, code: ConnectionCode, message: &str, wait: Option<Duration>) {
        let (error, next) = self.connection.after_failure(code, message, wait);
        self.down(Down { error, next, tell: false, reason: message.to_owned(), close_code: None });
    }

    pub(super) fn down(&mut self, down: Down) {
        let Down { error, next, tell, reason, close_code } = down;
        let was_up = if let Phase::Up(up) = &self.connection.phase {
            let (since, last_received) = (up.since, up.heart.last_received);
            self.connection.ended(self.fx.now, since);
            self.connection.last_received = Some(last_received);
            self.connection.lost_at = Some(self.fx.now);
            self.connection.after_loss = true;
            true
        } else {
            self.fx.counts.connect_failures += 1;
            false
        };
        self.fx.link = None;
        self.recovery = None;
        self.connection.last_error = Some(error.clone());
        if was_up {
            self.loss = Some(Event::Disconnected { reason: reason.clone(), close_code });
            self.interrupt(close_code == Some(1009));
            if self.connection.closing.is_some() {
                self.connection.phase = Phase::Closed;
                return self.finish_closing();
            }
        }
        let first = std::mem::take(&mut self.connection.first);
        let exhausted = self.options.max_attempts.is_some_and(|most| {
            let counted = self.connection.tries.saturating_sub(self.connection.free_tries);
            most > 0 && counted >= most && next != Next::GiveUp
        });
        let only_once = first && !was_up && self.options.initial_connect == InitialConnect::Once;
        if next == Next::GiveUp || exhausted || only_once || !self.options.reconnect && !was_up {
            let last = if exhausted && !only_once {
                Error::Closed { what: Ended::ReconnectExhausted, outcome_unknown: false }
            } else {
                error.made_fatal()
            };
            return self.give_up(last, &reason, close_code);
        }
        if !self.options.reconnect {
            self.enter(Phase::Closed, &reason, close_code);
            return self.fail_all(&Error::lost(reason));
        }
        let held_back = self.connection.offline || self.connection.suspended;
        let delay = (!held_back).then(|| self.next_delay(next));
        let phase = match delay {
            Some(delay) => Phase::Backoff { until: self.fx.now.saturating_add(delay) },
            None => Phase::Suspended { until: self.fx.now + SUSPENDED_AT_MOST },
        };
        self.enter(phase, &reason, close_code);
        if !was_up || tell {
            self.fx.error(error.clone());
        }
        if first && !was_up && self.options.initial_connect == InitialConnect::Background {
            for (waiter, _) in std::mem::take(&mut self.connection.waiters) {
                self.fx.complete(waiter, Err(error.clone()));
            }
        }
        if let Some(delay) = delay {
            let attempt = self.connection.tries.max(1);
            self.fx.event(Event::Reconnecting { attempt, delay, reason });
        }
    }

    /// How long to wait before the next attempt.
    fn next_delay(&mut self, next: Next) -> Duration {
        if next == Next::Renew && self.connection.renewals == 0 {
            self.connection.renewals += 1;
            return self.connection.retry_after.unwrap_or_default(); // at once
        }
        let floor = match next {
            Next::Retry { floor } => floor,
            Next::Renew | Next::GiveUp => Duration::ZERO,
        };
        self.connection.delay(&mut self.fx.rng, &self.options.backoff, floor)
    }

    /// What was under way on a connection that is gone (client-api 7.4).
    fn interrupt(&mut self, too_big: bool) {
        for kind in self.requests.clear() {
            match kind {
                Kind::GetPresence { wanted_by: ListFor::Caller(request), .. }
                | Kind::GetLobby { waiter: Some(request), .. } => {
                    self.fx.complete(request, Err(Error::lost("the connection was lost")));
                }
                Kind::LobbySubscribe { lobby, waiters } => {
                    self.lobbies.interrupted(&mut self.fx, &lobby, waiters);
                }
                Kind::LobbyUnsubscribe { waiter: Some(request), .. } => self.fx.done(request),
                _ => {} // subscriptions keep account of their own
            }
        }
        self.subscriptions.lost(&mut self.fx, self.connection.last_received);
        self.outbox.lost(&mut self.fx, &self.options, too_big);
        self.presence.lost();
        self.inbox.lost();
    }

    fn give_up(&mut self, error: Error, reason: &str, close_code: Option<u16>) {
        self.enter(Phase::Failed, reason, close_code);
        self.fail_all(&error);
        self.fx.error(error.clone());
        self.fx.event(Event::Failed(error));
        let requests = self.connection.closing.take().map(|closing| closing.requests).unwrap_or_default();
        for request in requests {
            self.fx.done(request);
        }
    }

    fn fail_all(&mut self, error: &Error) {
        for (waiter, _) in std::mem::take(&mut self.connection.waiters) {
            self.fx.complete(waiter, Err(error.clone()));
        }
        self.subscriptions.ended(&mut self.fx, error, self.connection.last_received);
        self.outbox.closed(&mut self.fx, error);
        self.presence.closed(&mut self.fx, error);
        self.lobbies.closed(&mut self.fx, error);
        self.inbox.lost();
    }

    /// Closes when all that was published is settled (client-api 12.3).
    pub(super) fn close(&mut self, flush: bool, timeout: Duration, request: RequestId) {
        if let Some(closing) = &mut self.connection.closing {
            closing.requests.push(request);
            return;
        }
        if !flush || !self.connection.is_running() {
            self.finish_closing();
            return self.fx.done(request);
        }
        let until = self.fx.now.saturating_add(timeout);
        self.connection.closing = Some(Closing { until, requests: vec![request] });
        self.report("close", None);
    }

    /// Closes now (client-api 12.2).
    pub(super) fn finish_closing(&mut self) {
        let closing = self.connection.closing.take();
        let was_up = matches!(self.connection.phase, Phase::Up(_));
        if let Phase::Up(up) = &self.connection.phase {
            self.connection.last_received = Some(up.heart.last_received);
            self.inbox.send_acks(&mut self.fx);
        }
        if let Some(link) = self.connection.link() {
            self.fx.push(Output::CloseTransport {
                link,
                code: 1000,
                reason: CLIENT_DISCONNECT,
                abort: false,
            });
        }
        if self.connection.is_running() || closing.is_some() {
            self.fx.link = None;
            self.recovery = None;
            let kinds = self.requests.clear();
            for waiter in kinds.into_iter().flat_map(callers) {
                self.fx.complete(waiter, Err(Error::closed()));
            }
            self.fail_all(&Error::closed());
            self.connection.token = None;
            self.enter(Phase::Closed, CLIENT_DISCONNECT, None);
            if was_up {
                self.fx.event(Event::Disconnected { reason: CLIENT_DISCONNECT.into(), close_code: None });
            }
        }
        self.inbox.closed(&mut self.subscriptions);
        for request in closing.map(|closing| closing.requests).unwrap_or_default() {
            self.fx.done(request);
        }
    }
}

/// The callers behind a request that the application's own close ends; subscriptions keep account of theirs.
fn callers(kind: Kind) -> Vec<RequestId> {
    match kind {
        Kind::GetPresence { wanted_by: ListFor::Caller(request), .. } => vec![request],
        Kind::LobbySubscribe { waiters, .. } => waiters,
        Kind::LobbyUnsubscribe { waiter, .. } | Kind::GetLobby { waiter, .. } => waiter.into_iter().collect(),
        _ => Vec::new(),
    }
}

fn dated(now: Duration, Token { secret, expires_in }: Token) -> Dated {
    Dated { secret, ends: expires_in.map(|left| now.saturating_add(left)) }
}

pub(super) fn connection_error(code: ConnectionCode, message: &str) -> Error {
    Error::Connection { code, message: message.to_owned(), fatal: false, outcome_unknown: false }
}

pub(super) fn provider_failed(failure: &TokenFailure) -> Error {
    let reason = format!("no token: {}", failure.message);
    Error::Auth { reason, fatal: failure.fatal, passing: !failure.fatal, outcome_unknown: false }
}
