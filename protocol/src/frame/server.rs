//! The frames that brokers send (wire protocol 6, 7, 11 and 12; features 1 to 7).

use super::fields::{
    Data, Fault, Field, Fields, Key, Limits, MAX_FIELDS, Malformed, MapWriter, Nilable, Raw, frames,
};

frames! {
    /// A frame from a broker.
    pub enum ServerFrame {
        /// Answers `auth` (6.3). A failure has `success: false` and at most `error` and `retry_after_ms`.
        AuthReply "auth" {
            /// Whether the connection is authenticated.
            success: bool = Success,
            /// The reason of a failure (6.4).
            error: Option<&'a str> = Error,
            /// The actor.
            actor_token_id: Option<&'a str> = ActorTokenId,
            /// The project; nil when the token has none.
            project_id: Option<Nilable<'a>> = ProjectId,
            /// An open set: a client takes any.
            actor_type: Option<&'a str> = ActorType,
            /// The version negotiated; absent means 1.
            protocol_version: Option<u64> = ProtocolVersion,
            /// What the broker subscribed to again by itself, as it came (17).
            restored_subscriptions: Option<Raw<'a>> = RestoredSubscriptions,
            /// What holds for this connection.
            limits: Option<Limits> = Limits,
            /// The features granted (features 1).
            features: Vec<&'a str> = Features,
            /// A lower bound on the next attempt (features 7).
            retry_after_ms: Option<u64> = RetryAfterMs,
        }
        /// Answers `reauth` (7).
        ReauthReply "reauth" {
            /// Whether the new token took the place of the old.
            success: bool = Success,
            /// Seconds since the epoch, when the new token expires at all.
            auth_expires_at: Option<u64> = AuthExpiresAt,
            /// The reason of a failure.
            error: Option<&'a str> = Error,
        }
        /// Confirms a `subscribe` (11.1; features 2).
        Subscribed "subscribed" {
            /// As sent.
            topic: &'a str = Topic,
            /// The mode now in force.
            load_balance: Option<bool> = LoadBalance,
            /// The run of numbers.
            epoch: Option<&'a str> = Epoch,
            /// The newest number at this moment, 0 if there is none.
            seq: Option<u64> = Seq,
            /// Whether all that was missed follows.
            recovered: Option<bool> = Recovered,
            /// Why it does not: `epoch`, `expired`, `too_many` or `group`.
            gap: Option<&'a str> = Gap,
            /// The request's.
            msg_ref: Option<&'a str> = MsgRef,
        }
        /// Confirms an `unsubscribe`, or tells of a subscription that lost its grant (11.1, X-11).
        Unsubscribed "unsubscribed" {
            /// As subscribed.
            topic: &'a str = Topic,
            /// Only when nobody asked: `not_authorized`.
            reason: Option<&'a str> = Reason,
            /// The request's.
            msg_ref: Option<&'a str> = MsgRef,
        }
        /// Confirms `setFilters` (11.1).
        FiltersUpdated "filtersUpdated" {
            /// As sent.
            topic: &'a str = Topic,
            /// As sent, not canonical.
            filters: Option<Raw<'a>> = Filters,
            /// The request's.
            msg_ref: Option<&'a str> = MsgRef,
        }
        /// Confirms a `publish` that carried a `msgRef` (11.1; features 3).
        Published "published" {
            /// As sent.
            topic: &'a str = Topic,
            /// The publish's.
            msg_ref: Option<&'a str> = MsgRef,
            /// The message was accepted before, and went no further this time.
            duplicate: Option<bool> = Duplicate,
            /// How well it is kept: `memory`, `disk` or `replicated`.
            level: Option<&'a str> = Level,
        }
        /// A message for a subscription (11.2).
        Message "message" {
            /// The receiver's own subscription string.
            topic: &'a str = Topic,
            /// The payload.
            data: Data<'a> = Data,
            /// The same for all receivers.
            msg_id: Option<&'a str> = MsgId,
            /// Whether an acknowledgement is asked for.
            requires_ack: Option<bool> = RequiresAck,
            /// True for a replayed message, false for one held back during a replay.
            is_replay: Option<bool> = IsReplay,
            /// The publisher's actor, stamped by the broker.
            from: Option<&'a str> = From,
            /// `actor`, `server` or more to come.
            from_type: Option<&'a str> = FromType,
            /// The filter key, or the rest of a deeper topic (15.3).
            filter: Option<&'a str> = Filter,
            /// When the broker received it, in ms since the epoch.
            timestamp: Option<u64> = Timestamp,
            /// The topic it was published to, where that is not `topic`.
            source_topic: Option<&'a str> = SourceTopic,
            /// True when a subscribe brought it.
            retained: Option<bool> = Retained,
            /// Its number in the project (features 2).
            seq: Option<u64> = Seq,
            /// True when another member had it before (features 6).
            redelivered: Option<bool> = Redelivered,
            /// The publish's (features 1).
            trace: Option<&'a str> = Trace,
        }
        /// Confirms a `presence` that carried a `msgRef`.
        PresenceUpdated "presenceUpdated" {
            /// The app's slug (features 4).
            app: Option<&'a str> = App,
            /// As sent.
            room_id: Option<&'a str> = RoomId,
            /// As sent.
            msg_ref: Option<&'a str> = MsgRef,
        }
        /// Answers `getPresence` (11.1, 19.4).
        PresenceList "presenceList" {
            /// The app's slug (features 4).
            app: Option<&'a str> = App,
            /// As sent; absent in the legacy form.
            room_id: Option<&'a str> = RoomId,
            /// An array of entries, as it came.
            data: Data<'a> = Data,
            /// True when the list was cut to fit a message.
            truncated: Option<bool> = Truncated,
            /// The request's.
            msg_ref: Option<&'a str> = MsgRef,
        }
        /// Tells the members of a room of a change (11.3, 19.3).
        PresenceEvent "presence" {
            /// `join`, `update`, `leave`, `waking`; others are ignored.
            event: &'a str = Event,
            /// The app's slug (features 4).
            app: Option<&'a str> = App,
            /// The room's slug.
            room_id: Option<&'a str> = RoomId,
            /// A map of the actor and its presence, as it came.
            data: Data<'a> = Data,
        }
        /// Answers `lobbySubscribe` (20.2).
        LobbySubscribed "lobbySubscribed" {
            /// As sent.
            lobby_id: &'a str = LobbyId,
            /// Rooms, each a map of its actors and their presence data, as it came.
            presence: Data<'a> = Presence,
            /// True when it was cut to fit a message.
            truncated: Option<bool> = Truncated,
            /// The request's.
            msg_ref: Option<&'a str> = MsgRef,
        }
        /// Answers `getLobbyPresence` (20.2).
        LobbyPresenceList "lobbyPresenceList" {
            /// As sent.
            lobby_id: &'a str = LobbyId,
            /// Rooms, each a map of its actors and their presence data, as it came.
            presence: Data<'a> = Presence,
            /// True when it was cut to fit a message.
            truncated: Option<bool> = Truncated,
            /// The request's.
            msg_ref: Option<&'a str> = MsgRef,
        }
        /// Answers `lobbyUnsubscribe` (11.1).
        LobbyUnsubscribed "lobbyUnsubscribed" {
            /// As sent.
            lobby_id: &'a str = LobbyId,
            /// The request's.
            msg_ref: Option<&'a str> = MsgRef,
        }
        /// Tells a watcher of a change in one of the lobby's rooms (20.3).
        LobbyPresence "lobbyPresence" {
            /// `join`, `update` or `leave`.
            event: &'a str = Event,
            /// The slug subscribed with; kraken puts its internal id here.
            lobby_id: &'a str = LobbyId,
            /// The room's slug, nil when the receiver knows none.
            room_id: Option<Nilable<'a>> = RoomId,
            /// The actor.
            actor_id: &'a str = ActorId,
            /// Its presence data; an empty map for `leave`.
            data: Data<'a> = Data,
            /// The lobby's internal id.
            lobby_uuid: Option<&'a str> = LobbyUuid,
            /// The app's slug (features 4).
            app: Option<&'a str> = App,
        }
        /// What a hydration webhook answered (18.3).
        Hydration "hydration" {
            /// The bare topic name.
            topic: &'a str = Topic,
            /// The webhook's JSON.
            data: Data<'a> = Data,
            /// The subscription string.
            full_topic: Option<&'a str> = FullTopic,
        }
        /// Replayed messages follow (11.3; features 2).
        ReplayStart "replayStart" {
            /// The subscription (features 2).
            topic: Option<&'a str> = Topic,
            /// How many.
            count: Option<u64> = Count,
            /// The first one's time, ms since the epoch.
            oldest_timestamp: Option<u64> = OldestTimestamp,
            /// The last one's time, ms since the epoch.
            newest_timestamp: Option<u64> = NewestTimestamp,
        }
        /// All replayed messages have been sent (11.3; features 2).
        ReplayEnd "replayEnd" {
            /// The subscription (features 2).
            topic: Option<&'a str> = Topic,
            /// How many; the same as `replayed`, either may be absent.
            count: Option<u64> = Count,
            /// How many.
            replayed: Option<u64> = Replayed,
        }
        /// A close follows (11.3; features 7).
        Disconnect "disconnect" {
            /// The close's reason.
            reason: &'a str = Reason,
            /// A lower bound on the next attempt.
            retry_after_ms: Option<u64> = RetryAfterMs,
        }
        /// A request failed (12.1).
        ErrorReply "error" {
            /// See [`crate::codes`].
            code: Option<u64> = Code,
            /// The stable identifier.
            error: &'a str = Error,
            /// For people.
            hint: Option<&'a str> = Hint,
            /// For people.
            detail: Option<&'a str> = Detail,
            /// As the client sent it.
            topic: Option<&'a str> = Topic,
            /// The app's slug (features 4).
            app: Option<&'a str> = App,
            /// As the client sent it.
            room_id: Option<&'a str> = RoomId,
            /// As the client sent it.
            lobby_id: Option<&'a str> = LobbyId,
            /// The limit that applied.
            max_size_bytes: Option<u64> = MaxSizeBytes,
            /// The request's.
            msg_ref: Option<&'a str> = MsgRef,
        }
    }
}
