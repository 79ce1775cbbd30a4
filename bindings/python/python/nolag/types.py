"""Options, and what events carry."""

from __future__ import annotations

import dataclasses
import logging  # noqa: TC003 — annotations are read at run time, too
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from enum import Enum
from typing import Any, NamedTuple, TypeAlias

from nolag._native import ExtType, MessageMeta, Receipt

__all__ = [
    "AckCallback",
    "ActorPresence",
    "ActorType",
    "BackoffOptions",
    "ConnectionStatus",
    "DedupeOptions",
    "EmitOptions",
    "EventHandler",
    "ExtType",
    "LobbyPresenceEvent",
    "LobbyPresenceHandler",
    "LobbyPresenceState",
    "LobbyRecord",
    "Message",
    "MessageHandler",
    "MessageMeta",
    "NoLagOptions",
    "OfflineQueueOptions",
    "Position",
    "PublishOptions",
    "QoS",
    "Receipt",
    "Stats",
    "SubscribeOptions",
    "TlsOptions",
    "Token",
    "TokenProvider",
    "TokenRequest",
]


class Position(NamedTuple):
    """How far an application is with a subscription.

    Store it, and give it back as `resume_from` after a restart.
    """

    #: The broker's run of numbers.
    epoch: str
    #: The number of the last message.
    seq: int


class ConnectionStatus(str, Enum):
    """Where the connection stands, coarsely; `NoLag.state` is finer."""

    DISCONNECTED = "disconnected"
    CONNECTING = "connecting"
    CONNECTED = "connected"
    RECONNECTING = "reconnecting"


class ActorType(str, Enum):
    """What an actor is. A type that is not listed here comes as plain text."""

    DEVICE = "device"
    USER = "user"
    SERVER = "server"
    SERVICE = "service"
    SESSION = "session"
    AGENT = "agent"
    ORCHESTRATOR = "orchestrator"
    OBSERVER = "observer"


class QoS(int, Enum):
    """Quality of service."""

    #: Written once, not confirmed.
    AT_MOST_ONCE = 0
    #: Confirmed by the broker, and sent again until it is.
    AT_LEAST_ONCE = 1
    #: As 1, and handed over once, where the broker can.
    EXACTLY_ONCE = 2


@dataclass
class BackoffOptions:
    """The waits between attempts.

    At random between the half and the whole of `min(max, base * factor ** (n - 1))`.
    """

    #: Seconds.
    base: float = 0.5
    factor: float = 2.0
    #: Seconds.
    max: float = 30.0


@dataclass
class OfflineQueueOptions:
    """Publishes that wait for a connection, or for their turn."""

    enabled: bool = True
    max_messages: int = 1_000
    max_bytes: int = 8 << 20
    #: Seconds that a message may wait.
    ttl: float = 300.0
    #: What happens to one message too many: "reject", "drop_oldest" or "block".
    overflow: str = "reject"
    #: What becomes of messages of quality 0 without a connection: "drop" or "queue".
    qos0: str = "drop"
    #: The most messages a second that leave the queue of an outage.
    flush_rate: int | None = None


@dataclass
class DedupeOptions:
    """The window in which a repeated message is recognised."""

    enabled: bool = True
    max_ids: int = 10_000
    #: Seconds.
    window: float = 600.0


@dataclass
class TlsOptions:
    """Whom to trust."""

    #: Certificates to trust beside the bundled roots, in PEM: the text itself, or its bytes.
    ca: str | bytes | None = None


@dataclass
class TokenRequest:
    """What a token is asked for."""

    #: "initial", "reconnect", "expired" or "rejected".
    reason: str
    #: The attempt it is for, from 1.
    attempt: int
    #: What failed last.
    last_error: Exception | None = None


@dataclass
class Token:
    """A token, and until when it is valid, in seconds since 1970."""

    text: str = field(repr=False)
    expires_at: float | None = None


#: Asked before every connection. It may take a `TokenRequest`, and may be asynchronous.
TokenProvider: TypeAlias = Callable[..., "str | Token | Awaitable[str | Token]"]


