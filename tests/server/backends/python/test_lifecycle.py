"""A model's life beside `execute`: import, `initialize`, `is_ready`, `finalize`, and what it writes meanwhile."""

import asyncio
import json
import logging
import re
from pathlib import Path

import numpy as np
import pytest

from conch.base.errors import ConfigError, ModelLoadError
from conch.domain.tensor import Tensor
from conch.server.backends.processes import child_process
from conch.server.backends.python.backend import PythonBackend
from conch.server.backends.python.settings import parse_settings
from tests.server.backends.python.running import IDENTITY, TIMEOUT_S, Runner, plan, running, source, write_model

EMPTY = """
    class TritonPythonModel:
        def execute(self, requests):
            return [None]
"""

TELLS = """
    import json
    import sys
    import helper
    import shared_helper
    import numpy as np
    import triton_python_backend_utils as pb_utils
    from c_python_backend_utils import InferenceRequest

    class TritonPythonModel:
        def initialize(self, args):
            self.args = args

        def execute(self, requests):
            config = json.loads(self.args["model_config"])
            seen = {
                "args": self.args,
                "helper": helper.WORD,
                "shared": shared_helper.WORD,
                "module": __name__,
                "directory": pb_utils.get_model_dir(),
                "input": pb_utils.get_input_config_by_name(config, "IN"),
                "output": pb_utils.get_output_config_by_name(config, "OUT"),
                "no output": pb_utils.get_output_config_by_name(config, "NOPE"),
                "decoupled": pb_utils.using_decoupled_model_transaction_policy(config),
                "same class": InferenceRequest is pb_utils.InferenceRequest,
                "strings": all(isinstance(v, str) for v in self.args.values()),
                "stdin": sys.stdin.read(),
            }
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([json.dumps(seen)], dtype=object))])]
"""

CHATTY = """
    import sys
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            print("printed in initialize")
            pb_utils.Logger.log_warn("warned in initialize")

        def execute(self, requests):
            print("first\\nsecond")
            print("to stderr", file=sys.stderr)
            sys.stdout.buffer.write(b"not \\xff utf-8\\n")
            sys.stdout.write("y" * 40000 + "\\n")
            pb_utils.Logger.log_info("info")
            pb_utils.Logger.log_warn("warning")
            pb_utils.Logger.log_error("error\\nof two lines")
            pb_utils.Logger.log_verbose("verbose")
            pb_utils.Logger.log("plain")
            pb_utils.Logger.log("with level", pb_utils.Logger.WARNING)
            return [pb_utils.InferenceResponse([])]

        def finalize(self):
            pb_utils.Logger.log_info("finalized")
            print("no newline at the end", end="")
"""

READINESS = """
    import asyncio
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            self.answer = "True"

        def execute(self, requests):
            self.answer = requests[0].request_id()
            return [pb_utils.InferenceResponse([])]

        def is_ready(self):
            if self.answer == "raise":
                raise RuntimeError("not at all")
            if self.answer.startswith("async "):
                return self.later(self.answer[6:])
            return {"True": True, "False": False, "1": 1, "None": None}[self.answer]

        async def later(self, answer):
            await asyncio.sleep(0)
            return answer == "True"
"""

SLOW_START = """
    import time

    class TritonPythonModel:
        def initialize(self, args):
            time.sleep(600)

        def execute(self, requests):
            pass
"""


WAITING_START = """
    import os
    import time

    class TritonPythonModel:
        def initialize(self, args):
            while not os.path.exists(os.path.join(args["model_repository"], "continue")):
                time.sleep(0.01)

        def execute(self, requests):
            pass
"""


def progress_lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    lines = [(getattr(record, "instance", ""), record.getMessage()) for record in caplog.records]
    return [line for line in lines if "still" in line[1]]


