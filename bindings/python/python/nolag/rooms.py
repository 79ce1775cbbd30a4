"""Names built from an app and a room or lobby."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from nolag._native import check_name

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Mapping, Sequence

    from nolag.client import NoLag
    from nolag.subscription import Subscription
    from nolag.types import (
        AckCallback,
        ActorPresence,
        EmitOptions,
        LobbyPresenceEvent,
        LobbyPresenceHandler,
        LobbyPresenceState,
        Message,
        MessageHandler,
        Position,
        QoS,
        Receipt,
        SubscribeOptions,
    )


class App:
    """An app's rooms and lobbies."""

    def __init__(self, client: NoLag, app_name: str) -> None:
        """Belong to a client; `NoLag.set_app` makes one."""
        check_name(app_name)
        self._client = client
        self._app_name = app_name

    def set_room(self, room_name: str) -> Room:
        """Give a room of this app."""
        return Room(self._client, self._app_name, room_name)

    def set_lobby(self, lobby_id: str) -> Lobby:
        """Give a lobby of this app."""
        return Lobby(self._client, lobby_id)


class Room:
    """One room: its topics, and who is there.

    A broker without the feature `rooms` knows a room by its slug alone: equal slugs of two apps are
    one room to it.
    """

    def __init__(self, client: NoLag, app_name: str, room_name: str) -> None:
        """Belong to a client; `App.set_room` makes one."""
        check_name(app_name)
        check_name(room_name)
        self._client = client
        self._app_name = app_name
        self._room_name = room_name

    @property
    def prefix(self) -> str:
        """What the room's topics begin with."""
        return f"{self._app_name}/{self._room_name}"

    def _full_topic(self, topic: str) -> str:
        check_name(topic)
        return f"{self._app_name}/{self._room_name}/{topic}"

    async def subscribe(
        self,
        topic: str,
        options: SubscribeOptions | Mapping[str, Any] | MessageHandler | None = None,
        callback: AckCallback | SubscribeOptions | Mapping[str, Any] | None = None,
    ) -> None:
        """Subscribe to one of the room's topics; see `NoLag.subscribe`."""
        await self._client.subscribe(self._full_topic(topic), options, callback)

    async def unsubscribe(self, topic: str, callback: AckCallback | None = None) -> None:
        """Unsubscribe from one of the room's topics."""
        await self._client.unsubscribe(self._full_topic(topic), callback)

    async def emit(
        self,
        topic: str,
        data: Any,
        options: EmitOptions | Mapping[str, Any] | None = None,
        callback: AckCallback | None = None,
    ) -> Receipt:
        """Publish to one of the room's topics; see `NoLag.emit`."""
        return await self._client.emit(self._full_topic(topic), data, options, callback)

    async def publish(
        self,
        topic: str,
        data: Any,
        *,
        qos: QoS | int | None = None,
        retain: bool = False,
        echo: bool = True,
        filter: str | None = None,
        filters: Sequence[str] | None = None,
        ttl: float | None = None,
        retain_ttl: float | None = None,
        msg_ref: str | None = None,
        trace: str | None = None,
    ) -> Receipt:
        """Publish to one of the room's topics; see `NoLag.publish`."""
        return await self._client.publish(
            self._full_topic(topic),
            data,
            qos=qos,
            retain=retain,
            echo=echo,
            filter=filter,
            filters=filters,
            ttl=ttl,
            retain_ttl=retain_ttl,
            msg_ref=msg_ref,
            trace=trace,
        )

    def subscription(self, topic: str, **options: Any) -> Subscription:
        """Subscribe to one of the room's topics, to be iterated; see `NoLag.subscription`."""
        return self._client.subscription(self._full_topic(topic), **options)

    def messages(self, topic: str, **options: Any) -> AsyncGenerator[Message, None]:
        """Iterate over the messages of one of the room's topics; see `NoLag.messages`."""
        return self._client.messages(self._full_topic(topic), **options)

    def position(self, topic: str) -> Position | None:
        """Tell how far one of the room's topics is handled; see `Subscription.position`."""
        return self._client.position(self._full_topic(topic))

    def on(self, topic: str, handler: MessageHandler) -> Room:
        """Handle the messages of one of the room's topics."""
        self._client.on(self._full_topic(topic), handler)
        return self

    def off(self, topic: str, handler: MessageHandler | None = None) -> Room:
        """Handle them no more; without a handler, by none."""
        self._client.off(self._full_topic(topic), handler)
        return self

    async def set_filters(
        self, topic: str, filters: list[str | list[str]], callback: AckCallback | None = None
    ) -> None:
        """Replace the filters of a topic."""
        await self._client.set_filters(self._full_topic(topic), filters, callback)

    async def add_filters(
        self, topic: str, filters: list[str], callback: AckCallback | None = None
    ) -> None:
        """Add filter values to a topic's."""
        await self._client.add_filters(self._full_topic(topic), filters, callback)

    async def remove_filters(
        self, topic: str, filters: list[str], callback: AckCallback | None = None
    ) -> None:
        """Remove filter values from a topic's."""
        await self._client.remove_filters(self._full_topic(topic), filters, callback)

    async def set_presence(self, data: Any) -> None:
        """Announce this client in the room, on every connection from now on."""
        await self._client._set_presence(self._app_name, self._room_name, data)

    async def clear_presence(self) -> None:
        """Leave the room."""
        await self._client._set_presence(self._app_name, self._room_name, None)

    def get_presence(self) -> dict[str, ActorPresence]:
        """Tell who is in the room, as far as is known without asking."""
        return self._client._roster(self._app_name, self._room_name)

    async def fetch_presence(self) -> list[ActorPresence]:
        """Ask the broker who is in the room."""
        return await self._client._fetch_presence(self._app_name, self._room_name)


