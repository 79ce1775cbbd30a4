"""What the package is made of, as programs see it."""

import dataclasses
import importlib.metadata
import inspect
from importlib import resources
from typing import Any

import nolag
import pytest
from nolag import (
    ActorPresence,
    ActorType,
    ConnectionStatus,
    EmitOptions,
    LobbyPresenceEvent,
    MessageMeta,
    NoLag,
    NoLagEncodeError,
    NoLagError,
    NoLagOptions,
    NoLagServerError,
    QoS,
    SubscribeOptions,
)

# What `nolag` 2.6.0 exports, but for the REST client and the WebRTC helper (client-api 16).
OFFICIAL = [
    "NoLagEncodeError",
    "NoLagServerError",
    "NoLag",
    "NoLagOptions",
    "ConnectionStatus",
    "ActorType",
    "QoS",
    "SubscribeOptions",
    "EmitOptions",
    "MessageMeta",
    "ActorPresence",
    "LobbyPresenceEvent",
    "LobbyPresenceState",
    "LobbyPresenceHandler",
]

# Its constructors and methods with their parameters in order.
METHODS = {
    "NoLag": {
        "__init__": ["token", "options"],
        "connect": [],
        "disconnect": [],
        "set_app": ["app_name"],
        "subscribe": ["topic", "options", "callback"],
        "unsubscribe": ["topic", "callback"],
        "set_filters": ["topic", "filters", "callback"],
        "add_filters": ["topic", "filters", "callback"],
        "remove_filters": ["topic", "filters", "callback"],
        "emit": ["topic", "data", "options", "callback"],
        "on": ["event", "handler"],
        "off": ["event", "handler"],
        "on_any": ["handler"],
        "off_any": ["handler"],
        "set_presence": ["data", "room_id"],
        "get_presence": ["actor_token_id"],
        "get_all_presence": [],
        "fetch_presence": ["room_id"],
    },
    "App": {"set_room": ["room_name"], "set_lobby": ["lobby_id"]},
    "Room": {
        "subscribe": ["topic", "options", "callback"],
        "unsubscribe": ["topic", "callback"],
        "emit": ["topic", "data", "options", "callback"],
        "on": ["topic", "handler"],
        "off": ["topic", "handler"],
        "set_filters": ["topic", "filters", "callback"],
        "add_filters": ["topic", "filters", "callback"],
        "remove_filters": ["topic", "filters", "callback"],
        "set_presence": ["data"],
        "fetch_presence": [],
    },
    "Lobby": {
        "subscribe": [],
        "unsubscribe": [],
        "fetch_presence": [],
        "on": ["event", "handler"],
        "off": ["event", "handler"],
    },
}

# The fields of its dataclasses in order, which are positional (appendix A.3).
FIELDS = {
    "NoLagOptions": [
        "url",
        "reconnect",
        "reconnect_interval",
        "max_reconnect_attempts",
        "heartbeat_interval",
        "disconnect_on_hidden",
        "debug",
        "qos",
        "load_balance",
        "load_balance_group",
        "actor_token_id",
    ],
    "SubscribeOptions": ["qos", "load_balance", "load_balance_group", "filters"],
    "EmitOptions": ["qos", "retain", "echo", "filter", "filters"],
    "ActorPresence": [
        "actor_token_id",
        "actor_type",
        "presence",
        "joined_at",
        "status",
        "advertisement_version",
    ],
    "LobbyPresenceEvent": ["lobby_id", "room_id", "actor_id", "data"],
}


class TestNames:
    """Names, places and signatures of the published client."""

    def test_exports(self) -> None:
        """All that it exports, ours does; and what we add."""
        added = ["NoLagError", "Receipt", "Message", "Subscription", "PublishOptions"]
        for name in [*OFFICIAL, *added]:
            assert hasattr(nolag, name), name
            assert name in nolag.__all__, name
        assert sorted(nolag.__all__) == sorted(set(nolag.__all__))
        for name in nolag.__all__:
            assert hasattr(nolag, name), name

    def test_modules(self) -> None:
        """Programs import from them, too."""
        from nolag.client import App, Lobby, NoLag, Room  # noqa: F401, PLC0415
        from nolag.errors import NoLagServerError  # noqa: F401, PLC0415
        from nolag.types import ActorType, EmitOptions, QoS  # noqa: F401, PLC0415

    @pytest.mark.parametrize(
        ("owner", "method"),
        [(owner, method) for owner, methods in METHODS.items() for method in methods],
    )
    def test_signatures(self, owner: str, method: str) -> None:
        """Positional arguments stay where they were, with new ones behind them."""
        import nolag.client  # noqa: PLC0415

        parameters = inspect.signature(
            getattr(getattr(nolag.client, owner), method)
        ).parameters.values()
        positional = [
            parameter.name
            for parameter in parameters
            if parameter.kind is parameter.POSITIONAL_OR_KEYWORD and parameter.name != "self"
        ]
        expected = METHODS[owner][method]
        assert positional[: len(expected)] == expected
        required = {
            parameter.name
            for parameter in parameters
            if parameter.default is parameter.empty
            and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
        }
        assert required <= {"self", *expected}

    @pytest.mark.parametrize("name", list(FIELDS))
    def test_fields(self, name: str) -> None:
        """New fields are keyword-only."""
        fields = [field for field in dataclasses.fields(getattr(nolag, name)) if not field.kw_only]
        assert [field.name for field in fields] == FIELDS[name]

    def test_defaults(self) -> None:
        """The official ones, but for three (appendix A.3)."""
        options = NoLagOptions()
        assert options.url is None
        assert options.reconnect_interval is None
        assert options.max_reconnect_attempts == 0
        assert options.reconnect is True
        assert options.heartbeat_interval == 30.0
        assert options.qos is QoS.AT_LEAST_ONCE
        assert (options.load_balance, options.load_balance_group) == (False, None)
        assert (options.debug, options.disconnect_on_hidden) == (False, False)
        assert SubscribeOptions() == SubscribeOptions(None, None, None, None)
        assert EmitOptions() == EmitOptions(None, False, True, None, None)

    def test_enums(self) -> None:
        """Their values are what goes over the wire, and compare to it."""
        assert [status.value for status in ConnectionStatus] == [
            "disconnected",
            "connecting",
            "connected",
            "reconnecting",
        ]
        status: str = ConnectionStatus.CONNECTED
        assert status == "connected"
        assert {actor.value for actor in ActorType} == {
            "device",
            "user",
            "server",
            "service",
            "session",
            "agent",
            "orchestrator",
            "observer",
        }
        assert [int(qos) for qos in QoS] == [0, 1, 2]
        level: int = QoS.EXACTLY_ONCE
        assert level == 2

    def test_the_version(self) -> None:
        """The package and its metadata agree, and it says that it is typed."""
        assert importlib.metadata.version("nolag") == nolag.__version__
        assert resources.files("nolag").joinpath("py.typed").is_file()
        assert not importlib.metadata.requires("nolag")


