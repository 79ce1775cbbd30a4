//! What each frame of a connection does. Knows no socket: it is given frames, told the time by tokio's clock, and
//! answers through the outgoing queue.
//!
//! Frames are handled in order. Only `auth` and `reauth` take time, since they may ask a backend: while one waits
//! nothing more is read. A revalidation runs beside.

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use indexmap::IndexSet;
use nolag_protocol::codes::{self, ErrorCode};
use nolag_protocol::features::{Feature, Features};
use nolag_protocol::frame::{
    Auth, AuthReply, ClientFrame, ErrorReply, Fault, Lenient, Malformed, Nilable, Raw, ReauthReply,
};
use nolag_protocol::{PROTOCOL_VERSION, json};
use prometheus_client::metrics::gauge::Gauge;
use tokio::time::Instant;

use super::limits::Limits;
use crate::auth::{Identity, Refusal, Revalidation, redacted};
use crate::broker::Broker;
use crate::clock::later;
use crate::config::Profile;
use crate::hub::Subscription;
use crate::metrics::State as Proven;
use crate::organizations::Seat;
use crate::outgoing::{Close, Outgoing};
use crate::presence::{RoomKey, Watch};
use crate::resume::Held;

/// Who finds its organization full may come back after so many ms (features 7).
const FULL_RETRY_MS: u64 = 30_000;

/// After so many refused tokens a connection is closed.
const MAX_AUTH_FAILURES: u32 = 5;

/// What a connection is to the broker.
pub(super) struct Session {
    pub(super) broker: Arc<Broker>,
    pub(super) outgoing: Arc<Outgoing>,
    state: State,
    /// When anything last arrived.
    heard: Instant,
    /// When to look again at what may be due.
    check_at: Instant,
    /// What is left of a message of several frames (`batch`, features 5).
    rest: Bytes,
    /// An `auth` or `reauth` at the backend.
    waiting: Option<BoxFuture<'static, Answer>>,
    revalidating: Option<BoxFuture<'static, Revalidation>>,
    /// Counted in the metrics as long as it lives.
    counted: Gauge,
    /// It ends without a close, of either side.
    broke_off: bool,
}

enum State {
    Fresh { failures: u32 },
    Live(Box<Live>),
}

/// An authenticated connection.
pub(super) struct Live {
    pub(super) identity: Arc<Identity>,
    pub(super) actor: Arc<str>,
    /// The negotiated protocol version.
    pub(super) version: u64,
    /// The features granted (features 1).
    pub(super) features: Features,
    /// Names the client instance.
    pub(super) client_id: Option<Arc<str>>,
    pub(super) limits: Limits,
    pub(super) subscriptions: HashMap<Arc<str>, Subscription>,
    /// What is remembered of them for a client that reconnects.
    pub(super) remembered: Held,
    /// The rooms it is present in: one, or with `rooms` several.
    pub(super) rooms: IndexSet<RoomKey>,
    /// The lobbies it watches, by slug.
    pub(super) lobbies: HashMap<Arc<str>, Vec<Watch>>,
    validated: Instant,
    /// When its authorization ends: by the monotonic clock from its validation on, so that nobody's setting of the wall clock
    /// ends it early or never.
    expires_at: Option<Instant>,
    /// When to ask the backend again, heartbeat or not.
    revalidate_at: Instant,
    seat: Seat,
}

/// What an `auth` asks for beside its identity.
#[derive(Debug)]
struct Asked {
    version: u64,
    features: Features,
    client_id: Option<Arc<str>>,
    /// It wants back what it had subscribed to.
    reconnects: bool,
}

/// What came of asking about a token.
enum Answer {
    Auth { asked: Asked, result: Result<Arc<Identity>, Refusal> },
    Reauth(Result<Arc<Identity>, Refusal>),
}

/// What an `error` frame says beside its code.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Context<'a> {
    pub(super) topic: Option<&'a str>,
    pub(super) app: Option<&'a str>,
    pub(super) room_id: Option<&'a str>,
    pub(super) lobby_id: Option<&'a str>,
    pub(super) hint: Option<&'a str>,
    pub(super) detail: Option<&'a str>,
    pub(super) max_size_bytes: Option<u64>,
    pub(super) msg_ref: Option<&'a str>,
}

