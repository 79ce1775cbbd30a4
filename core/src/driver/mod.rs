//! Runs a session over real I/O: one task, one loop.
//!
//! A driver owns the transport and the session. It waits for whichever comes first of an arriving message, room to write,
//! a call, a token and the session's deadline, tells the session, and carries out its outputs in order. Everything that is
//! ready is written before one flush.

mod jwt;
pub mod memory;
pub mod native;
pub(crate) mod runtime;
mod transport;

use std::collections::{HashMap, VecDeque};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tokio::time::Sleep;

pub use transport::{Link, OpenFailure, Opening, Outgoing, Received, Transport};

use crate::Error;
use crate::event::{Event, Message, State, Topic};
use crate::session::{
    Call, Dispatched, Hint, LinkId, Output, Reply, RequestId, Session, Token, TokenFailure, TokenReason,
    Transport as Happening,
};
use runtime::Clock;

/// How many bytes may wait for the transport before the session's publishes are held back by not reading calls.
const MAX_WRITE_BYTES: usize = 1 << 20;
/// How long a transport has to take the last frames and the close.
const LINGER: Duration = Duration::from_secs(2);
/// How many events a reader may fall behind before it misses the oldest.
pub(crate) const EVENT_BACKLOG: usize = 1_024;

/// Fetches a token.
pub type TokenFuture = Pin<Box<dyn Future<Output = Result<Token, TokenFailure>> + Send>>;
/// Asked for a token before every connection (client-api 11).
pub type TokenProvider = Arc<dyn Fn(TokenReason) -> TokenFuture + Send + Sync>;

/// What a handle tells the driver. There are never more of them under way than calls, subscriptions and messages that exist.
pub(crate) enum Command {
    Call { request: RequestId, call: Call, reply: oneshot::Sender<Result<Reply, Error>> },
    Cancel(RequestId),
    Hint(Hint),
    Listen { topic: Topic, listener: Listener },
    Leave { topic: Topic, listener: u64 },
    Done { delivery: u64 },
}

/// Somebody who reads a topic's messages. The queue is bounded by the session, which hands out no more than
/// `receive_buffer` messages that are not reported.
pub(crate) struct Listener {
    pub(crate) number: u64,
    pub(crate) queue: mpsc::UnboundedSender<Result<Delivered, Error>>,
    /// Set when the client is closed: what is still queued is not handed over.
    pub(crate) ended: Arc<AtomicBool>,
}

/// A message on its way to its reader; the last copy that goes reports it.
pub(crate) struct Delivered {
    pub(crate) message: Message,
    pub(crate) report: Arc<Report>,
}

/// Reports a message as dispatched when it is dropped.
pub(crate) struct Report {
    delivery: u64,
    awaited: bool,
    commands: mpsc::WeakUnboundedSender<Command>,
}

impl Report {
    /// Whether the reader is to keep it until it has handled the message.
    pub(crate) fn is_awaited(&self) -> bool {
        self.awaited
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        if let Some(commands) = self.commands.upgrade() {
            let _ = commands.send(Command::Done { delivery: self.delivery }); // a driver that has ended needs no report
        }
    }
}

