"""NoLag: realtime messaging that keeps its subscriptions.

client = NoLag(token, NoLagOptions(url="ws://localhost:8080/ws"))
client.on("demo/general/messages", lambda data, meta: print(data))
await client.connect()
await client.subscribe("demo/general/messages")
await client.emit("demo/general/messages", {"text": "hello"})
"""

from nolag.client import App, Lobby, NoLag, Room, Subscription
from nolag.errors import (
    AuthError,
    ClosedError,
    ConfigError,
    EncodeError,
    HandlerError,
    NoLagEncodeError,
    NoLagError,
    NoLagServerError,
    NotConnectedError,
    QueueError,
    ServerError,
)
from nolag.errors import (
    ConnectionError as ConnectionError,  # noqa: A004 — not in __all__, see below
)
from nolag.errors import (
    TimeoutError as TimeoutError,  # noqa: A004 — not in __all__, see below
)
from nolag.types import (
    ActorPresence,
    ActorType,
    BackoffOptions,
    ConnectionStatus,
    DedupeOptions,
    EmitOptions,
    ExtType,
    LobbyPresenceEvent,
    LobbyPresenceHandler,
    LobbyPresenceState,
    LobbyRecord,
    Message,
    MessageMeta,
    NoLagOptions,
    OfflineQueueOptions,
    Position,
    PublishOptions,
    QoS,
    Receipt,
    Stats,
    SubscribeOptions,
    TlsOptions,
    Token,
    TokenProvider,
    TokenRequest,
)

__version__ = "3.0.0a1"

# Without ConnectionError and TimeoutError, so that a star import leaves Python's own.
__all__ = [
    "ActorPresence",
    "ActorType",
    "App",
    "AuthError",
    "BackoffOptions",
    "ClosedError",
    "ConfigError",
    "ConnectionStatus",
    "DedupeOptions",
    "EmitOptions",
    "EncodeError",
    "ExtType",
    "HandlerError",
    "Lobby",
    "LobbyPresenceEvent",
    "LobbyPresenceHandler",
    "LobbyPresenceState",
    "LobbyRecord",
    "Message",
    "MessageMeta",
    "NoLag",
    "NoLagEncodeError",
    "NoLagError",
    "NoLagOptions",
    "NoLagServerError",
    "NotConnectedError",
    "OfflineQueueOptions",
    "Position",
    "PublishOptions",
    "QoS",
    "QueueError",
    "Receipt",
    "Room",
    "ServerError",
    "Stats",
    "SubscribeOptions",
    "Subscription",
    "TlsOptions",
    "Token",
    "TokenProvider",
    "TokenRequest",
    "__version__",
]
