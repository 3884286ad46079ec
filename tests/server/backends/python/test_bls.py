"""Models that call models, through a running server and the official clients."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

from tests.server.backends.python.bls import ask_grpc, ask_http, ask_stream, question, write_repository
from tests.support.server_process import ConchProcess


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("bls") / "models"
    write_repository(root)
    return root


@pytest.fixture(scope="module")
def threads() -> int:
    """How many threads this process had before the tests here."""
    return threading.active_count()


@pytest.fixture(scope="module")
def conch(root: Path, threads: int) -> Iterator[ConchProcess]:
    flags = ("--model-control-mode=explicit", "--load-model=*")
    with ConchProcess(root, *flags, log=root.parent / "log") as server:
        yield server


@pytest.fixture
def ask(conch: ConchProcess) -> Callable[..., Any]:
    return lambda code, model="probe": ask_http(conch.http, code, model)


def refused(model: str, text: str) -> str:
    return f"Model {model} - Error when running inference: {text}"


def not_ready(model: str, reason: str) -> str:
    text = (
        f"Failed for execute the inference request. Model '{model}' is not ready. Request for unknown model: {reason}"
    )
    return refused(model, text)


DECOUPLED = refused(
    "stream",
    "Model stream is using the decoupled. The current BLS request call doesn't support models using the decoupled "
    "transaction policy. Please use 'decoupled=True' argument to the 'exec' or 'async_exec' calls for decoupled "
    "models.'",
)
CASES: list[tuple[str, Any]] = [
    ("new('add', 1, 2).exec()", {"OUT": [2, 3]}),
    ("new('add', 1, outputs=()).exec()", {"OUT": [2], "TWICE": [2]}),
    ("new('add', 1, outputs=('TWICE',)).exec()", {"TWICE": [2]}),
    ("new('add', 1, model_version=1).exec()", {"OUT": [2]}),
    ("new('add', 1, preferred_memory=pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_CPU)).exec()", {"OUT": [2]}),
    ("new('add', 1, trace=request.trace()).exec()", {"OUT": [2]}),
    ("new('twice', 1).exec()", {"OUT": [3]}),
    ("new('add', -1).exec()", ["negative", 2]),
    ("new('add', 1, outputs=('NO',)).exec()",
     [refused("add", "unexpected inference output 'NO' for model 'add'; its outputs are ['OUT','TWICE']"), 3]),
    ("new('nobody', 1).exec()", [not_ready("nobody", "'nobody' is not found"), 2]),
    ("new('add', 1, model_version=7).exec()", [not_ready("add", "'add' version 7 is not found"), 2]),
    ("new('stream', 1).exec()", [DECOUPLED, 5]),
]  # fmt: skip


@pytest.mark.parametrize(("call", "expected"), CASES, ids=[call for call, _ in CASES])
def test_a_call_is_answered(ask: Callable[..., Any], call: str, expected: Any) -> None:
    assert ask(f"result = shown({call})") == expected


def test_a_call_is_awaited(ask: Callable[..., Any]) -> None:
    together = ask(
        """
        calls = [new('add', number).async_exec() for number in range(100)]
        return [shown(response) for response in await asyncio.gather(*calls)]
        """,
        "awaiting",
    )
    assert together == [{"OUT": [number + 1]} for number in range(100)]
    assert ask("return shown(await new('nobody', 1).async_exec())", "awaiting")[1] == 2


ITEMS = [{"OUT": [0]}, {"OUT": [1]}]


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("new('stream', 2)", [*ITEMS, {}]),
        ("new('stream', 2, 1)", ITEMS),
        ("new('stream', 0)", [{}]),
        ("new('add', 1)", [{"OUT": [2]}]),
        ("new('add', -1)", [["negative", 2]]),
    ],
)
def test_responses_are_iterated_over(ask: Callable[..., Any], call: str, expected: Any) -> None:
    assert ask(f"result = [shown(response) for response in {call}.exec(decoupled=True)]") == expected
    assert ask(f"return [shown(answer) for answer in await {call}.async_exec(decoupled=True)]", "awaiting") == expected
    assert (
        ask(f"return [shown(answer) async for answer in await {call}.async_exec(decoupled=True)]", "awaiting")
        == expected
    )


def test_an_iterator_is_cancelled(ask: Callable[..., Any]) -> None:
    assert ask(
        """
        responses = new('stream', 10**9).exec(decoupled=True)
        first = shown(next(responses))
        responses.cancel()
        last = [shown(response) for response in responses][-1]
        result = [first, last, shown(next(iter(new('stream', 1).exec(decoupled=True))))]
        """
    ) == [{"OUT": [0]}, ["the call was cancelled", 7], {"OUT": [0]}]


def test_unread_responses_are_bounded(ask: Callable[..., Any], root: Path) -> None:
    number, (text, code) = ask(
        f"""
        responses = new('flood', 10**6).exec(decoupled=True)
        until({str(root / "flood" / "stopped")!r})
        *read, last = responses
        result = [sum(len(response.output_tensors()) for response in read), shown(last)]
        """
    )
    assert 256 <= number * 4 <= 260
    assert code == 4
    assert "the model reads too slowly" in text
    assert (
        ask(
            f"""
            result = 0
            for response in new('flood', 80, 40).exec(decoupled=True):
                result += len(response.output_tensors())
                with open({str(root / "flood" / "read")!r}, "a") as book:
                    book.write("x")
            """
        )
        == 80
    )


def test_a_deleted_iterator_ends_by_itself(ask: Callable[..., Any]) -> None:
    assert ask("new('stream', 2000).exec(decoupled=True); gc.collect(); result = shown(new('add', 1).exec())") == {
        "OUT": [2]
    }


def test_what_is_said_of_a_call_arrives(ask: Callable[..., Any]) -> None:
    assert ask(
        """
        request = new('tells', 1, outputs=['RESULT'], request_id='7', correlation_id=5, flags=3, timeout=9_000_000,
                      parameters={'number': 1, 'text': 'x', 'yes': True})
        result = json.loads(request.exec().output_tensors()[0].as_numpy()[0])
        """
    ) == ["7", 5, 3, 9_000_000, {"number": 1, "text": "x", "yes": True}, ["RESULT"]]


def test_calls_from_many_threads(ask: Callable[..., Any]) -> None:
    assert ask(
        """
        with ThreadPoolExecutor(8) as pool:
            results = list(pool.map(lambda number: shown(new('add', number).exec()), range(400)))
        result = [response['OUT'][0] for response in results]
        """
    ) == list(range(1, 401))


def test_thousands_of_calls_leave_nothing_behind(ask: Callable[..., Any], conch: ConchProcess) -> None:
    code = """
        from conch_child.python.api.session import current
        for number in range(3000):
            new('add', number).exec()
        big = np.ones(100_000, np.float32)
        for number in range(50):
            tensor = pb_utils.Tensor("INPUT0", big)
            response = pb_utils.InferenceRequest(model_name="large", inputs=[tensor], requested_output_names=[]).exec()
        del response
        channel = current().channel
        result = [len(current().calls._in_flight), channel.inputs.in_use, len(channel._waiters)]
        """
    assert ask(code, "lone") == [0, 0, 0]
    assert 'nv_inference_request_success{model="add"' in conch.metrics()


def test_received_tensors_are_passed_on_without_a_copy(ask: Callable[..., Any]) -> None:
    code = """
        from conch_child.python.api.session import current
        channel = current().channel
        tensor = new('add', *range(100_000)).exec().output_tensors()[0]
        used = []
        for number in range(3):
            inputs = [pb_utils.Tensor.from_dlpack("IN", tensor)]
            call = pb_utils.InferenceRequest(model_name="add", inputs=inputs, requested_output_names=["OUT"])
            del inputs, tensor
            tensor = call.exec().output_tensors()[0]
            del call
            used.append(channel.outputs.used)
        values = tensor.as_numpy()
        result = [used, float(values[0]), float(values[-1]), values.flags.writeable]
        del tensor, values
        while channel.outputs._lent or channel.inputs.in_use:
            new('add', 1).exec()
        """
    used, first, last, writeable = ask(code, "lone")
    assert used == [used[0]] * 3
    assert used[0] < 400_000
    assert (first, last, writeable) == (4, 100_003, True)


def test_large_tensors(ask: Callable[..., Any]) -> None:
    assert (
        ask(
            """
        sent = np.arange(5_000_000, dtype=np.float32)
        request = pb_utils.InferenceRequest(
            model_name="large", inputs=[pb_utils.Tensor("INPUT0", sent)], requested_output_names=["OUTPUT0"])
        came = [request.exec().output_tensors()[0].as_numpy() for _ in range(3)]
        result = [bool((response == sent).all()) for response in came]
        """
        )
        == [True] * 3
    )


def test_large_outputs_are_passed_on_without_reaching_the_caller(ask: Callable[..., Any]) -> None:
    code = """
        from conch_child.python.api.session import current
        channel = current().channel

        def call(tensor):
            inputs = [pb_utils.Tensor.from_dlpack("INPUT0", tensor)]
            return pb_utils.InferenceRequest(
                model_name="large", inputs=inputs, requested_output_names=["OUTPUT0"]
            ).exec().output_tensors()[0]

        sent = np.arange(2_000_000, dtype=np.float32)
        tensor = call(call(call(pb_utils.Tensor("INPUT0", sent))))
        shared = pb_utils.Tensor.from_dlpack("OTHER", tensor)
        received = channel.inputs.in_use
        values = tensor.as_numpy()
        values[0] = 7  # other tensors of the same memory see this, and so does a model that is called
        same = [bool((values[1:] == sent[1:]).all()), float(shared.as_numpy()[0])]
        result = [received, channel.inputs.in_use, *same]
        again = call(shared)  # is copied at once, as the model has read this output before
        result += [channel.inputs.in_use, float(again.as_numpy()[0])]
        del tensor, shared, values, again
        while channel.inputs.in_use:
            new('add', 1).exec()
        """
    assert ask(code, "other") == [0, 1, True, 7, 2, 7]


def test_a_model_cannot_call_before_and_after_its_execution(tmp_path: Path) -> None:
    write_repository(tmp_path / "models")
    model = tmp_path / "models" / "probe" / "1" / "model.py"
    model.write_text(
        model.read_text()
        + """
    def initialize(self, args):
        try:
            new('add', 1).exec()
        except pb_utils.TritonModelException as error:
            pb_utils.Logger.log_info(f"initialize: {error}")

    def finalize(self):
        try:
            new('add', 1).exec()
        except pb_utils.TritonModelException as error:
            pb_utils.Logger.log_info(f"finalize: {error}")
