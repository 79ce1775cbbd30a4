"""One client at one kind of work, in a process of its own: `cargo xtask bench clients` starts it.

It runs with whatever `nolag` the interpreter has, the published one or ours, and prints JSON
objects with numbers, one a line.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

# Everything else is imported late: what the client needs is not to be there before it is measured.

TOKEN = "dev-token-alice"
PAYLOAD = 100
"""Bytes of every payload."""
WINDOW = 64
"""Publishes that wait for their answer at a time."""
PATIENCE = 120.0
"""Seconds that a whole work may take."""
SILENCE = 5.0
"""Seconds without a message after which no more are waited for."""
SETTLE = 1.0
"""Seconds between the last thing that was done and a look at the memory."""
OPENING = 50
"""Connections opened at a time."""
WARM = 50
"""Round trips that are not counted."""
STAMP, NUMBER = 19, 8
"""Digits of the time and of the number that a payload begins with."""


def say(**numbers: float) -> None:
    """Print what was found."""
    import json  # noqa: PLC0415

    print(json.dumps(numbers), flush=True)  # noqa: T201


def client(url: str) -> Any:
    """Make a client."""
    import importlib  # noqa: PLC0415

    nolag = importlib.import_module("nolag")
    return nolag.NoLag(TOKEN, nolag.NoLagOptions(url=url))


async def subscribe(client: Any, topic: str) -> None:
    """Subscribe, and wait for the broker's answer."""
    answer: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    def take(error: Exception | None) -> None:
        if not answer.done():
            answer.set_result(error)

    await client.subscribe(topic, callback=take)
    error = await answer
    if error is not None:
        raise error


def percentile(values: list[float], percent: float) -> float:
    """Give the value that so many percent lie below; values are sorted."""
    return values[min(len(values) - 1, int(len(values) * percent / 100))] if values else 0.0


async def receive(args: argparse.Namespace) -> None:
    """Take a flood of messages with a plain handler."""
    receiver = client(args.url)
    await receiver.connect()
    count = args.count
    handled = 0
    began = (0.0, 0.0)
    done = asyncio.Event()

    def handle(_data: str, _meta: Any) -> None:
        nonlocal handled, began
        if handled == 0:
            began = (time.perf_counter(), time.process_time())
        handled += 1
        if handled == count:
            done.set()

    receiver.on(args.topic, handle)
    await receiver.subscribe(args.topic)
    await done.wait()
    spent = time.perf_counter() - began[0]
    cpu = time.process_time() - began[1]
    # What is acknowledged at all has been by then.
    await asyncio.sleep(0.2)
    receiver.disconnect()
    say(per_s=handled / spent, cpu_us=cpu * 1e6 / handled, handled=handled)


async def emit(args: argparse.Namespace) -> None:
    """Emit without waiting for answers.

    Without a callback the published client only writes. Ours would wait, so it is given one: then
    `emit` returns when the message is queued.
    """
    sender = client(args.url)
    await sender.connect()
    count = args.count
    answered = 0
    errors = 0
    all_answered = asyncio.Event()
    arrived = asyncio.Event()

    def answer(error: Exception | None) -> None:
        nonlocal answered, errors
        answered += 1
        errors += error is not None
        if answered == count:
            all_answered.set()

    sender.on(args.topic + "/end", lambda _data, _meta: arrived.set())
    await subscribe(sender, args.topic + "/end")
    topic, data = args.topic + "/sink", "x" * PAYLOAD
    began = (time.perf_counter(), time.process_time())
    if args.callback:
        for _ in range(count):
            await sender.emit(topic, data, None, answer)
        await all_answered.wait()
    else:
        for _ in range(count):
            await sender.emit(topic, data)
    # What comes behind all others has passed through the broker.
    await sender.emit(args.topic + "/end", "end")
    await arrived.wait()
    spent = time.perf_counter() - began[0]
    cpu = time.process_time() - began[1]
    sender.disconnect()
    say(per_s=count / spent, cpu_us=cpu * 1e6 / count, errors=errors)


def windowed(emit: Callable[..., Any]) -> tuple[Callable[..., Any], Callable[[], Any], list[int]]:
    """Give an `emit` that holds while the window is full, what waits for the rest, and errors."""
    window = asyncio.Semaphore(WINDOW)
    errors = [0]

    def answer(error: Exception | None) -> None:
        errors[0] += error is not None
        window.release()

    async def one(topic: str, data: str) -> None:
        await window.acquire()
        await emit(topic, data, None, answer)

    async def rest() -> None:
        for _ in range(WINDOW):
            await window.acquire()

    return one, rest, errors


async def emit_awaited(args: argparse.Namespace) -> None:
    """Emit with 64 that wait for their answer at a time."""
    sender = client(args.url)
    await sender.connect()
    emit, rest, errors = windowed(sender.emit)
    topic, data = args.topic + "/sink", "x" * PAYLOAD
    began = (time.perf_counter(), time.process_time())
    for _ in range(args.count):
        await emit(topic, data)
    await rest()
    spent = time.perf_counter() - began[0]
    cpu = time.process_time() - began[1]
    sender.disconnect()
    say(per_s=args.count / spent, cpu_us=cpu * 1e6 / args.count, errors=errors[0])


