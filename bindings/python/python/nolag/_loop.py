"""What an event loop has beside its clients: one watcher for all of them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from nolag._native import Watcher, forked
from nolag.errors import ConfigError

if TYPE_CHECKING:
    import asyncio

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=forked)

_watchers: WeakKeyDictionary[asyncio.AbstractEventLoop, Watcher] = WeakKeyDictionary()


def watcher(loop: asyncio.AbstractEventLoop) -> Watcher:
    """Give the loop's watcher, which lives as long as the loop."""
    found = _watchers.get(loop)
    if found is None:
        found = Watcher()
        try:
            loop.add_reader(found.fileno(), found.drain)
        except NotImplementedError:
            error = ConfigError(
                f"{type(loop).__name__} cannot watch sockets: on Windows, "
                "run asyncio.run(main(), loop_factory=asyncio.SelectorEventLoop)"
            )
            error.code = "unsupported_runtime"
            raise error from None
        _watchers[loop] = found
    return found
