//! A client's options, by the names of client-api 5.

use nolag_protocol::msgpack::{Reader, Token};

use super::fields::{
    each, flag, group, list, number, one_of, owned, qos, size, text, time, unfit, unknown, wait, whole,
};
use crate::driver::native::{self, Native, Url};
use crate::options::{
    AckMode, Credentials, Feature, Features, InitialConnect, Options, Overflow, Qos0, Queue, Secret,
};
use crate::{Error, options};

/// What a client is made of, beside its transport.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The session's.
    pub options: Options,
    /// Where the broker is.
    pub url: String,
    /// Further headers of the request for the WebSocket, where the platform lets them be given.
    pub headers: Vec<(String, String)>,
    /// The way there.
    pub proxy: Proxy,
    /// Certificates that are trusted beside the platform's, PEM.
    pub ca: Option<Vec<u8>>,
    /// Whether frames are told.
    pub debug: bool,
}

/// The way to a broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Proxy {
    /// As the environment says.
    Environment,
    /// None, whatever the environment says.
    None,
    /// This one.
    Url(String),
}

impl Settings {
    /// Reads a map of options, times in ms. What it does not name keeps its default; without `token` the application is asked
    /// for one.
    pub fn read(bytes: &[u8]) -> Result<Self, Error> {
        let mut settings = Self {
            options: Options::new(Credentials::Provider),
            url: String::new(),
            headers: Vec::new(),
            proxy: Proxy::Environment,
            ca: None,
            debug: false,
        };
        each(&mut Reader::new(bytes), |name, reader| settings.set(name, reader))?;
        Ok(settings)
    }

    pub(super) fn asks_for_tokens(&self) -> bool {
        matches!(self.options.credentials, Credentials::Provider)
    }

    fn set(&mut self, name: &str, reader: &mut Reader<'_>) -> Result<(), Error> {
        let options = &mut self.options;
        match name {
            "url" => self.url = owned(name, reader)?,
            "token" => options.credentials = Credentials::Static(Secret::new(text(name, reader)?)),
            "headers" => {
                let headers = &mut self.headers;
                each(reader, |header, reader| {
                    headers.push((header.to_owned(), owned(header, reader)?));
                    Ok(())
                })?;
            }
            "proxy" => {
                self.proxy = match reader.token() {
                    Ok(Token::Bool(false)) => Proxy::None,
                    Ok(Token::Str(url)) => Proxy::Url(String::from_utf8_lossy(url).into_owned()),
                    _ => return Err(unfit(name, "a URL or false")),
                }
            }
            "ca" => match reader.token() {
                Ok(Token::Str(pem) | Token::Bin(pem)) => self.ca = Some(pem.to_vec()),
                _ => return Err(unfit(name, "text or bytes")),
            },
            "debug" => self.debug = flag(name, reader)?,
            "reconnect" => options.reconnect = flag(name, reader)?,
            "maxReconnectAttempts" => {
                let attempts = whole(name, reader, 0)?;
                options.max_attempts = u32::try_from(attempts).ok().filter(|attempts| *attempts > 0);
            }
            "backoff" => {
                let backoff = &mut options.backoff;
                each(reader, |name, reader| {
                    match name {
                        "baseMs" => backoff.base = wait("backoff.baseMs", reader)?,
                        "factor" => {
                            backoff.factor = Some(number("backoff.factor", reader)?)
                                .filter(|factor| (1.0..=1_000.0).contains(factor))
                                .ok_or_else(|| unfit("backoff.factor", "a number from 1 to 1000"))?;
                        }
                        "maxMs" => backoff.max = wait("backoff.maxMs", reader)?,
                        "jitter" => one_of("backoff.jitter", reader, &[("equal", ())])?,
                        _ => return Err(unknown(name)),
                    }
                    Ok(())
                })?;
            }
            "initialConnect" => {
                options.initial_connect = one_of(
                    name,
                    reader,
                    &[
                        ("background", InitialConnect::Background),
                        ("once", InitialConnect::Once),
                        ("wait", InitialConnect::Wait),
                    ],
                )?;
            }
            "connectTimeout" => options.connect_timeout = wait(name, reader)?,
            "authTimeout" => options.auth_timeout = wait(name, reader)?,
            "ackTimeout" => options.ack_timeout = wait(name, reader)?,
            "presenceTimeout" => options.presence_timeout = wait(name, reader)?,
            "heartbeatInterval" => options.heartbeat_interval = time(name, reader)?,
            "heartbeatTimeout" => options.heartbeat_timeout = wait(name, reader)?,
            "qos" => options.qos = qos(name, reader)?,
            "group" => options.group = Some(group(name, reader)?),
            "ackMode" => {
                options.ack_mode = one_of(
                    name,
                    reader,
                    &[
                        ("auto", AckMode::Auto),
                        ("afterHandler", AckMode::AfterHandler),
                        ("manual", AckMode::Manual),
                    ],
                )?;
            }
            "ackBatchInterval" => options.ack_batch_interval = time(name, reader)?,
            "projectId" => options.project_id = Some(owned(name, reader)?),
            "clientId" => options.client_id = Some(owned(name, reader)?),
            "features" => options.features = features(name, reader)?,
            "offlineQueue" => queue(&mut options.queue, reader)?,
            "maxInFlight" => options.max_in_flight = size(name, reader)?,
            "maxMessageSize" => options.max_message_size = size(name, reader)?,
            "dedupe" => {
                let dedupe = &mut options.dedupe;
                each(reader, |name, reader| {
                    match name {
                        "enabled" => dedupe.enabled = flag("dedupe.enabled", reader)?,
                        "maxIds" => dedupe.max_ids = size("dedupe.maxIds", reader)?,
                        "windowMs" => dedupe.window = wait("dedupe.windowMs", reader)?,
                        _ => return Err(unknown(name)),
                    }
                    Ok(())
                })?;
            }
            "receiveBuffer" => options.receive_buffer = size(name, reader)?,
            "tokenRefreshMarginMs" => options.token_refresh_margin = time(name, reader)?,
            _ => return Err(unknown(name)),
        }
        Ok(())
    }

