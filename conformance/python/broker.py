"""The broker's program as a process that a test starts and stops."""

import os
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

ROOT = Path(__file__).parents[2]
PROGRAM = Path(os.environ.get("NOLAG_BROKER", ROOT / "target/debug/nolag-broker"))


class Broker:
    """A running broker with its demo tokens."""

    def __init__(self, folder: Path, port: int = 0, **settings: str) -> None:
        """Start it, on a free port unless one is named, and wait until it listens.

        Only the given settings reach it; in the folder there should be no `auth.json`.
        """
        self._process = subprocess.Popen(
            [PROGRAM, "--port", str(port)],
            cwd=folder,
            env=settings,
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
