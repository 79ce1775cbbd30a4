"""`nolag-agents` 0.5.1 and `nolag-signal` 0.1.1, as published, on top of our client (API-084)."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from kit.broker import Broker
from kit.heard import Heard, until, within
from kit.scripts import Script
from nolag import NoLagOptions
from nolag_agents import (
    AgentPresenceData,
    AgentRoom,
    Approve,
    Blackboard,
    Handoff,
    Inbox,
    NoLagAgents,
    NoLagAgentsOptions,
    Observe,
    Tools,
)

ROOM = "general"


class Agents:
    """Connects agents, and disconnects them when the test is over."""

    def __init__(self, broker: Broker) -> None:
        """Belong to a broker."""
        self._broker = broker
        self._agents: list[NoLagAgents] = []

    async def connect(
        self, name: str, agent_id: str, *capabilities: str, **options: Any
    ) -> AgentRoom:
        """Connect one by actor and agent id, and join the room."""
        options.setdefault("client_options", {"url": self._broker.url, "reconnect_interval": 0.05})
        agents = NoLagAgents(
            f"dev-token-{name}",
            NoLagAgentsOptions(
                app_name="demo",
                agent_id=agent_id,
                rooms=[ROOM],
                presence=AgentPresenceData(
                    name=agent_id,
                    role="tool-server" if capabilities else "caller",
                    capabilities=list(capabilities),
                ),
                **options,
            ),
        )
        self._agents.append(agents)
        await within(agents.connect())
        assert agents.connected
        return agents.rooms[ROOM]

    def all(self) -> list[NoLagAgents]:
        """List them in the order in which they were connected."""
        return self._agents


@pytest_asyncio.fixture
async def agents(broker: Broker) -> AsyncIterator[Agents]:
    """Make agents on the broker."""
    agents = Agents(broker)
    yield agents
    for client in agents.all():
        client.disconnect()


class TestAgents:
    """The patterns of `nolag-agents`, with the broker between the agents."""

    async def test_a_task_is_handed_over(self, agents: Agents) -> None:
        """Discovery by presence, a shared topic, and a directed reply."""
        worker = await agents.connect("bob", "worker-1", "sum", load_balance=True)

        def add(task: Any, respond: Any) -> None:
            result = {"sum": sum(task.payload["numbers"])}
            asyncio.ensure_future(respond("success", result))  # noqa: RUF006 — as its users do

        Handoff(worker).on_task(["sum"], add)
        caller = await agents.connect("alice", "boss")
        assert [agent.name for agent in caller.find_agents("sum")] == ["worker-1"]
        handoff = Handoff(caller)
        for number in range(10):
            result = await within(
                handoff.dispatch(
                    "sum", {"numbers": [number, 1]}, wait_for_result=True, timeout=20_000
                )
            )
            assert result is not None
            assert (result.status, result.payload) == ("success", {"sum": number + 1})
            assert result.completed_by == "worker-1"

    async def test_a_tool_is_called(self, agents: Agents) -> None:
        """Requests and responses by correlation."""
        server = await agents.connect("bob", "server-1", "math.double")
        tools = Tools(server, "server-1")
        tools.register("math.double", lambda args: {"double": 2 * args["x"]})
        caller = Tools(await agents.connect("alice", "caller-1"), "caller-1")
        for number in range(10):
            response = await within(caller.invoke("math.double", {"x": number}, timeout=20_000))
            assert (response.status, response.result) == ("success", {"double": 2 * number})

    async def test_everything_else(self, agents: Agents) -> None:
        """State that is kept, mail, events and approvals."""
        one = await agents.connect("alice", "one")
        await Blackboard(one, "one").set("colour", "red")

        two = await agents.connect("bob", "two", "approving")
        board = Blackboard(two, "two")
        mail, events = Heard(), Heard()
        Inbox(two, "two").on_message(mail)
        Observe(two, "two").on(events, category="build")

        def decide(_request: Any, respond: Any) -> None:
            asyncio.ensure_future(respond("approved", "why not"))  # noqa: RUF006 — the same

        Approve(two, "two").on_request(decide)

        # Whoever comes late gets the state; but its listener came later still.
        await Blackboard(one, "one").set("colour", "blue")
        await until(lambda: board.get("colour") == "blue")
        await Inbox(one, "one").send("two", {"text": "hello"})
        assert (await mail.next()).payload == {"text": "hello"}
        await Observe(one, "one").emit("build", {"done": True})
        assert (await events.next()).payload == {"done": True}
        answer = await within(Approve(one, "one").request("deploy", {}, timeout=20_000))
        assert (answer.decision, answer.reason) == ("approved", "why not")

    async def test_who_comes_and_goes(self, agents: Agents) -> None:
        """Presence of the room, as it changes and as it is asked for."""
        one = await agents.connect("alice", "one")
        joined, updated, left = Heard(), Heard(), Heard()
        one.on("presence_join", joined).on("presence_update", updated).on("presence_leave", left)
        two = await agents.connect("bob", "two", "cooking")
        assert (await joined.next())[1].name == "two"
        assert one.get_available_capabilities() == ["cooking"]
        await two.set_presence(
            AgentPresenceData(name="two", role="agent", capabilities=["singing"])
        )
        while "singing" not in (await updated.next())[1].capabilities:
            pass
        names = {agent.name for agent in await one.fetch_presence()}
        assert names == {"one", "two"}
        agents.all()[1].disconnect()
        assert await left.next() == "bob"
        assert one.has_capability("singing") is False

    async def test_a_lobby(self, agents: Agents) -> None:
        """Watched at the start; its records answer for what is in them."""
        await agents.connect("bob", "two", "cooking")
        one = await agents.connect("alice", "one", lobby="lounge")
        client = agents.all()[1]
        state = await client.subscribe_lobby("lounge")
        assert set(state[ROOM]) == {"alice", "bob"}
        assert state[ROOM]["bob"]["presence"]["name"] == state[ROOM]["bob"]["name"] == "two"
        assert one.has_capability("cooking")

    @pytest.mark.parametrize("form", ["keywords", "options"])
    async def test_client_options(self, agents: Agents, broker: Broker, form: str) -> None:
        """They are handed to `NoLag` as keywords, `options` among them."""
        given = {"url": broker.url} if form == "keywords" else {"options": NoLagOptions(broker.url)}
        await agents.connect("alice", "one", client_options=given)

    async def test_a_restart_of_the_broker(self, agents: Agents, broker: Broker) -> None:
        """What the agents subscribed to and announced is there again without them."""
        one, two = await agents.connect("alice", "one"), await agents.connect("bob", "two")
        mail, back = Heard(), Heard()
        Inbox(two, "two").on_message(mail)
        for client in agents.all():
            client.on("reconnected", back)
        await asyncio.to_thread(broker.restart)
        await back.many(2)
        await Inbox(one, "one").send("two", {"text": "still there?"})
        assert (await mail.next()).payload == {"text": "still there?"}
        assert {agent.name for agent in await one.fetch_presence()} == {"one", "two"}


def test_signal(broker: Broker) -> None:
    """`nolag-signal`, in a process of its own because it patches `NoLag` for all who use it."""
    script = Script(Path(__file__).parent / "programs/signal_peers.py", URL=broker.url)
    said = []
    while (line := script.line()) not in ("", "restart the broker"):
        said.append(line)
    assert said == [
        "online: the guest",
        "offer for bob: {'sdp': 'offer'}",
        "answer for alice: {'sdp': 'answer'}",
        "offline: the guest",
    ], script.end().errors
    broker.restart()
    result = script.end()
    assert result.output == "reconnected\noffer for bob: {'sdp': 'again'}\n", result.errors
    assert result.code == 0
    # It announces its peers without a room, which nobody hears; our client says so once for each.
    warnings = result.errors.splitlines()
    assert len(warnings) == 2
    assert all("presence without a room" in warning for warning in warnings)
