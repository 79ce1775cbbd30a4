"""How a client's calls reach the native one, and how their replies come back."""

from __future__ import annotations

import asyncio
import inspect
import os
from collections import deque
from typing import TYPE_CHECKING, Any

from nolag import _settings
from nolag._handling import Chains, Handling
from nolag._loop import watcher
from nolag._mirror import Mirror, actor
from nolag._native import Core, Receipt, check_payload
from nolag.errors import (
    ClosedError,
    ConfigError,
    NoLagError,
    NoLagServerError,
    NotConnectedError,
)
from nolag.subscription import Ticket
from nolag.types import (
    ActorPresence,
    LobbyPresenceState,
    LobbyRecord,
    NoLagOptions,
    Position,
    TokenRequest,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator

    from nolag._handlers import Handler
    from nolag._native import MessageMeta, TokenAnswer
    from nolag.subscription import Subscription
    from nolag.types import AckCallback, TokenProvider

#: States in which the client neither has a connection nor tries to get one.
OFF = frozenset({"idle", "closed", "failed"})


class Done:
    """Something to await that is done already."""

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield


class Calls(Mirror):
    """A client's calls. It belongs to the event loop that it was first used on."""

    __slots__ = (
        "_chains",
        "_closers",
        "_core",
        "_early",
        "_fetching",
        "_full_readers",
        "_last_room",
        "_max_open_calls",
        "_provider",
        "_subscribed",
        "_token",
        "_waiting_for_room",
    )

    def __init__(self, token: str | TokenProvider | None, options: NoLagOptions) -> None:
        """Begin without a native client; that is made at the first need."""
        super().__init__(options)
        self._token = token
        self._provider = token if callable(token) else options.token_provider
        if not isinstance(token, str) and self._provider is None:
            message = (
                "a token is missing: give a string, or an asynchronous function that gives one"
            )
            raise ConfigError(message)
        self._core: Core | None = None
        self._early: list[Callable[[Core], None]] = []
        # Topics that were subscribed without an iterator.
        self._subscribed: set[str] = set()
        self._full_readers = 0
        self._chains = Chains()
        self._fetching: asyncio.Task[None] | None = None
        # Tasks that wait for the client to be closed.
        self._closers: set[asyncio.Task[Any] | None] = set()
        # Nobody, mostly; an empty deque is bigger than the rest of this object.
        self._waiting_for_room: deque[asyncio.Future[None]] | tuple[()] = ()
        self._max_open_calls = 0
        self._last_room: tuple[str | None, str | None] = (None, None)

    def _open(self) -> Core:
        """Give the native client.

        Made at the first need so that options may be changed until then.
        """
        if self._core is not None:
            self._check_loop()
            return self._core
        loop = asyncio.get_running_loop()
        url = self._options.url or os.environ.get("NOLAG_URL")
        if url is not None and not isinstance(url, str):
            message = f"url is {url!r}: text is expected"
            raise ConfigError(message)
        if not url:
            error = ConfigError("a URL is missing: give NoLagOptions(url=…), or set NOLAG_URL")
            error.code = "url_required"
            raise error
        token = self._token if isinstance(self._token, str) and self._provider is None else None
        settings = _settings.native(self._options)
        options = self._options
        if options.proxy is True:
            message = "proxy: a URL, False, or nothing is expected"
            raise ConfigError(message)
        core = Core(
            self,
            loop,
            watcher(loop),
            url,
            token,
            settings,
            ca=_settings.ca(options.tls),
            proxy=options.proxy,
            headers=_settings.headers(options.headers),
            debug=options.debug,
        )
        core.enter()
        if self._options.debug:
            _settings.log_to_console(self._logger)
        self._core, self._loop = core, loop
        self._max_open_calls = settings["offline_queue.max_messages"]
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
                "this client belongs to another event loop: "
                "use client.threadsafe from other threads, "
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
        if core is None or self._state in OFF or self._state == "closing":
            if core is not None:
                send(core, ignore)  # what is wanted changes all the same, where that has a meaning
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
        """Tell of a failure: the callback.

        And an `error` event unless the session tells of it anyway.
        """
        try:
            if callback is not None:
                callback(error)
        finally:
            is_told = isinstance(error, NoLagServerError) and not error._local
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
        """Wait for the outcome of a publish, noted in `waiting` meanwhile.

        Cancelling the wait withdraws what is queued.
        """
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
        """Wait while as many calls are open as the queue has places.

        So that a burst on a connection waits instead of failing.
        """
        if self._state != "connected":
            return
        room: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if isinstance(self._waiting_for_room, tuple):
            self._waiting_for_room = deque()
        self._waiting_for_room.append(room)
        core.want_room(self._max_open_calls)
        await room

    def _room_made(self) -> None:
        """Let as many go on as there are places now."""
        core = self._core
        places = (
            self._max_open_calls - core.open_calls if core is not None and self.connected else None
        )
        while (
            isinstance(self._waiting_for_room, deque)
            and self._waiting_for_room
            and (places is None or places > 0)
        ):
            room = self._waiting_for_room.popleft()
            if not room.done():
                room.set_result(None)
                places = None if places is None else places - 1
        if self._waiting_for_room and core is not None:
            core.want_room(self._max_open_calls)

    def _ended(self, reason: str | None) -> None:
        """Stop handing over, because the application closed the client."""
        self._state, self._recovering, self._replay = "closed", False, None
        self._rosters.clear()
        self._chains.clear()
        for topic in list(self._readers):
            for reader in self._readers_of(topic):
                reader._end(None)
        self._readers.clear()
        self._room_made()
        if reason is not None:
            self._fire("disconnect", reason)
            self._fire("disconnected")
        spared = {*self._closers, asyncio.current_task() if self._is_on_loop() else None}
        for task in {*self._tasks, self._fetching} - spared:
            if task is not None:
                task.cancel()

    # For rooms, lobbies and subscriptions.

    async def _set_presence(self, app: str | None, room: str | None, data: Any) -> None:
        if data is not None:
            self._last_room = (app, room)
        check_payload("set_presence", room, data)  # also where it is only remembered

        def settle(error: NoLagError | None, _reply: Any) -> None:
            if error is not None:
                self._failed(error)
            elif data is None:
                self._forget_roster(app, room)

        self._soon(lambda core: core.set_presence(settle, app, room, data))

    async def _fetch_presence(self, app: str | None, room: str | None) -> list[ActorPresence]:
        core = self._connected_core()
        if room is None:
            message = "fetch_presence: no room is named, and none was set"
            raise ConfigError(message)
        found = await self._call(lambda waiter: core.fetch_presence(waiter, app, room))
        actors = [actor(fields) for fields in found]
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
            return Done()
        done: asyncio.Future[None] = self._loop.create_future()
        self._core.unwatch_lobby(settler(done), lobby)
        return done

    async def _change_filters(self, topic: str, change: str, filters: Any) -> None:
        core = self._live()
        await self._call(lambda waiter: core.change_filters(waiter, topic, change, filters))

    def _reader_is_full(self) -> None:
        self._full_readers += 1
        if self._core is not None:
            self._core.set_full(True)

    def _reader_has_room(self) -> None:
        self._full_readers -= 1
        if self._core is not None and self._full_readers == 0:
            self._core.set_full(False)

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
        self._core.unsubscribe(settler(done), topic)
        return done

    def position(self, topic: str) -> Position | None:
        """Tell how far a topic's messages are handled; see `Subscription.position`."""
        found = self._core.position(topic) if self._core is not None else None
        return None if found is None else Position(*found)

    def _hint(self, hint: str) -> None:
        if self._core is not None:
            self._core.hint(hint)

    def _acknowledge(self, *msg_ids: str) -> None:
        if self._core is not None:
            self._core.ack(ignore, list(msg_ids))

    def _finish(self, delivery: int, succeeded: bool) -> None:
        if self._core is not None:
            self._core.finish(delivery, succeeded)

    def _feed(self, topic: str, data: Any, meta: MessageMeta, delivery: int) -> None:
        """Hand a message to the iterators of its topic."""
        self._hand_to_readers((topic, data, meta, delivery), succeeded=True, waits=False)

    def _hand_to_readers(
        self, message: tuple[str, Any, MessageMeta, int], *, succeeded: bool, waits: bool
    ) -> None:
        topic, data, meta, delivery = message
        readers = self._readers_of(topic)
        if not readers:
            self._finish(delivery, succeeded)
            return
        ticket = Ticket(self, delivery, len(readers) + 1, waits=waits)
        for reader in readers:
            reader._push(data, meta, ticket)
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
        """Handle a message in the mode "after_handler".

        One after another per topic, however long handlers take.
        """
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


def settler(done: asyncio.Future[None]) -> Callable[[Any, Any], None]:
    """Take a reply that says no more than that it is there."""

    def settle(_error: BaseException | None, _reply: Any) -> None:
        if not done.done():
            done.set_result(None)

    return settle


def ignore(_error: BaseException | None, _reply: Any) -> None:
    """Take a reply that nobody waits for."""