async def test_a_model_finds_its_arguments_and_its_modules(tmp_path: Path) -> None:
    write_model(tmp_path, "WORD = 'beside the model'", 3, "helper.py")
    (tmp_path / "shared_helper.py").write_text("WORD = 'in the model directory'")
    document = {
        "name": "model",
        "input": [{"name": "IN", "data_type": "TYPE_FP32", "dims": ["4"]}],
        "output": [{"name": "OUT"}],
        "model_transaction_policy": {"decoupled": False},
    }
    async with running(tmp_path, TELLS, version=3, document=document) as runner:
        response = await runner.infer()
    seen = json.loads(response.outputs[0].to_numpy()[0])
    assert json.loads(seen["args"].pop("model_config")) == document
    assert seen["args"] == {
        "model_instance_kind": "CPU",
        "model_instance_name": "model_0_0",
        "model_instance_device_id": "0",
        "model_repository": str(tmp_path),
        "model_version": "3",
        "model_name": "model",
    }
    assert seen["helper"] == "beside the model"
    assert seen["shared"] == "in the model directory"
    assert seen["module"] == "3.model"
    assert seen["directory"] == str(tmp_path / "3")
    assert seen["input"] == document["input"][0]
    assert seen["output"] == {"name": "OUT"}
    assert seen["no output"] is None
    assert seen["decoupled"] is False
    assert seen["same class"]
    assert seen["strings"]
    assert seen["stdin"] == ""


async def test_two_versions_side_by_side(tmp_path: Path) -> None:
    code = """
        import numpy as np
        import triton_python_backend_utils as pb_utils
        from helper import NUMBER

        class TritonPythonModel:
            def execute(self, requests):
                return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([NUMBER]))])]
    """
    for version in (1, 2):
        write_model(tmp_path, f"NUMBER = {version}", version, "helper.py")
    async with running(tmp_path, code, version=1) as first, running(tmp_path, code, version=2) as second:
        for version, runner in [(1, first), (2, second)]:
            response = await runner.infer()
            assert response.outputs[0].to_numpy().tolist() == [version]
            assert response.model_version == version


async def test_another_filename(tmp_path: Path) -> None:
    async with running(tmp_path, IDENTITY, filename="other.py") as runner:
        assert await runner.infer(Tensor.from_numpy("IN0", np.zeros(1)))


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("no python code", "SyntaxError: "),
        ("class Another: pass", "defines no class TritonPythonModel"),
        ("class TritonPythonModel: pass", "class TritonPythonModel has no method 'execute'"),
        ("import sys; sys.exit(4)", "SystemExit: 4"),
        (
            EMPTY + "\n        def initialize(self, args): raise KeyError('k')",
            "KeyError: 'k'\n\nAt:\n  {directory}/1/model.py(6): initialize",
        ),
    ],
)
async def test_a_model_that_cannot_be_loaded_says_why(tmp_path: Path, code: str, words: str) -> None:
    with pytest.raises(ModelLoadError) as raised:
        async with running(tmp_path, code):
            pass
    assert str(raised.value).startswith("model instance 'model_0_0' failed to initialize: ")
    assert words.replace("{directory}", str(tmp_path)) in str(raised.value)
    assert "importlib" not in str(raised.value)


@pytest.mark.parametrize("filename", ["absent.py", "model.txt"])
async def test_a_missing_file_is_named(tmp_path: Path, filename: str) -> None:
    write_model(tmp_path, EMPTY)
    instance = PythonBackend().instance(plan(source(tmp_path, filename=filename)))
    with pytest.raises(ModelLoadError, match=f"{tmp_path}/1/{filename}"):
        await instance.start()


async def test_initialize_has_a_time_limit(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="initialize of model instance 'model_0_0' took longer than 1 s"):
        async with running(tmp_path, SLOW_START, settings={"stub-timeout-seconds": "1"}):
            pass


async def test_initialize_may_take_any_time_and_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert parse_settings({}).start_timeout_s is None
    monkeypatch.setattr(child_process, "REPORT_INTERVAL_S", 0.05)
    caplog.set_level(logging.INFO, "conch.model")
    write_model(tmp_path, WAITING_START)
    backend = PythonBackend()
    instance = backend.instance(plan(source(tmp_path)))
    starting = asyncio.create_task(instance.start())
    while len(progress_lines(caplog)) < 2:
        await asyncio.sleep(0.01)
    (tmp_path / "continue").touch()
    await starting
    await instance.stop()
    await backend.stop()
    lines = progress_lines(caplog)
    assert re.fullmatch(r"model 'model' is still initializing after \d+ s", lines[0][1])
    assert {name for name, _ in lines} == {"model_0_0"}
    await asyncio.sleep(0.1)
    assert progress_lines(caplog) == lines


