"""Programs as they are shown to users (API-093)."""

import re
from pathlib import Path

import pytest
from kit.broker import ROOT, Broker
from kit.scripts import Script, run

PROGRAMS = Path(__file__).parent / "programs"


def test_the_quick_start(broker: Broker) -> None:
    """It prints what the README says."""
    result = run(ROOT / "examples/quickstart.py", NOLAG_URL=broker.url)
    assert (result.output, result.errors, result.code) == (
        "bob got: {'text': 'hello from alice'}\n",
        "",
        0,
    )


def test_the_quick_start_of_the_readme(broker: Broker) -> None:
    """The text itself, with the address of this broker."""
    readme = (ROOT / "README.md").read_text()
    [program] = re.findall(r"```python\n(import asyncio\n.*?)```", readme, re.DOTALL)
    result = run(program.replace("ws://localhost:8080/ws", broker.url))
    assert (result.output, result.errors, result.code) == (
        "bob got: {'text': 'hello from alice'}\n",
        "",
        0,
    )


def test_the_restart_example(broker: Broker) -> None:
    """bob, who subscribes once, hears of two lives of the broker."""
    example = Script(ROOT / "examples/restart.py", NOLAG_URL=broker.url)
    assert example.line() == "bob got: 1"
    broker.restart()
    lines = [example.line()]
    while not (lines[-1].startswith("bob got:") and "bob is back" in lines):
        assert lines[-1], example.end().errors
        lines.append(example.line())
    assert any(line.startswith("bob lost the broker") for line in lines)
    example.interrupt()
    result = example.end()
    assert (result.code, result.errors) == (0, "")


@pytest.mark.parametrize("program", ["readme_subscriber.py", "readme_events.py"])
def test_programs_of_the_published_readme(broker: Broker, program: str) -> None:
    """Forms that the published client shows, and itself cannot run (client-api 22.20)."""
    result = run(PROGRAMS / program, URL=broker.url)
    assert (result.output, result.errors, result.code) == ("as promised\n", "", 0)
