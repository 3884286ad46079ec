# Compiled by mypyc in wheels.
"""Control tensors and implicit state of sequence models.

For the instance they are ordinary inputs and outputs, so every backend supports sequences. Clients never see them.
Source: Triton's model configuration, "Stateful Models" and "Implicit State Management".
"""

from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Final

from conch.base.errors import BackendError, ConchError, InvalidRequest, ModelLoadError, request_prefix
from conch.base.files.confined import read_confined
from conch.domain.config.size_limits import MAX_GENERATED_BYTES
from conch.domain.model_config import ControlKind, ModelConfig, SequenceControl, SequenceState, TensorSpec
from conch.domain.request import SEQUENCE_END, SEQUENCE_START, InferRequest, InferResponse
from conch.domain.tensor import BYTES, ITEM_SIZES, Tensor, pack_bytes
from conch.server.core.sequences.sequence import SequenceRequest
from conch.server.core.validation import fits

_FILLER_FLAGS: Final = -1  # in place of the flags of a request


def instance_config(config: ModelConfig) -> ModelConfig:
    """Return the configuration of the model's instances: with controls and states among its tensors."""
    batching = config.sequence_batching
    if batching is None:
        return config
    outputs = {spec.name for spec in config.outputs}
    return replace(
        config,
        inputs=(
            *config.inputs,
            *(TensorSpec(state.input_name, state.datatype, state.dims) for state in batching.states),
            *(TensorSpec(control.name, control.datatype, (1,)) for control in batching.controls),
        ),
        outputs=(
            *config.outputs,
            *(
                TensorSpec(state.output_name, state.datatype, state.dims)
                for state in batching.states
                if state.output_name not in outputs
            ),
        ),
    )