    /// A transport to where these settings say.
    pub fn native(&self) -> Result<Native, Error> {
        let (url, ca) = (Url::parse(&self.url)?, self.ca.as_deref());
        let mut native = match &self.proxy {
            Proxy::Environment => Native::new(url, ca)?,
            Proxy::None => Native::with_proxy(url, ca, None)?,
            Proxy::Url(proxy) => Native::with_proxy(url, ca, Some(native::Proxy::parse(proxy)?))?,
        };
        for (name, value) in &self.headers {
            native = native.header(name, value)?;
        }
        Ok(native.within(&self.options))
    }
}

fn queue(queue: &mut Queue, reader: &mut Reader<'_>) -> Result<(), Error> {
    each(reader, |name, reader| {
        match name {
            "enabled" => queue.enabled = flag("offlineQueue.enabled", reader)?,
            "maxMessages" => queue.max_messages = size("offlineQueue.maxMessages", reader)?,
            "maxBytes" => queue.max_bytes = size("offlineQueue.maxBytes", reader)?,
            "ttlMs" => queue.ttl = wait("offlineQueue.ttlMs", reader)?,
            "overflow" => {
                queue.overflow = one_of(
                    "offlineQueue.overflow",
                    reader,
                    &[
                        ("reject", Overflow::Reject),
                        ("dropOldest", Overflow::DropOldest),
                        ("block", Overflow::Block),
                    ],
                )?;
            }
            "qos0" => {
                queue.qos0 =
                    one_of("offlineQueue.qos0", reader, &[("drop", Qos0::Drop), ("queue", Qos0::Queue)])?;
            }
            "flushRate" => {
                let rate = whole("offlineQueue.flushRate", reader, 1)?;
                queue.flush_rate = Some(u32::try_from(rate).unwrap_or(u32::MAX));
            }
            _ => return Err(unknown(name)),
        }
        Ok(())
    })
}

fn features(name: &str, reader: &mut Reader<'_>) -> Result<options::Features, Error> {
    let features = list(name, reader, |reader| {
        let given = text(name, reader)?;
        Feature::named(given).ok_or_else(|| {
            unfit(name, &format!("a list of {}, not {given:?},", Features::ALL.names().join(", ")))
        })
    })?;
    Ok(features.into_iter().collect())
}