@dataclass
class NoLagOptions:
    """The settings of a client. Times are in seconds."""

    #: Where the broker is; the environment's `NOLAG_URL` where absent.
    url: str | None = None
    reconnect: bool = True
    #: The wait between attempts, instead of `backoff`; with one, that begins with this wait.
    reconnect_interval: float | None = None
    #: How many attempts in a row may fail; 0 for any number.
    max_reconnect_attempts: int = 0
    #: Between heartbeats; 0 sends none.
    heartbeat_interval: float = 30.0
    #: Has no meaning outside browsers.
    disconnect_on_hidden: bool = False
    #: Logs what happens, without payloads and tokens; to the console, if nobody takes the logs.
    debug: bool = False
    #: The default of subscribe and publish.
    qos: QoS | int = QoS.AT_LEAST_ONCE
    #: Whether subscriptions share their messages within a group unless told otherwise.
    load_balance: bool = False
    #: The group; the actor's own where absent.
    load_balance_group: str | None = None
    #: Known as the actor before the broker has told.
    actor_token_id: str | None = None
    _: KW_ONLY
    backoff: BackoffOptions | Mapping[str, Any] = field(default_factory=BackoffOptions)
    #: What becomes of `connect` when the first attempt fails: "once", "background" or "wait".
    initial_connect: str = "once"
    connect_timeout: float = 10.0
    auth_timeout: float = 10.0
    #: Of subscribe, filters, publish and lobbies.
    ack_timeout: float = 10.0
    presence_timeout: float = 10.0
    #: How long the broker may stay silent after a heartbeat.
    heartbeat_timeout: float = 10.0
    #: When messages are acknowledged: "auto", "after_handler" or "manual".
    ack_mode: str = "auto"
    #: For how long acknowledgements are gathered.
    ack_batch_interval: float = 0.0
    #: Sent for the broker's logs only.
    project_id: str | None = None
    #: Names this client; 16 random hex digits where absent.
    client_id: str | None = None
    #: What the broker is asked for beyond the published protocol; all that there is where absent.
    features: Collection[str] | None = None
    offline_queue: OfflineQueueOptions | Mapping[str, Any] = field(
        default_factory=OfflineQueueOptions
    )
    #: How many publishes may be unacknowledged at a time.
    max_in_flight: int = 64
    #: The largest payload, in bytes of MessagePack.
    max_message_size: int = 921_600
    dedupe: DedupeOptions | Mapping[str, Any] = field(default_factory=DedupeOptions)
    #: How many messages may have come and not be handled yet, before the client reads no more.
    receive_buffer: int = 1_024
    token_provider: TokenProvider | None = None
    #: How long before its expiry a token is renewed.
    token_refresh_margin: float = 60.0
    tls: TlsOptions | Mapping[str, Any] | None = None
    #: An HTTP proxy's URL, or False for none; the environment's (`HTTPS_PROXY`) where absent.
    proxy: str | bool | None = None
    #: Where the client logs to; the logger "nolag" where absent.
    logger: logging.Logger | None = None
    #: Sent with the request for the WebSocket.
    headers: Mapping[str, str] | None = None


@dataclass
class SubscribeOptions:
    """How a topic is subscribed."""

    qos: QoS | int | None = None
    load_balance: bool | None = None
    load_balance_group: str | None = None
    #: Strings are alternatives; a list of strings stands for all of them at once.
    filters: list[str | list[str]] | None = None
    _: KW_ONLY
    #: So many of the newest messages that the broker has kept come first, 1 to 1,000.
    history: int | None = None
    #: Continue after this position, as long as the client has none of its own.
    resume_from: Position | Mapping[str, Any] | None = None
    #: A message of the group that is not acknowledged goes to another member. Such messages are
    #: acknowledged when their handlers have succeeded, unless the mode is "manual".
    redeliver: bool = False
    #: After how many seconds, 1 to 3,600; the broker's 30 where absent.
    ack_timeout: float | None = None


@dataclass
class EmitOptions:
    """How a message is published."""

    qos: QoS | int | None = None
    #: Keep the message for later subscribers.
    retain: bool = False
    #: Whether the client's own subscriptions receive it.
    echo: bool = True
    #: One filter value; counts before `filters`.
    filter: str | None = None
    #: Filter values that a subscriber has to match all of.
    filters: list[str] | None = None
    _: KW_ONLY
    #: Seconds that the message may wait in the queue.
    ttl: float | None = None
    #: Seconds that it is kept, where it is retained.
    retain_ttl: float | None = None
    #: A reference, unique for ten minutes: the broker drops what comes again under it.
    msg_ref: str | None = None
    #: A W3C `traceparent`, for receivers whose broker passes it on.
    trace: str | None = None


PublishOptions: TypeAlias = EmitOptions


