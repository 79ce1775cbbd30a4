"""A client for threads that have no event loop, or another."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from nolag.errors import NotConnectedError

if TYPE_CHECKING:
    import concurrent.futures
    from collections.abc import Coroutine

    from nolag._native import Receipt
    from nolag.client import NoLag


class ThreadSafe:
    """The calls of a client, as futures that any thread can wait for."""

    def __init__(self, client: NoLag) -> None:
        """Belong to a client; `NoLag.threadsafe` makes one."""
        self._client = client

    def publish(self, topic: str, data: Any, **options: Any) -> concurrent.futures.Future[Receipt]:
        """Publish; see `NoLag.publish`."""
        return self._run(self._client.publish(topic, data, **options))

    def emit(
        self, topic: str, data: Any, options: Any = None
    ) -> concurrent.futures.Future[Receipt]:
        """Publish; see `NoLag.emit`."""
        return self._run(self._client.emit(topic, data, options))

    def subscribe(self, topic: str, options: Any = None) -> concurrent.futures.Future[None]:
        """Subscribe; see `NoLag.subscribe`."""
        return self._run(self._client.subscribe(topic, options))

    def unsubscribe(self, topic: str) -> concurrent.futures.Future[None]:
        """Unsubscribe; see `NoLag.unsubscribe`."""
        return self._run(self._client.unsubscribe(topic))

    def close(self, **options: Any) -> concurrent.futures.Future[None]:
        """Close; see `NoLag.close`."""
        return self._run(self._client.close(**options))

    def _run(self, call: Coroutine[Any, Any, Any]) -> concurrent.futures.Future[Any]:
        loop = self._client._loop
        if loop is None or loop.is_closed():
            call.close()
            raise NotConnectedError
        return asyncio.run_coroutine_threadsafe(call, loop)
