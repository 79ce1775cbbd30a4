"""The broker's program as a process that a test starts and stops."""

import json
import os
import signal
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

from nolag import NoLag

# A fixture that connects a client by name.
Connect = Callable[..., Awaitable[NoLag]]

ROOT = Path(__file__).parents[4]
PROGRAM = Path(os.environ.get("NOLAG_BROKER", ROOT / "target/debug/nolag-broker"))

# A grant for each of these rooms of the app `demo`, beside that of the demo tokens.
ROOMS = ("general", "kitchen", "garden")


def tokens(**changes: Any) -> dict[str, Any]:
    """Make a token file for alice and bob, with more rooms than the demo tokens have.

    What is given replaces or adds keys of each token.
    """
    return {
        "tokens": {
            f"dev-token-{name}": {
                "actorTokenId": name,
                "projectId": "demo-project",
                "organizationId": "demo-org",
                "actorType": "user",
                "appId": "demo-app",
                "allowedTopics": [
                    {
                        "pattern": f"demo/{room}/#",
                        "permission": "pubSub",
                        "room_id": f"room-{room}",
                        "room_slug": room,
                    }
                    for room in ROOMS
                ],
                "allowedLobbies": [{"lobby_slug": "lounge", "lobby_id": "lobby-lounge"}],
                **changes,
            }
            for name in ("alice", "bob")
        }
    }


def grant(folder: Path, tokens: dict[str, Any]) -> None:
    """Write the token file of a broker in this folder, which it reads when it starts."""
    (folder / "auth.json").write_text(json.dumps(tokens))


class Broker:
    """A broker that runs, or has run and may run again on the same port."""

    def __init__(self, folder: Path, port: int = 0, **settings: str) -> None:
        """Start it, on a free port unless one is named, and wait until it listens.

        Only the given settings reach it. It takes the demo tokens unless there is an `auth.json`
        in the folder.
        """
        self._folder = folder
        self._settings = settings
        self.url = ""
        self.start(port)

    def start(self, port: int | None = None) -> None:
        """Start it again after its end, on the port that it had unless one is named."""
        self._process = subprocess.Popen(
            [PROGRAM, "--port", str(self.port if port is None else port)],
            cwd=self._folder,
            env=self._settings,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        first = self._process.stdout.readline().strip()
        assert first.startswith("listening on ws://"), f"the broker began with {first!r}"
        self.url = first.removeprefix("listening on ")

    @property
    def port(self) -> int:
        """Where it listens."""
        port = urlsplit(self.url).port
        assert port is not None
        return port

    def stop(self) -> None:
        """End it as an operator would; it must end by itself, and well."""
        self._process.terminate()
        try:
            assert self._process.wait(timeout=20) == 0
        finally:
            self.kill()

    def kill(self) -> None:
        """End it without a word; no harm if it has ended."""
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def restart(self) -> None:
        """Kill it, and start it again."""
        self.kill()
        self.start()

    def metric(self, name: str) -> float:
        """Ask it for the sum of one of its metrics, whatever the labels; 0 while it has none."""
        with urlopen(f"http://127.0.0.1:{self.port}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        return sum(
            float(line.rsplit(" ", 1)[1])
            for line in lines
            if line.startswith((f"{name} ", f"{name}{{"))
        )

    def freeze(self) -> None:
        """Let it do nothing more, while its sockets stay open."""
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        self._process.send_signal(signal.SIGCONT)