impl Session {
    pub(super) fn new(broker: Arc<Broker>, outgoing: Arc<Outgoing>) -> Self {
        let now = Instant::now();
        let counted = broker.metrics.connections(Proven::unauthenticated);
        counted.inc();
        Self {
            check_at: later(now, broker.settings.idle_timeout),
            broker,
            outgoing,
            state: State::Fresh { failures: 0 },
            heard: now,
            rest: Bytes::new(),
            waiting: None,
            revalidating: None,
            counted,
            broke_off: true,
        }
    }

    /// How the connection ended: without a close, of either side, or with one.
    pub(super) fn broke_off(&mut self, broke_off: bool) {
        self.broke_off = broke_off;
    }

    pub(super) fn extended(&self) -> bool {
        self.broker.settings.profile == Profile::Extended
    }

    /// When [`Session::due`] has something to do, if nothing happens before.
    pub(super) fn deadline(&self) -> Instant {
        self.check_at
    }

    /// Whether a backend has to answer before the next frame can be handled.
    pub(super) fn awaits_answer(&self) -> bool {
        self.waiting.is_some()
    }

    /// Waits for a backend and acts on what it says. May be dropped and called again.
    pub(super) async fn answer(&mut self) {
        enum Said {
            Answer(Answer),
            Revalidation(Revalidation),
        }
        let said = poll_fn(|context| {
            if let Some(Poll::Ready(answer)) =
                self.waiting.as_mut().map(|future| future.as_mut().poll(context))
            {
                self.waiting = None;
                return Poll::Ready(Said::Answer(answer));
            }
            if let Some(Poll::Ready(said)) =
                self.revalidating.as_mut().map(|future| future.as_mut().poll(context))
            {
                self.revalidating = None;
                return Poll::Ready(Said::Revalidation(said));
            }
            Poll::Pending
        });
        match said.await {
            Said::Answer(Answer::Auth { asked, result }) => self.authenticated(asked, result),
            Said::Answer(Answer::Reauth(result)) => self.reauthenticated(result),
            Said::Revalidation(said) => self.revalidated(said),
        }
    }

    /// Anything arrived, a ping or pong too.
    pub(super) fn heard(&mut self) {
        self.heard = Instant::now();
    }

    /// A binary message: a heartbeat if it is empty, else a frame, or several where that was granted.
    pub(super) fn binary(&mut self, message: &Bytes) {
        self.heard();
        self.broker.metrics.bytes_in.inc_by(message.len() as u64);
        if message.is_empty() {
            self.heartbeat();
        } else if matches!(&self.state, State::Live(live) if live.features.has(Feature::Batch)) {
            self.rest = message.clone();
            self.go_on();
        } else {
            self.one_frame(message);
        }
    }

    /// Whether the last message holds more frames.
    pub(super) fn has_more(&self) -> bool {
        !self.rest.is_empty()
    }

    /// Handles the next frames of a message of several, in order, as if each had come alone (features 5, F-12): as many as may
    /// be handled at once, and none behind one that waits for its answer. A malformed one ends the message.
    pub(super) fn go_on(&mut self) {
        /// A message of a mebibyte may hold 50,000 frames: others get their turn between.
        const AT_ONCE: usize = 64;
        for _ in 0..AT_ONCE {
            if self.rest.is_empty() || self.awaits_answer() || self.outgoing.is_closing() {
                return;
            }
            let bytes = std::mem::take(&mut self.rest);
            let (frame, rest) = ClientFrame::decode_first(&bytes);
            match frame {
                Ok(frame) => {
                    self.rest = bytes.slice_ref(rest);
                    self.frame(frame);
                }
                Err(malformed) => self.malformed(&malformed),
            }
        }
    }

    /// A text message: a frame as JSON.
    pub(super) fn text(&mut self, message: &str) {
        self.heard();
        self.broker.metrics.bytes_in.inc_by(message.len() as u64);
        match json::to_msgpack(message) {
            Ok(None) => {}
            Ok(Some(frame)) => self.one_frame(&frame),
            Err(fault) => self.malformed(&fault.into()),
        }
    }

    /// What time brings: the idle close, the end of a token, a revalidation.
    pub(super) fn due(&mut self) {
        let now = Instant::now();
        if now >= later(self.heard, self.broker.settings.idle_timeout) {
            self.outgoing.close(codes::IDLE_TIMEOUT.into());
            return;
        }
        if self.is_expired() {
            self.outgoing.close(codes::EXPIRED.into());
            return;
        }
        if let State::Live(live) = &self.state
            && now >= live.revalidate_at
        {
            self.revalidate();
        }
        self.schedule();
    }