class _Readable:
    """Fields that can be read like a dict's too.

    Also by the names that they have on the wire (`actorTokenId`).
    """

    __slots__ = ()

    def __getitem__(self, key: str) -> Any:
        if key not in self:
            raise KeyError(key)
        return getattr(self, _snake(key))

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and _snake(key) in self.keys()

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def keys(self) -> list[str]:
        """Give the names of the fields."""
        return [field.name for field in dataclasses.fields(self)]  # type: ignore[arg-type]

    def get(self, key: str, default: Any = None) -> Any:
        """Give a field, or the default where there is no such field."""
        return getattr(self, _snake(key)) if key in self else default


def _snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)


@dataclass
class ActorPresence(_Readable):
    """Somebody in a room."""

    actor_token_id: str
    actor_type: ActorType | str | None = None
    #: The newest presence of all its connections.
    presence: dict[str, Any] = field(default_factory=dict)
    #: When it came, as the broker sent it.
    joined_at: float | None = None
    #: "online", "offline" or "waking".
    status: str | None = None
    advertisement_version: int | None = None
    _: KW_ONLY
    #: The presence of each of its connections, oldest first.
    connections: list[Any] = field(default_factory=list)
    app: str | None = None
    room_id: str | None = None


class LobbyRecord(dict[str, Any]):
    """An actor's record in a lobby's snapshot; it answers for the keys of its `presence` too."""

    __slots__ = ()

    def _presence(self) -> Mapping[str, Any]:
        presence = dict.get(self, "presence")
        return presence if isinstance(presence, dict) else {}

    def __missing__(self, key: str) -> Any:
        """Look in the presence."""
        return self._presence()[key]

    def get(self, key: str, default: Any = None) -> Any:
        """Give a value of the record, or of its presence."""
        return (
            dict.get(self, key)
            if dict.__contains__(self, key)
            else self._presence().get(key, default)
        )

    def __contains__(self, key: object) -> bool:
        """Tell whether the record, or its presence, has a key."""
        return dict.__contains__(self, key) or key in self._presence()


#: Room, actor, record.
LobbyPresenceState: TypeAlias = dict[str, dict[str, LobbyRecord]]


@dataclass
class LobbyPresenceEvent(_Readable):
    """A change in one of a lobby's rooms."""

    #: The lobby as it was subscribed, where that can be told; else as the broker names it.
    lobby_id: str
    room_id: str
    actor_id: str
    data: Any = field(default_factory=dict)
    _: KW_ONLY
    app: str | None = None


@dataclass
class Stats:
    """What counts; the names are the same in every language."""

    #: Connections that were accepted by the broker.
    connects: int = 0
    connect_failures: int = 0
    reconnects: int = 0
    #: How long lost connections were away, together, in seconds.
    downtime: float = 0.0
    frames_in: int = 0
    frames_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    #: Publishes that succeeded.
    published: int = 0
    #: Publishes that failed, but for those that the queue could not keep.
    publish_failures: int = 0
    #: Publishes that the queue could not keep.
    queue_dropped: int = 0
    #: Publishes that wait now, and their payload.
    queue_messages: int = 0
    queue_bytes: int = 0
    #: Publishes that wait for their answer now.
    in_flight: int = 0
    #: Messages that were handed out.
    received: int = 0
    #: Messages that came again, and were dropped.
    duplicates: int = 0
    #: Subscriptions that missed messages.
    gaps: int = 0
    acks_sent: int = 0
    #: Acknowledgements that wait now.
    ack_backlog: int = 0
    #: Frames that could not be read.
    decode_errors: int = 0
    #: Topics that are subscribed now.
    subscriptions: int = 0
    #: Calls of handlers that failed.
    handler_errors: int = 0
    #: The last heartbeat's round trip, in seconds.
    rtt: float | None = None


class Message:
    """A message of a subscription."""

    __slots__ = ("_ack", "data", "meta", "topic")

    def __init__(
        self, topic: str, data: Any, meta: MessageMeta, ack: Callable[[str], None]
    ) -> None:
        """Keep what came."""
        self.topic: str = topic
        self.data: Any = data
        self.meta: MessageMeta = meta
        self._ack = ack

    def ack(self) -> None:
        """Acknowledge it, in manual mode."""
        if self.meta.msg_id is not None:
            self._ack(self.meta.msg_id)

    def __repr__(self) -> str:
        """Show topic and payload."""
        return f"Message(topic={self.topic!r}, data={self.data!r})"


MessageHandler: TypeAlias = Callable[[Any, MessageMeta], Any]
EventHandler: TypeAlias = Callable[..., Any]
LobbyPresenceHandler: TypeAlias = Callable[[LobbyPresenceEvent], Any]
AckCallback: TypeAlias = Callable[["Exception | None"], Any]
