"""HAProxy and nginx with the generated configurations, in front of three servers."""

import json
import threading
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from tests.operate.load_balancing.cluster import (
    NAMES,
    WORDS,
    OneClient,
    Proxy,
    ProxyLoad,
    Replicas,
    wait_until,
)

pytestmark = pytest.mark.slow
PROXIES = ("haproxy", "nginx")
PROTOCOLS = ("http", "grpc")


@pytest.fixture(scope="module")
def replicas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replicas]:
    folder = tmp_path_factory.mktemp("replicas")
    three = Replicas(folder)
    try:
        three.start(*NAMES)
        yield three
        three.stop(*NAMES)
    finally:
        for process in three.processes.values():
            if process.process.poll() is None:
                process.process.kill()
                process.process.wait()


@pytest.fixture(scope="module")
def proxies(replicas: Replicas, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Proxy]]:
    started: dict[str, Proxy] = {}
    try:
        for kind in PROXIES:
            proxy = Proxy(kind, tmp_path_factory.mktemp(kind), replicas)
            proxy.start()
            started[kind] = proxy
        yield started
    finally:
        for proxy in started.values():
            proxy.stop()


@pytest.fixture
def connect(proxies: dict[str, Proxy]) -> Iterator[Callable[[str, str], OneClient]]:
    opened: list[OneClient] = []

    def open_client(proxy: str, protocol: str) -> OneClient:
        opened.append(OneClient(proxies[proxy], protocol))
        return opened[-1]

    yield open_client
    for client in opened:
        client.close()


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("proxy", PROXIES)
def test_requests_of_one_connection_go_to_all_replicas(
    connect: Callable[[str, str], OneClient], proxy: str, protocol: str
) -> None:
    client = connect(proxy, protocol)
    wait_until(lambda: {client.replica() for _ in range(6)} == set(NAMES))


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("proxy", PROXIES)
def test_a_sequence_stays_on_its_replica(connect: Callable[[str, str], OneClient], proxy: str, protocol: str) -> None:
    client = connect(proxy, protocol)
    offset = 100 * (PROXIES.index(proxy) * 2 + PROTOCOLS.index(protocol)) + 1
    sequences = range(offset, offset + 12)
    places = {sequence: set[str]() for sequence in sequences}
    for step in range(3):
        for sequence in sequences:
            headers = {"x-session-id": f"sequence-{sequence}"}
            ends = {"sequence_start": step == 0, "sequence_end": step == 2}
            assert client.infer("sequence", step, headers, sequence_id=sequence, **ends) == step
            places[sequence].add(client.replica(headers))
    assert all(len(place) == 1 for place in places.values())
    assert len(set().union(*places.values())) > 1


def test_a_sequence_without_the_header_is_torn(connect: Callable[[str, str], OneClient]) -> None:
    client = connect("nginx", "http")
    client.infer("sequence", 1, sequence_id=1000, sequence_start=True)
    errors = []
    for _ in range(3):
        try:
            client.infer("sequence", 1, sequence_id=1000)
        except InferenceServerException as error:
            errors.append(str(error))
    assert errors
    assert all("START" in error for error in errors)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("proxy", PROXIES)
def test_prompts_with_the_same_prefix_go_to_one_replica(
    connect: Callable[[str, str], OneClient], proxy: str, protocol: str
) -> None:
    client = connect(proxy, protocol)
    places = [{client.replica({"x-prompt-cache-key": key}) for _ in range(3)} for key in map(str, range(12))]
    assert all(len(place) == 1 for place in places)
    assert len(set().union(*places)) > 1


def test_haproxy_sends_no_requests_to_an_unready_replica(
    replicas: Replicas, connect: Callable[[str, str], OneClient]
) -> None:
    clients = [connect("haproxy", protocol) for protocol in PROTOCOLS]
    repository = f"http://127.0.0.1:{replicas.port('b')}/v2/repository/models/broken"
    with pytest.raises(OSError, match="HTTP Error"):
        urllib.request.urlopen(f"{repository}/load", data=b"{}", timeout=30)
    for client in clients:
        wait_until(lambda client=client: {client.replica() for _ in range(6)} == {"a", "c"})
    ends = [{"name": "INPUT0", "data_type": "TYPE_INT32", "dims": [1]}]
    config = {"backend": "identity", "input": ends, "output": [{**ends[0], "name": "OUTPUT0"}]}
    body = json.dumps({"parameters": {"config": json.dumps(config)}}).encode()
    with urllib.request.urlopen(f"{repository}/load", data=body, timeout=30):
        pass
    for client in clients:
        wait_until(lambda client=client: {client.replica() for _ in range(6)} == set(NAMES))


def test_a_rolling_restart_loses_no_request(replicas: Replicas, proxies: dict[str, Proxy]) -> None:
    streams = [
        make(proxies[proxy], key_of(OneClient(proxies[proxy], protocol), "a"))
        for proxy in PROXIES
        for protocol, make in (("http", SseStream), ("grpc", GrpcStream))
    ]
    for stream in streams:
        wait_until(lambda stream=stream: stream.text)
        # The first words come while the last ones are not generated: no proxy buffers them.
        assert not stream.ended
    with ProxyLoad(list(proxies.values()), "quick").running() as load:
        for name in NAMES:
            load.until_more(20)
            replicas.stop(name)
            replicas.start(name)
    assert load.failures == []
    for stream in streams:
        wait_until(lambda stream=stream: stream.ended)
        assert stream.text == WORDS


