"""The client."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
from collections import deque
from typing import TYPE_CHECKING, Any, TypeVar, overload
from weakref import ref

from nolag import _settings
from nolag._handlers import Handlers, is_event
from nolag._handling import Chains, Handling
from nolag._loop import watcher
from nolag._native import Core, Receipt, check_payload
from nolag.errors import (
    ClosedError,
    ConfigError,
    HandlerError,
    NoLagEncodeError,
    NoLagError,
    NoLagServerError,
    NotConnectedError,
)
from nolag.rooms import App, Lobby, Room
from nolag.subscription import Subscription, Ticket
from nolag.threadsafe import ThreadSafe
from nolag.types import (
    ActorPresence,
    ActorType,
    ConnectionStatus,
    LobbyPresenceEvent,
    LobbyPresenceState,
    LobbyRecord,
    NoLagOptions,
    Stats,
    TokenRequest,
)

if TYPE_CHECKING:
    from collections.abc import (
        AsyncIterator,
        Awaitable,
        Callable,
        Coroutine,
        Generator,
        Mapping,
        Sequence,
    )
    from types import TracebackType

    from nolag._handlers import Handler
    from nolag._native import MessageMeta, TokenAnswer
    from nolag.types import (
        AckCallback,
        EmitOptions,
        MessageHandler,
        QoS,
        SubscribeOptions,
        TokenProvider,
    )

__all__ = ["App", "Lobby", "NoLag", "Room", "Subscription"]

logger = logging.getLogger("nolag")

_H = TypeVar("_H", bound="Handler")

#: States in which the client neither has a connection nor tries to get one.
_OFF = frozenset({"idle", "closed", "failed"})


class _Done:
    """Something to await that is done already."""

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield


class NoLag:
    """A client of a NoLag broker, for asyncio.

    Subscriptions, presence and lobby watches are kept over any number of reconnects. All methods are called, and all
    handlers run, on the event loop that called `connect`; `threadsafe` is for other threads.
    """

    def __init__(
        self,
        token: str | TokenProvider | None = None,
        options: NoLagOptions | Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Take a token, or an asynchronous function that gives one, and options, also by keyword. Nothing is sent yet."""
        self._options = _settings.merge(options, kwargs)
        self._token = token
        self._provider = token if callable(token) else self._options.token_provider
        if not isinstance(token, str) and self._provider is None:
            message = (
                "a token is missing: give a string, or an asynchronous function that gives one"
            )
            raise ConfigError(message)
        self._core: Core | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._early: list[Callable[[Core], None]] = []

        # Read and replaced by the published package `nolag-signal`.
        self._event_handlers: dict[str, Any] = {}
        self._message_handlers: dict[str, Any] = {}
        self._any_handlers: Any = Handlers()
        # Iterators by topic, and the topics that were subscribed without one.
        self._readers: dict[str, list[ref[Subscription]]] = {}
        self._subscribed: set[str] = set()
        self._full_readers = 0
        self._chains = Chains()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._fetching: asyncio.Task[None] | None = None
        self._waiting_for_room: deque[asyncio.Future[None]] = deque()
        self._max_open_calls = 0
        # `emit` calls that wait for the broker's answer.
        self._emitting: set[asyncio.Future[Any]] = set()

        # What can be read without awaiting. It changes just before the event that tells of it.
        self._state = "idle"
        self._was_connected = False
        self._recovering = False
        self._actor_id: str | None = self._options.actor_token_id
        self._actor_type: ActorType | str | None = None
        self._project_id: str | None = None
        self._protocol_version = 1
        self._rosters: dict[tuple[str | None, str | None], dict[str, ActorPresence]] = {}
        self._last_room: tuple[str | None, str | None] = (None, None)
        self._replay: dict[str, int] | None = None
        self._acks_after_handler = False
        self._handler_errors = 0

    # What can be read without awaiting.

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

        `"idle"`, `"connecting"`, `"authenticating"`, `"connected"`, `"backoff"`, `"suspended"`, `"closing"`, `"closed"` or
        `"failed"`.
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

        While it is connecting already, this waits for that attempt. `initial_connect` says what becomes of a first attempt
        that fails; by default the error is raised and that is it.
        """
        core = self._open()
        if self._state == "connected":
            return
        if self._state in _OFF:
            self._state, self._was_connected = "connecting", False
        try:
            await self._call(core.connect)
        except asyncio.CancelledError:
            if not self._was_connected and self._state in ("connecting", "authenticating"):
                self._state = "closed"
            raise

    def disconnect(self) -> Awaitable[None]:
        """Close at once: what was published and not answered fails. It need not be awaited.

        Subscriptions, presence and lobby watches are wanted again by a later `connect`. From another thread, or without a
        running event loop, it is done as soon as the client's loop comes to it.
        """
        loop = self._loop
        if loop is None or self._core is None or self._state in _OFF:
            return _Done()
        if not self._is_on_loop():
            if not loop.is_closed():
                loop.call_soon_threadsafe(self.disconnect)
            else:
                self._state = "closed"
            return _Done()
        if not self._core.is_usable():
            return _Done()
        done: asyncio.Future[None] = loop.create_future()
        self._core.disconnect(lambda _error, _reply: done.done() or done.set_result(None))
        self._ended("Client disconnect")
        return done

    async def close(self, *, flush: bool = True, timeout: float = 5.0) -> None:  # noqa: ASYNC109 — the broker is asked to hurry
        """Close when all that was published has been answered, within `timeout` seconds."""
        if self._core is None or self._state in _OFF:
            return
        self._check_loop()
        await self._call(lambda waiter: self._live().close(waiter, flush, timeout))
        self._ended(None)

    async def __aenter__(self) -> NoLag:
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

    async def wait_for_connected(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 — as in every language
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
        if self._core is not None:
            self._core.hint("reconnect_now")

    def update_token(self, token: str) -> None:
        """Use another token from the next connection on."""
        self._token, self._provider = token, None
        if self._core is not None:
            self._core.update_token(_ignore, token)

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

        Without a callback this returns when the broker has answered; while there is no connection, or when it is lost, with a
        receipt that can be waited for. With a callback it returns when the message is queued, and the callback gets an error or `None`.
        Nothing but a payload that cannot be encoded is raised: errors are in the receipt, and `error` events.
        """
        core = self._core
        if core is None or self._state in _OFF or self._state == "closing":
            return self._not_published(topic, NotConnectedError(), callback)
        if callback is not None and self._state == "connected":
            await self._room(core)
        try:
            receipt = core.publish(topic, data, True, callback, **_settings.emit(options))  # noqa: FBT003 — native
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
        filter: str | None = None,  # noqa: A002 — the wire's name
        filters: Sequence[str] | None = None,
        ttl: float | None = None,
        retain_ttl: float | None = None,
        msg_ref: str | None = None,
    ) -> Receipt:
        """Publish, and wait until the broker has taken the message; for quality 0, until it is written.

        While there is no connection it waits in the queue, for at most `ttl` seconds. Failures are raised.
        """
        core = self._core
        if core is None or self._state == "idle":
            raise NotConnectedError
        if self._state in _OFF or self._state == "closing":
            message = "closed"
            raise ClosedError(message)
        if self._state == "connected":
            await self._room(core)
        receipt = core.publish(
            topic,
            data,
            False,  # noqa: FBT003 — native
            None,
            qos,
            retain,
            echo,
            filter,
            None if filters is None else list(filters),
            ttl,
            retain_ttl,
            msg_ref,
        )
        await self._answered(core, receipt, set())
        if receipt.error is not None:
            raise receipt.error
        return receipt

    async def flush(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 — it is part of the call
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

        Without a callback this returns when the broker has answered, and while there is no connection at once. A function in
        the place of the options becomes a handler of the topic, and options may follow it. Nothing is raised: the callback gets an
        error or `None`, and errors are `error` events.
        """
        if callable(options):
            self.on(topic, options)
            options, callback = (None, callback) if callable(callback) else (callback, None)  # type: ignore[assignment]
        given = _settings.subscribe(options)  # type: ignore[arg-type]
        self._subscribed.add(topic)
        await self._ask(lambda core, waiter: core.subscribe(waiter, topic, **given), callback)  # type: ignore[arg-type]

    async def unsubscribe(self, topic: str, callback: AckCallback | None = None) -> None:
        """Unsubscribe. Handlers of the topic stay; iterators of it end."""
        self._subscribed.discard(topic)
        for reader in self._readers_of(topic):
            reader._end(None)  # noqa: SLF001 — this package's
        self._readers.pop(topic, None)
        await self._ask(lambda core, waiter: core.unsubscribe(waiter, topic), callback)

    async def set_filters(
        self, topic: str, filters: list[str | list[str]], callback: AckCallback | None = None
    ) -> None:
        """Replace the filters of a topic; none at all means every message."""
        await self._ask(lambda core, waiter: core.set_filters(waiter, topic, filters), callback)

    async def add_filters(
        self, topic: str, filters: list[str], callback: AckCallback | None = None
    ) -> None:
        """Add filter values to a topic's; those that are lists stay."""
        await self._ask(lambda core, waiter: core.add_filters(waiter, topic, filters), callback)

    async def remove_filters(
        self, topic: str, filters: list[str], callback: AckCallback | None = None
    ) -> None:
        """Remove filter values from a topic's; those that are lists stay."""
        await self._ask(lambda core, waiter: core.remove_filters(waiter, topic, filters), callback)

    def subscription(
        self,
        topic: str,
        *,
        qos: QoS | int | None = None,
        load_balance: bool | None = None,
        load_balance_group: str | None = None,
        filters: list[str | list[str]] | None = None,
        buffer: int = 1_024,
    ) -> Subscription:
        """Subscribe, to iterate over the messages.

        Before `connect` it is remembered. When `buffer` messages wait for the iterator, the client reads no more from the broker
        until some are taken.
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
            }
        )
        reader = Subscription(self, topic, buffer)
        self._readers.setdefault(topic, []).append(ref(reader))
        settle = _weak_settle(ref(reader))
        self._soon(lambda core: core.subscribe(settle, topic, **given))
        return reader

    async def messages(self, topic: str, **options: Any) -> AsyncIterator[Any]:
        """Iterate over the messages of a topic, subscribed for as long as that; takes the options of `subscription`."""
        async with self.subscription(topic, **options) as reader:
            async for message in reader:
                yield message

    def ack(self, msg_id: str) -> None:
        """Acknowledge a message, in manual mode."""
        self.batch_ack([msg_id])

    def batch_ack(self, msg_ids: Sequence[str]) -> None:
        """Acknowledge messages, in manual mode."""
        if self._core is not None:
            self._core.ack(_ignore, list(msg_ids))

    # Handlers.

    @overload
    def on(self, event: str, handler: Handler) -> NoLag: ...

    @overload
    def on(self, event: str, handler: None = None) -> Callable[[_H], _H]: ...

    def on(self, event: str, handler: Handler | None = None) -> Any:
        """Handle an event, or the messages of a topic; `"*"` is every topic.

        Handlers of messages get the payload and a `MessageMeta`. They are called in the order in which they were added, each once
        however often it was added. Without a handler this is a decorator.
        """
        if handler is None:

            def register(function: _H) -> _H:
                self.on(event, function)
                return function

            return register
        if event == "*":
            return self.on_any(handler)
        registry = self._event_handlers if is_event(event) else self._message_handlers
        if event not in registry:
            registry[event] = Handlers()
        registry[event].add(handler)
        return self

    def off(self, event: str, handler: Handler | None = None) -> NoLag:
        """Handle it no more; without a handler, by none."""
        if event == "*":
            return self.off_any(handler)
        registry = self._event_handlers if event in self._event_handlers else self._message_handlers
        if event in registry:
            if handler is None:
                registry[event].clear()
            else:
                registry[event].discard(handler)
            if not registry[event]:
                del registry[event]
        return self

    def on_any(self, handler: Handler) -> NoLag:
        """Handle the messages of every topic; handlers get topic, payload and a `MessageMeta`."""
        self._any_handlers.add(handler)
        return self

    def off_any(self, handler: Handler | None = None) -> NoLag:
        """Handle them no more; without a handler, by none."""
        if handler is None:
            self._any_handlers.clear()
        else:
            self._any_handlers.discard(handler)
        return self

    # Presence.

    async def set_presence(self, data: Any, room_id: str | None = None) -> None:
        """Announce this client in a room, on every connection from now on. Without a room it is announced to nobody."""
        await self._set_presence(None, room_id, data)

    async def clear_presence(self, room_id: str | None = None) -> None:
        """Leave a room; without one, the room that was set last."""
        app, room = (None, room_id) if room_id is not None else self._last_room
        await self._set_presence(app, room, None)

    def get_presence(self, actor_token_id: str) -> ActorPresence | None:
        """Tell who an actor is, as far as is known without asking."""
        for roster in self._rosters.values():
            if actor_token_id in roster:
                return roster[actor_token_id]
        return None

    def get_all_presence(self) -> list[ActorPresence]:
        """Tell who is in the rooms, as far as is known without asking."""
        return [actor for roster in self._rosters.values() for actor in roster.values()]

    async def fetch_presence(self, room_id: str | None = None) -> list[ActorPresence]:
        """Ask the broker who is in a room; without one, in the room that was set last."""
        app, room = (None, room_id) if room_id is not None else self._last_room
        return await self._fetch_presence(app, room)

    # For rooms, lobbies and subscriptions.

    async def _set_presence(self, app: str | None, room: str | None, data: Any) -> None:
        if data is not None:
            self._last_room = (app, room)
        check_payload("set_presence", room, data)  # also where it is only remembered
        self._soon(lambda core: core.set_presence(_ignore, app, room, data))

    def _roster(self, app: str, room: str) -> dict[str, ActorPresence]:
        # Without the feature `rooms` the broker does not tell the app.
        return dict(self._rosters.get((app, room)) or self._rosters.get((None, room), {}))

    async def _fetch_presence(self, app: str | None, room: str | None) -> list[ActorPresence]:
        core = self._connected_core()
        if room is None:
            message = "fetch_presence: no room is named, and none was set"
            raise ConfigError(message)
        found = await self._call(lambda waiter: core.fetch_presence(waiter, app, room))
        actors = [_actor(fields) for fields in found]
        self._fire("presenceList", actors)
        return actors

    async def _lobby(self, method: str, lobby: str) -> LobbyPresenceState:
        core = self._connected_core()
        found = await self._call(lambda waiter: getattr(core, method)(waiter, lobby))
        return {
            room: {
                actor: LobbyRecord(record)
                if isinstance(record, dict)
                else LobbyRecord(presence=record)
                for actor, record in actors.items()
            }
            for room, actors in found.items()
        }

    def _unwatch(self, lobby: str) -> Awaitable[None]:
        if self._core is None or self._loop is None:
            return _Done()
        done: asyncio.Future[None] = self._loop.create_future()
        self._core.unwatch_lobby(lambda _error, _reply: done.done() or done.set_result(None), lobby)
        return done

    async def _change_filters(self, method: str, topic: str, filters: Any) -> None:
        core = self._live()
        await self._call(lambda waiter: getattr(core, method)(waiter, topic, filters))

    def _readers_of(self, topic: str) -> list[Subscription]:
        return [reader for weak in self._readers.get(topic, ()) if (reader := weak()) is not None]

    def _reader_is_full(self) -> None:
        self._full_readers += 1
        if self._core is not None:
            self._core.set_full(True)  # noqa: FBT003 — native

    def _reader_has_room(self) -> None:
        self._full_readers -= 1
        if self._core is not None and self._full_readers == 0:
            self._core.set_full(False)  # noqa: FBT003 — native

    def _reader_leaves(self, reader: Subscription) -> asyncio.Future[None] | None:
        """Forget an iterator; unsubscribe if it was the last that needed the topic."""
        topic = reader.topic
        before = self._readers.get(topic)
        if before is None:
            return None
        left = [weak for weak in before if weak() not in (None, reader)]
        if left:
            self._readers[topic] = left
            return None
        del self._readers[topic]
        if topic in self._subscribed or topic in self._message_handlers:
            return None
        if (
            self._core is None
            or self._loop is None
            or self._loop.is_closed()
            or not self._core.is_usable()
        ):
            return None
        done: asyncio.Future[None] = self._loop.create_future()
        self._core.unsubscribe(lambda _error, _reply: done.done() or done.set_result(None), topic)
        return done

    def _finish(self, delivery: int, succeeded: bool) -> None:  # noqa: FBT001 — native
        if self._core is not None:
            self._core.finish(delivery, succeeded)

    # Calls.

    def _open(self) -> Core:
        """Give the native client, made at the first need so that options may be changed until then."""
        if self._core is not None:
            self._check_loop()
            return self._core
        loop = asyncio.get_running_loop()
        url = self._options.url or os.environ.get("NOLAG_URL")
        if not url:
            error = ConfigError("a URL is missing: give NoLagOptions(url=…), or set NOLAG_URL")
            error.code = "url_required"
            raise error
        token = self._token if isinstance(self._token, str) and self._provider is None else None
        settings = _settings.native(self._options)
        certificates = _settings.ca(self._options.tls)
        core = Core(
            self, loop, watcher(loop), url, token, settings, certificates, self._options.debug
        )
        core.enter()
        if self._options.debug:
            _settings.log_to_console()
        self._core, self._loop = core, loop
        self._max_open_calls = settings["offline_queue.max_messages"]
        self._acks_after_handler = settings["ack_mode"] in ("after_handler", "afterHandler")
        early, self._early = self._early, []
        for send in early:
            send(core)
        return core

    def _live(self) -> Core:
        if self._core is None:
            raise NotConnectedError
        self._check_loop()
        return self._core

    def _connected_core(self) -> Core:
        core = self._live()
        if self._state != "connected":
            raise NotConnectedError
        return core

    def _is_on_loop(self) -> bool:
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    def _check_loop(self) -> None:
        if not self._is_on_loop():
            error = ConfigError(
                "this client belongs to another event loop: use client.threadsafe from other threads, "
                "and a client of its own in each asyncio.run"
            )
            error.code = "unsupported_runtime"
            raise error

    def _soon(self, send: Callable[[Core], Any]) -> None:
        """Send now, or when there is something to send on."""
        if self._core is None:
            self._early.append(send)
        else:
            self._check_loop()
            send(self._core)

    async def _call(self, send: Callable[[Callable[[Any, Any], None]], int]) -> Any:
        """Wait for a call's reply; an error is raised, and a cancelled wait withdraws the call."""
        loop = asyncio.get_running_loop()
        reply: asyncio.Future[Any] = loop.create_future()

        def settle(error: BaseException | None, value: Any) -> None:
            if reply.done():
                return
            if error is None:
                reply.set_result(value)
            else:
                reply.set_exception(error)

        number = send(settle)
        try:
            return await reply
        except asyncio.CancelledError:
            if self._core is not None:
                self._core.cancel(number)
            raise

    async def _ask(
        self, send: Callable[[Core, Callable[[Any, Any], None]], int], callback: AckCallback | None
    ) -> None:
        """Carry out one of the calls that never raise."""
        core = self._core
        if core is None or self._state in _OFF or self._state == "closing":
            if core is not None:
                send(core, _ignore)  # what is wanted changes all the same, where that has a meaning
            self._failed(NotConnectedError(), callback)
            return
        self._check_loop()
        done: asyncio.Future[None] | None = None
        if callback is None and self._state == "connected":
            done = asyncio.get_running_loop().create_future()

        def settle(error: NoLagError | None, _reply: Any) -> None:
            if error is None:
                if callback is not None:
                    callback(None)
            else:
                self._failed(error, callback)
            if done is not None and not done.done():
                done.set_result(None)

        send(core, settle)
        if done is not None:
            await done

    def _failed(self, error: NoLagError, callback: AckCallback | None = None) -> None:
        """Tell of a failure: the callback, and an `error` event unless the session tells of it anyway."""
        try:
            if callback is not None:
                callback(error)
        finally:
            is_told = isinstance(error, NoLagServerError) and not error._local  # noqa: SLF001 — this package's
            is_told |= error.code == "ack_timeout" and not error.outcome_unknown
            if not is_told and not isinstance(error, ClosedError):
                self._fire("error", error)

    def _not_published(
        self, topic: str, error: NoLagError, callback: AckCallback | None
    ) -> Receipt:
        loop = self._loop or asyncio.get_running_loop()
        error.topic = topic
        receipt = Receipt.failed(loop, topic, error)
        self._failed(error, callback)
        return receipt

    async def _answered(
        self, core: Core, receipt: Receipt, waiting: set[asyncio.Future[Any]]
    ) -> None:
        """Wait for the outcome of a publish, noted in `waiting` meanwhile; cancelling the wait withdraws what is queued."""
        answer = receipt.wait()
        waiting.add(answer)
        try:
            await answer
        except asyncio.CancelledError:
            core.withdraw(receipt)
            raise
        finally:
            waiting.discard(answer)

    async def _room(self, core: Core) -> None:
        """Wait while as many calls are open as the queue has places, so that a burst on a connection waits instead of failing."""
        if core.open_calls < self._max_open_calls and not self._waiting_for_room:
            return
        self._check_loop()
        room: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting_for_room.append(room)
        core.want_room(self._max_open_calls)
        await room

    def _room_made(self) -> None:
        """Let as many go on as there are places now."""
        core = self._core
        places = (
            self._max_open_calls - core.open_calls if core is not None and self.connected else None
        )
        while self._waiting_for_room and (places is None or places > 0):
            room = self._waiting_for_room.popleft()
            if not room.done():
                room.set_result(None)
                places = None if places is None else places - 1
        if self._waiting_for_room and core is not None:
            core.want_room(self._max_open_calls)

    # What comes from the native client.

    def _on_event(self, name: str, payload: Any) -> None:
        if name == "state":
            self._on_state(*payload)
        elif name == "presence":
            self._on_presence(*payload)
        elif name == "lobby":
            self._on_lobby(payload)
        elif name == "connect":
            self._on_connect(*payload)
        elif name == "disconnect":
            self._on_disconnect(payload)
        elif name == "warning":
            logger.warning("%s", payload)
        elif name == "reconnecting":
            attempt, delay, reason = payload
            logger.debug("reconnecting in %.3f s, attempt %d: %s", delay, attempt, reason)
            self._fire("reconnecting", attempt)
        elif name == "failed":
            self._on_failed(payload)
        elif name in ("connecting", "reconnect"):
            self._fire(name)
        elif name == "hydration":
            self._fire(name, *payload)
        else:
            if name == "error":
                self._on_error(payload)
            elif name == "ready":
                self._recovering = False
            elif name == "replay:start":
                self._replay = {"count": payload["count"], "received": 0}
            elif name == "replay:end":
                self._replay = None
            self._fire(name, payload)

    def _log_frame(self, sent: bool, kind: str, size: int) -> None:  # noqa: FBT001 — native
        logger.debug("%s %s, %d bytes", "→" if sent else "←", kind, size)

    def _on_state(self, before: str, now: str, reason: str, close_code: int | None) -> None:
        logger.debug("%s → %s (%s)", before, now, reason)
        self._state = now
        if now != "connected":
            self._room_made()
        if now == "closed":
            self._ended(None)
        self._fire("state", {"from": before, "to": now, "reason": reason, "close_code": close_code})

    def _on_connect(
        self,
        actor_id: str | None,
        actor_type: str | None,
        project_id: str | None,
        protocol_version: int,
    ) -> None:
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
        self._fire("disconnected", reason)

    def _on_failed(self, error: NoLagError) -> None:
        self._state = "failed"
        for topic in list(self._readers):
            for reader in self._readers_of(topic):
                reader._end(error)  # noqa: SLF001 — this package's
        self._readers.clear()
        self._fire("failed", error)

    def _on_error(self, error: NoLagError) -> None:
        if error.server_code == 42941 and error.topic is not None:  # noqa: PLR2004 — access_revoked
            for reader in self._readers_of(error.topic):
                reader._end(error)  # noqa: SLF001 — this package's
        if not self._event_handlers.get("error"):
            logger.warning("%s", error)

    def _on_presence(self, change: str, fields: dict[str, Any]) -> None:
        actor = _actor(fields)
        roster = self._rosters.setdefault((actor.app, actor.room_id), {})
        if change == "leave":
            roster.pop(actor.actor_token_id, None)
        else:
            roster[actor.actor_token_id] = actor
        self._fire(f"presence:{change}", actor)

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

    def _ended(self, reason: str | None) -> None:
        """The application closed the client: nothing is handed over any more."""
        self._state, self._recovering, self._replay = "closed", False, None
        self._rosters.clear()
        self._chains.clear()
        for topic in list(self._readers):
            for reader in self._readers_of(topic):
                reader._end(None)  # noqa: SLF001 — this package's
        self._readers.clear()
        self._room_made()
        if reason is not None:
            self._fire("disconnect", reason)
            self._fire("disconnected", reason)
        current = asyncio.current_task() if self._is_on_loop() else None
        for task in [*self._tasks, *([self._fetching] if self._fetching is not None else [])]:
            if task is not current:
                task.cancel()

    def _fire(self, event: str, *args: Any) -> None:
        """Call the handlers of an event, as they are now."""
        handlers = self._event_handlers.get(event)
        for handler in tuple(handlers) if handlers else ():
            try:
                result = handler(*args)
            except Exception as failure:
                if event == "error":
                    logger.exception("a handler of error events failed")
                else:
                    self._handler_failed(failure, None, None)
            else:
                if result is not None:
                    self._spawn(result)

    def _handler_failed(
        self, failure: BaseException, topic: str | None, msg_id: str | None
    ) -> None:
        self._handler_errors += 1
        error = HandlerError(f"a handler failed: {failure!r}")
        error.topic, error.msg_id = topic, msg_id
        error.__cause__ = failure
        logger.debug("a handler failed", exc_info=failure)
        self._on_error(error)
        self._fire("error", error)

    def _spawn(self, result: Any, meta: MessageMeta | None = None) -> None:
        """Run what a handler returned, if that is a coroutine."""
        if asyncio.iscoroutine(result):
            self._start(self._guard(result, meta))

    def _start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        if self._loop is None:  # a client has a loop before it has anything to run
            raise NotConnectedError
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _guard(self, work: Awaitable[Any], meta: MessageMeta | None) -> None:
        try:
            await work
        except Exception as failure:  # noqa: BLE001 — whatever it is, it is told
            self._handler_failed(failure, meta and meta.topic, meta and meta.msg_id)

    def _replayed(self) -> None:
        """One of the replayed messages has come."""
        if self._replay is not None:
            self._replay["received"] += 1

    def _feed(self, topic: str, data: Any, meta: MessageMeta, delivery: int) -> None:
        """Hand a message to the iterators of its topic."""
        self._hand_to_readers(topic, data, meta, delivery, succeeded=True)

    def _hand_to_readers(
        self, topic: str, data: Any, meta: MessageMeta, delivery: int, *, succeeded: bool
    ) -> None:
        readers = self._readers_of(topic)
        if not readers:
            self._finish(delivery, succeeded)
            return
        ticket = Ticket(self, delivery, len(readers) + 1)
        for reader in readers:
            reader._push(data, meta, ticket)  # noqa: SLF001 — this package's
        ticket.done(succeeded=succeeded)

    def _handle(
        self,
        topic: str,
        data: Any,
        meta: MessageMeta,
        delivery: int,
        of_topic: tuple[Handler, ...],
        of_any: tuple[Handler, ...],
    ) -> None:
        """Handle a message in the mode "after_handler": one after another per topic, however long handlers take."""
        self._chains.handle(
            self, topic, Handling(self, (topic, data, meta, delivery), of_topic, of_any)
        )

    def _fetch_token(
        self, reason: str, attempt: int, last_error: Exception | None, answer: TokenAnswer
    ) -> None:
        """Ask the token provider; at most one call at a time is of any account."""
        if self._fetching is not None:
            self._fetching.cancel()
        if self._loop is not None:
            request = TokenRequest(reason, attempt, last_error)
            self._fetching = self._loop.create_task(self._fetch(request, answer))

    async def _fetch(self, request: TokenRequest, answer: TokenAnswer) -> None:
        provider = self._provider
        try:
            if provider is None:  # `update_token` has taken its place
                token: Any = self._token
            else:
                token = provider(request) if _settings.takes_request(provider) else provider()
                if inspect.isawaitable(token):
                    token = await token
            answer.give(*_settings.token(token))
        except Exception as failure:  # noqa: BLE001 — whatever it is, it is told
            answer.fail(
                f"the token provider failed: {failure!r}", bool(getattr(failure, "fatal", False))
            )


def _ignore(_error: BaseException | None, _reply: Any) -> None:
    """Take a reply that nobody waits for."""


def _weak_settle(reader: ref[Subscription]) -> Callable[[NoLagError | None, Any], None]:
    """Take the answer for an iterator, which is not kept alive by waiting for it."""

    def settle(error: NoLagError | None, _reply: Any) -> None:
        found = reader()
        if found is not None:
            found._settle(error)  # noqa: SLF001 — this package's

    return settle


def _actor_type(name: str | None) -> ActorType | str | None:
    if name is None:
        return None
    try:
        return ActorType(name)
    except ValueError:
        return name


def _actor(fields: dict[str, Any]) -> ActorPresence:
    presence = fields["presence"]
    return ActorPresence(
        **{
            **fields,
            "actor_type": _actor_type(fields["actor_type"]),
            "presence": {} if presence is None else presence,
        }
    )