async def echo(args: argparse.Namespace) -> None:
    """Emit, and wait for the own message to come back, one at a time."""
    one = client(args.url)
    await one.connect()
    arrived = asyncio.Event()
    one.on(args.topic, lambda _data, _meta: arrived.set())
    await subscribe(one, args.topic)
    data = "x" * PAYLOAD
    trips = []
    for _ in range(args.count + WARM):
        arrived.clear()
        began = time.perf_counter()
        await one.emit(args.topic, data)
        await arrived.wait()
        trips.append((time.perf_counter() - began) * 1e3)
    one.disconnect()
    trips = sorted(trips[WARM:])
    say(p50_ms=percentile(trips, 50), p99_ms=percentile(trips, 99))


def memory(file: str, key: str) -> float:
    """Give this process's memory, in KB."""
    with open(f"/proc/self/{file}", encoding="ascii") as lines:  # noqa: PTH123
        return next(float(line.split()[1]) for line in lines if line.startswith(key + ":"))


async def connections(args: argparse.Namespace) -> None:
    """Look at the memory of the interpreter, of one connection, and of further ones."""
    import gc  # noqa: PLC0415

    async def one() -> Any:
        made = client(args.url)
        await made.connect()
        await subscribe(made, args.topic)
        return made

    async def look() -> tuple[float, float]:
        await asyncio.sleep(SETTLE)
        gc.collect()
        return memory("status", "VmRSS"), memory("smaps_rollup", "Pss")

    before = await look()
    clients = [await one()]
    first = await look()
    while len(clients) <= args.count:
        more = min(OPENING, args.count + 1 - len(clients))
        clients += await asyncio.gather(*(one() for _ in range(more)))
    all_of_them = await look()
    say(
        first_rss_kb=first[0] - before[0],
        first_pss_kb=first[1] - before[1],
        further_rss_kb=(all_of_them[0] - first[0]) / args.count,
    )
    for made in clients:
        made.disconnect()


async def consume(args: argparse.Namespace) -> None:
    """Receive what a publisher sends through a broker."""
    receiver = client(args.url)
    await receiver.connect()
    delays: list[float] = []
    seen: set[str] = set()
    last = 0

    def handle(data: str, _meta: Any) -> None:
        nonlocal last
        last = time.monotonic_ns()
        delays.append((last - int(data[:STAMP])) / 1e6)
        seen.add(data[STAMP : STAMP + NUMBER])

    receiver.on(args.topic, handle)
    await subscribe(receiver, args.topic)
    say(ready=1)
    cpu = time.process_time()
    counted, since = -1, 0.0
    while len(seen) < args.count:
        await asyncio.sleep(0.05)
        if len(delays) != counted:
            counted, since = len(delays), time.monotonic()
        elif counted > 0 and time.monotonic() - since > SILENCE:
            break
    cpu = time.process_time() - cpu
    # A copy that comes late is a copy all the same.
    await asyncio.sleep(0.2)
    receiver.disconnect()
    delays.sort()
    say(
        last_ns=last,
        received=len(delays),
        distinct=len(seen),
        p50_ms=percentile(delays, 50),
        p99_ms=percentile(delays, 99),
        cpu_us=cpu * 1e6 / max(1, len(delays)),
    )


async def produce(args: argparse.Namespace) -> None:
    """Publish through a broker, so many a second, or as fast as 64 in flight go."""
    sender = client(args.url)
    await sender.connect()
    emit, rest, errors = windowed(sender.emit)
    pad = "x" * (PAYLOAD - STAMP - NUMBER)
    began, cpu = time.monotonic_ns(), time.process_time()
    for number in range(args.count):
        if args.rate:
            due = began / 1e9 + number / args.rate
            if (left := due - time.monotonic()) > 0:
                await asyncio.sleep(left)
        await emit(args.topic, f"{time.monotonic_ns():0{STAMP}d}{number:0{NUMBER}d}{pad}")
    await rest()
    cpu = time.process_time() - cpu
    sender.disconnect()
    say(first_ns=began, errors=errors[0], cpu_us=cpu * 1e6 / args.count)


WORKS = {
    "receive": receive,
    "emit": emit,
    "emit-awaited": emit_awaited,
    "echo": echo,
    "connections": connections,
    "consume": consume,
    "produce": produce,
}


def arguments() -> argparse.Namespace:
    """Read the command line."""
    import argparse  # noqa: PLC0415

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", choices=WORKS)
    parser.add_argument("--url", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--count", type=int, required=True, help="messages, or connections")
    parser.add_argument("--rate", type=float, default=0.0, help="publishes a second; 0: no limit")
    parser.add_argument("--callback", action="store_true", help="emit with a callback")
    parser.add_argument("--uvloop", action="store_true", help="run on uvloop")
    return parser.parse_args()


def main() -> None:
    """Work, and say how it went."""
    args = arguments()
    work = asyncio.wait_for(WORKS[args.work](args), PATIENCE)
    if args.uvloop:
        import importlib  # noqa: PLC0415

        importlib.import_module("uvloop").run(work)
    else:
        asyncio.run(work)


if __name__ == "__main__":
    main()