    /// Sets when to look again.
    fn schedule(&mut self) {
        let mut at = later(self.heard, self.broker.settings.idle_timeout);
        if let State::Live(live) = &self.state {
            at = at.min(live.revalidate_at);
            at = live.expires_at.map_or(at, |end| at.min(end));
        }
        self.check_at = at;
    }

    fn is_expired(&self) -> bool {
        matches!(&self.state, State::Live(live) if live.expires_at.is_some_and(|end| Instant::now() >= end))
    }

    /// When an authorization that was validated just now ends; `None` also where that is further away than any clock goes.
    fn end_of(&self, identity: &Identity) -> Option<Instant> {
        let left = Duration::from_secs(identity.expires_at?).saturating_sub(self.broker.clock.now());
        Instant::now().checked_add(left)
    }

    fn heartbeat(&mut self) {
        let State::Live(live) = &self.state else { return };
        let revalidate = live.validated.elapsed() >= self.broker.settings.revalidation_interval;
        if self.is_expired() {
            self.outgoing.close(codes::EXPIRED.into());
            return;
        }
        self.outgoing.push(Bytes::new());
        if revalidate {
            self.revalidate();
        }
    }

    fn one_frame(&mut self, bytes: &[u8]) {
        match ClientFrame::decode(bytes) {
            Ok(frame) => self.frame(frame),
            Err(malformed) => self.malformed(&malformed),
        }
    }

    fn frame(&mut self, frame: ClientFrame<'_>) {
        // As a label there must not be as many types as clients can think of.
        self.broker.metrics.frame_in(frame.known_kind().unwrap_or("unknown"));
        match (&self.state, frame) {
            (_, ClientFrame::Auth(auth)) => self.auth(&auth),
            (State::Fresh { .. }, _) => self.error(codes::NOT_AUTHENTICATED, Context::default()),
            (State::Live(_), ClientFrame::Reauth(reauth)) => self.reauth(reauth.token.to_owned()),
            (State::Live(_), ClientFrame::Unknown(kind)) => tracing::debug!(kind, "a frame of unknown type"),
            (State::Live(_), frame) => self.request(frame),
        }
    }

    /// The authenticated connection; only requests of one call this.
    pub(super) fn live(&mut self) -> Option<&mut Live> {
        match &mut self.state {
            State::Live(live) => Some(live),
            State::Fresh { .. } => None,
        }
    }

    /// What cannot be used is answered where the profile has an answer (wire protocol 4.8).
    pub(super) fn malformed(&mut self, malformed: &Malformed<'_>) {
        self.broker.metrics.frame_in("malformed");
        let fresh = matches!(self.state, State::Fresh { .. });
        match malformed.fault {
            Fault::WrongType { frame: "auth", field: "token", .. } if fresh => {
                self.refuse(codes::ACCESS_DENIED);
            }
            Fault::Syntax(_) | Fault::Json if self.extended() => self.invalid_message(malformed),
            Fault::Syntax(_) | Fault::Json => {}
            _ if fresh => self.error(codes::NOT_AUTHENTICATED, Context::default()),
            _ if self.extended() => self.invalid_message(malformed),
            _ => {}
        }
    }

    fn invalid_message(&self, malformed: &Malformed<'_>) {
        let detail = malformed.to_string();
        let Malformed { topic, msg_ref, .. } = *malformed;
        self.error(
            codes::INVALID_MESSAGE,
            Context { topic, msg_ref, detail: Some(&detail), ..Context::default() },
        );
    }

