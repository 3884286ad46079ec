"""`backend: "fil"`: gradient-boosted trees and random forests of XGBoost, LightGBM and scikit-learn, through treelite.

Parameters and files are those of Triton's FIL backend. Runs on the CPU. NaN is a missing value.
"""

import asyncio
from collections.abc import Mapping, Sequence
from logging import getLogger
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

from conch.base.errors import ConfigError, ModelLoadError, Unsupported
from conch.domain.files.signature import Signature, TensorInfo
from conch.domain.model_config import InstanceKind, ModelConfig
from conch.machine.cores import usable_cores
from conch.server.backends.base import Backend, Instance, InstancePlan, ModelSource
from conch.server.backends.fil.forest import VERSION, Forest, read_forest
from conch.server.backends.fil.forest_files import locate_forest
from conch.server.backends.parameters import BOOLEANS, chosen
from conch.server.backends.signature import check_signature, completed
from conch.server.backends.threaded import Arrays, ThreadedInstance

_log = getLogger(__name__)

# Triton's names of the one input and the one output.
_INPUT, _OUTPUT = "input__0", "output__0"
_FLOATS = ("FP32", "FP64")

# They control the layout of trees in GPU memory, and do not change results.
_WITHOUT_EFFECT = (
    "algo",
    "blocks_per_sm",
    "storage_type",
    "threads_per_tree",
    "transfer_threshold",
    "use_experimental_optimizations",
)
# With fewer rows, another thread costs more than it saves.
_MIN_ROWS_PER_THREAD = 64
# How long the forest from which a configuration was completed waits for the instances. The load may fail before them.
_KEPT_S = 5.0


class FilBackend(Backend):
    """Forests through treelite."""

    name = "fil"
    can_use_gpus = False
    default_model_filename = ""  # depends on the parameter `model_type`

    def __init__(self) -> None:
        self._forests = SharedForests()

    async def complete(self, source: ModelSource) -> Mapping[str, Any]:
        kept: list[Forest] = []

        def read(source: ModelSource) -> Signature:
            kept.append(self._forests.forest(source, source.config.name))
            return _signature(kept[0], source.config)

        document = await completed(source, read)
        if kept:
            asyncio.get_running_loop().call_later(_KEPT_S, kept.clear)
        return document

    def instance(self, plan: InstancePlan) -> Instance:
        return FilInstance(plan, self._forests)


backend = FilBackend


class SharedForests:
    """The forests in use: instances of the same file share one, as computing does not change it. For any thread."""

    def __init__(self) -> None:
        self._forests = WeakValueDictionary[tuple[object, ...], Forest]()

    def forest(self, source: ModelSource, instance: str) -> Forest:
        """Return the forest of a model version, read unless it is in use. Errors name the instance. Blocks.

        Raises ConfigError for an unknown model type, ModelLoadError for a file that cannot be read.
        """
        path, kind = locate_forest(source, instance)
        lenient = chosen(source.config.parameters, "xgboost_allow_unknown_field", BOOLEANS, False)
        try:
            file = path.stat()
            key = (file.st_dev, file.st_ino, file.st_size, file.st_mtime_ns, kind, lenient)
            forest = self._forests.get(key)
            if forest is None:
                forest = self._forests[key] = read_forest(path, kind, lenient=lenient)
        except (ValueError, OSError) as error:
            raise ModelLoadError(
                f"treelite error: {error} ('{path}', read as {kind}, for model instance '{instance}')"
            ) from error
        return forest


