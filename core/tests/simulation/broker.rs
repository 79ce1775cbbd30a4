//! The scripted broker of the schedules: what it holds for a connection, and what it answers.

use super::*;

impl World {
    /// The broker reads one frame.
    pub(super) fn broker(&mut self, frame: &[u8]) {
        if frame.is_empty() {
            return self.reply_raw(Bytes::new());
        }
        let authenticated = self.link.as_ref().is_some_and(|link| link.authenticated);
        match ClientFrame::decode(frame).expect("the client sends what a broker can read") {
            ClientFrame::Auth(_) => {
                assert!(!authenticated, "auth twice");
                if self.chance(8) {
                    let reason = self.rng.choice(&["broker_unavailable", "connection_failed"]).copied();
                    self.reply(nolag_protocol::frame::AuthReply {
                        success: false,
                        error: reason,
                        ..accepted()
                    });
                } else {
                    if let Some(link) = &mut self.link {
                        link.authenticated = true;
                    }
                    let mut reply = accepted();
                    if let Some(rate) = self.rate.filter(|_| !self.kraken) {
                        reply.limits = Some(nolag_protocol::frame::Limits {
                            publishes_per_second: Some(rate),
                            max_payload_bytes: None,
                        });
                    } else if self.kraken {
                        reply.limits = None;
                    }
                    self.reply(reply);
                }
            }
            _ if !authenticated => panic!("a frame before auth success"),
            ClientFrame::Subscribe(frame) => {
                let msg_ref = self.echo(frame.msg_ref.0);
                if self.chance(4) {
                    let topic = Some(frame.topic);
                    return self.reply(ErrorReply { topic, msg_ref, ..error("unknown_topic") });
                }
                let keys = filter::subscription_keys(frame.filters.map(|raw| raw.0)).unwrap();
                if let Some(link) = &mut self.link {
                    link.subscriptions.insert(frame.topic.into(), keys);
                }
                self.reply(nolag_protocol::frame::Subscribed { msg_ref, ..subscribed(frame.topic) });
            }
            ClientFrame::Unsubscribe(frame) => {
                let msg_ref = self.echo(frame.msg_ref.0);
                if let Some(link) = &mut self.link {
                    link.subscriptions.remove(frame.topic);
                }
                self.reply(nolag_protocol::frame::Unsubscribed { msg_ref, ..unsubscribed(frame.topic) });
            }
            ClientFrame::SetFilters(frame) => {
                let msg_ref = self.echo(frame.msg_ref.0);
                let keys = filter::subscription_keys(Some(frame.filters.0)).unwrap();
                let held = self.link.as_mut().and_then(|link| link.subscriptions.get_mut(frame.topic));
                match held {
                    Some(held) => {
                        *held = keys;
                        self.reply(FiltersUpdated { topic: frame.topic, filters: None, msg_ref });
                    }
                    None => {
                        self.reply(ErrorReply {
                            topic: Some(frame.topic),
                            msg_ref,
                            ..error("not_subscribed")
                        });
                    }
                }
            }
            ClientFrame::Publish(frame) => {
                let n = value(frame.data.bytes);
                let topic = Some(frame.topic);
                let msg_ref = frame.msg_ref.0;
                let second = self.now.as_secs();
                let link = self.link.as_mut().unwrap();
                if link.window.0 != second {
                    link.window = (second, 0);
                }
                let rate = if self.kraken { Some(50) } else { self.rate };
                let over = rate.is_some_and(|rate| link.window.1 >= rate);
                if over || self.chance(2) {
                    self.refused.insert(n);
                    return self.reply(ErrorReply { topic, msg_ref, ..error("rate_limit_exceeded") });
                }
                self.link.as_mut().unwrap().window.1 += 1;
                if frame.qos == Some(Qos::AtLeastOnce) {
                    let seen = self.first_seen.entry(frame.topic.into()).or_default();
                    if !seen.contains(&n) {
                        seen.push(n);
                    }
                    self.accepted.insert(n);
                }
                if msg_ref.is_some() {
                    self.reply(published(frame.topic, msg_ref));
                }
                self.fan_out(frame.topic, frame.data.bytes);
            }
            ClientFrame::Presence(frame) => {
                if !self.kraken {
                    let (room_id, msg_ref) = (frame.room_id, frame.msg_ref.0);
                    self.reply(PresenceUpdated { app: None, room_id, msg_ref });
                }
            }
            ClientFrame::GetPresence(frame) => {
                let msg_ref = self.echo(frame.msg_ref.0);
                let data = Data::new(&[0x90]);
                self.reply(PresenceList {
                    app: None,
                    room_id: frame.room_id,
                    data,
                    truncated: None,
                    msg_ref,
                });
            }
            ClientFrame::LobbySubscribe(frame) => {
                let msg_ref = self.echo(frame.msg_ref.0);
                let lobby_id = frame.lobby_id;
                if self.chance(10) {
                    let lobby_id = Some(lobby_id);
                    return self.reply(ErrorReply { lobby_id, msg_ref, ..error("not_authorized") });
                }
                let presence = Data::new(&[0x80]);
                self.reply(LobbySubscribed { lobby_id, presence, truncated: None, msg_ref });
            }
            ClientFrame::GetLobbyPresence(frame) => {
                let msg_ref = self.echo(frame.msg_ref.0);
                let presence = Data::new(&[0x80]);
                self.reply(LobbyPresenceList {
                    lobby_id: frame.lobby_id,
                    presence,
                    truncated: None,
                    msg_ref,
                });
            }
            ClientFrame::LobbyUnsubscribe(frame) => {
                let msg_ref = self.echo(frame.msg_ref.0);
                self.reply(LobbyUnsubscribed { lobby_id: frame.lobby_id, msg_ref });
            }
            ClientFrame::Reauth(_) => {
                let success = !self.chance(20);
                self.reply(ReauthReply { success, auth_expires_at: None, error: None });
            }
            ClientFrame::Ack(_) | ClientFrame::BatchAck(_) => {}
            ClientFrame::Unknown(kind) => panic!("{kind}"),
        }
    }

    /// kraken answers nothing but publishes with the request's reference.
    fn echo<'a>(&self, msg_ref: Option<&'a str>) -> Option<&'a str> {
        msg_ref.filter(|_| !self.kraken)
    }

    fn fan_out(&mut self, topic: &str, data: &[u8]) {
        let held = self.link.as_ref().is_some_and(|link| link.subscriptions.contains_key(topic));
        if held {
            self.next_msg += 1;
            let id = format!("m{}", self.next_msg);
            self.reply(message(topic, Some(&id), data));
            if self.chance(10) {
                self.reply(message(topic, Some(&id), data));
            }
        }
    }

    fn reply<'a>(&mut self, frame: impl Into<ServerFrame<'a>>) {
        self.reply_raw(frame.into().to_vec().into());
    }

    fn reply_raw(&mut self, frame: Bytes) {
        let at = self.now + self.delay();
        let swallowed = self.chance(1);
        let Some(link) = &mut self.link else { return };
        if link.silent || swallowed && !frame.is_empty() {
            return;
        }
        let at = link.down.back().map_or(at, |(last, _)| at.max(*last));
        link.down.push_back((at, Transport::Frame(frame)));
    }
}