class Lobby:
    """A lobby: who is in its rooms, and who comes and goes."""

    def __init__(self, client: NoLag, lobby_id: str) -> None:
        """Belong to a client; `App.set_lobby` makes one."""
        check_name(lobby_id)
        self._client = client
        self._lobby_id = lobby_id

    @property
    def lobby_id(self) -> str:
        """The lobby's slug."""
        return self._lobby_id

    async def subscribe(self) -> LobbyPresenceState:
        """Watch the lobby, on every connection from now on, and tell who is in its rooms."""
        return await self._client._lobby("watch_lobby", self._lobby_id)

    def unsubscribe(self) -> Awaitable[None]:
        """Watch it no more. It need not be awaited."""
        return self._client._unwatch(self._lobby_id)

    async def fetch_presence(self) -> LobbyPresenceState:
        """Ask who is in its rooms."""
        return await self._client._lobby("fetch_lobby", self._lobby_id)

    def _event(self, event: str) -> str:
        return f"lobby:{self._lobby_id}:presence:{event.removeprefix('presence:')}"

    def on(self, event: str, handler: LobbyPresenceHandler) -> Lobby:
        """Handle `presence:join`, `presence:leave`, `presence:update` or `presence:waking`."""
        self._client.on(self._event(event), handler)
        return self

    def off(self, event: str, handler: LobbyPresenceHandler | None = None) -> Lobby:
        """Handle it no more; without a handler, by none."""
        self._client.off(self._event(event), handler)
        return self

    async def events(self) -> AsyncGenerator[tuple[str, LobbyPresenceEvent], None]:
        """Iterate over what happens, as pairs of `join`, `leave`, `update` or `waking`, and who."""
        # One too many is an `error` event of the handler that could not put it.
        queue: asyncio.Queue[tuple[str, LobbyPresenceEvent]] = asyncio.Queue(1_024)
        handlers = {
            event: lambda change, event=event: queue.put_nowait((event, change))
            for event in ("join", "leave", "update", "waking")
        }
        for event, handler in handlers.items():
            self.on(event, handler)
        try:
            while True:
                yield await queue.get()
        finally:
            for event, handler in handlers.items():
                self.off(event, handler)
