"""The Python model that runs PyTorch models: code, exported programs, compiled packages.

`args["torch"]` is a JSON object:

    format          "module", "exported" or "compiled"
    path            the model's file
    state           path of a module's weights, "" without any
    device          "cpu", "cuda:1"; "" leaves it to the model
    inputs          names of the inputs, in the order of the arguments
    outputs         name → index among the model's results
    inference_mode  whether to use torch.inference_mode; else torch.no_grad only
    intra_op, inter_op   numbers of threads, 0 for PyTorch's defaults
    compile         arguments of torch.compile, None to not compile
"""

from __future__ import annotations

import inspect
import json
import os
import sys
from typing import Any, Dict, List, Sequence, Tuple

import triton_python_backend_utils as pb_utils

# Read when torch is imported. OpenMP threads that wait actively take cores from the threads that they wait for.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch
import torch.utils._pytree as pytree

from ..source_import import add_source_folder, import_source

# The names of PyTorch's element types that differ from the wire's.
_DATATYPES = {
    torch.bool: "BOOL",
    torch.uint8: "UINT8",
    torch.uint16: "UINT16",
    torch.uint32: "UINT32",
    torch.uint64: "UINT64",
    torch.int8: "INT8",
    torch.int16: "INT16",
    torch.int32: "INT32",
    torch.int64: "INT64",
    torch.float16: "FP16",
    torch.bfloat16: "BF16",
    torch.float32: "FP32",
    torch.float64: "FP64",
}


class TritonPythonModel:
    """Runs one model on one device."""

    def initialize(self, args: Dict[str, str]) -> None:
        """Load the model. Raises what PyTorch raises, or TritonModelException with a remedy."""
        self._task = task = json.loads(args["torch"])
        config = json.loads(args["model_config"])
        self._batches = config["max_batch_size"] > 0
        self._datatypes = {spec["name"]: spec["data_type"][len("TYPE_") :] for spec in config["output"]}
        if task["intra_op"]:
            torch.set_num_threads(task["intra_op"])
        if task["inter_op"]:
            torch.set_num_interop_threads(task["inter_op"])
        self._device = self._chosen_device(args["model_instance_name"])
        with torch.inference_mode(task["inference_mode"]):
            self._model = {"module": self._module, "exported": self._exported, "compiled": self._compiled}[
                task["format"]
            ]()

    def execute(self, requests: List[Any]) -> List[Any]:
        """Run requests in one batch if possible; if that fails, separately, so that only invalid ones fail."""
        if self._batches and len(requests) > 1:
            try:
                return self._execute_batch(requests)
            except Exception:
                return [self._execute_single(request) for request in requests]
        return [self._execute_single(request) for request in requests]

    def _chosen_device(self, instance: str) -> Any:
        device = self._task["device"]
        if device.startswith("cuda") and not torch.cuda.is_available():
            pb_utils.Logger.log_warn(
                "instance '{}' is KIND_GPU, but this PyTorch has no CUDA: it runs on the CPU".format(instance)
            )
            device = "cpu"
        return torch.device(device) if device else None

    def _module(self) -> Any:
        module = _module_class(self._task["path"])()
        if self._task["state"]:
            # Weights only, as a pickle may execute code.
            module.load_state_dict(torch.load(self._task["state"], map_location=self._device, weights_only=True))
        if self._device is not None:
            module.to(self._device)
        else:
            self._device = next((parameter.device for parameter in module.parameters()), None)
        module.eval()
        if self._task["compile"] is None:
            return module
        return torch.compile(module, **self._task["compile"])

    def _exported(self) -> Any:
        program = torch.export.load(self._task["path"])
        module = program.module()
        if self._device is not None:
            module.to(self._device)

        def run(*inputs: Any) -> Any:
            args, kwargs = pytree.tree_unflatten(inputs, program.call_spec.in_spec)
            return pytree.tree_leaves(module(*args, **kwargs))

        return run

    def _compiled(self) -> Any:
        # Without it inputs of other shapes than compiled for are read out of bounds.
        os.environ["AOTI_RUNTIME_CHECK_INPUTS"] = "1"
        gpu = self._device.index if self._device is not None and self._device.type == "cuda" else -1
        package = torch._inductor.aoti_load_package(self._task["path"], device_index=gpu)
        compiled_for = package.get_metadata().get("AOTI_DEVICE_KEY", "")
        if self._device is not None and compiled_for not in ("", self._device.type):
            raise pb_utils.TritonModelException(
                "the package was compiled for {}, the instance is on {}: change the kind of instance_group or compile "
                "it for that device".format(compiled_for, self._device.type)
            )
        expected = _leaves(json.loads(package.loader.get_call_spec()[0])[1])
        if expected != len(self._task["inputs"]):
            raise pb_utils.TritonModelException(
                "configuration expects {} inputs, model provides {}".format(len(self._task["inputs"]), expected)
            )
        return lambda *inputs: package.loader.run(list(inputs))

    def _execute_batch(self, requests: List[Any]) -> List[Any]:
        columns = list(zip(*(self._inputs(request) for request in requests)))
        sizes = [len(tensor) for tensor in columns[0]]
        outputs = self._run([torch.cat(column) for column in columns])
        parts: List[List[Any]] = [[] for _ in requests]
        for name, tensor in outputs:
            if tensor.dim() == 0 or len(tensor) != sum(sizes):
                raise pb_utils.TritonModelException(_not_per_item(name, tensor, sum(sizes)))
            for answer, part in zip(parts, torch.split(tensor, sizes)):
                answer.append(pb_utils.Tensor.from_dlpack(name, part))
        return [pb_utils.InferenceResponse(answer) for answer in parts]

    def _execute_single(self, request: Any) -> Any:
        try:
            inputs = self._inputs(request)
            outputs = self._run(inputs)
            for name, tensor in outputs:
                if self._batches and (tensor.dim() == 0 or len(tensor) != len(inputs[0])):
                    raise pb_utils.TritonModelException(_not_per_item(name, tensor, len(inputs[0])))
        except Exception as error:
            text = "PyTorch execute failure: {}: {}".format(type(error).__name__, _first_line(error))
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(text))
        return pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack(name, tensor) for name, tensor in outputs])

    def _inputs(self, request: Any) -> List[Any]:
        tensors_by_name = {tensor.name(): tensor for tensor in request.inputs()}
        tensors = [torch.utils.dlpack.from_dlpack(tensors_by_name[name]) for name in self._task["inputs"]]
        return tensors if self._device is None else [tensor.to(self._device) for tensor in tensors]

    def _run(self, inputs: Sequence[Any]) -> List[Tuple[str, Any]]:
        """Return names and tensors of the outputs, in host memory."""
        with torch.inference_mode(self._task["inference_mode"]), torch.no_grad():
            result = self._model(*inputs)
        if not isinstance(result, (tuple, list, dict)):
            result = (result,)
        return [(name, self._output(name, place, result)) for name, place in self._task["outputs"].items()]

    def _output(self, name: str, place: int, result: Any) -> Any:
        if isinstance(result, dict):
            if name not in result:
                raise pb_utils.TritonModelException(
                    "the model returns no '{}'; its dictionary has: {}".format(name, ", ".join(map(str, result)))
                )
            tensor = result[name]
        elif place < len(result):
            tensor = result[place]
        else:
            raise pb_utils.TritonModelException(
                "The output {} in the model configuration refers to an output index which doesn't exist. This model "
                "has {} outputs".format(name, len(result))
            )
        provided = _DATATYPES.get(getattr(tensor, "dtype", torch.complex128), type(tensor).__name__)
        if provided != self._datatypes.get(name, provided):
            raise pb_utils.TritonModelException(
                "configuration expects datatype TYPE_{} for output '{}', model provides {}".format(
                    self._datatypes[name], name, "TYPE_" + provided if isinstance(tensor, torch.Tensor) else provided
                )
            )
        tensor = tensor.detach().cpu().contiguous()
        return tensor.reshape(1) if tensor.dim() == 0 and not self._batches else tensor


