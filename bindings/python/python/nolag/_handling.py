"""The mode "after_handler".

A message is acknowledged when all its handlers have succeeded, however long they take.
"""

from __future__ import annotations

import inspect
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from nolag._calls import Calls
    from nolag._handlers import Handler
    from nolag._native import MessageMeta


class Handling:
    """One message and its handlers, called in order.

    Each that is asynchronous is awaited before the next.
    """

    def __init__(
        self,
        client: Calls,
        message: tuple[str, Any, MessageMeta, int],
        of_topic: tuple[Handler, ...],
        of_any: tuple[Handler, ...],
    ) -> None:
        """Take what the native client hands over."""
        self._client = client
        self._message = message
        topic, data, meta, _ = message
        self._calls: deque[tuple[Handler, tuple[Any, ...]]] = deque(
            (handler, (data, meta)) for handler in of_topic
        )
        self._calls.extend((handler, (topic, data, meta)) for handler in of_any)
        self._succeeded = True

    def advance(self) -> Awaitable[Any] | None:
        """Call handlers until one returns something to await.

        Without one, the message is handled.
        """
        while self._calls:
            handler, args = self._calls.popleft()
            try:
                result = handler(*args)
            except Exception as failure:  # noqa: BLE001 — whatever it is, it is told
                self.fail(failure)
            else:
                if inspect.isawaitable(result):
                    return result
        self._client._hand_to_readers(self._message, succeeded=self._succeeded, waits=True)
        return None

    def fail(self, failure: Exception) -> None:
        """Note that a handler failed."""
        self._succeeded = False
        topic, _, meta, _ = self._message
        self._client._handler_failed(failure, topic, meta.msg_id)


class Chains:
    """What is being handled, by topic: messages of one topic one after another."""

    def __init__(self) -> None:
        """Begin with none."""
        self._waiting: dict[str, deque[Handling]] = {}

    def handle(self, client: Calls, topic: str, handling: Handling) -> None:
        """Handle a message now, or when those before it are handled."""
        waiting = self._waiting.get(topic)
        if waiting is not None:
            waiting.append(handling)
            return
        pending = handling.advance()
        if pending is not None:
            self._waiting[topic] = deque()
            client._start(self._run(topic, handling, pending))

    def clear(self) -> None:
        """Begin nothing that waits."""
        for waiting in self._waiting.values():
            waiting.clear()
        self._waiting.clear()

    async def _run(self, topic: str, handling: Handling, pending: Awaitable[Any] | None) -> None:
        waiting = self._waiting[topic]
        try:
            while True:
                while pending is not None:
                    try:
                        await pending
                    except Exception as failure:  # noqa: BLE001 — whatever it is, it is told
                        handling.fail(failure)
                    pending = handling.advance()
                if not waiting:
                    return
                handling = waiting.popleft()
                pending = handling.advance()
        finally:
            if self._waiting.get(topic) is waiting:
                del self._waiting[topic]
