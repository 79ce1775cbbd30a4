"""Addresses that do not answer as a broker does."""

import asyncio
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


@contextmanager
def closed_port() -> Iterator[str]:
    """Give a URL of a port where nothing listens, and nothing else will."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"ws://127.0.0.1:{held.getsockname()[1]}/ws"


@contextmanager
def silent_port() -> Iterator[str]:
    """Give a URL of a port that takes connections, and never says a word."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        yield f"ws://127.0.0.1:{held.getsockname()[1]}/ws"


async def stop_accepting(sockets: Iterable[socket.SocketType]) -> None:
    """Take no more connections, and let those just taken become the server's.

    A server that is closed between a connection's two first turns of the loop leaks that
    connection: asyncio makes a transport and then refuses to attach it.
    """
    loop = asyncio.get_running_loop()
    for listening in sockets:
        loop.remove_reader(listening.fileno())
    await asyncio.sleep(0)


class Proxy:
    """A way to a broker that can be cut while the broker runs on."""

    def __init__(self, port: int) -> None:
        """Lead to this port of this machine, once opened."""
        self._target = port
        self._own = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Take connections, on the same port as before."""
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", self._own)
        self._own = self._server.sockets[0].getsockname()[1]

    async def shut(self) -> None:
        """Cut all connections and take none."""
        if self._server is not None:
            await stop_accepting(self._server.sockets)
            self._server.close()
            self._server = None
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"ws://127.0.0.1:{self._own}/ws"

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
            try:
                await asyncio.wait(
                    [
                        asyncio.create_task(_pump(reader, far_writer)),
                        asyncio.create_task(_pump(far_reader, writer)),
                    ],
                    return_when=asyncio.FIRST_COMPLETED,
                )
            finally:
                far_writer.transport.abort()
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()
            self._tasks.discard(task)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