def test_a_sequence_ends_on_a_replica_that_stops(replicas: Replicas, proxies: dict[str, Proxy]) -> None:
    clients = [OneClient(proxies[proxy], protocol) for proxy in PROXIES for protocol in PROTOCOLS]
    headers = [{"x-session-id": key_of(client, "c", "x-session-id")} for client in clients]

    def ask(step: int, **ends: bool) -> None:
        for number, client in enumerate(clients):
            assert client.infer("sequence", step, headers[number], sequence_id=2000 + number, **ends) == step

    ask(1, sequence_start=True)
    stopping = threading.Thread(target=replicas.stop, args=("c",))
    stopping.start()
    replicas.processes["c"].until_logged("Not ready; stopping in")
    ask(2)
    ask(3, sequence_end=True)
    stopping.join()
    replicas.start("c")


def test_a_killed_replica_loses_only_its_requests_in_flight(replicas: Replicas, proxies: dict[str, Proxy]) -> None:
    wait_for_all(proxies)
    kinds = [(proxies[proxy], protocol) for proxy in PROXIES for protocol in PROTOCOLS for _ in NAMES]
    with ThreadPoolExecutor(len(kinds)) as threads:
        held = [threads.submit(hold, *kind) for kind in kinds]
        try:
            # Each replica executes one request, the others wait.
            wait_until(lambda: sum(replicas.pending(name) for name in NAMES) == len(held) - len(NAMES))
            received = 1 + replicas.pending("b")
            replicas.kill("b")
            with ProxyLoad(list(proxies.values()), "quick").running() as load:
                load.until_more(40)
                replicas.gate.touch()
                failed = [call for call in held if call.exception(60) is not None]
                replicas.start("b")
                load.until_more(20)
        finally:
            replicas.gate.touch()
    assert load.failures == []
    assert len(failed) == received
    wait_for_all(proxies)


def wait_for_all(proxies: dict[str, Proxy]) -> None:
    """Wait until every replica gets requests of every proxy: some may have started just now."""
    for proxy in proxies.values():
        for protocol in PROTOCOLS:
            client = OneClient(proxy, protocol)
            wait_until(lambda client=client: {client.replica() for _ in range(6)} == set(NAMES))
            client.close()


def hold(proxy: Proxy, protocol: str) -> None:
    """Send a request that waits, on a connection that was used before. tritonclient's belong to a thread."""
    client = OneClient(proxy, protocol)
    client.infer("quick", 1)
    client.infer("held", 1)
    client.close()


def key_of(client: OneClient, replica: str, header: str = "x-prompt-cache-key") -> str:
    """Return a value of an affinity header that selects this replica."""
    keys = count()
    key = ""

    def selects() -> bool:
        nonlocal key
        key = f"{header}-{next(keys)}-{id(client)}"
        return client.replica({header: key}) == replica

    wait_until(selects)  # it may have started just now
    return key


class SseStream:
    """A completion that streams in a thread."""

    def __init__(self, proxy: Proxy, key: str) -> None:
        body = {"model": "words", "prompt": "x", "stream": True, "max_tokens": 100}
        self._request = urllib.request.Request(
            f"http://{proxy.http}/v1/completions",
            json.dumps(body).encode(),
            {"content-type": "application/json", "x-prompt-cache-key": key},
        )
        self.text = ""
        self.ended = False
        threading.Thread(target=self._read).start()

    def _read(self) -> None:
        with urllib.request.urlopen(self._request, timeout=60) as response:
            for line in response:
                if line.startswith(b"data: {"):
                    self.text += json.loads(line[6:])["choices"][0]["text"]
                elif line.startswith(b"data: [DONE]"):
                    self.ended = True


class GrpcStream:
    """A stream of tritonclient with one request."""

    def __init__(self, proxy: Proxy, key: str) -> None:
        self.text = ""
        self.ended = False
        self._client = tritonclient.grpc.InferenceServerClient(proxy.grpc)
        self._client.start_stream(self._received, headers={"x-prompt-cache-key": key})
        given = tritonclient.grpc.InferInput("text_input", [1], "BYTES")
        given.set_data_from_numpy(np.array([b"x"], object))
        stream = tritonclient.grpc.InferInput("stream", [1], "BOOL")
        stream.set_data_from_numpy(np.array([True]))
        self._client.async_stream_infer(
            "words", [given, stream], enable_empty_final_response=True, parameters={"max_tokens": 100}
        )

    def _received(self, result: Any, error: Any) -> None:
        if error is not None:
            if not self.ended:
                self.text += f"<{error}>"
            return
        final = result.get_response().parameters.get("triton_final_response")
        output = result.as_numpy("text_output")
        if output is not None:
            self.text += output.item().decode()
        self.ended = final is not None and final.bool_param
