//! The frames that clients send (wire protocol 6, 7 and 10; features 1 to 7).

use super::fields::{
    Data, Fault, Field, Fields, Ids, Key, Lenient, MAX_FIELDS, Malformed, MapWriter, Position, Qos, Raw,
    Version, frames, text,
};

frames! {
    /// A frame from a client.
    pub enum ClientFrame {
        /// Proves who the client is; the first frame of a connection (6.1).
        Auth "auth" {
            /// The access token: opaque, or a JWT.
            token: &'a str = Token,
            /// The highest version the client speaks.
            protocol_version: Version = ProtocolVersion,
            /// Names the client instance.
            client_id: Option<&'a str> = ClientId,
            /// Exactly true asks the broker to restore subscriptions (17).
            reconnect: Lenient<bool> = Reconnect,
            /// For logs only.
            project_id: Option<&'a str> = ProjectId,
            /// The features the client can use; names nobody knows are ignored (features 1).
            features: Vec<&'a str> = Features,
        }
        /// Renews the authorization of a live connection (7).
        Reauth "reauth" {
            /// A token of the same actor.
            token: &'a str = Token,
        }
        /// Asks for the messages of a topic (10.1).
        Subscribe "subscribe" {
            /// The pattern, wildcards allowed.
            topic: &'a str = Topic,
            /// Advisory.
            qos: Option<Qos> = Qos,
            /// Exactly true joins a group that shares the messages.
            load_balance: Lenient<bool> = LoadBalance,
            /// The group's name; read only with `load_balance`, see [`Subscribe::group`].
            load_balance_group: Option<Raw<'a>> = LoadBalanceGroup,
            /// Filters as they came; see [`crate::filter::subscription_keys`].
            filters: Option<Raw<'a>> = Filters,
            /// Continue after this position (features 2).
            recover: Option<Position<'a>> = Recover,
            /// The newest so many kept messages first, 1 to 1,000 (features 2).
            history: Option<u64> = History,
            /// Hand unacknowledged messages of the group to another member (features 6).
            redeliver: Lenient<bool> = Redeliver,
            /// After so long without an acknowledgement, 1,000 to 3,600,000 ms (features 6).
            ack_timeout_ms: Option<u64> = AckTimeoutMs,
            /// Echoed on the reply.
            msg_ref: Lenient<&'a str> = MsgRef,
        }
        /// Ends a subscription (10.2).
        Unsubscribe "unsubscribe" {
            /// Exactly the string subscribed with.
            topic: &'a str = Topic,
            /// Echoed on the reply.
            msg_ref: Lenient<&'a str> = MsgRef,
        }
        /// Replaces the filters of a subscription (10.3).
        SetFilters "setFilters" {
            /// The subscription.
            topic: &'a str = Topic,
            /// The complete new set, as it came.
            filters: Raw<'a> = Filters,
            /// Echoed on the reply.
            msg_ref: Lenient<&'a str> = MsgRef,
        }
        /// Sends a message (10.4).
        Publish "publish" {
            /// The topic, no wildcards.
            topic: &'a str = Topic,
            /// The payload; nil is a value, absence is not.
            data: Data<'a> = Data,
            /// Advisory; 0 is not kept in a history.
            qos: Option<Qos> = Qos,
            /// Exactly true keeps the message for later subscribers.
            retain: Lenient<bool> = Retain,
            /// For so many seconds, 1 to 31,536,000 (features 10).
            retain_ttl: Option<u64> = RetainTtl,
            /// Exactly false withholds the message from this connection.
            echo: Lenient<bool> = Echo,
            /// One filter value as it came; see [`crate::filter::publish_key`].
            filter: Option<Raw<'a>> = Filter,
            /// A group of filter values as it came, used without `filter`.
            filters: Option<Raw<'a>> = Filters,
            /// A W3C `traceparent` (features 1).
            trace: Option<&'a str> = Trace,
            /// Asks for `published`.
            msg_ref: Lenient<&'a str> = MsgRef,
        }
        /// Enters a room, changes the presence in it, or leaves with nil (10.5).
        Presence "presence" {
            /// The app's slug (features 4).
            app: Option<&'a str> = App,
            /// The room's slug; absent in the legacy form, which is announced to nobody.
            room_id: Option<&'a str> = RoomId,
            /// Presence data; nil leaves the room.
            data: Data<'a> = Data,
            /// Asks for `presenceUpdated`.
            msg_ref: Lenient<&'a str> = MsgRef,
        }
        /// Asks who is in a room (10.6).
        GetPresence "getPresence" {
            /// The app's slug (features 4).
            app: Option<&'a str> = App,
            /// The room's slug; absent in the legacy form, answered with an empty list.
            room_id: Option<&'a str> = RoomId,
            /// Echoed on the reply.
            msg_ref: Lenient<&'a str> = MsgRef,
        }
        /// Watches a lobby (10.7).
        LobbySubscribe "lobbySubscribe" {
            /// The lobby's slug.
            lobby_id: &'a str = LobbyId,
            /// Echoed on the reply.
            msg_ref: Lenient<&'a str> = MsgRef,
        }
        /// Stops watching a lobby (10.7).
        LobbyUnsubscribe "lobbyUnsubscribe" {
            /// The lobby's slug.
            lobby_id: &'a str = LobbyId,
            /// Echoed on the reply.
            msg_ref: Lenient<&'a str> = MsgRef,
        }
        /// Asks who is in the rooms of a lobby (10.7).
        GetLobbyPresence "getLobbyPresence" {
            /// The lobby's slug.
            lobby_id: &'a str = LobbyId,
            /// Echoed on the reply.
            msg_ref: Lenient<&'a str> = MsgRef,
        }
        /// Acknowledges one message (10.8).
        Ack "ack" {
            /// Its id.
            msg_id: &'a str = MsgId,
        }
        /// Acknowledges up to 1,000 messages (10.8).
        BatchAck "batchAck" {
            /// Their ids.
            msg_ids: Ids<'a> = MsgIds,
        }
    }
}

impl<'a> Subscribe<'a> {
    /// The group that the subscription joins: `None` without load balancing, `Some(None)` for the group of the
    /// actor's own name. A group that is no string is a fault, but only where it would be read.
    pub fn group(&self) -> Result<Option<Option<&'a str>>, Fault> {
        if !self.load_balance.is(true) {
            return Ok(None);
        }
        let Some(Raw(value)) = self.load_balance_group else { return Ok(Some(None)) };
        let name = text(value).ok_or(Fault::WrongType {
            frame: "subscribe",
            field: "loadBalanceGroup",
            expected: "a string",
        })?;
        Ok(Some(Some(name).filter(|name| !name.is_empty())))
    }
}
