//! The public async API over a driver (client-api 20).
//!
//! ```no_run
//! # async fn example() -> Result<(), nolag_core::Error> {
//! use futures_util::StreamExt as _;
//!
//! let client = nolag_core::Client::builder("token").url("ws://localhost:8080").build()?;
//! client.connect().await?;
//! let mut messages = client.subscribe("demo/general/messages").await?;
//! client.publish("demo/general/messages", &"hello").await?;
//! let first = messages.next().await;
//! # drop(first); Ok(()) }
//! ```

mod builder;
mod desk;
mod room;
mod subscription;

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use tokio::sync::{broadcast, watch};

pub use builder::{Builder, TokenSource};
pub use room::{App, Room};
pub use subscription::{Subscribe, Subscription};

use crate::driver::{Handle, runtime};
use crate::error::{ConnectionCode, Error};
use crate::event::{Actor, Event, LobbySnapshot, Receipt, Room as RoomKey, State};
use crate::options::{PublishOptions, Qos, Secret};
use crate::payload;
use crate::session::{Call, FilterChange, Hint, Reply, RequestId, Stats};
use desk::Desk;

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A handle to one client; clones share it. Dropping the last one, subscriptions included, disconnects.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

struct Inner {
    handle: Handle,
    desk: Arc<Desk>,
    state: watch::Receiver<State>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("state", &self.state()).finish_non_exhaustive()
    }
}

impl Client {
    /// Begins a client that authenticates with this token, or with what this provider gives.
    pub fn builder(token: impl Into<TokenSource>) -> Builder {
        Builder::new(token.into())
    }

    /// Connects, and stays connected from then on. It waits for the first connection as `initial_connect` says.
    /// Dropping the future gives up an attempt that nobody else waits for, if the client was never connected.
    pub async fn connect(&self) -> Result<(), Error> {
        self.call(Call::Connect).await.map(|_| ())
    }

    /// Publishes a value, structs as maps. (MessagePack has integers of 64 bits: a `u128` or `i128` travels as 16 bytes.) The future is done when the broker has accepted it, for quality 0 when it is written. Dropping
    /// the future withdraws a publish that has not been written.
    pub fn publish<T: Serialize + ?Sized>(&self, topic: &str, payload: &T) -> Publish {
        self.publish_encoded(topic, payload::encode(topic, payload))
    }

    /// Publishes one MessagePack value that is encoded already.
    pub fn publish_bytes(&self, topic: &str, payload: Bytes) -> Publish {
        self.publish_encoded(topic, Ok(payload))
    }

    fn publish_encoded(&self, topic: &str, payload: Result<Bytes, Error>) -> Publish {
        Publish { client: self.clone(), topic: topic.to_owned(), payload, options: PublishOptions::default() }
    }

    /// Subscribes; the future is done when the broker has answered. The subscription is made again on every connection.
    pub fn subscribe(&self, topic: &str) -> Subscribe {
        Subscribe::new(self.clone(), topic)
    }

    /// Ends a subscription, whoever reads it. Without a connection that is done at once. What waits for readers is not handed over.
    pub async fn unsubscribe(&self, topic: &str) -> Result<(), Error> {
        self.inner.desk.close_topic(topic);
        self.call(Call::Unsubscribe { topic: topic.to_owned() }).await.map(|_| ())
    }

    /// Changes the filters of a subscription.
    pub async fn filters(&self, topic: &str, change: FilterChange) -> Result<(), Error> {
        self.call(Call::Filters { topic: topic.to_owned(), change }).await.map(|_| ())
    }

    /// Acknowledges messages by id, in manual mode.
    pub async fn ack(&self, ids: impl IntoIterator<Item = impl Into<String>>) -> Result<(), Error> {
        self.call(Call::Ack { ids: ids.into_iter().map(Into::into).collect() }).await.map(|_| ())
    }

    /// Waits until nothing is queued or in flight.
    pub async fn flush(&self, timeout: Option<Duration>) -> Result<(), Error> {
        self.call(Call::Flush { timeout }).await.map(|_| ())
    }

    /// An app's rooms.
    pub fn app(&self, slug: &str) -> Result<App, Error> {
        App::new(self.clone(), slug)
    }

