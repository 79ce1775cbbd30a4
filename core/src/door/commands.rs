//! What comes in through the door.

use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use nolag_protocol::msgpack::{Reader, Token};

use super::fields::{self, each, flag, group, owned, qos, texts, time, unfit, unknown, wait, whole};
use super::{Door, Malformed, fit, lock};
use crate::Error;
use crate::event::Room;
use crate::options::{Position, PublishOptions, Secret, SubscribeOptions};
use crate::session::{self, Call, FilterChange, Hint, RequestId, TokenFailure};

type Outcome<T> = Result<T, Malformed>;

/// Carries out all of them.
pub(super) fn run(door: &Door, commands: &[u8]) -> Outcome<()> {
    let mut reader = Reader::new(commands);
    while !reader.rest().is_empty() {
        Command { reader: Reader::new(extent(&mut reader)?) }.run(door)?;
    }
    Ok(())
}

/// The next command. Its end is known before anything in it is read, so that no mistake reaches into the one behind it.
fn extent<'a>(reader: &mut Reader<'a>) -> Outcome<&'a [u8]> {
    let start = reader.rest();
    let Token::Array(elements) = reader.token()? else { return Err(Malformed("no array".to_owned())) };
    for _ in 0..elements {
        reader.value()?; // one by one, for a payload may nest as deep as any value
    }
    Ok(&start[..start.len() - reader.rest().len()])
}

struct Command<'a> {
    reader: Reader<'a>,
}

impl<'a> Command<'a> {
    fn run(mut self, door: &Door) -> Outcome<()> {
        self.reader.token()?; // the array's header
        let verb = self.text()?;
        match verb {
            "cancel" => door.handle.cancel(RequestId(self.whole()?)),
            "upTo" => {
                let last = self.whole()?;
                door.report(|reports| reports.up_to = reports.up_to.max(Some(last)));
            }
            "handled" => {
                let (well, badly) = (self.wholes()?, self.wholes()?);
                door.report(|reports| {
                    reports.each.extend(well.into_iter().map(|delivery| (delivery, true)));
                    reports.each.extend(badly.into_iter().map(|delivery| (delivery, false)));
                });
            }
            "full" => {
                let is_full = self.reader.token()? == Token::Bool(true);
                door.shared.full.store(is_full, Ordering::Release);
                if !is_full {
                    door.handle.poke();
                }
            }
            "room" => {
                let room = usize::try_from(self.whole()?).unwrap_or(usize::MAX);
                door.shared.room.store(room, Ordering::Relaxed);
                let mut items = Vec::new();
                door.shared.tell_room(&mut items);
                door.shared.append(&mut items);
            }
            "hint" => door.handle.hint(match self.text()? {
                "online" => Hint::Online,
                "offline" => Hint::Offline,
                "suspend" => Hint::Suspend,
                "resume" => Hint::Resume,
                _ => Hint::ReconnectNow,
            }),
            "token" => {
                let (number, token) = (self.whole()?, self.text()?);
                let expires_in = self.option(|reader| time("expiresIn", reader));
                let expires_in = expires_in.unwrap_or_default(); // one that makes no sense is not known
                answer(door, number, Ok(session::Token { secret: Secret::new(token), expires_in }));
            }
            "tokenFailed" => {
                let (number, message) = (self.whole()?, self.text()?.to_owned());
                let fatal = self.reader.token()? == Token::Bool(true);
                answer(door, number, Err(TokenFailure { message, fatal }));
            }
            verb => {
                let request = match self.whole()? {
                    0 => RequestId(door.shared.unawaited.fetch_add(1, Ordering::Relaxed)),
                    number => RequestId(number),
                };
                let call = self.call(verb)?;
                door.shared.open.fetch_add(1, Ordering::Relaxed);
                if let Err(error) = call.and_then(|call| door.handle.call(request, call)) {
                    let mut items = Vec::new();
                    door.shared.complete(&mut items, request, Err(error));
                    door.shared.append(&mut items);
                }
            }
        }
        Ok(())
    }

    /// The call, or what is wrong with the options that its caller gave.
    fn call(&mut self, verb: &str) -> Outcome<Result<Call, Error>> {
        Ok(Ok(match verb {
            "connect" => Call::Connect,
            "disconnect" => Call::Disconnect,
            "close" => {
                let flush = self.reader.token()? == Token::Bool(true);
                match time("timeoutMs", &mut self.reader) {
                    Ok(timeout) => Call::Close { flush, timeout },
                    Err(error) => return Ok(Err(error)),
                }
            }
            "subscribe" => {
                let topic = self.text()?.to_owned();
                match subscribe_options(&mut self.reader) {
                    Ok(options) => Call::Subscribe { topic, options },
                    Err(error) => return Ok(Err(error)),
                }
            }
            "unsubscribe" => Call::Unsubscribe { topic: self.text()?.to_owned() },
            "filters" => {
                let (topic, change) = (self.text()?.to_owned(), self.text()?);
                let change = match change {
                    "set" => fields::filters("filters", &mut self.reader).map(FilterChange::Set),
                    "add" => texts("filters", &mut self.reader).map(FilterChange::Add),
                    _ => texts("filters", &mut self.reader).map(FilterChange::Remove),
                };
                match change {
                    Ok(change) => Call::Filters { topic, change },
                    Err(error) => return Ok(Err(error)),
                }
            }
            "publish" => {
                let (topic, payload) = (self.text()?.to_owned(), self.payload()?);
                match publish_options(&mut self.reader) {
                    Ok(options) => Call::Publish { topic, payload, options },
                    Err(error) => return Ok(Err(error)),
                }
            }
            "flush" => match self.option(|reader| time("timeoutMs", reader)) {
                Ok(timeout) => Call::Flush { timeout },
                Err(error) => return Ok(Err(error)),
            },
            "presence" => {
                let (app, room) = (self.maybe_text()?, self.maybe_text()?);
                let data = Some(self.payload()?).filter(|data| data[..] != [0xc0]);
                Call::SetPresence { room: room.map(|room| Room { app, room }), data }
            }
            "fetchPresence" => {
                let (app, room) = (self.maybe_text()?, self.text()?.to_owned());
                Call::FetchPresence { room: Room { app, room } }
            }
            "watchLobby" => Call::WatchLobby { lobby: self.text()?.to_owned() },
            "unwatchLobby" => Call::UnwatchLobby { lobby: self.text()?.to_owned() },
            "fetchLobby" => Call::FetchLobby { lobby: self.text()?.to_owned() },
            "ack" => match texts("msgId", &mut self.reader) {
                Ok(ids) => Call::Ack { ids },
                Err(error) => return Ok(Err(error)),
            },
            "updateToken" => Call::UpdateToken { token: Secret::new(self.text()?) },
            verb => return Err(Malformed(format!("{verb:?}"))),
        }))
    }