def _module_class(path: str) -> Any:
    """Return the subclass of torch.nn.Module in a file; of several the first by name, as in Triton.

    Classes defined in the file take precedence over imported ones. Raises TritonModelException if there is none.
    """
    folder = os.path.dirname(path)  # noqa: PTH120
    add_source_folder(folder)
    sys.path.append(folder)  # for imports of modules beside the file
    module = import_source("model", path)
    classes = [value for value in vars(module).values() if inspect.isclass(value)]
    modules = [
        module_class
        for module_class in classes
        if issubclass(module_class, torch.nn.Module) and not module_class.__module__.startswith("torch.")
    ]
    modules = [module_class for module_class in modules if module_class.__module__ == module.__name__] or modules
    modules.sort(key=lambda module_class: module_class.__name__)
    if not modules:
        raise pb_utils.TritonModelException("Cannot find a subclass of torch.nn.Module in '{}'".format(path))
    if len(modules) > 1:
        pb_utils.Logger.log_warn(
            "'{}' has several subclasses of torch.nn.Module; the first by name is the model: {}".format(
                path, ", ".join(module_class.__name__ for module_class in modules)
            )
        )
    return modules[0]


def _leaves(spec: Dict[str, Any]) -> int:
    """Count the tensors in a package's description of its inputs (a pytree)."""
    if spec["type"] is None:
        return 1
    return sum(_leaves(child) for child in spec["children_spec"])


def _not_per_item(name: str, tensor: Any, size: int) -> str:
    return (
        "output '{}' has shape {} for a batch of {}: its first dimension must be the batch size; a model whose output "
        "is not per item needs max_batch_size: 0".format(name, list(tensor.shape), size)
    )


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "no reason given")
