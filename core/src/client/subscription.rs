//! A subscription as a stream of its messages.

use std::collections::VecDeque;
use std::future::IntoFuture;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::Stream;

use super::desk::{Entry, Fetched, Ticket};
use super::{BoxFuture, Client};
use crate::error::Error;
use crate::event::{Message, Topic};
use crate::options::{AckMode, Filter, Group, Position, Qos, ReceiveOverflow, SubscribeOptions};
use crate::session::{Call, FilterChange, RequestId};

/// A subscribe that begins when it is awaited.
#[must_use = "a subscription is made when this is awaited"]
#[derive(Debug)]
pub struct Subscribe {
    client: Client,
    topic: Topic,
    options: SubscribeOptions,
    buffer: usize,
    overflow: ReceiveOverflow,
}

impl Subscribe {
    pub(super) fn new(client: Client, topic: &str) -> Self {
        Self {
            client,
            topic: topic.into(),
            options: SubscribeOptions::default(),
            buffer: 1_024,
            overflow: ReceiveOverflow::Pause,
        }
    }

    /// The quality of service.
    pub fn qos(mut self, qos: Qos) -> Self {
        self.options.qos = Some(qos);
        self
    }

    /// Shares the messages with the other members of a group.
    pub fn group(mut self, group: Group) -> Self {
        self.options.group = Some(group);
        self
    }

    /// Only messages with one of these filter values.
    pub fn filters<T: Into<String>>(mut self, values: impl IntoIterator<Item = T>) -> Self {
        self.options.filters.extend(values.into_iter().map(|value| Filter::Value(value.into())));
        self
    }

    /// Also messages with all of these filter values.
    pub fn all_of<T: Into<String>>(mut self, values: impl IntoIterator<Item = T>) -> Self {
        self.options.filters.push(Filter::Group(values.into_iter().map(Into::into).collect()));
        self
    }

    /// So many of the newest messages that the broker has kept come first, 1 to 1,000
    /// ([`SubscribeOptions::history`]).
    pub fn history(mut self, messages: u16) -> Self {
        self.options.history = Some(messages);
        self
    }

    /// Continues where an earlier run of the program stopped: with what [`Subscription::position`] was then, if it was anything.
    pub fn resume_from(mut self, position: impl Into<Option<Position>>) -> Self {
        self.options.resume_from = position.into();
        self
    }

    /// A message of the group that is not acknowledged in time goes to another member; `None` leaves the time to the broker
    /// ([`SubscribeOptions::redeliver`]).
    pub fn redeliver(mut self, after: impl Into<Option<Duration>>) -> Self {
        self.options.redeliver = true;
        self.options.ack_timeout = after.into();
        self
    }

    /// How many messages may wait for this reader, at least 1; 1,024 unless told otherwise.
    pub fn buffer(mut self, messages: usize) -> Self {
        self.buffer = messages.max(1);
        self
    }

    /// What happens when more come. Unless told otherwise the client reads no more from the broker until some are taken.
    /// Of what is dropped an [`Event::Overflow`](crate::Event) tells when the reader has caught up.
    pub fn overflow(mut self, policy: ReceiveOverflow) -> Self {
        self.overflow = policy;
        self
    }
}

impl IntoFuture for Subscribe {
    type Output = Result<Subscription, Error>;
    type IntoFuture = BoxFuture<Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let Self { client, topic, options, buffer, overflow } = self;
            let number = client.inner.handle.number();
            // Entering comes first: a retained message follows the broker's answer at once.
            let closed = client.inner.desk.enter(topic.clone(), number, buffer, overflow);
            let subscription = Subscription {
                client: client.clone(),
                topic: topic.clone(),
                number,
                messages: VecDeque::new(),
                error: None,
                closed,
                last: None,
            };
            client.call_as(number, Call::Subscribe { topic: topic.to_string(), options }).await?;
            Ok(subscription)
        })
    }
}

