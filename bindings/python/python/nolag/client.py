"""The client."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from weakref import ref

from nolag import _settings
from nolag._calls import OFF, Calls, Done, ignore, settler
from nolag.errors import (
    ClosedError,
    ConfigError,
    NoLagEncodeError,
    NoLagError,
    NotConnectedError,
)
from nolag.rooms import App, Lobby, Room
from nolag.subscription import Subscription
from nolag.threadsafe import ThreadSafe
from nolag.types import ActorPresence, Message, NoLagOptions, Stats

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
    from types import TracebackType

    from typing_extensions import Self

    from nolag._native import Receipt
    from nolag.types import (
        AckCallback,
        EmitOptions,
        MessageHandler,
        Position,
        QoS,
        SubscribeOptions,
        TokenProvider,
    )

__all__ = ["App", "Lobby", "NoLag", "Room", "Subscription"]


class NoLag(Calls):
    """A client of a NoLag broker, for asyncio.

    Subscriptions, presence and lobby watches are kept over any number of reconnects. All methods
    are called, and all handlers run, on the event loop that called `connect`; `threadsafe` is for
    other threads.
    """

    def __init__(
        self,
        token: str | TokenProvider | None = None,
        options: NoLagOptions | Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Take a token, or an asynchronous function that gives one, and options, also by keyword.

        Nothing is sent yet.
        """
        super().__init__(token, _settings.merge(options, kwargs))

    @property
    def threadsafe(self) -> ThreadSafe:
        """The client for other threads."""
        return ThreadSafe(self)

    def stats(self) -> Stats:
        """Give what counts, as of a moment ago."""
        counts = self._core.stats() if self._core is not None else {}
        return Stats(**counts, handler_errors=self._handler_errors)

    def __repr__(self) -> str:
        """Show state and URL, not the token."""
        return f"<{type(self).__name__} {self._state} {self._options.url or ''}>"

    # Connecting.

    async def connect(self) -> None:
        """Connect, and stay connected from then on.

        While it is connecting already, this waits for that attempt. `initial_connect` says what
        becomes of a first attempt that fails; by default the error is raised and that is it.
        """
        core = self._open()
        if self._state == "connected":
            return
        if self._state in OFF:
            self._state, self._was_connected = "connecting", False
        try:
            await self._call(core.connect)
        except asyncio.CancelledError:
            if not self._was_connected and self._state in ("connecting", "authenticating"):
                self._state = "closed"
            raise

    def disconnect(self) -> Awaitable[None]:
        """Close at once: what was published and not answered fails. It need not be awaited.

        Subscriptions, presence and lobby watches are wanted again by a later `connect`. From
        another thread, or without a running event loop, it is done as soon as the client's loop
        comes to it.
        """
        loop = self._loop
        if loop is None or self._core is None or self._state in OFF:
            return Done()
        if not self._is_on_loop():
            if not loop.is_closed():
                loop.call_soon_threadsafe(self.disconnect)
            else:
                self._state = "closed"
            return Done()
        if not self._core.is_usable():
            return Done()
        done: asyncio.Future[None] = loop.create_future()
        self._core.disconnect(settler(done))
        self._ended("Client disconnect")
        return done

    async def close(self, *, flush: bool = True, timeout: float = 5.0) -> None:
        """Close when all that was published has been answered, within `timeout` seconds."""
        if self._core is None or self._state in OFF:
            return
        self._check_loop()
        closer = asyncio.current_task()
        self._closers.add(closer)
        try:
            await self._call(lambda waiter: self._live().close(waiter, flush, timeout))
            self._ended(None)
        finally:
            self._closers.discard(closer)

    async def __aenter__(self) -> Self:
        """Connect."""
        await self.connect()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""
        await self.close()

    async def wait_for_connected(self, timeout: float | None = None) -> None:
        """Wait until the client is connected, whoever connects it."""
        connected: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def look(_change: Any = None) -> None:
            if self._state == "connected" and not connected.done():
                connected.set_result(None)

        self.on("state", look)
        try:
            look()
            await asyncio.wait_for(connected, timeout)
        finally:
            self.off("state", look)

    def reconnect_now(self) -> None:
        """End the wait for the next attempt."""
        self._hint("now")

    def notify_online(self) -> None:
        """Tell that there is a network again, or another: the connection is tried at once."""
        self._hint("online")

    def notify_offline(self) -> None:
        """Tell that there is no network: attempts wait until there is, or for five minutes."""
        self._hint("offline")

    def suspend(self) -> None:
        """Tell that the program is being put to sleep: attempts wait until `resume`."""
        self._hint("suspend")

    def resume(self) -> None:
        """Tell that the program is back: the connection is tried at once."""
        self._hint("resume")

    def update_token(self, token: str) -> None:
        """Use another token from the next connection on."""
        self._token, self._provider = token, None
        if self._core is not None:
            self._core.update_token(ignore, token)

    def set_app(self, app_name: str) -> App:
        """Give an app's rooms and lobbies."""
        return App(self, app_name)

    # Publishing.

    async def emit(
        self,
        topic: str,
        data: Any,
        options: EmitOptions | Mapping[str, Any] | None = None,
        callback: AckCallback | None = None,
    ) -> Receipt:
        """Publish.

        Without a callback this returns when the broker has answered; while there is no connection,
        or when it is lost, with a receipt that can be waited for. With a callback it returns when
        the message is queued, and the callback gets an error or `None`. Nothing but a payload that
        cannot be encoded is raised: errors are in the receipt, and `error` events.
        """
        core = self._core
        if core is None or self._state in OFF or self._state == "closing":
            return self._not_published(topic, NotConnectedError(), callback)
        if asyncio.get_running_loop() is not self._loop:
            self._check_loop()
        if core.open_calls >= self._max_open_calls or self._waiting_for_room:
            await self._room(core)
        try:
            if options is None:
                receipt = core.publish(topic, data, True, callback)
            else:
                receipt = core.publish(topic, data, True, callback, **_settings.emit(options))
        except NoLagEncodeError as error:
            if callback is None:
                self._fire("error", error)
                raise
            return self._not_published(topic, error, callback)
        if callback is None and self._state == "connected":
            await self._answered(core, receipt, self._emitting)
        return receipt

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
        """Publish, and wait until the broker has taken the message.

        For quality 0, until it is written.

        While there is no connection it waits in the queue, for at most `ttl` seconds. Failures are
        raised.
        """
        core = self._core
        if core is None or self._state == "idle":
            raise NotConnectedError
        if self._state in OFF or self._state == "closing":
            message = "closed"
            raise ClosedError(message)
        self._check_loop()
        if core.open_calls >= self._max_open_calls or self._waiting_for_room:
            await self._room(core)
        receipt = core.publish(
            topic,
            data,
            False,
            None,
            qos,
            retain,
            echo,
            filter,
            filters,
            ttl,
            retain_ttl,
            msg_ref,
            trace,
        )
        await self._answered(core, receipt, set())
        if receipt.error is not None:
            raise receipt.error
        return receipt

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until nothing that was published is unanswered."""
        if self._core is not None:
            self._check_loop()
            core = self._core
            await self._call(lambda waiter: core.flush(waiter, timeout))

    # Subscribing.

    async def subscribe(
        self,
        topic: str,
        options: SubscribeOptions | Mapping[str, Any] | MessageHandler | None = None,
        callback: AckCallback | SubscribeOptions | Mapping[str, Any] | None = None,
    ) -> None:
        """Subscribe; the subscription is made again on every connection.

        Without a callback this returns when the broker has answered, and while there is no
        connection at once. A function in the place of the options becomes a handler of the topic,
        and options may follow it. Nothing is raised: the callback gets an error or `None`, and
        errors are `error` events.
        """
        if callable(options):
            self.on(topic, options)
            options = None
        if not callable(callback):
            options, callback = options if callback is None else callback, None
        given = _settings.subscribe(options)
        self._subscribed.add(topic)
        await self._ask(lambda core, waiter: core.subscribe(waiter, topic, **given), callback)

    async def unsubscribe(self, topic: str, callback: AckCallback | None = None) -> None:
        """Unsubscribe. Handlers of the topic stay; iterators of it end."""
        self._subscribed.discard(topic)
        readers = self._readers_of(topic)
        self._readers.pop(topic, None)
        for reader in readers:
            reader._leave()
        await self._ask(lambda core, waiter: core.unsubscribe(waiter, topic), callback)

    async def set_filters(
        self, topic: str, filters: list[str | list[str]], callback: AckCallback | None = None
    ) -> None:
        """Replace the filters of a topic; none at all means every message."""
        await self._ask(
            lambda core, waiter: core.change_filters(waiter, topic, "set", filters), callback
        )

    async def add_filters(
        self, topic: str, filters: list[str], callback: AckCallback | None = None
    ) -> None:
        """Add filter values to a topic's; those that are lists stay."""
        await self._ask(
            lambda core, waiter: core.change_filters(waiter, topic, "add", filters), callback
        )

    async def remove_filters(
        self, topic: str, filters: list[str], callback: AckCallback | None = None
    ) -> None:
        """Remove filter values from a topic's; those that are lists stay."""
        await self._ask(
            lambda core, waiter: core.change_filters(waiter, topic, "remove", filters), callback
        )

    def subscription(
        self,
        topic: str,
        *,
        qos: QoS | int | None = None,
        load_balance: bool | None = None,
        load_balance_group: str | None = None,
        filters: list[str | list[str]] | None = None,
        history: int | None = None,
        resume_from: Position | Mapping[str, Any] | None = None,
        redeliver: bool = False,
        ack_timeout: float | None = None,
        buffer: int = 1_024,
        overflow: str = "pause",
    ) -> Subscription:
        """Subscribe, to iterate over the messages.

        Before `connect` it is remembered. When `buffer` messages wait for the iterator, the client
        reads no more from the broker until some are taken ("pause"), or drops the oldest or the new
        one ("drop_oldest", "drop_newest"); when the iterator has caught up, an `overflow` event
        tells how many were dropped. The other options are those of `SubscribeOptions`.
        """
        if self._state in ("closed", "failed", "closing"):
            message = "closed"
            raise ClosedError(message)
        if buffer < 1:
            message = "buffer: a number of messages of at least 1 is expected"
            raise ConfigError(message)
        given = _settings.subscribe(
            {
                "qos": qos,
                "load_balance": load_balance,
                "load_balance_group": load_balance_group,
                "filters": filters,
                "history": history,
                "resume_from": resume_from,
                "redeliver": redeliver,
                "ack_timeout": ack_timeout,
            }
        )
        if overflow not in {"pause", "drop_oldest", "drop_newest"}:
            message = f"overflow is {overflow!r}: pause, drop_oldest or drop_newest is expected"
            raise ConfigError(message)
        reader = Subscription(self, topic, buffer, overflow)
        self._readers.setdefault(topic, []).append(ref(reader))
        settle = _weak_settle(ref(reader))
        self._soon(lambda core: core.subscribe(settle, topic, **given))
        return reader

    async def messages(self, topic: str, **options: Any) -> AsyncGenerator[Message, None]:
        """Iterate over the messages of a topic, subscribed for as long as that.

        Takes the options of `subscription`.
        """
        async with self.subscription(topic, **options) as reader:
            async for message in reader:
                yield message

    def ack(self, msg_id: str) -> None:
        """Acknowledge a message, in manual mode."""
        self._acknowledge(msg_id)

    def batch_ack(self, msg_ids: Sequence[str]) -> None:
        """Acknowledge messages, in manual mode."""
        self._acknowledge(*msg_ids)

    # Presence.

    async def set_presence(self, data: Any, room_id: str | None = None) -> None:
        """Announce this client in a room, on every connection from now on.

        Without a room it is announced to nobody.
        """
        await self._set_presence(None, room_id, data)

    async def clear_presence(self, room_id: str | None = None) -> None:
        """Leave a room; without one, the room that was set last."""
        app, room = (None, room_id) if room_id is not None else self._last_room
        await self._set_presence(app, room, None)

    async def fetch_presence(self, room_id: str | None = None) -> list[ActorPresence]:
        """Ask the broker who is in a room; without one, in the room that was set last."""
        app, room = (None, room_id) if room_id is not None else self._last_room
        return await self._fetch_presence(app, room)


def _weak_settle(reader: ref[Subscription]) -> Callable[[NoLagError | None, Any], None]:
    """Take the answer for an iterator, which is not kept alive by waiting for it."""

    def settle(error: NoLagError | None, _reply: Any) -> None:
        found = reader()
        if found is not None:
            found._settle(error)

    return settle