"""
    )
    with ConchProcess(tmp_path / "models", log=tmp_path / "log") as conch:
        pass
    for phase in ("initialize", "finalize"):
        assert f"{phase}: BLS is only supported during the 'execute' function." in conch.text


@pytest.mark.parametrize("protocol", [ask_http, ask_grpc, ask_stream])
def test_over_every_protocol(conch: ConchProcess, protocol: Callable[..., Any]) -> None:
    address = conch.http if protocol is ask_http else conch.grpc
    assert protocol(address, "result = shown(new('add', 1).exec())") == {"OUT": [2]}


def test_time_outs_and_bounds_of_queues_hold_for_calls(ask: Callable[..., Any], tmp_path: Path) -> None:
    full = "[request id: <id_unknown>] Exceeds maximum queue size"
    assert ask(
        f"""
        def patient():
            while isinstance(found := run('bounded', 'result = 2'), list):  # the other one is in the queue
                pass
            return found

        with ThreadPoolExecutor(2) as pool:
            busy = pool.submit(run, 'bounded', "open('{tmp_path / "begun"}', 'w').close(); until('{tmp_path / "go"}')")
            until('{tmp_path / "begun"}')
            late = run('bounded', 'result = 1', timeout=1000)
            waits = pool.submit(patient)
            while True:  # until the one before is in the queue
                third = run('bounded', 'result = 3', timeout=1000)
                if 'maximum queue size' in third[0]:
                    break
            open('{tmp_path / "go"}', 'w').close()
            result = [late, third, busy.result(), waits.result()]
        """
    ) == [["Request timeout expired", 4], [refused("bounded", full), 4], None, 2]


def test_more_calls_than_run_at_once_wait_their_turn(ask: Callable[..., Any]) -> None:
    answers = ask(
        """
        calls = [new('add', number).async_exec() for number in range(1000)]
        calls[500].cancel()
        answers = await asyncio.gather(*calls, return_exceptions=True)
        return [repr(answer) if isinstance(answer, BaseException) else shown(answer)['OUT'][0] for answer in answers]
        """,
        "awaiting",
    )
    assert answers.pop(500).startswith("CancelledError")
    assert answers == [number + 1 for number in range(1000) if number != 500]


# ── calls that wait for each other ──


def test_a_call_that_can_only_wait_for_itself_is_refused(ask: Callable[..., Any]) -> None:
    text, code = ask("result = run('lone', 'result = 1')", "lone")
    assert code == 4
    assert "the call of model 'lone' to model 'lone' can only wait for itself: lone → lone" in text
    assert "more instances of 'lone'" in text


def test_a_circle_of_calls_is_named(ask: Callable[..., Any]) -> None:
    inner = "result = run('lone', 'result = 1')"
    text, _ = ask(f'result = run("other", "{inner}")', "lone")
    assert "the call of model 'other' to model 'lone' can only wait for itself: lone → other → lone" in text


def test_a_circle_through_an_ensemble_is_named(ask: Callable[..., Any]) -> None:
    text, _ = ask("result = run('around', 'result = 1')", "other")
    assert "can only wait for itself: other → around" in text


def test_two_callers_that_hold_every_instance(ask: Callable[..., Any], tmp_path: Path) -> None:
    code = """
        open('{mine}', 'w').close()
        until('{other}')
        result = run('pair', 'result = 1')
        """
    with ThreadPoolExecutor() as pool:
        first = pool.submit(ask, code.format(mine=tmp_path / "1", other=tmp_path / "2"), "pair")
        second = pool.submit(ask, code.format(mine=tmp_path / "2", other=tmp_path / "1"), "pair")
        results = [first.result(), second.result()]
    assert 1 in results  # the instance of the one that was refused has served the other
    assert any(isinstance(result, list) and "pair → pair" in result[0] for result in results)


def test_a_model_with_a_free_instance_may_call_itself(ask: Callable[..., Any]) -> None:
    assert ask("result = run('pair', 'result = 1')", "pair") == 1


def test_waiting_for_a_busy_model_is_not_a_deadlock(ask: Callable[..., Any], tmp_path: Path) -> None:
    with ThreadPoolExecutor() as pool:
        busy = pool.submit(ask, f"until('{tmp_path / 'go'}'); result = 2", "lone")
        waits = pool.submit(ask, "result = run('lone', 'result = 1')", "other")
        ask(f"time.sleep(0.05); open('{tmp_path / 'go'}', 'w').close()")
        assert (busy.result(), waits.result()) == (2, 1)


# ── what goes wrong midway ──


def gone(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, path
        time.sleep(0.01)


def test_a_cancelled_caller_takes_its_call_along(conch: ConchProcess, root: Path) -> None:
    begun, cancelled = root / "endless" / "begun", root / "endless" / "cancelled"
    begun.unlink(missing_ok=True)
    cancelled.unlink(missing_ok=True)
    with grpcclient.InferenceServerClient(conch.grpc) as client:
        call = client.async_infer(
            "probe", question(grpcclient, "result = shown(new('endless', 1).exec())"), lambda result, error: None
        )
        gone(begun)
        call.cancel()
        gone(cancelled)


def test_a_cancelled_task_takes_its_call_along(ask: Callable[..., Any], root: Path) -> None:
    begun, cancelled = root / "endless" / "begun", root / "endless" / "cancelled"
    begun.unlink(missing_ok=True)
    cancelled.unlink(missing_ok=True)
    code = f"""
        call = new('endless', 1).async_exec()
        while not os.path.exists('{begun}'):
            await asyncio.sleep(0.005)
        call.cancel()
        while not os.path.exists('{cancelled}'):
            await asyncio.sleep(0.005)
        return shown(await new('add', 1).async_exec())
        """
    assert ask(code, "awaiting") == {"OUT": [2]}


def test_the_death_of_the_called_model_is_an_error(ask: Callable[..., Any]) -> None:
    text, code = ask("result = shown(new('add', -3).exec())")
    assert code == 1
    assert "Stub process 'add_0' is not healthy" in text
    assert ask("result = shown(new('add', 1).exec())") == {"OUT": [2]}
    text, code = ask("result = shown(new('add', -2).exec())")
    assert "ValueError: boom" in text


def test_the_death_of_the_caller_cancels_its_call(conch: ConchProcess, root: Path) -> None:
    begun, cancelled = root / "endless" / "begun", root / "endless" / "cancelled"
    begun.unlink(missing_ok=True)
    cancelled.unlink(missing_ok=True)
    pid = ask_http(conch.http, "result = os.getpid()", "crashing")

    def ask_it() -> str:
        with pytest.raises(InferenceServerException) as caught:
            ask_http(conch.http, "result = shown(new('endless', 1).exec())", "crashing")
        return str(caught.value.message())

    with ThreadPoolExecutor() as pool:
        answer = pool.submit(ask_it)
        gone(begun)
        os.kill(pid, signal.SIGKILL)
        gone(cancelled)
        assert "is not healthy" in answer.result()
    assert ask_http(conch.http, "result = shown(new('add', 1).exec())", "crashing") == {"OUT": [2]}


def test_a_process_that_fetches_what_is_not_kept_for_it_is_killed(ask: Callable[..., Any]) -> None:
    code = """
        from conch_child.python.api.session import current
        big = pb_utils.Tensor("INPUT0", np.ones(2**19, np.float32))
        call = pb_utils.InferenceRequest(model_name="large", inputs=[big], requested_output_names=[])
        kept = call.exec().output_tensors()[0]._data
        current().channel.send((44, 7, kept.place))
        current().channel.send((44, 8, kept.place))
        new('add', 1).exec()
        time.sleep(60)
        """
    with pytest.raises(InferenceServerException, match="is not healthy"):
        ask(code, "crashing")


# ── the lives of models ──


def test_a_model_loads_unloads_and_asks_for_others(conch: ConchProcess) -> None:
    code = """
        states = [pb_utils.is_model_ready('large'), pb_utils.is_model_ready('large', '9')]
        pb_utils.unload_model('large')
        states.append(pb_utils.is_model_ready('large'))
        pb_utils.load_model('large')
        states.append(pb_utils.is_model_ready('large', '1'))
        try:
            pb_utils.load_model('nobody')
        except pb_utils.TritonModelException as error:
            states.append(str(error))
        result = states
        """
    *states, error = ask_http(conch.http, code)
    assert states == [True, False, False, True]
    assert error.startswith("Failed to load model: Failed to process the request for model 'probe_0_")
    assert ", message: failed to load 'nobody', failed to poll from model repository" in error


def test_a_model_is_loaded_from_files(conch: ConchProcess) -> None:
    code = """
        source = "\\n".join([
            "import triton_python_backend_utils as pb_utils",
            "class TritonPythonModel:",
            "    def execute(self, requests):",
            "        arrays = [request.inputs()[0].as_numpy() * 3 for request in requests]",
            "        return [pb_utils.InferenceResponse([pb_utils.Tensor('OUT', array)]) for array in arrays]",
        ]).encode()
        config = json.dumps({"backend": "python",
            "input": [{"name": "IN", "data_type": "TYPE_FP32", "dims": [-1]}],
            "output": [{"name": "OUT", "data_type": "TYPE_FP32", "dims": [-1]}]})
        pb_utils.load_model('thrice', config, {"file:1/model.py": source})
        result = shown(new('thrice', 2).exec())
        pb_utils.unload_model('thrice')
        """
    assert ask_http(conch.http, code) == {"OUT": [6]}


def test_the_server_is_idle_in_the_end(conch: ConchProcess, threads: int) -> None:
    # Whatever the tests before have done, nothing waits: everything can be unloaded.
    with httpclient.InferenceServerClient(conch.http) as client:
        for row in client.get_model_repository_index():
            client.unload_model(row["name"])
        deadline = time.monotonic() + 60
        while any(row.get("state") != "UNAVAILABLE" for row in client.get_model_repository_index()):
            assert time.monotonic() < deadline
            time.sleep(0.02)
    assert threading.active_count() < threads + 10
