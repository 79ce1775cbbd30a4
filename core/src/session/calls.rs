//! What each call does in each state (client-api Appendix B).

use nolag_protocol::filter::FilterError;
use nolag_protocol::trace::is_traceparent;
use nolag_protocol::{MAX_MESSAGE_BYTES, codes, filter, msgpack, topic};

use super::subscriptions::{Asked, Mode, check_filters};
use super::{Call, MAX_OPEN_CALLS, RequestId, Session, positions};
use crate::Error;
use crate::options::{Credentials, Group, PublishOptions, SubscribeOptions};

/// What a publish frame has beside payload, topic and filters, generously.
const FRAME_OVERHEAD: usize = 512;
/// For how long a message may be retained, in seconds (features 10).
const RETAIN_TTL: std::ops::RangeInclusive<u64> = 1..=31_536_000;

impl Session {
    /// The caller asks for something.
    pub fn call(&mut self, now: std::time::Duration, request: RequestId, call: Call) {
        self.begin(now);
        let full = self.fx.open_calls() >= MAX_OPEN_CALLS;
        self.fx.opened();
        if full && !matches!(call, Call::Disconnect | Call::Close { .. }) {
            self.fx.complete(request, Err(Error::queue("queue_full", None)));
        } else {
            self.perform(request, call);
        }
        self.end();
    }

    /// The caller no longer waits. What can be withdrawn is; the call is completed with `aborted`.
    pub fn cancel(&mut self, now: std::time::Duration, request: RequestId) {
        self.begin(now);
        if self.connection.waiters.iter().any(|(waiter, _)| *waiter == request) {
            self.connection.waiters.retain(|(waiter, _)| *waiter != request);
            self.fx.complete(request, Err(Error::aborted()));
            if self.connection.waiters.is_empty() && !self.connection.ever_connected {
                self.finish_closing(); // nobody wants this connection any more (API-078)
            }
        } else if !self.outbox.cancel(&mut self.fx, request)
            && (self.subscriptions.cancel(request)
                || self.requests.cancel(request)
                || self.presence.cancel(request)
                || self.lobbies.cancel(request))
        {
            self.fx.complete(request, Err(Error::aborted()));
        }
        self.end();
    }

    fn perform(&mut self, request: RequestId, call: Call) {
        let ack_timeout = self.options.ack_timeout;
        let presence_timeout = self.options.presence_timeout;
        match call {
            Call::Connect => self.connect(request),
            Call::Disconnect => {
                self.finish_closing();
                self.fx.done(request);
            }
            Call::Close { flush, timeout } => self.close(flush, timeout, request),
            Call::Subscribe { topic, options } => match self.subscription(&topic, options) {
                Ok(asked) => self.subscriptions.subscribe(
                    &mut self.fx,
                    &mut self.requests,
                    ack_timeout,
                    &topic,
                    asked,
                    request,
                ),
                Err(error) => self.fx.complete(request, Err(error)),
            },
            Call::Unsubscribe { topic } => self.unsubscribe(&topic, request),
            Call::Filters { topic, change } => match self.connection.refusal() {
                Some(_) if self.connection.closing.is_none() => {
                    self.fx.complete(request, Err(Error::NotConnected));
                }
                Some(error) => self.fx.complete(request, Err(error)),
                None => self.subscriptions.filter(
                    &mut self.fx,
                    &mut self.requests,
                    ack_timeout,
                    &topic,
                    change,
                    request,
                ),
            },
            Call::Publish { topic, payload, options } => {
                let checked = check_publish(&topic, &payload, &options);
                match self.connection.refusal().map_or(checked, Err) {
                    Ok(()) => {
                        self.outbox.publish(&mut self.fx, &self.options, &topic, payload, options, request);
                    }
                    Err(error) => self.fx.complete(request, Err(error)),
                }
            }
            Call::Flush { timeout } => self.outbox.flush(&mut self.fx, timeout, request),
            Call::SetPresence { room, data } => {
                let checked = data.as_deref().map_or(Ok(()), |data| check_value("setPresence", data));
                let announced = checked.and_then(|()| {
                    let (fx, requests) = (&mut self.fx, &mut self.requests);
                    self.presence.announce(fx, requests, presence_timeout, room, data)
                });
                self.fx.complete(request, announced.map(|()| super::Reply::Done));
            }
            Call::FetchPresence { room } => match self.query_refusal() {
                None => {
                    let (fx, requests) = (&mut self.fx, &mut self.requests);
                    self.presence.list(fx, requests, presence_timeout, room, request);
                }
                Some(error) => self.fx.complete(request, Err(error)),
            },
            Call::WatchLobby { lobby } => match self.query_refusal() {
                None => {
                    self.lobbies.watch(&mut self.fx, &mut self.requests, ack_timeout, &lobby, request);
                }
                Some(error) => self.fx.complete(request, Err(error)),
            },
            Call::UnwatchLobby { lobby } => {
                self.lobbies.unwatch(&mut self.fx, &mut self.requests, ack_timeout, &lobby, request);
            }
            Call::FetchLobby { lobby } => match self.query_refusal() {
                None => self.lobbies.list(&mut self.fx, &mut self.requests, ack_timeout, &lobby, request),
                Some(error) => self.fx.complete(request, Err(error)),
            },
            Call::Ack { ids } => {
                if self.connection.is_running() {
                    self.inbox.ack(&mut self.fx, &self.options, ids);
                }
                self.fx.done(request);
            }
            Call::UpdateToken { token } => {
                self.options.credentials = Credentials::Static(token);
                self.connection.rejected = None;
                self.fx.done(request);
            }
        }
    }