    fn text(&mut self) -> Outcome<&'a str> {
        self.maybe_str()?.ok_or_else(|| Malformed("nil for text".to_owned()))
    }

    fn maybe_text(&mut self) -> Outcome<Option<String>> {
        self.maybe_str().map(|text| text.map(str::to_owned))
    }

    fn maybe_str(&mut self) -> Outcome<Option<&'a str>> {
        match self.reader.token()? {
            Token::Nil => Ok(None),
            Token::Str(text) => {
                std::str::from_utf8(text).map(Some).map_err(|fault| Malformed(fault.to_string()))
            }
            other => Err(Malformed(format!("{other:?} for text"))),
        }
    }

    fn whole(&mut self) -> Outcome<u64> {
        whole("number", &mut self.reader, 0).map_err(|fault| Malformed(fault.to_string()))
    }

    /// Numbers of deliveries; nil for none.
    fn wholes(&mut self) -> Outcome<Vec<u64>> {
        match self.reader.token()? {
            Token::Array(count) => (0..count).map(|_| self.whole()).collect(),
            _ => Ok(Vec::new()),
        }
    }

    fn payload(&mut self) -> Outcome<Bytes> {
        let (value, contents) = self.reader.value()?;
        Ok(if contents.ext { fit::back(value).into() } else { Bytes::copy_from_slice(value) })
    }

    /// Something that may be nil, or not be there.
    fn option<T>(
        &mut self,
        read: impl FnOnce(&mut Reader<'a>) -> Result<T, Error>,
    ) -> Result<Option<T>, Error> {
        if matches!(self.reader.rest().first(), None | Some(0xc0)) {
            return Ok(None);
        }
        read(&mut self.reader).map(Some)
    }
}

/// Gives a token, or why there is none, to a session that waits for it.
fn answer(door: &Door, number: u64, token: Result<session::Token, TokenFailure>) {
    if let Some(reply) = lock(&door.shared.questions).remove(&number) {
        let _ = reply.send(token); // the session may have given up
    }
}

fn subscribe_options(reader: &mut Reader<'_>) -> Result<SubscribeOptions, Error> {
    let mut options = SubscribeOptions::default();
    each(reader, |name, reader| {
        match name {
            "qos" => options.qos = Some(qos(name, reader)?),
            "group" => options.group = Some(group(name, reader)?),
            "filters" => options.filters = fields::filters(name, reader)?,
            "history" => {
                let newest = whole(name, reader, 1)?;
                options.history = Some(u16::try_from(newest).unwrap_or(u16::MAX)); // the session knows the limit
            }
            "resumeFrom" => options.resume_from = Some(position(reader)?),
            "redeliver" => options.redeliver = flag(name, reader)?,
            "ackTimeoutMs" => options.ack_timeout = Some(wait(name, reader)?),
            _ => return Err(unknown(name)),
        }
        Ok(())
    })?;
    Ok(options)
}

fn position(reader: &mut Reader<'_>) -> Result<Position, Error> {
    let (mut epoch, mut seq) = (None, None);
    each(reader, |name, reader| {
        match name {
            "epoch" => epoch = Some(fields::text("resumeFrom.epoch", reader)?.into()),
            "seq" => seq = Some(whole("resumeFrom.seq", reader, 0)?),
            _ => return Err(unknown(name)),
        }
        Ok(())
    })?;
    match (epoch, seq) {
        (Some(epoch), Some(seq)) => Ok(Position { epoch, seq }),
        _ => Err(unfit("resumeFrom", "what a subscription's position was")),
    }
}

fn publish_options(reader: &mut Reader<'_>) -> Result<PublishOptions, Error> {
    let mut options = PublishOptions::default();
    each(reader, |name, reader| {
        match name {
            "qos" => options.qos = Some(qos(name, reader)?),
            "retain" => options.retain = flag(name, reader)?,
            "retainTtl" => options.retain_ttl = Some(Duration::from_secs(whole(name, reader, 1)?)),
            "echo" => options.no_echo = !flag(name, reader)?,
            "filter" => options.filter = Some(owned(name, reader)?),
            "filters" => options.filters = texts(name, reader)?,
            "ttlMs" => options.ttl = Some(time(name, reader)?),
            "msgRef" => options.msg_ref = Some(owned(name, reader)?),
            "trace" => options.trace = Some(owned(name, reader)?),
            _ => return Err(unknown(name)),
        }
        Ok(())
    })?;
    Ok(options)
}