class TestValues:
    """What events carry can be made, compared and shown."""

    def test_message_meta(self) -> None:
        """As the published client makes it: applications do in their tests."""
        meta = MessageMeta(sender="alice", timestamp=1, is_replay=True, msg_id="m-1", filter="f")
        assert meta == MessageMeta("alice", 1, True, "m-1", "f")
        assert meta != MessageMeta("bob")
        assert (meta.sender, meta.timestamp, meta.is_replay) == ("alice", 1, True)
        assert (meta.msg_id, meta.filter) == ("m-1", "f")
        empty = MessageMeta()
        assert (empty.sender, empty.timestamp, empty.is_replay) == (None, None, False)
        for word in ("MessageMeta", "alice", "m-1", "True"):
            assert word in repr(meta)

    @pytest.mark.parametrize(
        ("value", "same", "other"),
        [
            (
                ActorPresence("alice", ActorType.USER, {"x": 1}),
                ActorPresence("alice", ActorType.USER, {"x": 1}),
                ActorPresence("alice", ActorType.USER, {"x": 2}),
            ),
            (
                LobbyPresenceEvent("lounge", "general", "alice", {"x": 1}),
                LobbyPresenceEvent("lounge", "general", "alice", {"x": 1}),
                LobbyPresenceEvent("lounge", "general", "bob", {"x": 1}),
            ),
        ],
        ids=lambda value: type(value).__name__,
    )
    def test_presence(self, value: Any, same: Any, other: Any) -> None:
        """Equal when the same, and shown with what is in them."""
        assert value == same
        assert value != other
        assert "alice" in repr(value)
        assert type(value).__name__ in repr(value)

    def test_mapping_access(self) -> None:
        """By the names of the fields and of the wire (API-065)."""
        actor = ActorPresence("alice", None, {"x": 1}, joined_at=7)
        assert actor["actor_token_id"] == actor["actorTokenId"] == "alice"
        assert actor.get("joinedAt") == actor.get("joined_at") == 7
        assert "actorTokenId" in actor
        assert "nothing" not in actor
        assert actor.get("nothing", "default") == "default"
        with pytest.raises(KeyError):
            actor["nothing"]
        event = LobbyPresenceEvent("lounge", "general", "alice", {"x": 1})
        assert dict(event)["lobby_id"] == event["lobbyId"] == "lounge"
        assert event["data"] == {"x": 1}

    def test_errors_of_the_published_client(self) -> None:
        """They are made as it makes them."""
        error = NoLagServerError(
            {"code": 42940, "error": "unknown_topic", "topic": "t", "hint": "h", "msgRef": "r"}
        )
        assert (error.code, error.error, error.topic) == (42940, "unknown_topic", "t")
        assert (error.hint, error.msg_ref) == ("h", "r")
        assert str(error) == "unknown_topic (42940) on 't' — h"
        bare = NoLagServerError({})
        assert (bare.code, bare.error, str(bare)) == (None, "unknown_error", "unknown_error")
        encode = NoLagEncodeError("publish", "t", TypeError("no"))
        assert (encode.op, encode.topic) == ("publish", "t")
        assert str(encode).startswith("Cannot encode payload for publish to 't': no. ")
        assert isinstance(error, NoLagError)
        assert isinstance(encode, NoLagError)

    def test_a_client_shows_itself(self) -> None:
        """Without its token (API-075)."""
        client = NoLag("s3cret", url="ws://127.0.0.1:9/ws")
        assert "idle" in repr(client)
        assert "s3cret" not in repr(client)
