"""What a client knows of its connection without asking, and what it tells of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from nolag._registry import Registry
from nolag.types import ActorPresence, ActorType, ConnectionStatus, LobbyPresenceEvent, NoLagOptions

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from weakref import ref

    from nolag.errors import NoLagError
    from nolag.subscription import Subscription

#: The broker took a topic away.
_ACCESS_REVOKED = 42941


class Mirror(Registry):
    """What can be read without awaiting. It changes just before the event that tells of it."""

    __slots__ = (
        "_actor_id",
        "_actor_type",
        "_emitting",
        "_features",
        "_options",
        "_project_id",
        "_protocol_version",
        "_readers",
        "_recovering",
        "_replay",
        "_rosters",
        "_state",
        "_was_connected",
    )

    def __init__(self, options: NoLagOptions) -> None:
        """Begin without a connection."""
        super().__init__(options.logger)
        self._options = options
        self._state = "idle"
        self._was_connected = False
        self._recovering = False
        self._actor_id: str | None = options.actor_token_id
        self._actor_type: ActorType | str | None = None
        self._project_id: str | None = None
        self._features: frozenset[str] = frozenset()
        self._protocol_version = 1
        self._rosters: dict[tuple[str | None, str | None], dict[str, ActorPresence]] = {}
        self._replay: dict[str, int] | None = None
        # Iterators by topic.
        self._readers: dict[str, list[ref[Subscription]]] = {}
        # `emit` calls that wait for the broker's answer.
        self._emitting: set[asyncio.Future[Any]] = set()

    @property
    def connected(self) -> bool:
        """Whether the broker has accepted the client."""
        return self._state == "connected"

    @property
    def status(self) -> ConnectionStatus:
        """Where the connection stands, coarsely."""
        if self._state == "connected":
            return ConnectionStatus.CONNECTED
        if self._state in ("idle", "closing", "closed", "failed"):
            return ConnectionStatus.DISCONNECTED
        if self._state in ("connecting", "authenticating") and not self._was_connected:
            return ConnectionStatus.CONNECTING
        return ConnectionStatus.RECONNECTING

    @property
    def state(self) -> str:
        """Where the connection stands.

        `"idle"`, `"connecting"`, `"authenticating"`, `"connected"`, `"backoff"`, `"suspended"`,
        `"closing"`, `"closed"` or `"failed"`.
        """
        return self._state

    @property
    def recovering(self) -> bool:
        """Whether the answers to what was sent after connecting are still awaited."""
        return self._recovering

    @property
    def protocol_version(self) -> int:
        """The negotiated version of the protocol."""
        return self._protocol_version

    @property
    def features(self) -> frozenset[str]:
        """What the broker granted on the last connection, beyond the published protocol."""
        return self._features

    @property
    def actor_id(self) -> str | None:
        """Who this client is to the broker, once it has told."""
        return self._actor_id

    @property
    def project_id(self) -> str | None:
        """The actor's project, once the broker has told."""
        return self._project_id

    @property
    def actor_type(self) -> ActorType | str | None:
        """What the actor is; a type that this package does not know comes as text."""
        return self._actor_type

    @property
    def load_balanced(self) -> bool:
        """Whether subscriptions share their messages unless told otherwise."""
        return self._options.load_balance

    @property
    def load_balance_group(self) -> str | None:
        """The group that they share them with."""
        return self._options.load_balance_group

    @property
    def is_replaying(self) -> bool:
        """Whether messages are being replayed."""
        return self._replay is not None

    @property
    def replay_progress(self) -> dict[str, int] | None:
        """How many messages are replayed (`count`), and how many have come (`received`)."""
        return None if self._replay is None else dict(self._replay)

    def get_presence(self, actor_token_id: str) -> ActorPresence | None:
        """Tell who an actor is, as far as is known without asking."""
        for roster in self._rosters.values():
            if actor_token_id in roster:
                return roster[actor_token_id]
        return None

    def get_all_presence(self) -> list[ActorPresence]:
        """Tell who is in the rooms, as far as is known without asking."""
        return [actor for roster in self._rosters.values() for actor in roster.values()]

    def _roster(self, app: str, room: str) -> dict[str, ActorPresence]:
        # Without the feature `rooms` the broker does not tell the app.
        return dict(self._rosters.get((app, room)) or self._rosters.get((None, room), {}))

    def _forget_roster(self, app: str | None, room: str | None) -> None:
        """Know nothing more of a room that was left; without an app, of the last of that slug."""
        key = next(
            (key for key in reversed(self._rosters) if key[1] == room and app in (None, key[0])),
            (app, room),
        )
        self._rosters.pop(key, None)

    def _room_made(self) -> None:
        """Let calls go on that wait for others."""
        raise NotImplementedError

    def _ended(self, reason: str | None) -> None:
        """Stop handing over, because the application closed the client."""
        raise NotImplementedError

    def _readers_of(self, topic: str) -> list[Subscription]:
        return [reader for weak in self._readers.get(topic, ()) if (reader := weak()) is not None]

    def _on_event(self, name: str, payload: Any) -> None:
        """Take an event of the native client."""
        method = self._METHODS.get(name)
        if method is None:
            self._fire(name, payload)
        else:
            method(self, payload)

    def _log_frame(self, sent: bool, kind: str, size: int) -> None:
        self._logger.debug("%s %s, %d bytes", "→" if sent else "←", kind, size)

    def _on_warning(self, text: str) -> None:
        self._logger.warning("%s", text)

    def _on_connecting(self, _payload: None) -> None:
        self._fire("connecting")

    def _on_reconnecting(self, payload: tuple[int, float, str]) -> None:
        attempt, delay, reason = payload
        self._logger.debug("reconnecting in %.3f s, attempt %d: %s", delay, attempt, reason)
        self._fire("reconnecting", attempt)

    def _on_reconnect(self, _payload: None) -> None:
        self._fire("reconnect")

    def _on_ready(self, report: dict[str, Any]) -> None:
        self._recovering = False
        self._fire("ready", report)

    def _on_hydration(self, payload: tuple[str, Any]) -> None:
        self._fire("hydration", *payload)

    def _on_replay_start(self, report: dict[str, Any]) -> None:
        self._replay = {"count": report["count"], "received": 0}
        self._fire("replay:start", report)

    def _on_replay_end(self, report: dict[str, Any]) -> None:
        self._replay = None
        self._fire("replay:end", report)

    def _on_state(self, payload: tuple[str, str, str, int | None]) -> None:
        before, now, reason, close_code = payload
        self._logger.debug("%s → %s (%s)", before, now, reason)
        self._state = now
        if now != "connected":
            self._room_made()
        if now == "closed":
            self._ended(None)
        self._fire("state", {"from": before, "to": now, "reason": reason, "close_code": close_code})

    def _on_connect(
        self, payload: tuple[str | None, str | None, str | None, int, list[str]]
    ) -> None:
        actor_id, actor_type, project_id, protocol_version, features = payload
        self._features = _granted(tuple(features))
        self._state, self._was_connected, self._recovering = "connected", True, True
        self._actor_id = actor_id or self._options.actor_token_id
        self._actor_type = _actor_type(actor_type)
        self._project_id = project_id
        self._protocol_version = protocol_version
        self._fire("connect")
        self._fire("connected")

    def _on_disconnect(self, reason: str) -> None:
        if self._state == "connected":
            self._state = "backoff"
        self._recovering, self._replay = False, None
        self._room_made()
        # Their messages wait for a connection now, and so do their receipts.
        for answer in self._emitting:
            if not answer.done():
                answer.set_result(None)
        self._fire("disconnect", reason)
        self._fire("disconnected")

    def _on_failed(self, error: NoLagError) -> None:
        self._state = "failed"
        for topic in list(self._readers):
            for reader in self._readers_of(topic):
                reader._end(error)
        self._readers.clear()
        self._fire("failed", error)

    def _on_error(self, error: NoLagError) -> None:
        if error.server_code == _ACCESS_REVOKED and error.topic is not None:
            for reader in self._readers_of(error.topic):
                reader._end(error)
        self._fire("error", error)

    def _on_presence(self, payload: tuple[str, dict[str, Any]]) -> None:
        change, fields = payload
        who = actor(fields)
        roster = self._rosters.setdefault((who.app, who.room_id), {})
        if change == "leave":
            roster.pop(who.actor_token_id, None)
        else:
            roster[who.actor_token_id] = who
        self._fire(f"presence:{change}", who)

    def _on_lobby(self, fields: dict[str, Any]) -> None:
        lobby = fields["lobby"] or fields["lobby_id"]
        event = LobbyPresenceEvent(
            lobby_id=lobby,
            room_id=fields["room"] or "",
            actor_id=fields["actor_id"],
            data=fields["data"],
            app=fields["app"],
        )
        self._fire(f"lobby:{lobby}:presence:{fields['change']}", event)
        self._fire(f"lobbyPresence:{fields['change']}", event)

    #: What is done about an event, where that is more than calling its handlers.
    _METHODS: ClassVar[dict[str, Callable[[Any, Any], None]]] = {
        "state": _on_state,
        "warning": _on_warning,
        "connecting": _on_connecting,
        "connect": _on_connect,
        "disconnect": _on_disconnect,
        "reconnecting": _on_reconnecting,
        "reconnect": _on_reconnect,
        "ready": _on_ready,
        "error": _on_error,
        "failed": _on_failed,
        "hydration": _on_hydration,
        "replay:start": _on_replay_start,
        "replay:end": _on_replay_end,
        "presence": _on_presence,
        "lobby": _on_lobby,
    }

    def _replayed(self) -> None:
        """One of the replayed messages has come."""
        if self._replay is not None:
            self._replay["received"] += 1


#: The sets of features that were granted; the clients of a program share them.
_GRANTED: dict[tuple[str, ...], frozenset[str]] = {}


def _granted(names: tuple[str, ...]) -> frozenset[str]:
    return _GRANTED.setdefault(names, frozenset(names))


def _actor_type(name: str | None) -> ActorType | str | None:
    if name is None:
        return None
    try:
        return ActorType(name)
    except ValueError:
        return name


def actor(fields: dict[str, Any]) -> ActorPresence:
    presence = fields["presence"]
    return ActorPresence(
        **{
            **fields,
            "actor_type": _actor_type(fields["actor_type"]),
            "presence": {} if presence is None else presence,
        }
    )