    async fn set_presence(&self, room: RoomKey, data: Option<Bytes>) -> Result<(), Error> {
        self.call(Call::SetPresence { room: Some(room), data }).await.map(|_| ())
    }

    async fn fetch_presence(&self, room: RoomKey) -> Result<Vec<Actor>, Error> {
        match self.call(Call::FetchPresence { room }).await? {
            Reply::Presence(actors) => Ok(actors),
            _ => Ok(Vec::new()),
        }
    }

    /// Watches a lobby: changes come as [`Event::Lobby`]. Returns who is in its rooms.
    pub async fn watch_lobby(&self, slug: &str) -> Result<LobbySnapshot, Error> {
        self.lobby(Call::WatchLobby { lobby: slug.to_owned() }).await
    }

    /// Watches it no more.
    pub async fn unwatch_lobby(&self, slug: &str) -> Result<(), Error> {
        self.call(Call::UnwatchLobby { lobby: slug.to_owned() }).await.map(|_| ())
    }

    /// Who is in a lobby's rooms.
    pub async fn fetch_lobby(&self, slug: &str) -> Result<LobbySnapshot, Error> {
        self.lobby(Call::FetchLobby { lobby: slug.to_owned() }).await
    }

    async fn lobby(&self, call: Call) -> Result<LobbySnapshot, Error> {
        match self.call(call).await? {
            Reply::Lobby(snapshot) => Ok(snapshot),
            _ => Ok(Vec::new()),
        }
    }

    /// Uses another token from the next connection on, instead of the one given before.
    pub async fn update_token(&self, token: impl Into<String>) -> Result<(), Error> {
        self.call(Call::UpdateToken { token: Secret::new(token) }).await.map(|_| ())
    }

    /// There is no network: no attempt is made until [`notify_online`](Self::notify_online), but for one after five minutes, since
    /// such hints are not always right. A connection that is there is kept until it proves dead.
    ///
    /// This and the four below are hints, for whoever knows more of the platform than the client. It needs none of them: it finds out
    /// by itself, later.
    pub fn notify_offline(&self) {
        self.inner.handle.hint(Hint::Offline);
    }

    /// There is a network again, or another: a connection that is there has two seconds to prove itself, and where none is there is an
    /// attempt now.
    pub fn notify_online(&self) {
        self.inner.handle.hint(Hint::Online);
    }

    /// The application is being put to sleep: what is to be acknowledged is written, and attempts are held back as
    /// [`notify_offline`](Self::notify_offline) says. Subscriptions and the queue stay.
    pub fn suspend(&self) {
        self.inner.handle.hint(Hint::Suspend);
    }

    /// The application is back: as [`notify_online`](Self::notify_online).
    pub fn resume(&self) {
        self.inner.handle.hint(Hint::Resume);
    }

    /// Makes the next attempt now, whatever the wait and the hints are. A connection that is there has two seconds to prove itself.
    pub fn reconnect_now(&self) {
        self.inner.handle.hint(Hint::ReconnectNow);
    }

    /// Where the connection stands.
    pub fn state(&self) -> State {
        self.inner.state.borrow().clone()
    }

    /// Waits until the client is connected, whoever connects it; for at most `timeout` where one is given.
    pub async fn wait_for_connected(&self, timeout: Option<Duration>) -> Result<(), Error> {
        let mut states = self.states();
        let connected = async {
            // The sender is gone only with the driver, which this handle keeps.
            states.wait_for(|state| *state == State::Connected).await.map(|_| ()).map_err(|_| Error::closed())
        };
        match timeout {
            Some(limit) => runtime::within(limit, connected).await.unwrap_or_else(|| {
                Err(Error::Connection {
                    code: ConnectionCode::ConnectTimeout,
                    message: format!("not connected after {limit:?}"),
                    fatal: false,
                    outcome_unknown: false,
                })
            }),
            None => connected.await,
        }
    }

    /// What counts, as of a moment ago.
    pub fn stats(&self) -> Stats {
        self.inner.handle.stats()
    }

    /// Follows where the connection stands.
    pub fn states(&self) -> watch::Receiver<State> {
        self.inner.state.clone()
    }

