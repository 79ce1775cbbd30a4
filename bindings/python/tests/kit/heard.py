"""Waiting for what a client's handlers and callbacks are told."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from nolag import NoLag

# Seconds. Generous, because what it bounds is a test that fails.
PATIENCE = 20.0

T = TypeVar("T")


class Heard:
    """A handler that keeps what it is called with, to be awaited call by call."""

    def __init__(self) -> None:
        """Begin with nothing heard."""
        self._calls: asyncio.Queue[tuple[Any, ...]] = asyncio.Queue()

    def __call__(self, *args: Any) -> None:
        """Be told something."""
        self._calls.put_nowait(args)

    async def next(self) -> Any:
        """Wait for the next call; its argument, or all of them if there are several."""
        args = await asyncio.wait_for(self._calls.get(), PATIENCE)
        return args[0] if len(args) == 1 else args

    async def many(self, number: int) -> list[Any]:
        """Wait for as many calls."""
        return [await self.next() for _ in range(number)]

    def is_silent(self) -> bool:
        """Tell whether nothing is left that was not awaited."""
        return self._calls.empty()

    def rest(self) -> list[Any]:
        """Take what was heard and not awaited."""
        rest = []
        while not self._calls.empty():
            args = self._calls.get_nowait()
            rest.append(args[0] if len(args) == 1 else args)
        return rest


async def within(awaitable: Awaitable[T], seconds: float = PATIENCE) -> T:
    """Wait for it, but not for ever."""
    return await asyncio.wait_for(awaitable, seconds)


async def outcome(method: Callable[..., Awaitable[Any]], *args: Any, **options: Any) -> Any:
    """Call a method that takes a callback; what the callback is told: None, or the error."""
    heard = Heard()
    await method(*args, callback=heard, **options)
    return await heard.next()


async def settle(client: NoLag) -> None:
    """Wait until the broker has handled everything that the client has sent.

    It handles the frames of a connection in order, so the confirmation of a publish tells.
    """
    assert await outcome(client.emit, "demo/general/settle", None) is None


async def until(condition: Callable[[], Any], seconds: float = PATIENCE) -> None:
    """Wait until something holds that no event tells of."""

    async def look() -> None:
        while not condition():  # noqa: ASYNC110 — there is no event
            await asyncio.sleep(0.01)

    await within(look(), seconds)
