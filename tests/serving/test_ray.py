"""The server on Ray Serve: a cluster of two nodes on this machine."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from kit.patience import PATIENCE

pytest.importorskip("ray.serve", reason="needs ray: pip install 'tamiz[ray]'")

import ray
from ray import serve
from ray.cluster_utils import Cluster
from starlette.requests import Request

from tamiz.serving import ray as cluster_server

pytestmark = pytest.mark.slow

CHAT = "/v1/chat/completions"
#: Bytes of the store of objects of a node: replies pass through it in small pieces.
STORE = 80 << 20


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def chat(text: str, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 8, "seed": 1, **more}


def long(text: str) -> dict[str, Any]:
    """A request whose answers take a while."""
    return chat(text, max_tokens=450, n=16, stream=True)


def mark(reply: httpx.Response) -> str:
    """The replica that has replied."""
    return reply.headers["x-tamiz-replica"]


@pytest.fixture(scope="module")
def client(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client of two replicas, each on a node of its own."""
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text("one\ntwo\n")
    options = cluster_server.Options(
        models=[f"tiny={tiny}"], replicas=2, threads=1, context=8192, api_key_file=str(keys)
    )
    node = {"num_cpus": 1, "object_store_memory": STORE, "include_dashboard": False}
    nodes = Cluster(initialize_head=True, head_node_args=node)
    port = free_port()
    try:
        nodes.add_node(num_cpus=1, object_store_memory=STORE)
        ray.init(address=nodes.address, log_to_driver=False)
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        serve.run(cluster_server.app(options), name="tamiz")
        headers = {"Authorization": "Bearer one"}
        with httpx.Client(
            base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=PATIENCE
        ) as client:
            yield client
    finally:
        serve.shutdown()
        ray.shutdown()
        nodes.shutdown()


def replicas(client: httpx.Client) -> dict[str, str]:
    """A text for each replica, which sends a conversation that begins with it there."""
    found: dict[str, str] = {}
    for number in range(200):
        text = f"conversation {number}"
        found.setdefault(mark(client.post(CHAT, json=chat(text))), text)
        if len(found) == 2:
            return found
    raise AssertionError(f"all conversations went to {list(found)}")


