//! Which request goes where, and what all of them share.

use nolag_protocol::features::Feature;
use nolag_protocol::frame::{ClientFrame, Data};
use nolag_protocol::{MAX_MESSAGE_BYTES, codes, payload};

use super::session::{Context, Session};

/// What the envelope of a frame takes beyond its topics, names and key, in bytes: keys, ids, headers.
pub(super) const ENVELOPE_BYTES: usize = 512;

impl Session {
    /// Handles a request of an authenticated connection.
    pub(super) fn request(&mut self, frame: ClientFrame<'_>) {
        match frame {
            ClientFrame::Publish(publish) => self.publish(&publish),
            ClientFrame::Subscribe(subscribe) => self.subscribe(&subscribe),
            ClientFrame::Unsubscribe(request) => self.unsubscribe(request.topic, request.msg_ref),
            ClientFrame::SetFilters(request) => self.set_filters(&request),
            ClientFrame::Presence(presence) => self.presence(&presence),
            ClientFrame::GetPresence(request) => self.get_presence(&request),
            ClientFrame::LobbySubscribe(request) => self.lobby_subscribe(request.lobby_id, request.msg_ref),
            ClientFrame::LobbyUnsubscribe(request) => {
                self.lobby_unsubscribe(request.lobby_id, request.msg_ref);
            }
            ClientFrame::GetLobbyPresence(request) => {
                self.get_lobby_presence(request.lobby_id, request.msg_ref);
            }
            ClientFrame::Ack(ack) => self.acknowledge([ack.msg_id]),
            ClientFrame::BatchAck(acks) => self.acknowledge(acks.msg_ids.0),
            ClientFrame::Auth(_) | ClientFrame::Reauth(_) | ClientFrame::Unknown(_) => {
                debug_assert!(false, "the session handles these itself");
            }
        }
    }

    /// Without the feature nothing waits for an acknowledgement (wire protocol 18.1).
    fn acknowledge<'a>(&mut self, msg_ids: impl IntoIterator<Item = &'a str>) {
        let (broker, connection) = (self.broker.clone(), self.outgoing.id());
        if self.live().is_some_and(|live| live.features.has(Feature::Redeliver)) {
            broker.hub.acknowledge(connection, msg_ids);
        }
    }

    /// Refuses a request whose reply would not fit a message with what it has to echo.
    pub(super) fn overlong(&self, echoed: &[Option<&str>]) -> bool {
        let overlong = echoed.iter().flatten().map(|text| text.len()).sum::<usize>() + ENVELOPE_BYTES
            > MAX_MESSAGE_BYTES;
        if overlong {
            let detail = Some("the reply to this request would not fit a message");
            self.error(codes::INVALID_MESSAGE, Context { detail, ..Context::default() });
        }
        overlong
    }
}

/// What becomes of an application's value on its way through.
pub(super) enum Relayed {
    AsItCame,
    Changed(Vec<u8>),
    /// kraken would drop the frame.
    Dropped,
}

pub(super) fn relayed(data: Data<'_>, extended: bool) -> Relayed {
    // The value was walked through before, so neither can fail.
    if !extended {
        return match payload::as_kraken_relays(data.bytes) {
            Ok(Some(data)) => Relayed::Changed(data),
            _ => Relayed::Dropped,
        };
    }
    if data.contents.broken_text {
        return payload::with_valid_text(data.bytes).map_or(Relayed::Dropped, Relayed::Changed);
    }
    Relayed::AsItCame
}
