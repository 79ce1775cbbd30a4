"""A subscription as an asynchronous iterator of its messages."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

from nolag.types import Message, Position

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

    from nolag._calls import Calls
    from nolag._native import MessageMeta
    from nolag.errors import NoLagError


class Ticket:
    """Reports a message as handled when all who have it are done with it."""

    __slots__ = ("_client", "_count", "_delivery", "_succeeded", "waits")

    def __init__(self, client: Calls, delivery: int, count: int, *, waits: bool) -> None:
        """Wait for so many; whether each is done only when it asks for the next message."""
        self.waits: bool = waits
        self._client = client
        self._delivery = delivery
        self._count = count
        self._succeeded = True

    def done(self, *, succeeded: bool = True) -> None:
        """One is done with it."""
        self._count -= 1
        self._succeeded &= succeeded
        if self._count == 0:
            self._client._finish(self._delivery, self._succeeded)


class Subscription:
    """The messages of a topic, in the order they come.

    `async with` waits for the broker's answer and unsubscribes in the end, if nobody else needs the
    topic by then; `async for` iterates. Iteration ends when the client is closed, and with an error
    when the broker refuses or takes the topic away, or the client gives up.

    A message counts as handled when it is taken; in the mode "after_handler", and in groups with
    redelivery, when the next one is asked for, or the block of `async with` is left without an
    exception.
    """

    def __init__(self, client: Calls, topic: str, buffer: int, overflow: str) -> None:
        """Belong to a client; `NoLag.subscription` makes one."""
        self._overflow = overflow
        self._dropped = 0
        self._client = client
        self._topic = topic
        self._buffer = buffer
        self._waiting: deque[tuple[Message, Ticket]] = deque()
        self._current: Ticket | None = None
        self._wanted: asyncio.Future[None] | None = None
        self._answer: asyncio.Future[None] | None = None
        self._answered = False
        self._ended = False
        self._error: NoLagError | None = None
        self._is_full = False

    @property
    def topic(self) -> str:
        """The topic, as subscribed."""
        return self._topic

    @property
    def position(self) -> Position | None:
        """How far the topic's messages are handled, as of a moment ago.

        Give it to `resume_from` on the next start. It is exact when the client is closed; `None`
        for groups, and with a broker that numbers nothing.
        """
        return self._client.position(self._topic)

    @property
    def state(self) -> str:
        """`"pending"`, `"active"`, `"refused"` or `"closed"`."""
        if self._error is not None:
            return "refused"
        if self._ended:
            return "closed"
        return "active" if self._answered else "pending"

    async def ready(self) -> None:
        """Wait for the broker's answer; a refusal is raised."""
        if not self._answered and not self._ended and self._error is None:
            if self._answer is None:
                self._answer = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._answer)
        if self._error is not None:
            raise self._error

    async def set_filters(self, filters: list[str | list[str]]) -> None:
        """Replace the filters."""
        await self._client._change_filters(self._topic, "set", filters)

    async def add_filters(self, filters: list[str]) -> None:
        """Add filter values."""
        await self._client._change_filters(self._topic, "add", filters)

    async def remove_filters(self, filters: list[str]) -> None:
        """Remove filter values."""
        await self._client._change_filters(self._topic, "remove", filters)

    async def unsubscribe(self) -> None:
        """End this subscription; the topic is unsubscribed if nobody else needs it."""
        waiting = self._leave()
        if waiting is not None:
            await waiting

    async def __aenter__(self) -> Self:
        """Wait for the broker's answer."""
        try:
            await self.ready()
        except BaseException:
            self._leave()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Unsubscribe, if nobody else needs the topic."""
        self._done_with_current(succeeded=error is None)
        await self.unsubscribe()

    def __aiter__(self) -> Subscription:
        """Iterate over the messages."""
        return self

    async def __anext__(self) -> Message:
        """Wait for the next message."""
        self._done_with_current()
        while not self._waiting:
            if self._dropped:  # it has caught up
                dropped, self._dropped = self._dropped, 0
                self._client._fire("overflow", {"topic": self._topic, "dropped": dropped})
            if self._error is not None and not self._ended:
                self._ended = True
                raise self._error
            if self._ended:
                raise StopAsyncIteration
            self._wanted = asyncio.get_running_loop().create_future()
            try:
                await self._wanted
            finally:
                self._wanted = None
        message, ticket = self._waiting.popleft()
        if self._is_full and len(self._waiting) < self._buffer:
            self._is_full = False
            self._client._reader_has_room()
        if ticket.waits:
            self._current = ticket
        else:
            ticket.done()
        return message

    def __del__(self) -> None:
        """Unsubscribe, if nobody else needs the topic."""
        if hasattr(self, "_is_full"):
            self._done_with_current(succeeded=False)  # nobody has said that it went well
            self._leave()

    def __repr__(self) -> str:
        """Show topic and state."""
        return f"<Subscription {self._topic!r} {self.state}>"

    def _push(self, data: Any, meta: MessageMeta, ticket: Ticket) -> None:
        if self._overflow != "pause" and len(self._waiting) >= self._buffer:
            self._dropped += 1
            if self._overflow == "drop_newest":
                ticket.done()
                return
            self._waiting.popleft()[1].done()
        self._waiting.append((Message(self._topic, data, meta, self._client._acknowledge), ticket))
        pauses = self._overflow == "pause" and not self._is_full
        if pauses and len(self._waiting) >= self._buffer:
            self._is_full = True
            self._client._reader_is_full()
        self._wake()

    def _settle(self, error: NoLagError | None) -> None:
        """Take the broker's answer."""
        if error is None:
            self._answered = True
        else:
            self._error = error
        self._wake()
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(None)

    def _end(self, error: NoLagError | None) -> None:
        """There will be no more messages.

        Without an error the client is closed, and what waits is not handed over either.
        """
        if error is None:
            self._ended = True
            self._waiting.clear()
        elif self._error is None:
            self._error = error
        self._release()

    def _leave(self) -> asyncio.Future[None] | None:
        """Nobody iterates any more."""
        self._done_with_current()
        self._ended = True
        while self._waiting:
            ticket = self._waiting.popleft()[1]
            ticket.done(succeeded=not ticket.waits)
        self._release()
        return self._client._reader_leaves(self)

    def _release(self) -> None:
        """Let go on who waits for this iterator, or in it."""
        if self._is_full:
            self._is_full = False
            self._client._reader_has_room()
        self._wake()
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(None)

    def _wake(self) -> None:
        if self._wanted is not None and not self._wanted.done():
            self._wanted.set_result(None)

    def _done_with_current(self, *, succeeded: bool = True) -> None:
        if self._current is not None:
            ticket, self._current = self._current, None
            ticket.done(succeeded=succeeded)