/// The messages of a topic, in the order they come. It ends when the client is closed, and with an error when the broker takes
/// the topic away or the client gives up. Dropping the last one of a topic unsubscribes.
///
/// A message counts as dispatched when it is taken from the stream; in
/// [`AckMode::AfterHandler`](crate::options::AckMode::AfterHandler) when the next one is asked for, or the subscription dropped, unless [`fail`](Self::fail) was called.
pub struct Subscription {
    client: Client,
    topic: Topic,
    number: RequestId,
    /// Fetched, and not taken.
    messages: VecDeque<Entry>,
    error: Option<Error>,
    closed: Arc<AtomicBool>,
    /// Of the one that the application has, where it is acknowledged afterwards.
    last: Option<Ticket>,
}

impl std::fmt::Debug for Subscription {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Subscription").field("topic", &self.topic).finish_non_exhaustive()
    }
}

impl Subscription {
    /// The topic, as subscribed.
    pub fn topic(&self) -> &str {
        &self.topic
    }

    /// How far this subscription is, as of a moment ago: store it, and give it to [`Subscribe::resume_from`] on the next start. It
    /// is exact when [`Client::close`] or [`Client::disconnect`] is done. `None` for groups, and with a broker that numbers
    /// nothing.
    pub fn position(&self) -> Option<Position> {
        self.client.inner.handle.position(&self.topic)
    }

    /// The next message.
    pub async fn next(&mut self) -> Option<Result<Message, Error>> {
        std::future::poll_fn(|cx| Pin::new(&mut *self).poll_next(cx)).await
    }

    /// The message that was taken last has been handled. Asking for the next one says the same, so this is for the last before a
    /// close.
    pub fn done(&mut self) {
        if let Some(ticket) = self.last.take() {
            self.finish(&ticket, true);
        }
    }

    /// The message that was taken last could not be handled. In
    /// [`AckMode::AfterHandler`](crate::options::AckMode::AfterHandler) it is not acknowledged; else nothing
    /// comes of it.
    pub fn fail(&mut self) {
        if let Some(ticket) = self.last.take() {
            self.finish(&ticket, false);
        }
    }

    /// Changes the filters.
    pub async fn filters(&self, change: FilterChange) -> Result<(), Error> {
        self.client.filters(&self.topic, change).await
    }

    fn finish(&self, ticket: &Ticket, succeeded: bool) {
        self.client.inner.desk.finish(ticket, succeeded);
        self.client.inner.handle.poke();
    }

    fn take(&mut self, (message, ticket): Entry) -> Message {
        if message.ack_mode == AckMode::AfterHandler {
            self.last = Some(ticket);
        } else {
            self.finish(&ticket, true);
        }
        message
    }
}

impl Stream for Subscription {
    type Item = Result<Message, Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.done();
        if self.closed.load(Ordering::Acquire) {
            return Poll::Ready(None);
        }
        if self.messages.is_empty() && self.error.is_none() {
            let spare = std::mem::take(&mut self.messages);
            match self.client.inner.desk.fetch(&self.topic, self.number, spare, cx.waker()) {
                Fetched::Nothing { has_room } => {
                    if has_room {
                        self.client.inner.handle.poke();
                    }
                    return Poll::Pending;
                }
                Fetched::Messages { messages, has_room } => {
                    self.messages = messages;
                    if has_room {
                        self.client.inner.handle.poke();
                    }
                }
                Fetched::Last(messages, error) => (self.messages, self.error) = (messages, error),
            }
        }
        let next = self.messages.pop_front();
        Poll::Ready(match next {
            Some(entry) => Some(Ok(self.take(entry))),
            None => self.error.take().map(Err),
        })
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let inner = &self.client.inner;
        for ticket in self.last.iter().chain(self.messages.iter().map(|(_, ticket)| ticket)) {
            inner.desk.finish(ticket, true);
        }
        if inner.desk.leave(&self.topic, self.number) {
            // Nobody waits for the answer, and a client that has ended needs none.
            let _ =
                inner.handle.call(inner.handle.number(), Call::Unsubscribe { topic: self.topic.to_string() });
        }
        inner.handle.poke();
    }
}
