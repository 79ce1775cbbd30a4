"""What a client holds on to, in processes of their own."""

import asyncio
import sys

import pytest
from kit.broker import Broker
from kit.scripted import Frame, Link, ScriptedBroker, agree
from kit.scripts import Script, run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

TOPIC = "demo/general/messages"

CHILD = """
import asyncio, gc, os, time
from nolag import NoLag

TOPIC = "demo/general/messages"

def memory():
    gc.collect()
    with open("/proc/self/statm") as pages:
        return int(pages.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

def files():
    return len(os.listdir("/proc/self/fd"))

def threads():
    return len(os.listdir("/proc/self/task"))
"""

SLOW = (
    CHILD
    + """
async def main():
    client = NoLag("dev-token-alice", url=os.environ["URL"], receive_buffer=32)
    await client.connect()
    async with client.subscription(TOPIC, buffer=32) as subscription:
        before = most = memory()
        for number in range(3000):
            data = (await anext(subscription)).data
            assert data[0] == number, (data[0], number)
            del data
            if number % 20 == 0:
                most = max(most, memory())
                await asyncio.sleep(0.005)
        print(most - before)
    await client.close()

asyncio.run(main())
"""
)

FLAPPING = (
    CHILD
    + """
async def main():
    client = NoLag("dev-token-alice", url=os.environ["URL"], backoff={"base": 0.01, "factor": 1.0})
    back = asyncio.Event()
    client.on("reconnect", back.set)
    await client.connect()
    for number in range(100):
        await client.subscribe(f"demo/general/topic-{number}", lambda data, meta: None)
    await client.set_presence({"x": 1}, "general")
    state = []
    for cycle in range(240):
        await client.publish(TOPIC, "cut me")
        await back.wait()
        back.clear()
        if cycle % 80 == 79:
            state.append((memory(), files(), threads(), len(asyncio.all_tasks())))
    # The first third is for what grows once.
    print(state[-1][0] - state[0][0], [state[-1][part] - state[0][part] for part in (1, 2, 3)])
    await client.close()

asyncio.run(main())
"""
)


MANY = (
    CHILD
    + """
async def main(closes):
    before = threads()
    clients = [NoLag("dev-token-alice", url=os.environ["URL"]) for _ in range(50)]
    await asyncio.gather(*(client.connect() for client in clients))
    assert threads() - before <= 1, "one thread serves all clients"
    await asyncio.gather(*(client.publish(TOPIC, 1) for client in clients))
    if closes:
        await asyncio.gather(*(client.close() for client in clients))

START = files()

def settled(fine):
    # Sockets are closed beside the program.
    gc.collect()
    for _ in range(2000):
        if files() <= fine:
            break
        time.sleep(0.01)
    return files(), threads()

for closes in (True, False):
    asyncio.run(main(closes))
    # What the thread itself needs stays.
    before = settled(START + 8)
    assert before[0] <= START + 8
    for _ in range(5):
        asyncio.run(main(closes))
    print([after <= one for after, one in zip(settled(before[0]), before)])
"""
)


def test_many_clients_and_loops(broker: Broker) -> None:
    """One thread serves them all, and loops that are gone leave no descriptor open (API-080)."""
    result = run(MANY, URL=broker.url)
    assert (result.output, result.errors, result.code) == ("[True, True]\n" * 2, "", 0)


async def test_a_slow_reader(scripted: ScriptedBroker) -> None:
    """The broker waits for it, and memory stays below the bound and 4 MiB (API-076, FC-22)."""
    script = Script(SLOW, URL=scripted.url)
    link = await scripted.link()
    await link.next("subscribe")
    for number in range(3000):
        # 96 MB in all, of which the client may keep two times 32 messages, and a socket's buffers.
        await link.message(TOPIC, [number, b"x" * 32_768])
    result = await asyncio.to_thread(script.end)
    assert result.code == 0, result.errors
    assert int(result.output) < 64 * 32_768 + 4 * 2**20


async def test_a_flapping_broker(scripted: ScriptedBroker) -> None:
    """Hundreds of losses leave nothing behind (API-100, FC-08, reduced)."""

    async def cut(link: Link, frame: Frame) -> None:
        await agree(link, frame)
        link.cut()

    scripted.rules["publish"] = cut
    script = Script(FLAPPING, URL=scripted.url)
    result = await asyncio.to_thread(script.end)
    assert result.code == 0, result.errors
    growth, rest = result.output.split(maxsplit=1)
    assert rest.strip() == "[0, 0, 0]"
    assert int(growth) < 2**20
