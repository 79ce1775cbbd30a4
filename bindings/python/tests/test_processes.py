"""What only shows from outside a process: its end, its signals, its children."""

import asyncio
import os
import signal
import sys
import threading
import time
from pathlib import Path
from textwrap import dedent

import pytest
from kit.broker import Broker
from kit.heard import Heard
from kit.net import silent_port
from kit.scripts import Script, run
from nolag import NoLag

TOPIC = "demo/general/messages"


def program(text: str) -> str:
    """Make a program of its main part."""
    return dedent("""
        import asyncio, os, sys, threading, time
        from nolag import NoLag, NoLagError, NoLagOptions
        URL, TOPIC = os.environ["URL"], "demo/general/messages"
        """) + dedent(text)


class TestImporting:
    """What `import nolag` does."""

    def test_it_does_nothing(self) -> None:
        """No thread, no loop, no signal handler, no third package (API-001, FC-34)."""
        result = run("""
import signal, sys, threading
before = signal.getsignal(signal.SIGINT)
modules = set(sys.modules)
import nolag
assert threading.active_count() == 1, threading.enumerate()
assert signal.getsignal(signal.SIGINT) is before
foreign = {name.partition(".")[0] for name in set(sys.modules) - modules}
foreign -= set(sys.stdlib_module_names) | {"nolag"}
print(sorted(foreign))
""")
        assert (result.code, result.output, result.errors) == (0, "[]\n", "")

    def test_a_client_that_is_never_connected(self) -> None:
        """It keeps nothing alive, and needs no loop (API-001)."""
        result = run("""
import threading
from nolag import NoLag
client = NoLag("token", url="ws://127.0.0.1:9/ws")
client.on("connect", print)
assert threading.active_count() == 1
""")
        assert (result.code, result.output, result.errors) == (0, "", "")


ENDINGS = {
    "its end": ("", 0, ""),
    "sys.exit": ("sys.exit(3)", 3, ""),
    "an exception": ("raise ZeroDivisionError('of my own')", 1, "of my own"),
    "os._exit": ("os._exit(4)", 4, ""),
    "a thread in a call": ("threading.Thread(target=call, args=(1,)).start()", 0, ""),
    "a daemon in calls": (
        "threading.Thread(target=call, args=(10**9,), daemon=True).start()",
        0,
        "",
    ),
}


class TestEnding:
    """Processes that end without closing."""

    @pytest.mark.parametrize("where", ["inside", "after"])
    @pytest.mark.parametrize("ending", list(ENDINGS))
    def test_it_ends_as_it_asked(self, broker: Broker, ending: str, where: str) -> None:
        """Quickly, with its code, and nothing on stderr but its own (FC-32)."""
        statement, code, message = ENDINGS[ending]
        inside, after = (statement, "") if where == "inside" else ("", statement)
        text = program(f"""
        count = 0

        def count_up(data, meta):
            global count
            count += 1

        def call(failures):
            while failures:
                try:
                    client.threadsafe.publish(TOPIC, 1).result()
                except BaseException:
                    failures -= 1

        async def main():
            global client
            client = NoLag("dev-token-alice", url=URL)
            client.on(TOPIC, count_up)
            await client.connect()
            await client.subscribe(TOPIC)
            client.flow = asyncio.create_task(flow())
            while count < 200:
                await asyncio.sleep(0.001)
            {inside}

        async def flow():
            while True:
                await client.emit(TOPIC, "x", callback=lambda error: None)

        asyncio.run(main())
        {after}
        """)
        for _ in range(4):
            result = run(text, URL=broker.url)
            assert result.code == code, result.errors
            assert result.output == ""
            if message:
                # The traceback of the script's own exception, and nothing after it.
                assert result.errors.count("Traceback") == 1
                assert result.errors.rstrip().endswith(message)
            else:
                assert result.errors == ""

    def test_a_client_that_is_global(self, broker: Broker) -> None:
        """It is there when the interpreter is taken down (FC-32)."""
        text = program("""
        client = NoLag("dev-token-alice", url=URL)
        client.on("disconnect", lambda reason: print("told", reason))
        loop = asyncio.new_event_loop()
        loop.run_until_complete(client.connect())
        async def iterate():
            async for message in client.messages(TOPIC):
                print(message)
        loop.create_task(iterate())
        loop.run_until_complete(asyncio.sleep(0.05))
        """)
        result = run(text, URL=broker.url)
        assert result.code == 0
        # asyncio's own word on the pending task and the loop that nobody closed is the script's.
        assert "nolag" not in result.errors.replace("nolag.client", "").lower() or (
            "Task was destroyed" in result.errors
        )
        assert "Fatal" not in result.errors
        assert "panic" not in result.errors