def test_replies_and_errors_are_those_of_the_server(client: httpx.Client) -> None:
    reply = client.post(CHAT, json=chat("hello"))
    assert reply.status_code == 200
    assert reply.json()["usage"]["completion_tokens"] == 8
    with client.stream("POST", CHAT, json=chat("hello", stream=True)) as stream:
        lines = [line for line in stream.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    deltas = [json.loads(line[6:])["choices"][0]["delta"] for line in lines[:-1]]
    text = "".join(delta.get("content") or "" for delta in deltas)
    assert text == reply.json()["choices"][0]["message"]["content"]
    assert client.get("/v1/models").json()["data"][0]["id"] == "tiny"
    assert client.post(CHAT, content=b"{").status_code == 400
    assert client.post(CHAT, content=b"x" * (5 << 20)).status_code == 413
    wrong = client.get("/v1/models", headers={"Authorization": "Bearer three"})
    assert wrong.status_code == 401


def test_a_conversation_stays_where_its_prefix_is(client: httpx.Client) -> None:
    assert len(replicas(client)) == 2
    messages: list[dict[str, str]] = [{"role": "user", "content": "hello sieve " * 20}]
    marks, cached = set(), 0
    for _ in range(4):
        reply = client.post(CHAT, json={"messages": messages, "max_tokens": 8, "seed": 1})
        marks.add(mark(reply))
        cached = reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        said = reply.json()["choices"][0]["message"]["content"]
        messages += [{"role": "assistant", "content": said}, {"role": "user", "content": "more"}]
    assert len(marks) == 1
    assert cached >= 64


def test_a_response_is_continued_where_it_is_kept(client: httpx.Client) -> None:
    for text in replicas(client).values():
        first = client.post("/v1/responses", json={"input": text, "max_output_tokens": 4})
        name = first.json()["id"]
        for number in range(4):
            body = {"input": f"{number}", "previous_response_id": name, "max_output_tokens": 4}
            reply = client.post("/v1/responses", json=body)
            assert reply.status_code == 200
            assert mark(reply) == mark(first)
        assert client.get(f"/v1/responses/{name}").json()["id"] == name


def metric(client: httpx.Client, text: str, name: str) -> float:
    """A number of the replica of a text."""
    # A request goes where its body belongs, whatever its route.
    reply = client.request("GET", "/metrics", content=json.dumps(chat(text)))
    (line,) = [line for line in reply.text.splitlines() if line.startswith(name)]
    return float(line.split()[-1])


def test_a_client_that_leaves_frees_the_replica(client: httpx.Client) -> None:
    text = next(iter(replicas(client).values()))
    before = metric(client, text, "tamiz_completion_tokens_total")
    with client.stream("POST", CHAT, json=long(text)) as stream:
        next(stream.iter_lines())
    end = time.monotonic() + PATIENCE
    while metric(client, text, "tamiz_engine_running{") and time.monotonic() < end:
        time.sleep(0.05)
    assert metric(client, text, "tamiz_engine_running{") == 0
    assert metric(client, text, "tamiz_completion_tokens_total") == before


def kill(name: str) -> None:
    """Kills the process of the replica with a mark."""
    for actor in ray.util.list_named_actors(all_namespaces=True):
        unique = actor["name"].rpartition("#")[2]
        if "#Models#" in actor["name"] and cluster_server._mark(unique) == name:
            ray.kill(ray.get_actor(actor["name"], namespace=actor["namespace"]))
            return
    raise AssertionError(f"no replica {name}")


def test_a_killed_replica_fails_only_its_own_requests(client: httpx.Client) -> None:
    (doomed, its), (_, other) = replicas(client).items()
    alone = client.post(CHAT, json=chat(other, max_tokens=60)).json()["choices"]
    others: list[Any] = []

    def ask_other() -> None:
        for _ in range(3):
            reply = client.post(CHAT, json=chat(other, max_tokens=60))
            others.append(reply.json()["choices"])

    thread = threading.Thread(target=ask_other)
    with client.stream("POST", CHAT, json=long(its)) as stream:
        lines = stream.iter_lines()
        next(lines)
        thread.start()
        kill(doomed)
        rest = [line for line in lines if line]
    thread.join(PATIENCE)
    assert others == [alone] * 3
    assert rest[-3] == "event: error"
    assert "has ended; try again" in json.loads(rest[-2][6:])["error"]["message"]
    assert rest[-1] == "data: [DONE]"
    reply = client.post(CHAT, json=chat(its))
    assert reply.status_code == 200
    assert mark(reply) != doomed


def request(path: str, body: dict[str, Any]) -> cluster_server.Call:
    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "headers": [(b"authorization", b"Bearer one")],
        "query_string": b"",
        "server": ("x", 80),
    }
    return cluster_server.call_of(Request(scope), json.dumps(body).encode())


def test_what_the_beginning_of_a_request_is() -> None:
    first = request(CHAT, chat("hello"))
    more = chat("hello")
    more["messages"] += [{"role": "assistant", "content": "x"}, {"role": "user", "content": "y"}]
    assert request(CHAT, more).beginning == first.beginning
    assert request(CHAT, chat("other")).beginning != first.beginning
    assert request(CHAT, chat("hello", model="x")).beginning != first.beginning
    document = "document " * 1000
    assert (
        request(CHAT, chat(document + "a")).beginning
        == request(CHAT, chat(document + "b")).beginning
    )
    assert request("/v1/responses/resp_12345678ab", {}).keeper == "12345678"
    assert request("/v1/responses", {"previous_response_id": "resp_12345678ab"}).keeper
    for odd in ({"messages": "x"}, {"messages": [1]}, {"input": {"a": 1}}, {"prompt": [[1, 2]]}):
        assert request(CHAT, odd).keeper == ""


def test_options_may_come_as_text() -> None:
    given = {"models": "chat=/a,embed=/b", "replicas": "3", "strict": "true"}
    options = cluster_server.Options.model_validate(given)
    assert options.models == ["chat=/a", "embed=/b"]
    assert (options.replicas, options.strict) == (3, True)
    assert isinstance(cluster_server.app(given), serve.Application)
    with pytest.raises(ValueError, match="models"):
        cluster_server.app({})