async def test_settings_must_make_sense(tmp_path: Path) -> None:
    for key in ("stub-timeout-seconds", "shm-default-byte-size", "shm-growth-byte-size", "shm-limit-byte-size"):
        with pytest.raises(ConfigError, match=f"--backend-config=python,{key}=many"):
            async with running(tmp_path, EMPTY, settings={key: "many"}):
                pass


async def test_what_a_model_writes_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "conch.model")
    async with running(tmp_path, CHATTY) as runner:
        await runner.infer()
    records = [(record.levelname, record.getMessage(), getattr(record, "source", "")) for record in caplog.records]
    assert {record.name for record in caplog.records} == {"conch.model"}
    assert {record.instance for record in caplog.records} == {"model_0_0"}
    printed = [message for _, message, source in records if source == "stdout"]
    assert printed[:4] == ["printed in initialize", "first", "second", "not \ufffd utf-8"]
    assert "".join(printed[4:-1]) == "y" * 40000
    assert printed[-1] == "no newline at the end"
    assert ("WARNING", "to stderr", "stderr") in records
    logged = [(level, message) for level, message, source in records if source.startswith("model.py:")]
    assert logged == [
        ("WARNING", "warned in initialize"),
        ("INFO", "info"),
        ("WARNING", "warning"),
        ("ERROR", "error"),
        ("INFO", "plain"),
        ("WARNING", "with level"),
        ("INFO", "finalized"),
    ]
    assert [record.block for record in caplog.records if record.getMessage() == "error"] == ["of two lines"]
    line = CHATTY.splitlines().index('            pb_utils.Logger.log_info("info")') + 1
    assert ("INFO", "info", f"model.py:{line}") in records


async def test_the_log_level_is_the_server_s_and_may_change(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "conch.model")
    async with running(tmp_path, CHATTY) as runner:
        await runner.infer()
        assert {record.levelname for record in caplog.records} == {"ERROR"}
        caplog.set_level(logging.DEBUG, "conch.model")
        await runner.infer()
        assert "verbose" in [record.getMessage() for record in caplog.records]


async def test_finalize_is_called(tmp_path: Path) -> None:
    code = """
        import os
        class TritonPythonModel:
            def initialize(self, args):
                self.marker = os.path.join(args["model_repository"], "finalized")
            def execute(self, requests):
                pass
            def finalize(self):
                open(self.marker, "w").close()
    """
    async with running(tmp_path, code) as runner:
        assert not (tmp_path / "finalized").exists()
        await runner.instance.stop()
        assert (tmp_path / "finalized").exists()
        assert not runner.instance.ready
        await runner.instance.stop()


async def test_a_failing_finalize_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    code = EMPTY + "\n        def finalize(self):\n            raise RuntimeError('no end')"
    async with running(tmp_path, code):
        pass
    assert any("finalize of model instance 'model_0_0' failed" in record.getMessage() for record in caplog.records)


async def test_stop_lets_a_batch_finish(tmp_path: Path) -> None:
    code = """
        import os, time
        import triton_python_backend_utils as pb_utils
        class TritonPythonModel:
            def execute(self, requests):
                while not os.path.exists(os.path.join(pb_utils.get_model_dir(), "go")):
                    time.sleep(0.01)
                return [pb_utils.InferenceResponse([])]
    """
    async with running(tmp_path, code) as runner:
        caller = runner.submit()
        stop = asyncio.create_task(runner.instance.stop())
        await asyncio.sleep(0)
        (tmp_path / "1" / "go").touch()
        assert await caller.response()
        await stop


async def set_answer(runner: Runner, answer: str) -> bool:
    await runner.infer(id=answer)
    return await asyncio.wait_for(runner.instance.check_ready(), TIMEOUT_S)


async def test_is_ready_is_asked(tmp_path: Path) -> None:
    async with running(tmp_path, READINESS) as runner:
        assert await runner.instance.check_ready()
        for answer, expected in [
            ("False", False),
            ("True", True),
            ("raise", False),
            ("async True", True),
            ("async False", False),
            ("1", False),
            ("None", False),
        ]:
            assert await set_answer(runner, answer) is expected, answer
        together = await asyncio.gather(*(runner.instance.check_ready() for _ in range(5)))
        assert together == [False] * 5
    assert not await runner.instance.check_ready()


async def test_a_model_without_is_ready_is_ready(tmp_path: Path) -> None:
    async with running(tmp_path, EMPTY) as runner:
        assert await runner.instance.check_ready()