class FilInstance(ThreadedInstance):
    """Computes with a forest."""

    def __init__(self, plan: InstancePlan, forests: SharedForests) -> None:
        super().__init__(plan)
        self._forests = forests
        self._forest: Forest | None = None
        self._output = _Output(plan.source.config)
        self._threads = 1

    def load(self) -> None:
        source = self.plan.source
        config = source.config
        self._forest = self._forests.forest(source, self.plan.name)
        check_signature(config, _signature(self._forest, config))
        self._output.configure(self._forest.classes)
        if self.plan.kind is InstanceKind.GPU:
            source.report(
                "kind_gpu_on_cpu", f"instance '{self.plan.name}' is KIND_GPU, but the fil backend runs on the CPU"
            )
        for name in _WITHOUT_EFFECT:
            if name in config.parameters:
                source.report(
                    "parameter_ignored", f"parameter '{name}' of model '{config.name}' has no effect on the CPU"
                )
        self._threads = max(1, usable_cores() // self.plan.siblings)
        _log.info(
            "instance '%s': %s, %d trees, %d threads (%d cores, %d instances)",
            self.plan.name,
            VERSION,
            self._forest.trees,
            self._threads,
            usable_cores(),
            self.plan.siblings,
        )

    def compute(self, inputs: Arrays, outputs: Sequence[str]) -> Mapping[str, npt.NDArray[Any]]:
        assert self._forest is not None
        rows = inputs[_INPUT]
        # treelite does not check: it would read beyond the end of a row that is too short.
        if rows.ndim != 2 or rows.shape[1] != self._forest.features:
            raise Unsupported(
                f"input '{_INPUT}' has shape {list(rows.shape)}, the model requires [rows, {self._forest.features}]"
            )
        threads = min(self._threads, 1 + len(rows) // _MIN_ROWS_PER_THREAD)
        scores = self._forest.scores(rows, threads)
        return {name: self._output.compute(scores) for name in outputs}

    def unload(self) -> None:
        self._forest = None


class _Output:
    """Computes the output from scores: the scores themselves, probabilities of classes, or the class."""

    def __init__(self, config: ModelConfig) -> None:
        self._config = config
        self._dtype = np.float64 if any(spec.datatype == "FP64" for spec in config.outputs) else np.float32
        self._columns = config.outputs[0].dims[-1] if config.outputs else 1
        self._is_class = False
        self._threshold = 0.5

    def configure(self, classes: int) -> None:
        """Read the parameters for a model with `classes` columns of scores. Raises ConfigError."""
        parameters = self._config.parameters
        self._is_class = _gives_classes(parameters)
        text = parameters.get("threshold", "0.5")
        try:
            self._threshold = float(text)
        except ValueError:
            raise ConfigError(f"parameter 'threshold' must be a number, got '{text}'") from None
        if "threshold" in parameters and (classes != 1 or not chosen(parameters, "output_class", BOOLEANS, False)):
            raise ConfigError("parameter 'threshold' is for binary classifiers, with output_class: true")

    def compute(self, scores: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the output for scores of shape [rows, columns]."""
        if self._is_class:
            binary = scores.shape[1] == 1
            chosen = scores > self._threshold if binary else scores.argmax(axis=1, keepdims=True)
            return chosen.astype(self._dtype)
        if scores.shape[1] == 1 and self._columns == 2:
            scores = np.concatenate([1 - scores, scores], axis=1)
        return scores.astype(self._dtype, copy=False)


def _gives_classes(parameters: Mapping[str, str]) -> bool:
    return chosen(parameters, "output_class", BOOLEANS, False) and not chosen(
        parameters, "predict_proba", BOOLEANS, False
    )


def _signature(forest: Forest, config: ModelConfig) -> Signature:
    """Return the one input and the one output, in the precision of the configuration."""
    width = 1 if _gives_classes(config.parameters) else forest.classes
    output = config.output(_OUTPUT)
    if (
        output is not None
        and width == 1
        and output.dims[-1:] == (2,)
        and chosen(config.parameters, "predict_proba", BOOLEANS, False)
    ):
        width = 2  # one column for each of the two classes
    return Signature(inputs=(_info(_INPUT, forest.features, config),), outputs=(_info(_OUTPUT, width, config),))


def _info(name: str, width: int, config: ModelConfig) -> TensorInfo:
    spec = config.input(name) or config.output(name)
    datatype = spec.datatype if spec is not None and spec.datatype in _FLOATS else "FP32"
    return TensorInfo(name, datatype, (-1, width), "FP32 or FP64")