class TestSleeping:
    """Processes that are stopped and go on."""

    def test_a_stopped_process(self, broker: Broker) -> None:
        """It finds its connection as it was, or makes another, and gives nothing up (API-069)."""
        script = Script(
            program("""
        async def main():
            client = NoLag(
                "dev-token-alice", url=URL, heartbeat_interval=0.2, heartbeat_timeout=0.2,
                reconnect_interval=0.1,
            )
            client.on("failed", lambda error: print("failed", error))
            await client.connect()
            async with client.subscription(TOPIC) as messages:
                print("connected", flush=True)
                async for message in messages:
                    print(message.data, flush=True)
                    break
            await client.close()

        asyncio.run(main())
        """),
            URL=broker.url,
        )
        assert script.line() == "connected"
        script.stop()
        # Longer than the client would wait for a sign of life.
        time.sleep(1)
        script.go_on()
        asyncio.run(self._say_until_heard(broker, script))

    @staticmethod
    async def _say_until_heard(broker: Broker, script: Script) -> None:
        async with NoLag("dev-token-bob", url=broker.url) as bob:
            ending = asyncio.create_task(asyncio.to_thread(script.end))
            while not ending.done():
                # While it connects again it may miss one.
                await bob.publish(TOPIC, "awake")
                await asyncio.wait([ending], timeout=0.1)
            result = await ending
        assert (result.output, result.errors, result.code) == ("awake\n", "", 0)


