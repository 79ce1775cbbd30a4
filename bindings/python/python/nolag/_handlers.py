"""Handlers by event and topic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

Handler: TypeAlias = Callable[..., Any]

#: Events that are no topics.
EVENTS = frozenset(
    {
        "connecting",
        "connect",
        "connected",
        "disconnect",
        "disconnected",
        "reconnecting",
        "reconnect",
        "ready",
        "error",
        "failed",
        "presence:join",
        "presence:leave",
        "presence:update",
        "presence:waking",
        "presence:replaced",
        "presenceList",
        "hydration",
        "replay:start",
        "replay:end",
        "gap",
        "overflow",
        "drain",
        "state",
    }
)
#: How the names of lobbies' events begin.
LOBBY_EVENTS = ("lobby:", "lobbyPresence:", "lobbySubscribed:", "lobbyPresenceList:")


def is_event(name: str) -> bool:
    """Tell an event from a topic."""
    return name in EVENTS or name.startswith(LOBBY_EVENTS)


class Handlers(dict[Handler, None]):
    """A set of handlers that keeps the order in which they were added."""

    __slots__ = ()

    def add(self, handler: Handler) -> None:
        """Add a handler; one that is there already stays where it is."""
        self.setdefault(handler, None)

    def discard(self, handler: Handler) -> None:
        """Remove a handler, if it is there."""
        self.pop(handler, None)
