//! Runs a session over real I/O: one task, one loop.
//!
//! A driver owns the transport and the session. It waits for whichever comes first of an arriving message, a call, a token
//! and the session's deadline, tells the session, and carries out its outputs in order. All that is ready is taken first;
//! then what has gathered is written with one flush and handed to the [`Host`] at once: that is a turn.

mod jwt;
pub mod memory;
pub mod native;
mod outbound;
pub(crate) mod runtime;
mod transport;

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use nolag_protocol::frame::{ClientFrame, ServerFrame};
use tokio::sync::mpsc;

pub use transport::{Link, OpenFailure, Opening, Outgoing, Received, Transport};

use crate::event::{Event, State, Topic};
use crate::options::Position;
use crate::session::{
    Call, Dispatched, Hint, LinkId, MAX_OPEN_CALLS, Output, Reply, RequestId, Session, Stats, Token,
    TokenFailure, TokenRequest, Transport as Happening,
};
use crate::{Error, Options};
use outbound::Outbound;
use runtime::{Alarm, Clock, Naps};

/// How many inputs are taken before what has gathered goes out.
const MAX_TURN: u32 = 256;
/// How much is read although nobody takes it, in bytes, where an answer is awaited.
const MAX_AHEAD: usize = 2 << 20;
/// What a message takes beside its bytes, about.
const UPKEEP: usize = 256;
/// How long a transport has to take the last frames and the close.
const LINGER: Duration = Duration::from_secs(2);

/// Fetches a token.
pub type TokenFuture = Pin<Box<dyn Future<Output = Result<Token, TokenFailure>> + Send>>;
/// Asked for a token before every connection (client-api 11).
pub type TokenProvider = Arc<dyn Fn(TokenRequest) -> TokenFuture + Send + Sync>;

/// Where a session's outputs for the application go. It is called on the driver's task and must not wait.
pub trait Host: Send + 'static {
    /// Something happened.
    fn event(&mut self, event: Event);
    /// A call is complete.
    fn complete(&mut self, request: RequestId, result: Result<Reply, Error>);
    /// A turn is over: all that was ready has been handed over.
    fn flush(&mut self);
    /// What has become of messages since it was last asked. It is asked at the end of each turn, until there is nothing more, and
    /// [`Handle::poke`] makes one.
    fn dispatched(&mut self) -> Option<Dispatched>;
    /// A frame is sent or came: what kind it is, if a known one, and its size in bytes. It is for logs, and told only where
    /// [`wants_frames`](Self::wants_frames) says so.
    fn frame(&mut self, _sent: bool, _kind: &'static str, _bytes: usize) {}
    /// Whether frames are to be told.
    fn wants_frames(&self) -> bool {
        false
    }
    /// Whether it takes more messages. While it does not, nothing is read, so that TCP slows the broker down; but for 2 MiB while
    /// an answer is awaited, which may be what keeps the host. It is asked after [`Handle::poke`].
    fn has_room(&self) -> bool;
}

enum Command {
    /// Boxed, for a channel holds places for 32.
    Call(RequestId, Box<Call>),
    Cancel(RequestId),
    Hint(Hint),
    Poke,
}

/// What handles and their driver share.
#[derive(Default)]
struct Shared {
    next: AtomicU64,
    /// Calls that are not complete, those included that the driver has not read.
    open: AtomicUsize,
    poked: AtomicBool,
    stats: Mutex<Stats>,
    /// Of each subscription that has one.
    positions: Mutex<HashMap<Topic, Position>>,
}

/// Tells a driver what its client wants. Clones share it; when the last one is dropped, the driver disconnects and ends.
#[derive(Clone)]
pub struct Handle {
    commands: mpsc::UnboundedSender<Command>,
    shared: Arc<Shared>,
}