    /// Queues an `error` frame.
    pub(super) fn error(&self, code: ErrorCode, context: Context<'_>) {
        let reply = |context: Context<'_>| {
            self.broker.metrics.encoded(ErrorReply {
                code: code.code,
                error: code.name,
                hint: context.hint,
                detail: context.detail,
                topic: context.topic,
                app: context.app,
                room_id: context.room_id,
                lobby_id: context.lobby_id,
                max_size_bytes: context.max_size_bytes,
                msg_ref: context.msg_ref,
            })
        };
        let frame = reply(context);
        // An echo of a mebibyte would not fit a message.
        let fits = frame.len() <= nolag_protocol::MAX_MESSAGE_BYTES;
        self.outgoing.push(if fits { frame } else { reply(Context::default()) });
    }

    /// A `msgRef` to echo on replies other than a publish's.
    pub(super) fn echoed<'a>(&self, msg_ref: Lenient<&'a str>) -> Option<&'a str> {
        msg_ref.non_empty().filter(|_| self.extended())
    }

    fn auth(&mut self, auth: &Auth<'_>) {
        if matches!(self.state, State::Live(_)) && self.extended() {
            return self.auth_failed(codes::ALREADY_AUTHENTICATED);
        }
        let (broker, token) = (self.broker.clone(), auth.token.to_owned());
        let asked = Asked {
            version: auth.protocol_version.0.min(PROTOCOL_VERSION),
            features: Features::named(auth.features.iter().copied()).and(broker.settings.features),
            client_id: auth.client_id.map(Arc::from),
            reconnects: auth.reconnect.is(true),
        };
        self.waiting = Some(Box::pin(async move {
            let result = broker.auth.validate(&token).await;
            if let Err(refusal) = &result {
                tracing::info!(token = redacted(&token), %refusal, "refused a token");
            }
            Answer::Auth { asked, result }
        }));
    }

    fn authenticated(&mut self, asked: Asked, result: Result<Arc<Identity>, Refusal>) {
        let identity = match result {
            Ok(identity) => identity,
            Err(refusal) => return self.refuse(refusal.code()),
        };
        if identity.is_expired(self.broker.clock.seconds()) {
            return self.refuse(codes::TOKEN_EXPIRED);
        }
        let Some((seat, subscriptions, rooms, lobbies)) = self.take_seat(&identity) else {
            return self.refuse(codes::CONNECTION_LIMIT_REACHED);
        };
        let limits = Limits::new(&self.broker.settings, &identity);
        let told = self.extended().then(|| limits.told());
        // What the connection held under an earlier identity (kraken profile) it has let go of with its seat.
        let remembered =
            self.broker.resume.hold(&identity.actor_token_id, asked.client_id.as_deref(), asked.reconnects);
        self.broker.metrics.auth("success");
        self.counted.dec();
        self.counted = self.broker.metrics.connections(Proven::authenticated);
        self.counted.inc();
        let now = Instant::now();
        let expires_at = self.end_of(&identity);
        self.state = State::Live(Box::new(Live {
            actor: identity.actor_token_id.as_str().into(),
            identity: identity.clone(),
            version: asked.version,
            features: asked.features,
            client_id: asked.client_id,
            limits,
            subscriptions,
            remembered,
            rooms,
            lobbies,
            validated: now,
            expires_at,
            revalidate_at: later(now, self.revalidation_patience()),
            seat,
        }));
        let (interests, restored) = if asked.reconnects { self.restored() } else { (Vec::new(), vec![0x90]) };
        self.outgoing.push(self.broker.metrics.encoded(AuthReply {
            success: true,
            error: None,
            actor_token_id: Some(&identity.actor_token_id),
            project_id: Some(Nilable(identity.project_id.as_deref())),
            actor_type: Some(&identity.actor_type),
            protocol_version: Some(asked.version),
            restored_subscriptions: Some(Raw(&restored)),
            limits: told,
            features: asked.features.names(),
            retry_after_ms: None,
        }));
        if asked.features.has(Feature::Batch) {
            self.outgoing.pack_from_now();
        }
        // Nothing of this is written before this function ends, so the reply does not come before they are in force.
        self.restore(interests);
        self.schedule();
    }

    /// A place in the organization. In the kraken profile an authenticated connection may change its identity:
    /// it keeps what it has, and its place where the organization stays the same.
    #[allow(clippy::type_complexity)] // the parts of a `Live` that outlast its identity
    fn take_seat(
        &mut self,
        identity: &Identity,
    ) -> Option<(Seat, HashMap<Arc<str>, Subscription>, IndexSet<RoomKey>, HashMap<Arc<str>, Vec<Watch>>)>
    {
        let organization = identity.organization_id.as_deref();
        let stays = self.live().is_some_and(|live| live.identity.organization_id.as_deref() == organization);
        let seat = if stays {
            None
        } else {
            Some(self.broker.organizations.enter(organization, identity.max_connections)?)
        };
        match std::mem::replace(&mut self.state, State::Fresh { failures: 0 }) {
            State::Fresh { .. } => Some((seat?, HashMap::new(), IndexSet::new(), HashMap::new())),
            State::Live(live) => {
                let live = *live;
                Some((seat.unwrap_or(live.seat), live.subscriptions, live.rooms, live.lobbies))
            }
        }
    }

    fn refuse(&mut self, code: ErrorCode) {
        self.auth_failed(code);
        if let State::Fresh { failures } = &mut self.state {
            *failures += 1;
            if *failures >= MAX_AUTH_FAILURES && self.extended() {
                self.outgoing.close(codes::TOO_MANY_AUTH_FAILURES.into());
            }
        }
    }

    fn auth_failed(&self, code: ErrorCode) {
        // A place becomes free when another connection ends, and nobody knows when: as long as a client waits by itself (6.4).
        let full = code.name == codes::CONNECTION_LIMIT_REACHED.name && self.extended();
        self.broker.metrics.auth(code.name);
        self.outgoing.push(self.broker.metrics.encoded(AuthReply {
            success: false,
            error: Some(code.name),
            actor_token_id: None,
            project_id: None,
            actor_type: None,
            protocol_version: None,
            restored_subscriptions: None,
            limits: None,
            features: Vec::new(),
            retry_after_ms: full.then_some(FULL_RETRY_MS),
        }));
    }

    fn reauth(&mut self, token: String) {
        let broker = self.broker.clone();
        self.waiting = Some(Box::pin(async move { Answer::Reauth(broker.auth.validate(&token).await) }));
    }

    fn reauthenticated(&mut self, result: Result<Arc<Identity>, Refusal>) {
        let State::Live(live) = &self.state else { return };
        let refused = match &result {
            Err(refusal) => Some(refusal.code()),
            Ok(identity) if identity.actor_token_id != *live.actor => Some(codes::ACTOR_MISMATCH),
            Ok(identity) if identity.is_expired(self.broker.clock.seconds()) => Some(codes::TOKEN_EXPIRED),
            Ok(_) => None,
        };
        let expires_at = result.as_ref().ok().and_then(|identity| identity.expires_at);
        self.outgoing.push(self.broker.metrics.encoded(ReauthReply {
            success: refused.is_none(),
            auth_expires_at: expires_at.filter(|_| refused.is_none()),
            error: refused.map(|code| code.name),
        }));
        if let (Ok(identity), None) = (result, refused) {
            self.renew(identity);
        }
    }

    /// How long after a validation the timer asks again, heartbeat or not: a tenth later than a heartbeat would.
    fn revalidation_patience(&self) -> Duration {
        (self.broker.settings.revalidation_interval.saturating_mul(11) / 10).max(Duration::from_secs(1))
    }

    fn revalidate(&mut self) {
        let State::Live(live) = &mut self.state else { return };
        // Asked again then at the latest, should the backend be unable to say.
        let patience = (self.broker.settings.revalidation_interval / 10).max(Duration::from_secs(1));
        live.revalidate_at = later(Instant::now(), patience);
        if self.revalidating.is_none() {
            let (broker, actor) = (self.broker.clone(), live.actor.clone());
            self.revalidating = Some(Box::pin(async move { broker.auth.revalidate(&actor).await }));
        }
    }

    fn revalidated(&mut self, said: Revalidation) {
        match said {
            Revalidation::Unavailable => {}
            Revalidation::Invalid(reason) => {
                tracing::info!(reason, "an actor is no longer welcome");
                self.outgoing.close(Close { reason, ..codes::REVOKED.into() });
            }
            Revalidation::Valid(identity) => {
                let State::Live(live) = &self.state else { return };
                if live.seat.is_over(identity.max_connections) {
                    self.outgoing.close(codes::OVER_LIMIT.into());
                } else {
                    self.renew(Arc::from(identity));
                }
            }
        }
    }

    /// Takes over new grants and limits, and lets go of what they do not cover.
    fn renew(&mut self, identity: Arc<Identity>) {
        let patience = self.revalidation_patience();
        let expires_at = self.end_of(&identity);
        let State::Live(live) = &mut self.state else { return };
        let now = Instant::now();
        live.validated = now;
        // The same end is no later by a clock that was set back since.
        if live.identity.expires_at != identity.expires_at {
            live.expires_at = expires_at;
        }
        live.revalidate_at = later(now, patience);
        live.limits.renew(&self.broker.settings, &identity);
        live.identity = identity;
        self.renew_subscriptions();
        self.renew_rooms();
        self.schedule();
    }
}

impl Drop for Session {
    /// The connection has ended: it is subscribed to nothing and present nowhere.
    fn drop(&mut self) {
        self.counted.dec();
        let lost = self.broke_off && !self.outgoing.is_closing();
        self.end_subscriptions(lost);
        self.end_presence();
    }
}
