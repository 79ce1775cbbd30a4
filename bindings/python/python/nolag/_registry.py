"""The handlers that an application registers, and how they are called."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, TypeVar, overload

from nolag._handlers import Handlers, is_event
from nolag.errors import HandlerError, NotConnectedError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from typing_extensions import Self

    from nolag._handlers import Handler
    from nolag._native import MessageMeta

_H = TypeVar("_H", bound="Handler")


class Registry:
    """Handlers by event and topic."""

    # A client has many attributes, and there may be thousands of clients.
    __slots__ = (
        "__weakref__",
        "_any_handlers",
        "_event_handlers",
        "_handler_errors",
        "_logger",
        "_loop",
        "_message_handlers",
        "_tasks",
    )

    def __init__(self, logger: logging.Logger | None) -> None:
        """Begin with none."""
        self._logger = logger or logging.getLogger("nolag")
        self._loop: asyncio.AbstractEventLoop | None = None
        # Read and replaced by the published package `nolag-signal`.
        self._event_handlers: dict[str, Any] = {}
        self._message_handlers: dict[str, Any] = {}
        self._any_handlers: Any = Handlers()
        self._handler_errors = 0
        self._tasks: set[asyncio.Task[Any]] = set()

    @overload
    def on(self, event: str, handler: Handler) -> Self: ...

    @overload
    def on(self, event: str, handler: None = None) -> Callable[[_H], _H]: ...

    def on(self, event: str, handler: Handler | None = None) -> Any:
        """Handle an event, or the messages of a topic; `"*"` is every topic.

        Handlers of messages get the payload and a `MessageMeta`. They are called in the order in
        which they were added, each once however often it was added. Without a handler this is a
        decorator.
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

    def off(self, event: str, handler: Handler | None = None) -> Self:
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

    def on_any(self, handler: Handler) -> Self:
        """Handle the messages of every topic; handlers get topic, payload and a `MessageMeta`."""
        self._any_handlers.add(handler)
        return self

    def off_any(self, handler: Handler | None = None) -> Self:
        """Handle them no more; without a handler, by none."""
        if handler is None:
            self._any_handlers.clear()
        else:
            self._any_handlers.discard(handler)
        return self

    def _fire(self, event: str, *args: Any) -> None:
        """Call the handlers of an event, as they are now."""
        handlers = self._event_handlers.get(event)
        if event == "error" and not handlers:
            self._logger.warning("%s", args[0])
        for handler in tuple(handlers) if handlers else ():
            try:
                result = handler(*args)
            except Exception as failure:
                if event == "error":
                    self._logger.exception("a handler of error events failed")
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
        self._logger.debug("a handler failed", exc_info=failure)
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
