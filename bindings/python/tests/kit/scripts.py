"""Python programs in processes of their own, for what only shows from outside."""

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

# Seconds. Generous, because what it bounds is a test that fails.
PATIENCE = 30.0


@dataclass
class Run:
    """How a program ended."""

    code: int
    output: str
    errors: str


class Script:
    """A program that is running."""

    def __init__(self, text: str | Path, *args: str, **environment: str) -> None:
        """Start it: a program's text, or its file. `environment` is added to ours."""
        what = [str(text)] if isinstance(text, Path) else ["-c", text]
        self._process = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", *what, *args],
            env={**os.environ, "PYTHONUNBUFFERED": "1", **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        """Wait for the next line that it prints; empty when it has ended."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().rstrip("\n")

    def interrupt(self) -> None:
        """Do what Ctrl-C does."""
        self._process.send_signal(signal.SIGINT)

    def stop(self) -> None:
        """Let it do nothing more."""
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let it go on."""
        self._process.send_signal(signal.SIGCONT)

    def end(self) -> Run:
        """Wait for its end."""
        try:
            output, errors = self._process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGABRT)
            _, errors = self._process.communicate()
            message = f"the program does not end:\n{errors}"
            raise AssertionError(message) from None
        return Run(self._process.returncode, output, errors)

    def kill(self) -> None:
        """End it without a word."""
        self._process.kill()
        self._process.communicate()


def run(text: str | Path, *args: str, **environment: str) -> Run:
    """Run a program to its end."""
    return Script(text, *args, **environment).end()