class SequenceTensors:
    """Adds controls and state to requests, and takes the new state from responses."""

    def __init__(self, config: ModelConfig, directory: Path) -> None:
        assert config.sequence_batching is not None
        controls = config.sequence_batching.controls
        self._model = config.name
        self._directory = directory
        self._batch_dims = (1,) if config.max_batch_size > 0 else ()
        self._id = next((control for control in controls if control.kind is ControlKind.CORRID), None)
        self._controls = {
            flags: [
                Tensor(control.name, control.datatype, (*self._batch_dims, 1), _value(control, flags))
                for control in controls
                if control is not self._id
            ]
            for flags in (_FILLER_FLAGS, 0, SEQUENCE_START, SEQUENCE_END, SEQUENCE_START | SEQUENCE_END)
        }
        self._states = config.sequence_batching.states
        self._initial: list[Tensor] = []
        self._visible = {spec.name for spec in config.outputs}
        self._hidden = tuple(state.output_name for state in self._states)
        varying = [*(spec.dims for spec in config.inputs), *(state.dims for state in self._states)]
        self._grouped = any(-1 in dims for dims in varying) or any(spec.optional for spec in config.inputs)

    def load(self) -> None:
        """Read the initial states. Raises ModelLoadError naming the file."""
        self._initial = [
            Tensor(
                state.input_name, state.datatype, (*self._batch_dims, *state.initial_dims), self._initial_data(state)
            )
            for state in self._states
        ]

    def check_id(self, request: InferRequest) -> None:
        """Raise InvalidRequest for an id that the model's CORRID tensor cannot hold."""
        if self._id is None:
            return
        datatype = "BYTES" if isinstance(request.correlation_id, str) else "UINT64"
        if (datatype == BYTES) != (self._id.datatype == BYTES):
            expected = "a string" if datatype != BYTES else "an unsigned integer"
            raise InvalidRequest(
                f"{request_prefix(request.id)}sequence batching control '{self._id.name}' data-type is '{datatype}', "
                f"but model '{self._model}' expects '{self._id.datatype}': sequence_id must be {expected}"
            )

    def prepare(self, pending: SequenceRequest) -> None:
        """Add controls and state to a client's request, the next one of its sequence."""
        request, sequence = pending.request, pending.sequence
        if request.flags & SEQUENCE_START or not sequence.states:
            sequence.states = self._initial
        request.inputs = [
            *self._controls[request.flags & (SEQUENCE_START | SEQUENCE_END)],
            *self._id_tensor(request.correlation_id),
            *sequence.states,
            *pending.inputs,
        ]
        if pending.outputs:
            request.outputs = (*pending.outputs, *(name for name in self._hidden if name not in pending.outputs))
        if self._grouped:
            pending.group_key = tuple([(tensor.name, tensor.shape) for tensor in request.inputs])
        pending.prepared = True

    def filler(self, pending: SequenceRequest) -> InferRequest:
        """Return a request that fills a slot of a batch with this one: not READY, its data is meaningless."""
        return InferRequest(
            self._model,
            [
                *self._controls[_FILLER_FLAGS],
                *self._id_tensor(0 if self._id is None or self._id.datatype != BYTES else ""),
                *pending.sequence.states,
                *pending.inputs,
            ],
            outputs=pending.request.outputs,
        )

    def store_state(self, pending: SequenceRequest, response: InferResponse) -> ConchError | None:
        """Move the states from a response to the sequence. Return an error if one is invalid."""
        if not self._states:
            return None
        states = list(pending.sequence.states)
        for index, state in enumerate(self._states):
            tensor = response.output(state.output_name)
            if tensor is None:
                continue
            if tensor.datatype != state.datatype or not fits(tensor.shape, (*self._batch_dims, *state.dims)):
                return BackendError(
                    f"model '{self._model}' gave state '{state.output_name}' as {tensor.datatype}{list(tensor.shape)}, "
                    f"sequence_batching.state declares {state.datatype}{[*self._batch_dims, *state.dims]}"
                )
            # A copy, because the instance may reuse the memory of the response.
            states[index] = Tensor(state.input_name, state.datatype, tensor.shape, bytes(tensor.data))
        pending.sequence.states = states
        response.outputs = [tensor for tensor in response.outputs if self._is_visible(tensor.name, pending)]
        return None

    def _is_visible(self, name: str, pending: SequenceRequest) -> bool:
        return name in pending.outputs if pending.outputs else name in self._visible or name not in self._hidden

    def _id_tensor(self, value: int | str) -> list[Tensor]:
        control = self._id
        if control is None:
            return []
        if isinstance(value, str):
            data = pack_bytes([value])
        else:
            size = ITEM_SIZES[control.datatype]
            data = (value & (1 << 8 * size) - 1).to_bytes(size, "little")  # truncated, as by Triton
        return [Tensor(control.name, control.datatype, (*self._batch_dims, 1), data)]

    def _initial_data(self, state: SequenceState) -> bytes:
        item = 4 if state.datatype == BYTES else ITEM_SIZES[state.datatype]  # of BYTES the length, which is 0
        size = item * prod(state.initial_dims)
        if not state.initial_file:
            return bytes(size)
        folder = self._directory / "initial_state"
        field, location = "initial_state.data_file", f"state '{state.input_name}'"
        at_most = MAX_GENERATED_BYTES if state.datatype == BYTES else size
        try:
            data = read_confined(
                folder, state.initial_file, field, location, at_most=at_most, max_bytes=MAX_GENERATED_BYTES
            )
        except OSError as error:
            raise ModelLoadError(
                f"cannot read the initial state of '{state.input_name}' from {folder / state.initial_file}: "
                f"{error.strerror}"
            ) from error
        if state.datatype != BYTES and len(data) < size:
            raise ModelLoadError(
                f"initial_state setting expects {size} bytes, but the data provided from "
                f"{folder / state.initial_file} only has {len(data)} bytes"
            )
        return data


def _value(control: SequenceControl, flags: int) -> bytes:
    true = {
        ControlKind.START: flags & SEQUENCE_START,
        ControlKind.END: flags & SEQUENCE_END,
        ControlKind.READY: True,
    }
    return control.true if flags != _FILLER_FLAGS and true[control.kind] else control.false