impl Handle {
    /// A number for a call. Numbers count up from 1.
    pub fn number(&self) -> RequestId {
        RequestId(self.shared.next.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Asks for something under a number of [`Handle::number`]; the host is told when it is complete. Of calls that are not
    /// complete there are at most [`MAX_OPEN_CALLS`]: one more fails here with `queue_full`, but for those that end the client.
    pub fn call(&self, request: RequestId, call: Call) -> Result<(), Error> {
        let ends = matches!(call, Call::Disconnect | Call::Close { .. });
        if self.shared.open.fetch_add(1, Ordering::Relaxed) >= MAX_OPEN_CALLS && !ends {
            self.shared.open.fetch_sub(1, Ordering::Relaxed);
            return Err(Error::queue("queue_full", None));
        }
        self.commands.send(Command::Call(request, Box::new(call))).map_err(|_| Error::closed())
    }

    /// The caller of this no longer waits: what can be withdrawn is.
    pub fn cancel(&self, request: RequestId) {
        self.send(Command::Cancel(request));
    }

    /// What the platform knows of network and sleep.
    pub fn hint(&self, hint: Hint) {
        self.send(Command::Hint(hint));
    }

    /// The host has something to tell about messages, or has room again.
    pub fn poke(&self) {
        if !self.shared.poked.swap(true, Ordering::AcqRel) {
            self.send(Command::Poke);
        }
    }

    /// What counts, as of the driver's last turn.
    pub fn stats(&self) -> Stats {
        *lock(&self.shared.stats)
    }

    /// How far the application is with a subscription, as of the driver's last turn: [`Session::position`]. It is exact, and
    /// stays, when a disconnect is complete.
    pub fn position(&self, topic: &str) -> Option<Position> {
        lock(&self.shared.positions).get(topic).cloned()
    }

    fn send(&self, command: Command) {
        let _ = self.commands.send(command); // a driver that has ended has nothing left to do
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner) // nothing under these locks can panic halfway
}

type Ending = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The transport of the session's current connection.
enum Wire {
    None,
    Opening(LinkId, Opening),
    Open {
        id: LinkId,
        link: Box<dyn Link>,
        out: Outbound,
        /// Writing has failed; what came before that is still read.
        broken: Option<String>,
    },
}

/// What the driver has been waiting for.
enum Input {
    Opened(LinkId, Result<Box<dyn Link>, OpenFailure>),
    Received(LinkId, Received),
    Command(Option<Command>),
    Token(u64, Result<Token, TokenFailure>),
    Deadline,
}

/// One client's I/O. See the [module](self).
struct Driver<H> {
    session: Session,
    clock: Clock,
    naps: Naps,
    transport: Box<dyn Transport>,
    provider: Option<TokenProvider>,
    host: H,
    commands: mpsc::UnboundedReceiver<Command>,
    shared: Arc<Shared>,
    wire: Wire,
    fetching: Option<(u64, TokenFuture)>,
    alarm: Alarm,
    endings: Vec<Ending>,
    /// How much was read since there was room for it, in bytes.
    ahead: usize,
    /// Inputs since the turn began.
    taken: u32,
    /// The time, as of the last input that was no message.
    now: Duration,
    /// The application has asked for a close.
    closing: bool,
}

/// A client over this transport: the handle to it, and the future that drives it, which must run on tokio and ends when the last
/// handle is gone.
pub fn drive<H: Host>(
    options: Options,
    transport: Box<dyn Transport>,
    provider: Option<TokenProvider>,
    host: H,
) -> (Handle, impl Future<Output = ()> + Send + 'static) {
    drive_seeded(options, transport, provider, host, runtime::seed())
}

/// The same, with what the session draws from this seed.
pub(crate) fn drive_seeded<H: Host>(
    options: Options,
    transport: Box<dyn Transport>,
    provider: Option<TokenProvider>,
    host: H,
    seed: u64,
) -> (Handle, impl Future<Output = ()> + Send + 'static) {
    let (sender, commands) = mpsc::unbounded_channel();
    let shared = Arc::new(Shared::default());
    let handle = Handle { commands: sender, shared: Arc::clone(&shared) };
    // Boxed, for a future that holds it by value would hold it twice.
    let mut driver = Box::new(Driver {
        session: Session::new(options, seed),
        clock: Clock::start(),
        naps: Naps::default(),
        transport,
        provider,
        host,
        commands,
        shared,
        wire: Wire::None,
        fetching: None,
        alarm: Alarm::default(),
        endings: Vec::new(),
        ahead: 0,
        taken: 0,
        now: Duration::ZERO,
        closing: false,
    });
    (handle, async move { driver.run().await })
}

impl<H: Host> Driver<H> {
    async fn run(&mut self) {
        loop {
            self.perform();
            match poll_fn(|cx| self.poll_input(cx)).await {
                Input::Command(None) => break,
                input => self.take(input),
            }
        }
        // The last handle is gone: that disconnects (client-api 20).
        self.report();
        self.session.call(self.clock.now(), RequestId(u64::MAX), Call::Disconnect);
        self.perform();
        self.host.flush();
        for ending in std::mem::take(&mut self.endings) {
            ending.await;
        }
    }

    fn take(&mut self, input: Input) {
        // Messages that come together share a time.
        if self.taken <= 1 || !matches!(input, Input::Received(_, Received::Frame(_))) {
            self.now = self.clock.now();
        }
        let now = self.now;
        if self.closing {
            // What was handled before the client is closed does not come again.
            self.report();
            self.closing = self.session.state() == State::Closing;
        }
        if self.taken <= 1
            && let Some(time) = self.naps.look(now)
        {
            self.session.hint(now, Hint::Slept(time));
        }
        match input {
            Input::Opened(id, Ok(link)) => {
                self.wire = Wire::Open { id, link, out: Outbound::default(), broken: None };
                self.session.transport(now, id, Happening::Opened);
            }
            Input::Opened(id, Err(OpenFailure { code, message, retry_after })) => {
                self.wire = Wire::None;
                self.session.transport(now, id, Happening::Failed { code, message, retry_after });
            }
            Input::Received(id, received) => {
                if let Received::Frame(message) = &received
                    && self.host.wants_frames()
                {
                    tell_received(&mut self.host, message);
                }
                let ended = matches!(received, Received::Closed { .. } | Received::Failed { .. });
                if ended {
                    self.wire = Wire::None;
                }
                self.session.transport(now, id, happening(received));
            }
            Input::Token(call, token) => {
                self.fetching = None;
                let token = token.map(|Token { secret, expires_in }| {
                    let expires_in = expires_in.or_else(|| jwt::expires_in(secret.reveal()));
                    Token { secret, expires_in }
                });
                self.session.token(now, call, token);
            }
            Input::Deadline => {
                if !self.host.has_room() {
                    self.session.unread(now);
                }
                self.session.wake(now);
            }
            Input::Command(Some(Command::Call(request, call))) => {
                self.closing |= matches!(*call, Call::Disconnect | Call::Close { .. });
                if self.closing {
                    self.report();
                }
                self.session.call(now, request, *call);
            }
            Input::Command(Some(Command::Cancel(request))) => self.session.cancel(now, request),
            Input::Command(Some(Command::Hint(hint))) => self.session.hint(now, hint),
            Input::Command(Some(Command::Poke)) => self.shared.poked.store(false, Ordering::Release),
            Input::Command(None) => {}
        }
    }

    /// Tells the session what the host has done with messages, if anything.
    fn report(&mut self) -> bool {
        let mut is_any = false;
        while let Some(report) = self.host.dispatched() {
            self.session.dispatched(self.clock.now(), report);
            is_any = true;
        }
        is_any
    }

    /// Positions are known to the handles before the host hears of what moved them.
    fn publish_positions(&mut self) {
        let mut moved = self.session.take_moved().peekable();
        if moved.peek().is_none() {
            return;
        }
        let mut positions = lock(&self.shared.positions);
        for (topic, position) in moved {
            match position {
                Some(position) => positions.insert(topic, position),
                None => positions.remove(&topic),
            };
        }
    }

    /// Carries out what the session wants, in order.
    fn perform(&mut self) {
        loop {
            while let Some(output) = self.session.poll() {
                self.carry_out(output);
            }
            if self.tell_congestion().is_none() {
                return;
            }
        }
    }

    fn carry_out(&mut self, output: Output) {
        match output {
            Output::OpenTransport { link } => self.wire = Wire::Opening(link, self.transport.open()),
            Output::Send { link, frame } => {
                if let Wire::Open { id, out, .. } = &mut self.wire
                    && *id == link
                {
                    if self.host.wants_frames() {
                        let kind = ClientFrame::decode(&frame).ok().and_then(|frame| frame.known_kind());
                        self.host.frame(true, kind_of(&frame, kind), frame.len());
                    }
                    out.push(frame, self.session.may_batch());
                }
            }
            Output::CloseTransport { code, reason, abort, .. } => {
                if let Wire::Open { link, out, .. } = std::mem::replace(&mut self.wire, Wire::None)
                    && !abort
                {
                    self.endings.push(Box::pin(part(link, out, code, reason)));
                }
            }
            Output::NeedToken { call, request } => {
                if let Some(provider) = &self.provider {
                    self.fetching = Some((call, provider(request)));
                }
            }
            Output::WakeAt(at) => self.alarm.set(at),
            Output::Event(event) => {
                log(&event);
                self.host.event(event);
            }
            Output::Complete { request, result } => {
                self.shared.open.fetch_sub(1, Ordering::Relaxed);
                self.host.complete(request, result);
            }
        }
    }

    /// Tells the session whether the transport takes what it is given, where that has changed.
    fn tell_congestion(&mut self) -> Option<bool> {
        let Wire::Open { out, .. } = &mut self.wire else { return None };
        let turned = out.turned_full();
        if let Some(full) = turned {
            self.session.hold_publishes(self.clock.now(), full);
        }
        turned
    }

    /// The next input. When nothing is ready, or much has been taken, the turn ends first: what has gathered is written and
    /// handed over.
    fn poll_input(&mut self, cx: &mut Context<'_>) -> Poll<Input> {
        let mut more = self.taken >= MAX_TURN;
        if !more && let Poll::Ready(input) = self.poll_ready(cx) {
            self.taken += 1;
            return Poll::Ready(input);
        }
        self.taken = 0;
        if self.report() {
            self.perform();
            more = true; // there may be room to read again
        }
        self.publish_positions();
        *lock(&self.shared.stats) = self.session.stats();
        self.host.flush();
        self.session.shrink();
        let mut failed = self.write(cx);
        while self.tell_congestion().is_some() {
            self.perform();
            failed = self.write(cx);
        }
        self.endings.retain_mut(|ending| ending.as_mut().poll(cx).is_pending());
        if more || failed { self.poll_ready(cx) } else { Poll::Pending }
    }

    /// What is ready; the transport before the clock, so that what has arrived counts before a deadline does. A turn begins with
    /// what the handles ask, which a busy transport would hold up.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Input> {
        if self.taken == 0
            && let Poll::Ready(command) = self.commands.poll_recv(cx)
        {
            return Poll::Ready(Input::Command(command));
        }
        match &mut self.wire {
            Wire::None => {}
            Wire::Opening(id, opening) => {
                if let Poll::Ready(result) = opening.as_mut().poll(cx) {
                    return Poll::Ready(Input::Opened(*id, result));
                }
            }
            Wire::Open { id, link, broken, .. } => {
                let has_room = self.session.wants_input() && self.host.has_room();
                if has_room {
                    self.ahead = 0;
                }
                // Whoever handles a message may be waiting for an answer that lies behind others.
                if (has_room || self.ahead < MAX_AHEAD && self.session.awaits_answer())
                    && let Poll::Ready(received) = link.poll_read(cx)
                {
                    if let Received::Frame(message) = &received
                        && !has_room
                    {
                        self.ahead += message.len() + UPKEEP;
                    }
                    return Poll::Ready(Input::Received(*id, received));
                }
                if let Some(reason) = broken.take() {
                    return Poll::Ready(Input::Received(*id, Received::Closed { code: None, reason }));
                }
            }
        }
        if let Some((call, fetch)) = &mut self.fetching
            && let Poll::Ready(token) = fetch.as_mut().poll(cx)
        {
            return Poll::Ready(Input::Token(*call, token));
        }
        if self.alarm.poll(self.clock, cx).is_ready() {
            return Poll::Ready(Input::Deadline);
        }
        self.commands.poll_recv(cx).map(Input::Command)
    }

    /// Writes what has gathered; whether that failed.
    fn write(&mut self, cx: &mut Context<'_>) -> bool {
        let Wire::Open { link, out, broken: broken @ None, .. } = &mut self.wire else {
            return false;
        };
        if let Poll::Ready(Err(message)) = out.write(link.as_mut(), cx) {
            *broken = Some(message);
        }
        broken.is_some()
    }
}

/// Tells the host of the frames of a message that came.
fn tell_received(host: &mut impl Host, message: &[u8]) {
    let mut rest = message;
    loop {
        let (frame, behind) = ServerFrame::decode_first(rest);
        let kind = frame.ok().and_then(|frame| frame.known_kind());
        host.frame(false, kind_of(message, kind), rest.len() - behind.len());
        rest = behind;
        if rest.is_empty() {
            return;
        }
    }
}

/// The kind of a frame for people.
fn kind_of(frame: &[u8], kind: Option<&'static str>) -> &'static str {
    if frame.is_empty() { "heartbeat" } else { kind.unwrap_or("unknown") }
}

fn log(event: &Event) {
    match event {
        Event::State { from, to, reason, .. } => {
            tracing::debug!(target: "nolag", ?from, ?to, reason, "state");
        }
        Event::Error(error) => tracing::warn!(target: "nolag", code = error.code(), %error, "error"),
        Event::Warning(warning) => tracing::warn!(target: "nolag", ?warning, "warning"),
        _ => {}
    }
}

/// Writes what is left and the close, and waits for the other end's, within [`LINGER`].
async fn part(mut link: Box<dyn Link>, mut out: Outbound, code: u16, reason: &'static str) {
    let mut closed = false;
    let parting = poll_fn(|cx| {
        loop {
            if !out.is_empty() || closed {
                match out.write(link.as_mut(), cx) {
                    Poll::Ready(Err(_)) => return Poll::Ready(()),
                    Poll::Pending if !out.is_empty() => return Poll::Pending,
                    _ => {}
                }
            }
            if !closed && out.is_empty() {
                closed = true;
                match link.poll_ready(cx) {
                    Poll::Ready(Ok(())) => {}
                    Poll::Ready(Err(_)) => return Poll::Ready(()),
                    Poll::Pending => {
                        closed = false;
                        return Poll::Pending;
                    }
                }
                if link.send(Outgoing::Close { code, reason }).is_err() {
                    return Poll::Ready(());
                }
                continue;
            }
            match link.poll_read(cx) {
                Poll::Ready(Received::Closed { .. } | Received::Failed { .. }) => return Poll::Ready(()),
                Poll::Ready(_) => {}
                Poll::Pending => return Poll::Pending,
            }
        }
    });
    runtime::within(LINGER, parting).await;
}

fn happening(received: Received) -> Happening {
    match received {
        Received::Frame(frame) => Happening::Frame(frame),
        #[cfg(feature = "json")]
        Received::Text(text) => Happening::Text(text),
        #[cfg(not(feature = "json"))]
        Received::Text(_) => Happening::Frame(bytes::Bytes::from_static(&[0xc1])), // counted as one that cannot be read
        Received::Closed { code, reason } => Happening::Closed { code, reason },
        Received::Failed { code, message } => Happening::Failed { code, message, retry_after: None },
    }
}
