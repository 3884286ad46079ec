"""Check the inputs and outputs in the code of a Python model against its configuration."""

import ast
from collections.abc import Iterator

from conch.check.finding import Finding, Related
from conch.check.models.model import CheckedModel
from conch.check.python.arrays import datatype, rank
from conch.check.python.file import PythonFile, argument, text_of
from conch.domain.model_config import ModelConfig, TensorSpec


def check_tensors(file: PythonFile, model: CheckedModel) -> Iterator[Finding]:
    """Check names, datatypes and ranks, except of tensors that the model adds in `auto_complete_config`."""
    config = model.config
    completes = file.method("auto_complete_config")
    own = {text for node in ast.walk(completes) if (text := text_of(node))} if completes else set()
    yield from _inputs(file, model, config, own)
    outputs = list(_given(file))
    for call, name in outputs:
        spec = config.output(name)
        if spec is not None:
            yield from _output(file, model, config, spec, call)
        elif config.outputs and name not in own | _state_outputs(config):
            declared = ", ".join(each.name for each in config.outputs)
            message = f"output '{name}' is not declared in the configuration of model '{model.name}'"
            yield Finding("python-output", file.place(call), message, f"Declared outputs: {declared}.")
    if outputs and _makes_all_outputs_itself(file):
        made = {name for _, name in outputs}
        for index, spec in enumerate(config.outputs):
            if spec.name not in made:
                message = (
                    f"output '{spec.name}' of model '{model.name}' is declared, but {file.source.path.name} never "
                    "creates it"
                )
                yield Finding("python-output-missing", model.folder.field(f"output[{index}].name"), message)


def _inputs(file: PythonFile, model: CheckedModel, config: ModelConfig, own: set[str]) -> Iterator[Finding]:
    known = {spec.name for spec in config.inputs}
    if not known:
        return
    given = {name for each in config.batch_inputs for name in each.targets} | own
    if config.sequence_batching is not None:
        given |= {each.name for each in config.sequence_batching.controls}
        given |= {each.input_name for each in config.sequence_batching.states}
    for call in file.calls_of("get_input_tensor_by_name"):
        name = text_of(argument(call, 1, "name"))
        if name is not None and name not in known | given:
            message = f"input '{name}' is not declared in the configuration of model '{model.name}'"
            cure = f"Declared inputs: {', '.join(sorted(known | given - own))}."
            yield Finding("python-input", file.place(call), message, cure)


def _given(file: PythonFile) -> Iterator[tuple[ast.Call, str]]:
    """Yield the calls that create outputs, with their names; tensors for BLS requests are not outputs."""
    calls_models = any(True for _ in file.calls_of("InferenceRequest"))
    for call in file.calls_of("Tensor"):
        name = text_of(file.value_of(argument(call, 0, "name")))
        if name is None:
            continue
        around = [file.api(outer.func) for outer in file.around(call) if isinstance(outer, ast.Call)]
        if "InferenceResponse" in around or not calls_models:
            yield call, name


def _makes_all_outputs_itself(file: PythonFile) -> bool:
    names = [text_of(file.value_of(argument(call, 0, "name"))) for call in file.calls_of("Tensor")]
    responses = list(file.calls_of("InferenceResponse"))
    text = file.source.text
    others = "InferenceRequest" in text or "from_dlpack" in text
    return bool(responses) and None not in names and not others


def _state_outputs(config: ModelConfig) -> set[str]:
    states = config.sequence_batching.states if config.sequence_batching else ()
    return {state.output_name for state in states}


def _output(
    file: PythonFile, model: CheckedModel, config: ModelConfig, spec: TensorSpec, call: ast.Call
) -> Iterator[Finding]:
    array = argument(call, 1, "numpy_array")
    index = config.outputs.index(spec)
    declaration = (Related(model.folder.field(f"output[{index}].data_type"), f"declaration of output '{spec.name}'"),)
    made = datatype(file, array)
    if made and made != spec.datatype:
        message = f"output '{spec.name}' is created as {made}, but declared as {spec.datatype}"
        yield Finding("python-datatype", file.place(call), message, related=declaration)
    dims = spec.dims if spec.reshape is None else spec.reshape
    batched = config.max_batch_size > 0
    found, declared = rank(file, array), len(dims) + batched
    if found is None or found == declared:
        return
    shape = ", ".join(map(str, ["batch", *dims] if batched else dims))
    axes = "dimension" if found == 1 else "dimensions"
    message = f"output '{spec.name}' has {found} {axes}, but {declared} are declared: [{shape}]"
    lacks_batch = batched and found == declared - 1
    if lacks_batch:
        message = f"{message}; max_batch_size is {config.max_batch_size}"
    rule = "python-batch-axis" if lacks_batch else "python-rank"
    yield Finding(rule, file.place(call), message, related=declaration)