type Ending = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The transport of the session's current connection.
enum Wire {
    None,
    Opening(LinkId, Opening),
    Open {
        id: LinkId,
        link: Box<dyn Link>,
        out: VecDeque<Bytes>,
        out_bytes: usize,
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
pub(crate) struct Driver {
    session: Session,
    clock: Clock,
    transport: Box<dyn Transport>,
    provider: Option<TokenProvider>,
    commands: mpsc::UnboundedReceiver<Command>,
    sender: mpsc::WeakUnboundedSender<Command>,
    calls: HashMap<RequestId, oneshot::Sender<Result<Reply, Error>>>,
    listeners: HashMap<Topic, Vec<Listener>>,
    after_handler: bool,
    events: broadcast::Sender<Event>,
    state: watch::Sender<State>,
    wire: Wire,
    fetching: Option<(u64, TokenFuture)>,
    deadline: Option<Pin<Box<Sleep>>>,
    endings: Vec<Ending>,
    next_request: u64,
}

/// What a handle needs of its driver.
pub(crate) struct Ends {
    pub(crate) commands: mpsc::UnboundedSender<Command>,
    pub(crate) events: broadcast::Sender<Event>,
    pub(crate) state: watch::Receiver<State>,
}

impl Driver {
    pub(crate) fn new(
        session: Session,
        transport: Box<dyn Transport>,
        provider: Option<TokenProvider>,
        after_handler: bool,
    ) -> (Self, Ends) {
        let (sender, commands) = mpsc::unbounded_channel();
        let (events, _) = broadcast::channel(EVENT_BACKLOG);
        let (state, states) = watch::channel(State::Idle);
        let driver = Self {
            session,
            clock: Clock::start(),
            transport,
            provider,
            commands,
            sender: sender.downgrade(),
            calls: HashMap::new(),
            listeners: HashMap::new(),
            after_handler,
            events: events.clone(),
            state,
            wire: Wire::None,
            fetching: None,
            deadline: None,
            endings: Vec::new(),
            // Handles count from 1; the driver's own calls from far above.
            next_request: 1 << 63,
        };
        (driver, Ends { commands: sender, events, state: states })
    }

    /// Runs until the last handle is gone and the connection is closed.
    pub(crate) async fn run(mut self) {
        loop {
            self.perform();
            match poll_fn(|cx| self.poll_input(cx)).await {
                Input::Command(None) => break,
                input => self.take(input),
            }
        }
        // The last handle is gone: that disconnects (client-api 20).
        self.own_call(Call::Disconnect);
        self.perform();
        for ending in std::mem::take(&mut self.endings) {
            ending.await;
        }
    }

    fn take(&mut self, input: Input) {
        let now = self.clock.now();
        match input {
            Input::Opened(id, Ok(link)) => {
                self.wire = Wire::Open { id, link, out: VecDeque::new(), out_bytes: 0, broken: None };
                self.session.transport(now, id, Happening::Opened);
            }
            Input::Opened(id, Err(OpenFailure { code, message, retry_after })) => {
                self.wire = Wire::None;
                self.session.transport(now, id, Happening::Failed { code, message, retry_after });
            }
            Input::Received(id, received) => {
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
                self.deadline = None;
                self.session.wake(now);
            }
            Input::Command(Some(command)) => self.command(now, command),
            Input::Command(None) => {}
        }
    }

    fn command(&mut self, now: Duration, command: Command) {
        match command {
            Command::Call { request, call, reply } => {
                self.calls.insert(request, reply);
                self.session.call(now, request, call);
            }
            Command::Cancel(request) => self.session.cancel(now, request),
            Command::Hint(hint) => self.session.hint(now, hint),
            Command::Listen { topic, listener } => self.listeners.entry(topic).or_default().push(listener),
            Command::Leave { topic, listener } => {
                let Some(queues) = self.listeners.get_mut(&topic) else { return };
                queues.retain(|queue| queue.number != listener);
                if queues.is_empty() {
                    self.listeners.remove(&topic);
                    self.own_call(Call::Unsubscribe { topic: topic.to_string() });
                }
            }
            Command::Done { delivery } => {
                // All that were read by now go in one acknowledgement.
                let mut finished = vec![(delivery, true)];
                let mut others = None;
                while let Ok(command) = self.commands.try_recv() {
                    match command {
                        Command::Done { delivery } => finished.push((delivery, true)),
                        other => {
                            others = Some(other);
                            break;
                        }
                    }
                }
                self.session.dispatched(now, Dispatched::Finished(finished));
                if let Some(other) = others {
                    self.perform();
                    self.command(now, other);
                }
            }
        }
    }

    /// A call that nobody waits for.
    fn own_call(&mut self, call: Call) {
        self.next_request += 1;
        self.session.call(self.clock.now(), RequestId(self.next_request), call);
    }

    /// Carries out what the session wants, in order.
    fn perform(&mut self) {
        while let Some(output) = self.session.poll() {
            match output {
                Output::OpenTransport { link } => self.wire = Wire::Opening(link, self.transport.open()),
                Output::Send { link, frame } => {
                    if let Wire::Open { id, out, out_bytes, .. } = &mut self.wire
                        && *id == link
                    {
                        *out_bytes += frame.len();
                        out.push_back(frame);
                    }
                }
                Output::CloseTransport { code, reason, abort, .. } => {
                    if let Wire::Open { link, out, .. } = std::mem::replace(&mut self.wire, Wire::None)
                        && !abort
                    {
                        self.endings.push(Box::pin(part(link, out, code, reason)));
                    }
                }
                Output::NeedToken { call, reason, .. } => {
                    if let Some(provider) = &self.provider {
                        self.fetching = Some((call, provider(reason)));
                    }
                }
                Output::WakeAt(at) => self.deadline = at.map(|at| self.clock.timer(at)),
                Output::Event(Event::Message(message)) => self.deliver(&message),
                Output::Event(event) => self.tell(event),
                Output::Complete { request, result } => {
                    if let Some(reply) = self.calls.remove(&request) {
                        let _ = reply.send(result); // whoever asked may have gone
                    }
                }
            }
        }
    }

    fn deliver(&mut self, message: &Message) {
        let (delivery, awaited) = (message.delivery, self.after_handler);
        let report = Arc::new(Report { delivery, awaited, commands: self.sender.clone() });
        for listener in self.listeners.get(&message.topic).into_iter().flatten() {
            let delivered = Delivered { message: message.clone(), report: report.clone() };
            let _ = listener.queue.send(Ok(delivered)); // it may have gone
        }
    }

    fn tell(&mut self, event: Event) {
        match &event {
            Event::State { from, to, reason, .. } => {
                tracing::debug!(target: "nolag", ?from, ?to, reason, "state");
                self.state.send_replace(to.clone());
                if *to == State::Closed {
                    for listener in self.listeners.drain().flat_map(|(_, listeners)| listeners) {
                        listener.ended.store(true, Ordering::Release);
                    }
                }
            }
            Event::Failed(error) => {
                for listener in self.listeners.drain().flat_map(|(_, listeners)| listeners) {
                    let _ = listener.queue.send(Err(error.clone()));
                }
            }
            Event::Error(error) if error.server_code() == nolag_protocol::codes::ACCESS_REVOKED.code => {
                let revoked = error.topic().and_then(|topic| self.listeners.remove(topic));
                for listener in revoked.into_iter().flatten() {
                    let _ = listener.queue.send(Err(error.clone()));
                }
            }
            Event::Error(error) => tracing::warn!(target: "nolag", code = error.code(), %error, "error"),
            Event::Warning(warning) => tracing::warn!(target: "nolag", ?warning, "warning"),
            _ => {}
        }
        let _ = self.events.send(event); // nobody may be listening
    }

    /// What comes first; the transport before the clock, so that what has arrived counts before a deadline does.
    fn poll_input(&mut self, cx: &mut Context<'_>) -> Poll<Input> {
        self.endings.retain_mut(|ending| ending.as_mut().poll(cx).is_pending());
        match &mut self.wire {
            Wire::None => {}
            Wire::Opening(id, opening) => {
                if let Poll::Ready(result) = opening.as_mut().poll(cx) {
                    return Poll::Ready(Input::Opened(*id, result));
                }
            }
            Wire::Open { id, link, out, out_bytes, broken } => {
                if broken.is_none()
                    && let Poll::Ready(Err(message)) = write(link.as_mut(), out, cx)
                {
                    *broken = Some(message);
                }
                *out_bytes = out.iter().map(Bytes::len).sum();
                if self.session.wants_input()
                    && let Poll::Ready(received) = link.poll_read(cx)
                {
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
        if let Some(deadline) = &mut self.deadline
            && deadline.as_mut().poll(cx).is_ready()
        {
            return Poll::Ready(Input::Deadline);
        }
        let congested = matches!(&self.wire, Wire::Open { out_bytes, .. } if *out_bytes > MAX_WRITE_BYTES);
        if congested {
            return Poll::Pending; // the transport wakes us when it has room
        }
        self.commands.poll_recv(cx).map(Input::Command)
    }
}

/// Hands the link all that it takes, and flushes once.
fn write(link: &mut dyn Link, out: &mut VecDeque<Bytes>, cx: &mut Context<'_>) -> Poll<Result<(), String>> {
    while !out.is_empty() {
        match link.poll_ready(cx) {
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(message)) => return Poll::Ready(Err(message)),
            Poll::Pending => break,
        }
        if let Some(frame) = out.pop_front()
            && let Err(message) = link.send(Outgoing::Frame(frame))
        {
            return Poll::Ready(Err(message));
        }
    }
    link.poll_flush(cx)
}

/// Writes what is left and the close, and waits for the other end's, within [`LINGER`].
async fn part(mut link: Box<dyn Link>, mut out: VecDeque<Bytes>, code: u16, reason: &'static str) {
    let mut closed = false;
    let parting = poll_fn(|cx| {
        loop {
            if !out.is_empty() || closed {
                match write(link.as_mut(), &mut out, cx) {
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
        Received::Text(_) => Happening::Frame(Bytes::from_static(&[0xc1])), // counted as one that cannot be read
        Received::Closed { code, reason } => Happening::Closed { code, reason },
        Received::Failed { code, message } => Happening::Failed { code, message, retry_after: None },
    }
}
