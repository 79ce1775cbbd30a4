//! A subscription as a stream of its messages.

use std::future::IntoFuture;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_util::Stream;
use tokio::sync::mpsc;

use super::{BoxFuture, Client};
use crate::driver::{Command, Delivered, Listener, Report};
use crate::error::Error;
use crate::event::{Message, Topic};
use crate::options::{Filter, Group, Qos, SubscribeOptions};
use crate::session::{Call, FilterChange};

/// A subscribe that begins when it is awaited.
#[must_use = "a subscription is made when this is awaited"]
#[derive(Debug)]
pub struct Subscribe {
    client: Client,
    topic: Topic,
    options: SubscribeOptions,
}

impl Subscribe {
    pub(super) fn new(client: Client, topic: &str) -> Self {
        Self { client, topic: topic.into(), options: SubscribeOptions::default() }
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
}

impl IntoFuture for Subscribe {
    type Output = Result<Subscription, Error>;
    type IntoFuture = BoxFuture<Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let Self { client, topic, options } = self;
            let number = client.number();
            let (queue, messages) = mpsc::unbounded_channel();
            let ended = Arc::default();
            let listener = Listener { number, queue, ended: Arc::clone(&ended) };
            // Listening comes first: a retained message follows the broker's answer at once.
            client.tell(Command::Listen { topic: topic.clone(), listener });
            let subscription = Subscription {
                client: client.clone(),
                topic: topic.clone(),
                number,
                messages,
                ended,
                last: None,
            };
            client.call(Call::Subscribe { topic: topic.to_string(), options }).await?;
            Ok(subscription)
        })
    }
}

/// The messages of a topic, in the order they come. It ends when the client is closed, and with an error when the broker takes
/// the topic away or the client gives up. Dropping the last one of a topic unsubscribes.
///
/// A message counts as dispatched when it is taken from the stream; in [`AckMode::AfterHandler`](crate::options::AckMode)
/// when the next one is asked for, or the subscription dropped.
pub struct Subscription {
    client: Client,
    topic: Topic,
    number: u64,
    messages: mpsc::UnboundedReceiver<Result<Delivered, Error>>,
    ended: Arc<std::sync::atomic::AtomicBool>,
    last: Option<Arc<Report>>,
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

    /// The next message.
    pub async fn next(&mut self) -> Option<Result<Message, Error>> {
        std::future::poll_fn(|cx| Pin::new(&mut *self).poll_next(cx)).await
    }

    /// Changes the filters.
    pub async fn filters(&self, change: FilterChange) -> Result<(), Error> {
        self.client.filters(&self.topic, change).await
    }
}

impl Stream for Subscription {
    type Item = Result<Message, Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.last = None;
        let next = ready!(self.messages.poll_recv(cx));
        Poll::Ready(match next {
            // Nothing is handed over once the client is closed (client-api 12.4).
            Some(Ok(_)) | None if self.ended.load(std::sync::atomic::Ordering::Acquire) => None,
            Some(Ok(Delivered { message, report })) => {
                self.last = report.is_awaited().then_some(report);
                Some(Ok(message))
            }
            Some(Err(error)) => Some(Err(error)),
            None => None,
        })
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.client.tell(Command::Leave { topic: self.topic.clone(), listener: self.number });
    }
}
