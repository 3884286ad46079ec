"""`auto_complete_config`: what a model may add to its configuration, and what it may not contradict."""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from conch.base.errors import ModelLoadError
from conch.server.backends.python.backend import PythonBackend
from tests.server.backends.python.running import source, write_model

MODEL = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        @staticmethod
        def auto_complete_config(config):
            {statements}
            return config

        def execute(self, requests):
            return []
"""

BARE: dict[str, Any] = {"name": "model", "backend": "python", "max_batch_size": 0, "input": [], "output": []}


async def completed(
    directory: Path, statements: str, document: Mapping[str, Any] = BARE, *, code: str = MODEL, **options: Any
) -> Any:
    write_model(directory, code.replace("{statements}", statements))
    original = copy.deepcopy(document)
    backend = PythonBackend()
    try:
        result = await backend.complete(source(directory, document=document, **options))
    finally:
        await backend.stop()
    assert document == original
    return result


async def test_everything_that_can_be_added(tmp_path: Path) -> None:
    document = await completed(
        tmp_path,
        """config.add_input({"name": "IN", "data_type": "TYPE_FP32", "dims": [4], "optional": True})
            config.add_output({"name": "OUT", "data_type": "TYPE_INT64", "dims": (-1,)})
            config.set_max_batch_size(8)
            config.set_dynamic_batching()
            config.set_model_transaction_policy({"decoupled": True})
            assert config.as_dict()["name"] == "model" """,
    )
    assert document == {
        **BARE,
        "input": [{"name": "IN", "data_type": "TYPE_FP32", "dims": [4], "optional": True}],
        "output": [{"name": "OUT", "data_type": "TYPE_INT64", "dims": [-1]}],
        "max_batch_size": 8,
        "dynamic_batching": {},
        "model_transaction_policy": {"decoupled": True},
    }


async def test_what_agrees_stays(tmp_path: Path) -> None:
    configured = {
        **BARE,
        "max_batch_size": 4,
        "input": [{"name": "IN", "data_type": "TYPE_FP32", "dims": [4], "label": "mine"}],
        "dynamic_batching": {"max_queue_delay_microseconds": 100},
    }
    document = await completed(
        tmp_path,
        """config.add_input({"name": "IN", "data_type": "TYPE_FP32", "dims": [4]})
            config.set_max_batch_size(4)
            config.set_dynamic_batching()""",
        configured,
    )
    assert document == configured


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ('config.add_input({"name": "IN", "data_type": "TYPE_INT8", "dims": [4]})', "expects datatype TYPE_FP32"),
        ('config.add_input({"name": "IN", "data_type": "TYPE_FP32", "dims": [5]})', "the model expects dims [5]"),
        (
            'config.add_input({"name": "N", "dims": [5]})',
            "is missing 'data_type' property",
        ),
        ('config.add_input({"dims": [5]})', "is missing 'name' property"),
        (
            'config.add_output({"name": "N", "optional": True})',
            "contains property other than 'name', 'data_type' and 'dims'.",
        ),
        ("config.set_max_batch_size(2)", "configuration specified max_batch_size 4"),
        ('config.set_model_transaction_policy({"decoupled": False})', "trying to change decoupled property"),
        (
            'config.set_model_transaction_policy({"coupled": False})',
            "contains property other than 'decoupled'. Unknown: 'coupled'",
        ),
        ("return None", "auto_complete_config function in model 'model' must return a valid pb.ModelConfig object."),
        ("raise RuntimeError('boom')", "RuntimeError: boom\n\nAt:\n"),
        ("config.set_dynamic_batching()", "tries to set scheduling_choice as 'dynamic_batching'"),
        ("pb_utils.load_model('x')", "in 'initialize' and 'execute', not in 'auto_complete_config'"),
    ],
)
async def test_contradictions_fail_the_load(tmp_path: Path, statement: str, words: str) -> None:
    configured = {
        **BARE,
        "max_batch_size": 4,
        "input": [{"name": "IN", "data_type": "TYPE_FP32", "dims": [4]}],
        "sequence_batching": {},
        "model_transaction_policy": {"decoupled": True},
    }
    with pytest.raises(ModelLoadError) as raised:
        await completed(tmp_path, statement, configured)
    assert str(raised.value).startswith("auto_complete_config of model 'model' failed: ")
    assert words in str(raised.value)


async def test_a_model_that_does_not_mention_it_is_not_run(tmp_path: Path) -> None:
    write_model(tmp_path, "raise RuntimeError('imported')")
    assert await PythonBackend().complete(source(tmp_path, document=BARE)) == BARE


async def test_a_model_that_only_mentions_it(tmp_path: Path) -> None:
    assert (
        await completed(tmp_path, "pass", code="class TritonPythonModel:  # without auto_complete_config\n    pass")
        == BARE
    )


async def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"Python model file not found in '.*/1/model.py'"):
        await PythonBackend().complete(source(tmp_path, document=BARE))


async def test_it_has_a_time_limit_and_leaves_no_process(tmp_path: Path) -> None:
    children = psutil.Process().children()
    with pytest.raises(ModelLoadError, match=r"auto_complete_config of model .* took longer than 1 s"):
        await completed(tmp_path, "import time; time.sleep(600)", settings={"stub-timeout-seconds": "1"})
    assert psutil.Process().children() == children


async def test_the_class_may_be_imported(tmp_path: Path) -> None:
    implementation = """
        class Base:
            @staticmethod
            def auto_complete_config(config):
                config.set_max_batch_size(7)
                return config

        class TritonPythonModel(Base):
            def execute(self, requests):
                pass
    """
    write_model(tmp_path, implementation, filename="implementation.py")
    for code in (
        "from implementation import TritonPythonModel",
        "import implementation\nTritonPythonModel = implementation.TritonPythonModel",
        "from implementation import Base\nclass TritonPythonModel(Base):\n    pass",
    ):
        write_model(tmp_path, code)
        backend = PythonBackend()
        completed = await backend.complete(source(tmp_path, document=BARE))
        await backend.stop()
        assert completed["max_batch_size"] == 7