    /// All that happens from now on, but for messages. A reader that falls 1,024 events behind misses the oldest, and is told
    /// how many.
    pub fn events(&self) -> broadcast::Receiver<Event> {
        self.inner.desk.events.subscribe()
    }

    /// Closes at once: what is open fails. What is subscribed is subscribed again by a later [`Client::connect`].
    pub async fn disconnect(&self) -> Result<(), Error> {
        self.end(Call::Disconnect).await
    }

    async fn end(&self, call: Call) -> Result<(), Error> {
        let number = self.inner.handle.number();
        let result = self.call(call).await;
        // Of a client that had given up before the driver says nothing more.
        self.inner.desk.close_ended(number);
        result.map(|_| ())
    }

    /// Closes when all that was published has been answered, within 5 s unless told otherwise.
    pub fn close(&self) -> Close {
        Close { client: self.clone(), flush: true, timeout: Duration::from_secs(5) }
    }

    async fn call(&self, call: Call) -> Result<Reply, Error> {
        self.call_as(self.inner.handle.number(), call).await
    }

    async fn call_as(&self, request: RequestId, call: Call) -> Result<Reply, Error> {
        let Inner { handle, desk, .. } = &*self.inner;
        let mut withdrawal = Withdrawal { inner: &self.inner, request: Some(request) };
        let answer = desk.expect(request);
        handle.call(request, call)?;
        let result = answer.await.unwrap_or_else(|_| Err(Error::closed()));
        withdrawal.request = None;
        result
    }
}

/// Withdraws a call whose future is dropped before it is done.
struct Withdrawal<'a> {
    inner: &'a Inner,
    request: Option<RequestId>,
}

impl Drop for Withdrawal<'_> {
    fn drop(&mut self) {
        if let Some(request) = self.request {
            self.inner.desk.forget(request);
            self.inner.handle.cancel(request);
        }
    }
}

/// A publish that begins when it is awaited.
#[must_use = "a publish is sent when it is awaited"]
#[derive(Debug)]
pub struct Publish {
    client: Client,
    topic: String,
    payload: Result<Bytes, Error>,
    options: PublishOptions,
}

impl Publish {
    /// The quality of service.
    pub fn qos(mut self, qos: Qos) -> Self {
        self.options.qos = Some(qos);
        self
    }

    /// Keeps the message for later subscribers.
    pub fn retain(mut self) -> Self {
        self.options.retain = true;
        self
    }

    /// Keeps the message from this client's own subscriptions.
    pub fn no_echo(mut self) -> Self {
        self.options.no_echo = true;
        self
    }

    /// Marks the message with a filter value.
    pub fn filter(mut self, value: &str) -> Self {
        self.options.filter = Some(value.to_owned());
        self
    }

    /// Names the trace it belongs to: a W3C `traceparent`, which subscribers find in [`Meta::trace`](crate::event::Meta::trace).
    pub fn trace(mut self, traceparent: &str) -> Self {
        self.options.trace = Some(traceparent.to_owned());
        self
    }

    /// All options at once.
    pub fn options(mut self, options: PublishOptions) -> Self {
        self.options = options;
        self
    }
}

impl IntoFuture for Publish {
    type Output = Result<Receipt, Error>;
    type IntoFuture = BoxFuture<Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let Self { client, topic, payload, options } = self;
            match client.call(Call::Publish { topic, payload: payload?, options }).await? {
                Reply::Receipt(receipt) => Ok(*receipt),
                _ => Err(Error::closed()), // a publish has no other reply
            }
        })
    }
}

/// A close that begins when it is awaited.
#[must_use = "a client is closed when this is awaited"]
#[derive(Debug)]
pub struct Close {
    client: Client,
    flush: bool,
    timeout: Duration,
}

impl Close {
    /// Whether to wait for what was published.
    pub fn flush(mut self, flush: bool) -> Self {
        self.flush = flush;
        self
    }

    /// For how long.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }
}

impl IntoFuture for Close {
    type Output = Result<(), Error>;
    type IntoFuture = BoxFuture<Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let Self { client, flush, timeout } = self;
            client.end(Call::Close { flush, timeout }).await
        })
    }
}