    /// Queries wait for a connection, if one is coming.
    fn query_refusal(&self) -> Option<Error> {
        let refusal = self.connection.refusal()?;
        Some(if self.connection.closing.is_some() { refusal } else { Error::NotConnected })
    }

    /// A subscription with the client's defaults, if the broker would take it (K-037).
    fn subscription(&self, pattern: &str, options: SubscribeOptions) -> Result<Asked, Error> {
        // Before the first connect a subscription is only wanted; after the last there is no use in one.
        if let Some(error) = self.connection.refusal().filter(|error| *error != Error::NotConnected) {
            return Err(error);
        }
        let invalid = |fault: topic::TopicError| Error::refused(&codes::INVALID_TOPIC, pattern, fault);
        topic::check_subscribe(pattern).map_err(invalid)?;
        check_filters(pattern, &options.filters)?;
        let group = options.group.as_ref().or(self.options.group.as_ref()).cloned();
        let group = group.filter(|group| *group != Group::Nobody);
        if let Some(Group::Named(name)) = &group {
            let invalid = |fault: topic::TopicError| Error::refused(&codes::INVALID_MESSAGE, pattern, fault);
            topic::check_group(name).map_err(invalid)?;
        }
        positions::check(&options, group.is_some())?;
        if self.subscriptions.is_full() && !self.subscriptions.wants(pattern) {
            return Err(Error::queue("queue_full", Some(pattern)));
        }
        let SubscribeOptions { qos, filters, history, resume_from, redeliver, ack_timeout, .. } = options;
        let mode = Mode { qos: qos.unwrap_or(self.options.qos), group, filters, redeliver, ack_timeout };
        Ok(Asked { mode, history, resume_from })
    }

    fn unsubscribe(&mut self, topic: &str, request: RequestId) {
        let timeout = self.options.ack_timeout;
        self.inbox.forget(topic);
        if let Some(ready) = &mut self.recovery {
            ready.resubscribed.retain(|made| **made != *topic); // who subscribes again is answered by the call
            ready.refused.retain(|(refused, _)| **refused != *topic);
        }
        self.subscriptions.unsubscribe(&mut self.fx, &mut self.requests, timeout, topic, request);
    }
}

fn check_publish(name: &str, payload: &[u8], options: &PublishOptions) -> Result<(), Error> {
    topic::check_publish(name).map_err(|fault| Error::refused(&codes::INVALID_TOPIC, name, fault))?;
    check_value("publish", payload)?;
    let invalid = |fault: FilterError| Error::refused(&codes::INVALID_FILTER, name, fault);
    let mut bytes = payload.len() + name.len() + FRAME_OVERHEAD;
    if let Some(value) = options.filter.as_deref().filter(|value| !value.is_empty()) {
        filter::check_value(value).map_err(invalid)?;
        bytes += value.len();
    } else {
        if options.filters.len() > filter::MAX_FILTERS {
            return Err(invalid(FilterError::TooMany));
        }
        for value in &options.filters {
            filter::check_value(value).map_err(invalid)?;
            bytes += value.len() + 5;
        }
    }
    bytes += options.msg_ref.as_ref().map_or(0, String::len);
    let malformed = |detail: &str| Err(Error::refused(&codes::INVALID_MESSAGE, name, detail));
    if options.trace.as_deref().is_some_and(|trace| !is_traceparent(trace)) {
        return malformed("trace is a W3C traceparent");
    }
    let ttl = options.retain_ttl.filter(|_| options.retain).map(|ttl| ttl.as_secs());
    if ttl.is_some_and(|ttl| !RETAIN_TTL.contains(&ttl)) {
        return malformed("retainTtl is 1 to 31,536,000 s");
    }
    if bytes > MAX_MESSAGE_BYTES {
        let detail = format_args!("the frame would be over {MAX_MESSAGE_BYTES} bytes");
        return Err(Error::refused(&codes::MESSAGE_TOO_LARGE, name, detail));
    }
    Ok(())
}

/// What a host hands over is one value, nested no deeper than a frame may be (FC-19).
fn check_value(op: &'static str, value: &[u8]) -> Result<(), Error> {
    msgpack::single(value).map(|_| ()).map_err(|fault| Error::Encode {
        op,
        topic: None,
        message: fault.to_string(),
    })
}