class TestLoops:
    """Event loops that come and go."""

    def test_three_times_in_a_row(self, broker: Broker) -> None:
        """A client each, closed or not (API-013)."""

        async def main(*, close: bool) -> str:
            client = NoLag("dev-token-alice", url=broker.url)
            messages = Heard()
            client.on(TOPIC, messages)
            await client.connect()
            await client.subscribe(TOPIC)
            await client.emit(TOPIC, "hello")
            data, _ = await messages.next()
            if close:
                await client.close()
            return str(data)

        for close in (True, False, False):
            assert asyncio.run(main(close=close)) == "hello"

    def test_a_client_of_a_loop_that_is_gone(self, broker: Broker) -> None:
        """Used in another it says so at once, and never hangs (FC-33)."""
        result = run(
            program("""
        async def first():
            client = NoLag("dev-token-alice", url=URL)
            client.on(TOPIC, lambda data, meta: print("dead loop got", data))
            await client.connect()
            await client.subscribe(TOPIC)
            return client

        async def second():
            client = NoLag("dev-token-bob", url=URL)
            got = asyncio.Queue()
            client.on(TOPIC, lambda data, meta: got.put_nowait(data))
            await client.connect()
            await client.subscribe(TOPIC)
            for number in range(5):
                await client.emit(TOPIC, number)
            print([await got.get() for _ in range(5)])

        async def third(client):
            try:
                await client.connect()
            except NoLagError as error:
                print(type(error).__name__, error.code)

        old = asyncio.run(first())
        asyncio.run(second())
        asyncio.run(third(old))
        old.disconnect()
        """),
            URL=broker.url,
        )
        assert result.output == "[0, 1, 2, 3, 4]\nConfigError unsupported_runtime\n"
        assert result.code == 0
        assert len(result.errors.splitlines()) <= 1

    def test_two_at_once(self, broker: Broker) -> None:
        """Loops of two threads do not see each other's messages (FC-33)."""
        results: dict[str, list[str]] = {}
        both = threading.Barrier(2)

        async def main(name: str) -> None:
            topic = f"demo/general/{name}"
            async with NoLag(f"dev-token-{name}", url=broker.url) as client:
                messages = Heard()
                client.on(topic, lambda data, _meta: messages((threading.get_ident(), data)))
                await client.subscribe(topic)
                await asyncio.to_thread(both.wait, 20)
                for number in range(100):
                    await client.emit(topic, f"{name}-{number}")
                heard = await messages.many(100)
                assert {thread for thread, _ in heard} == {threading.get_ident()}
                results[name] = [data for _, data in heard]
                assert messages.is_silent()

        threads = [threading.Thread(target=asyncio.run, args=(main(n),)) for n in ("alice", "bob")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for name in ("alice", "bob"):
            assert results[name] == [f"{name}-{number}" for number in range(100)]


class TestInterrupting:
    """Ctrl-C."""

    @pytest.mark.parametrize("waiting", ["connect", "message"])
    def test_under_asyncio_run(self, broker: Broker, waiting: str) -> None:
        """It ends soon, as Python has it (FC-34)."""
        text = program("""
        async def main():
            client = NoLag("dev-token-alice", url=URL, connect_timeout=30)
            print("waiting", flush=True)
            await client.connect()
            async for message in client.messages(TOPIC):
                print(message)

        asyncio.run(main())
        """)
        with silent_port() as silent:
            script = Script(text, URL=silent if waiting == "connect" else broker.url)
            assert script.line() == "waiting"
            if waiting == "message":
                # Until it is subscribed there is nothing to tell it by.
                asyncio.run(_until_subscribed(broker))
            script.interrupt()
            result = script.end()
        # A process that ends by a signal's default action has the negative of its number.
        assert result.code in (1, 130, -signal.SIGINT)
        assert result.errors.rstrip().endswith("KeyboardInterrupt")
        assert "panic" not in result.errors

    def test_a_call_after_it(self, broker: Broker) -> None:
        """Who catches it may go on."""
        text = program("""
        async def main(url):
            async with NoLag("dev-token-alice", url=url) as client:
                print("connected", flush=True)
                await client.publish(TOPIC, 1)

        try:
            print("waiting", flush=True)
            asyncio.run(main(os.environ["SILENT"]))
        except KeyboardInterrupt:
            asyncio.run(main(URL))
        """)
        with silent_port() as silent:
            script = Script(text, URL=broker.url, SILENT=silent)
            assert script.line() == "waiting"
            # Its handler is Python's own from the start, whatever it imports.
            script.interrupt()
            result = script.end()
        assert (result.code, result.output) == (0, "connected\n")

    def test_a_handler_of_one_s_own(self, broker: Broker) -> None:
        """It is called, and not replaced (FC-34)."""
        text = program("""
        import signal

        async def main():
            stop = asyncio.Event()
            asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stop.set)
            async with NoLag("dev-token-alice", url=URL) as client:
                print("waiting", flush=True)
                await stop.wait()
            print("stopped well")

        asyncio.run(main())
        """)
        script = Script(text, URL=broker.url)
        assert script.line() == "waiting"
        script.interrupt()
        result = script.end()
        assert (result.code, result.output, result.errors) == (0, "stopped well\n", "")


async def _until_subscribed(broker: Broker) -> None:
    """Wait until somebody is subscribed, who must be the other process."""
    async with NoLag("dev-token-bob", url=broker.url) as client:
        for _ in range(1000):
            if await asyncio.to_thread(broker.metric, "nolag_subscriptions"):
                break
            await asyncio.sleep(0.02)
        assert client.connected


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
class TestForking:
    """Children that come with their parent's client."""

    def test_a_child_by_fork(self, broker: Broker) -> None:
        """It cannot use its parent's client, can use its own, and harms nobody (FC-31)."""
        result = run(
            program("""
        import warnings
        warnings.simplefilter("ignore")  # Python's own word on fork with threads

        async def child(client):
            began = time.monotonic()
            for name, args in ("publish", (TOPIC, "x")), ("emit", (TOPIC, "x")), ("connect", ()):
                try:
                    await getattr(client, name)(*args)
                except NoLagError as error:
                    print("child:", type(error).__name__, error.code)
            client.disconnect()
            assert time.monotonic() - began < 5
            async with NoLag("dev-token-bob", url=URL) as own:
                for number in range(10):
                    receipt = await own.publish(TOPIC, number)
                    assert receipt.outcome == "accepted"
            print("child: 10 accepted", flush=True)

        async def main():
            client = NoLag("dev-token-alice", url=URL)
            got = asyncio.Queue()
            client.on(TOPIC, lambda data, meta: got.put_nowait(data))
            lost = []
            client.on("disconnect", lost.append)
            await client.connect()
            await client.subscribe(TOPIC)
            await client.publish(TOPIC, "before")
            assert await got.get() == "before"
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    # The child has the parent's loop, which runs; so it takes a thread for its own.
                    thread = threading.Thread(target=lambda: asyncio.run(child(client)))
                    thread.start()
                    thread.join()
                    code = 0
                finally:
                    sys.stdout.flush()
                    os._exit(code)
            _, status = await asyncio.to_thread(os.waitpid, pid, 0)
            print("status", status)
            print([await got.get() for _ in range(10)])
            await client.publish(TOPIC, "after")
            print(await got.get(), lost)
            await client.close()

        asyncio.run(main())
        """),
            URL=broker.url,
        )
        assert result.code == 0, result.errors
        assert result.output.splitlines() == [
            "child: ConfigError unsupported_runtime",
            "child: ConfigError unsupported_runtime",
            "child: ConfigError unsupported_runtime",
            "child: 10 accepted",
            "status 0",
            str(list(range(10))),
            "after []",
        ]

    def test_a_child_that_ends_as_python_does(self, broker: Broker) -> None:
        """Its end, with all that Python cleans up, leaves the parent's link alone (FC-31)."""
        result = run(
            program("""
        import warnings
        warnings.simplefilter("ignore")

        loop = asyncio.new_event_loop()
        client = NoLag("dev-token-alice", url=URL)
        loop.run_until_complete(client.connect())
        pid = os.fork()
        if pid == 0:
            del client
            sys.exit(0)
        _, status = os.waitpid(pid, 0)
        receipt = loop.run_until_complete(client.publish(TOPIC, 1))
        print(status, receipt.outcome)
        loop.run_until_complete(client.close())
        loop.close()
        """),
            URL=broker.url,
        )
        assert (result.output, result.code) == ("0 accepted\n", 0), result.errors

    @pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
    def test_multiprocessing(self, broker: Broker, tmp_path: Path, method: str) -> None:
        """Children of every kind have clients of their own (FC-31)."""
        script = tmp_path / "program.py"
        script.write_text(
            program(f"""
        import multiprocessing, warnings
        warnings.simplefilter("ignore")

        async def publish(number):
            async with NoLag("dev-token-bob", url=URL) as client:
                return (await client.publish(TOPIC, number)).outcome

        def work(number):
            return asyncio.run(publish(number))

        async def main():
            async with NoLag("dev-token-alice", url=URL) as client:
                context = multiprocessing.get_context("{method}")
                with context.Pool(2) as pool:
                    print(await asyncio.to_thread(pool.map, work, range(4)))
                print((await client.publish(TOPIC, 1)).outcome)

        if __name__ == "__main__":
            asyncio.run(main())
        """)
        )
        result = run(script, URL=broker.url)
        assert result.output == f"{['accepted'] * 4}\naccepted\n", result.errors
        assert result.code == 0


def test_the_interpreter_is_the_installed_one() -> None:
    """What is tested is the wheel, not the source tree."""
    import nolag  # noqa: PLC0415 — the point of this test

    assert nolag.__file__ is not None
    assert Path(nolag.__file__).is_relative_to(sys.prefix)
