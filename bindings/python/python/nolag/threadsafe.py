"""A client for threads that have no event loop, or another."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from nolag.errors import ClosedError, NotConnectedError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from nolag._native import Receipt
    from nolag.client import NoLag


class ThreadSafe:
    """The calls of a client, as futures that any thread can wait for."""

    def __init__(self, client: NoLag) -> None:
        """Belong to a client; `NoLag.threadsafe` makes one."""
        self._client = client

    def publish(self, topic: str, data: Any, **options: Any) -> Future[Receipt]:
        """Publish; see `NoLag.publish`."""
        return self._run(lambda: self._client.publish(topic, data, **options))

    def emit(self, topic: str, data: Any, options: Any = None) -> Future[Receipt]:
        """Publish; see `NoLag.emit`."""
        return self._run(lambda: self._client.emit(topic, data, options))

    def subscribe(self, topic: str, options: Any = None) -> Future[None]:
        """Subscribe; see `NoLag.subscribe`."""
        return self._run(lambda: self._client.subscribe(topic, options))

    def unsubscribe(self, topic: str) -> Future[None]:
        """Unsubscribe; see `NoLag.unsubscribe`."""
        return self._run(lambda: self._client.unsubscribe(topic))

    def close(self, **options: Any) -> Future[None]:
        """Close; see `NoLag.close`."""
        return self._run(lambda: self._client.close(**options))

    def _run(self, call: Callable[[], Coroutine[Any, Any, Any]]) -> Future[Any]:
        loop = self._client._loop
        if loop is None or loop.is_closed():
            raise NotConnectedError
        begun = _Begun(call)
        loop.call_soon_threadsafe(begun)
        return begun.future


class _Begun:
    """A call that begins when the event loop comes to it, and fails if the loop ends before."""

    def __init__(self, call: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        self._call = call
        self._coroutine: Coroutine[Any, Any, Any] | None = None
        self.future: Future[Any] = Future()

    def __call__(self) -> None:
        if self.future.set_running_or_notify_cancel():
            self._coroutine = self._call()
            task = asyncio.get_running_loop().create_task(self._coroutine)
            # A loop that ends may never come to the task; whoever waits is told by `__del__`, so
            # asyncio need not print it. The task holds this object, never the other way round:
            # in a cycle the coroutine might be finalized, and complain, before it is closed.
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            task.add_done_callback(self._done)

    def __del__(self) -> None:
        if self._coroutine is not None:
            self._coroutine.close()
        if not self.future.done():
            message = "the event loop ended"
            self.future.set_exception(ClosedError(message))

    def _done(self, task: asyncio.Task[Any]) -> None:
        failure = None if task.cancelled() else task.exception()
        if task.cancelled():
            self.future.set_exception(ClosedError("aborted"))
        elif failure is not None:
            self.future.set_exception(failure)
        else:
            self.future.set_result(task.result())
