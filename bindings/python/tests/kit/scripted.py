"""An endpoint that speaks the wire protocol and does exactly what a test says.

It is for what a real broker cannot be made to do: answer late, stay silent, refuse, close with a
code, cut. Left alone it agrees to everything and delivers nothing. It shares no code with what it
tests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgpack  # type: ignore[import-untyped]
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.frames import Frame as WsFrame
from websockets.frames import Opcode

from kit.heard import until, within
from kit.net import stop_accepting

if TYPE_CHECKING:
    from ssl import SSLContext
    from types import TracebackType

    from typing_extensions import Self
    from websockets.datastructures import Headers
    from websockets.http11 import Request, Response

Frame = dict[str, Any]
Rule = Callable[["Link", Frame], Any]

# The type under which a heartbeat is logged and ruled.
HEARTBEAT = "heartbeat"


def silent(link: Link, frame: Frame) -> None:
    """Leave it unanswered: a rule."""


def refuse(**fields: Any) -> Rule:
    """Make a rule that answers with an error, as a broker does to a request."""

    async def rule(link: Link, frame: Frame) -> None:
        names = ("topic", "msgRef", "roomId", "lobbyId")
        about = {name: frame[name] for name in names if name in frame}
        await link.send("error", **(about | fields))

    return rule


class Link:
    """One connection of a client, seen from the broker."""

    def __init__(self, broker: ScriptedBroker, socket: ServerConnection, number: int) -> None:
        """Begin with nothing received."""
        self._broker = broker
        self._socket = socket
        self._unread: list[Frame] = []
        self._held: list[bytes] | None = None
        self._news = asyncio.Event()
        self.rooms: dict[str, Any] = {}
        self.number = number
        self.frames: list[Frame] = []
        self.closed = asyncio.Event()

    async def next(self, *types: str) -> Frame:
        """Wait for the next frame of these types that was not read; the others stay unread."""

        async def look() -> Frame:
            while True:
                for frame in self._unread:
                    if frame["type"] in types:
                        self._unread.remove(frame)
                        return frame
                assert not self.closed.is_set(), f"the client left, and sent no {types}"
                self._news.clear()
                await self._news.wait()

        return await within(look())

    def types(self, *leave_out: str) -> list[str]:
        """Tell the types of all frames in the order they came, but for heartbeats and these."""
        return [
            frame["type"]
            for frame in self.frames
            if frame["type"] not in leave_out and frame["type"] != HEARTBEAT
        ]

    def received(self, kind: str) -> list[Frame]:
        """List all frames of this type, read or not."""
        return [frame for frame in self.frames if frame["type"] == kind]

    async def send(self, kind: str, **fields: Any) -> None:
        """Send a frame."""
        data = msgpack.packb({"type": kind, **fields})
        assert isinstance(data, bytes)
        await self.send_raw(data)

    async def send_raw(self, data: bytes | str) -> None:
        """Send bytes, or text, that may be no frame."""
        if self._held is not None:
            opcode = Opcode.TEXT if isinstance(data, str) else Opcode.BINARY
            payload = data.encode() if isinstance(data, str) else data
            self._held.append(WsFrame(opcode, payload).serialize(mask=False))
            return
        # Whether the client is still there to read it is what tests look at, not this.
        with suppress(ConnectionClosed):
            await self._socket.send(data)

    async def message(self, topic: str, data: Any, **fields: Any) -> None:
        """Deliver a message."""
        await self.send("message", topic=topic, data=data, **fields)

    def hold(self) -> None:
        """Keep what is sent until `release`, which then sends it as one."""
        self._held = []

    def release(self) -> None:
        """Send what was held."""
        held, self._held = self._held, None
        self._socket.transport.write(b"".join(held or ()))

    async def close(self, code: int = 1000, reason: str = "") -> None:
        """Close the connection as WebSocket has it."""
        await self._socket.close(code, reason)

    def cut(self) -> None:
        """End the connection without a word."""
        self._socket.transport.abort()

    def freeze(self) -> None:
        """Read nothing more, so nothing is answered either; the connection stays open."""
        self._socket.transport.pause_reading()

    def thaw(self) -> None:
        """Read on."""
        self._socket.transport.resume_reading()

    @property
    def close_code(self) -> int | None:
        """The code that the client closed with, once it has."""
        return self._socket.close_code

    @property
    def close_reason(self) -> str | None:
        """The reason that the client gave."""
        return self._socket.close_reason

    async def run(self) -> None:
        """Log and answer what comes, until the connection ends."""
        try:
            async for data in self._socket:
                frame = msgpack.unpackb(data) if data else {"type": HEARTBEAT}
                self.frames.append(frame)
                self._unread.append(frame)
                self._broker.log.append((self.number, frame))
                self._news.set()
                done = self._broker.rules.get(frame["type"], agree)(self, frame)
                if asyncio.iscoroutine(done):
                    await done
        finally:
            self.closed.set()
            self._news.set()


async def agree(link: Link, frame: Frame) -> None:  # noqa: C901 — a case for each frame
    """Answer as a broker does that allows everything: a rule, and what happens without one."""
    kind = frame["type"]
    ref = {"msgRef": frame["msgRef"]} if "msgRef" in frame else {}
    match kind:
        case "auth":
            await link.send(
                "auth",
                success=True,
                actorTokenId="alice",
                projectId="demo-project",
                actorType="user",
                protocolVersion=2,
                limits={"publishesPerSecond": 0, "maxPayloadBytes": 921_600},
            )
        case "subscribe":
            shared = frame.get("loadBalance", False)
            await link.send("subscribed", topic=frame["topic"], loadBalance=shared, **ref)
        case "unsubscribe":
            await link.send("unsubscribed", topic=frame["topic"], **ref)
        case "setFilters":
            filters = frame["filters"]
            await link.send("filtersUpdated", topic=frame["topic"], filters=filters, **ref)
        case "publish" if ref:
            await link.send("published", topic=frame["topic"], **ref)
        case "presence":
            link.rooms[frame.get("roomId", "")] = frame["data"]
            if ref:
                await link.send("presenceUpdated", roomId=frame.get("roomId"), **ref)
        case "getPresence":
            room = frame.get("roomId", "")
            own = {"actorTokenId": "alice", "presence": link.rooms.get(room), "joinedAt": 1}
            members = [own] if link.rooms.get(room) is not None else []
            await link.send("presenceList", roomId=room, data=members, **ref)
        case "lobbySubscribe":
            await link.send("lobbySubscribed", lobbyId=frame["lobbyId"], presence={}, **ref)
        case "lobbyUnsubscribe":
            await link.send("lobbyUnsubscribed", lobbyId=frame["lobbyId"], **ref)
        case "getLobbyPresence":
            await link.send("lobbyPresenceList", lobbyId=frame["lobbyId"], presence={}, **ref)
        case "heartbeat":
            await link.send_raw(b"")


class ScriptedBroker:
    """Takes connections while it is open, and follows `rules`: what to do with a type of frame.

    `log` has every frame with the number of its connection, in the order in which they came.
    """

    def __init__(self, tls: SSLContext | None = None) -> None:
        """Begin closed, and agreeable; with TLS where that is given."""
        self._tls = tls
        self._server: Server | None = None
        self._arrivals: asyncio.Queue[Link] = asyncio.Queue()
        self._port = 0
        self.rules: dict[str, Rule] = {}
        self.links: list[Link] = []
        self.log: list[tuple[int, Frame]] = []
        # How often a client asked to be upgraded, what it sent along the last time, and what it is
        # told instead of a yes.
        self.attempts = 0
        self.headers: Headers | None = None
        self.refusal: tuple[int, dict[str, str]] | None = None

    async def open(self) -> None:
        """Take connections, on the same port as before."""
        self._server = await serve(
            self._take,
            "127.0.0.1",
            self._port,
            process_request=self._answer_upgrade,
            compression=None,
            ping_interval=None,
            close_timeout=1,
            max_size=None,
            ssl=self._tls,
        )
        self._port = next(iter(self._server.sockets)).getsockname()[1]

    async def shut(self) -> None:
        """Cut all connections and take none."""
        assert self._server is not None
        await stop_accepting(self._server.sockets)
        for link in self.links:
            link.cut()
        self._server.close()
        await self._server.wait_closed()

    async def __aenter__(self) -> Self:
        """Open it."""
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Shut it."""
        await self.shut()

    @property
    def url(self) -> str:
        """Where clients connect."""
        scheme, host = ("ws", "127.0.0.1") if self._tls is None else ("wss", "localhost")
        return f"{scheme}://{host}:{self._port}/ws"

    @property
    def port(self) -> int:
        """Where it listens."""
        port = urlsplit(self.url).port
        assert port is not None
        return port

    async def link(self) -> Link:
        """Wait for the next connection."""
        return await within(self._arrivals.get())

    def has_arrivals(self) -> bool:
        """Tell whether a connection came that was not taken by `link`."""
        return not self._arrivals.empty()

    async def attempted(self, number: int) -> None:
        """Wait until as many upgrades were asked for in all."""
        await until(lambda: self.attempts >= number)

    def frames(self, kind: str) -> list[Frame]:
        """List all frames of this type, of all connections."""
        return [frame for _, frame in self.log if frame["type"] == kind]

    def _answer_upgrade(self, socket: ServerConnection, request: Request) -> Response | None:
        self.attempts += 1
        self.headers = request.headers
        if self.refusal is None:
            return None
        status, headers = self.refusal
        response = socket.respond(HTTPStatus(status), "not here")
        for name, value in headers.items():
            response.headers[name] = value
        return response

    async def _take(self, socket: ServerConnection) -> None:
        link = Link(self, socket, len(self.links))
        self.links.append(link)
        self._arrivals.put_nowait(link)
        # That the client goes without a word is what some tests are about.
        with suppress(ConnectionClosed):
            await link.run()
