"""System shared memory for the tensors of requests (Triton's extension): requests name regions instead of bytes.

One region holds the inputs of all requests, one the outputs: answers of requests that are in flight together overwrite
each other there, as perf_analyzer's do. The name of a region says which process made it. Regions of processes that
were killed are unregistered and deleted at the next start.
"""

import atexit
import contextlib
import mmap
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any
from urllib.parse import quote

import orjson

from conch.base.process.process_stat import ProcessStat
from conch.domain.tensor import ITEM_SIZES
from conch.measure.bench.generator import FixedRequests, PreparedRequest, ScriptSource
from conch.measure.bench.input_settings import InputError
from conch.measure.bench.targets.http_probe import HttpProbe
from conch.measure.bench.targets.kserve_grpc import call
from conch.measure.bench.targets.target import BenchTarget, Protocol, TargetError, TensorMetadata
from conch.protocols.regions import BYTE_SIZE, OFFSET, REGION

DEFAULT_OUTPUT_BYTES = 102_400
_FOLDER = Path("/dev/shm")  # noqa: S108 - where the system keeps POSIX shared memory
_PREFIX = "conch-bench"
_NAME = re.compile(rf"{_PREFIX}-(?P<space>\d+)-(?P<pid>\d+)-(?P<started>\d+)-(?P<number>\d+)")
_ALIGNMENT = 64
_JSON_LENGTH = re.compile(rb"Inference-Header-Content-Length: (\d+)\r\n", re.IGNORECASE)
_numbers = iter(range(1_000_000))
_Place = tuple[str, int, int]  # region, offset, size


def share_tensors(target: BenchTarget, source: ScriptSource, output_bytes: int | None = None) -> ScriptSource:
    """Put the tensors of a load into regions until this process ends. Raises InputError, TargetError.

    `output_bytes` is the room for each output; None: what its shape needs, DEFAULT_OUTPUT_BYTES if that is variable.
    """
    if source.fixed is None:
        raise InputError("--shared-memory is for requests that do not depend on each other, not for sequences")
    if target.protocol not in (Protocol.HTTP, Protocol.GRPC, Protocol.GRPC_STREAM):
        raise InputError(f"--shared-memory is for --protocol http, grpc and grpc-stream, not for {target.protocol}")
    if any(request.expected is not None for request in source.fixed):
        raise InputError("--expect needs answers with tensors; leave out --shared-memory")
    regions = SharedRegions(registrar(target))
    atexit.register(regions.close)
    try:
        return FixedRequests(_shared(target, source.fixed, regions, output_bytes))
    except BaseException:
        regions.close()
        raise


class _HttpRegistrar:
    def __init__(self, target: BenchTarget) -> None:
        self._endpoint = target.endpoint
        self._path = f"{target.base_path}/v2/systemsharedmemory"

    def register(self, name: str, size: int) -> None:
        document = {"key": f"/{name}", "offset": 0, "byte_size": size}
        self._post(f"{self._path}/region/{quote(name)}/register", document)

    def unregister(self, name: str) -> None:
        self._post(f"{self._path}/region/{quote(name)}/unregister", {})

    def registered(self) -> list[str]:
        answer = HttpProbe(self._endpoint).get(f"{self._path}/status")
        regions = answer.json if answer.status == 200 else []
        return [str(region.get("name")) for region in regions or () if isinstance(region, dict)]

    def _post(self, path: str, document: dict[str, Any]) -> None:
        answer = HttpProbe(self._endpoint).post(path, document)
        if answer.status != 200:
            raise _refused(answer.error_message())


class _GrpcRegistrar:
    def __init__(self, target: BenchTarget) -> None:
        from conch.domain.triton_messages import service_pb2

        self._endpoint = target.endpoint
        self._messages = service_pb2

    def register(self, name: str, size: int) -> None:
        message = self._messages.SystemSharedMemoryRegisterRequest(name=name, key=f"/{name}", offset=0, byte_size=size)
        try:
            call(self._endpoint, "SystemSharedMemoryRegister", message.SerializeToString())
        except TargetError as error:
            raise _refused(error.message) from None

    def unregister(self, name: str) -> None:
        message = self._messages.SystemSharedMemoryUnregisterRequest(name=name)
        call(self._endpoint, "SystemSharedMemoryUnregister", message.SerializeToString())

    def registered(self) -> list[str]:
        answer = self._messages.SystemSharedMemoryStatusResponse()
        answer.ParseFromString(call(self._endpoint, "SystemSharedMemoryStatus", b""))
        return list(answer.regions)


RegionRegistrar = _HttpRegistrar | _GrpcRegistrar
"""Registers and unregisters regions with a server, and lists the names of all. Methods raise TargetError."""


def registrar(target: BenchTarget) -> RegionRegistrar:
    """Return the registrar for a target's protocol."""
    return _HttpRegistrar(target) if target.protocol is Protocol.HTTP else _GrpcRegistrar(target)


class SharedRegions:
    """The regions that this process has made."""

    def __init__(self, registrar: RegionRegistrar) -> None:
        self._registrar = registrar
        self._names: list[str] = []
        self._owner = os.getpid()

    def create(self, content: Sequence[bytes], size: int) -> tuple[str, list[int]]:
        """Make and register a region of `size` bytes that begins with `content`; return its name and the offsets.

        Raises InputError if there is no room, TargetError if the server refuses it.
        """
        self.remove_stale()
        name = f"{_PREFIX}-{_pid_space()}-{os.getpid()}-{_started(os.getpid())}-{next(_numbers)}"
        self._names.append(name)
        offsets = []
        try:
            descriptor = os.open(_FOLDER / name, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
            try:
                os.posix_fallocate(descriptor, 0, size)
                with mmap.mmap(descriptor, size) as memory:
                    at = 0
                    for part in content:
                        memory[at : at + len(part)] = part
                        offsets.append(at)
                        at += _aligned(len(part))
            finally:
                os.close(descriptor)
        except OSError as error:
            raise InputError(f"--shared-memory: {size} bytes in {_FOLDER}: {error.strerror}") from None
        self._registrar.register(name, size)
        return name, offsets

    def close(self) -> None:
        """Unregister and delete the regions; a no-op in processes forked from this one."""
        if os.getpid() != self._owner:
            return
        names, self._names = self._names, []
        for name in names:
            self._remove(name)

    def remove_stale(self) -> None:
        """Remove the regions of processes of this machine that have ended."""
        with contextlib.suppress(TargetError):
            for name in self._registrar.registered():
                if _is_stale(name):
                    self._remove(name)
        for path in _FOLDER.glob(f"{_PREFIX}-*"):
            if _is_stale(path.name):
                path.unlink(missing_ok=True)

    def _remove(self, name: str) -> None:
        with contextlib.suppress(TargetError):  # the server has ended, or never had it
            self._registrar.unregister(name)
        (_FOLDER / name).unlink(missing_ok=True)


def _refused(reason: str) -> TargetError:
    return TargetError(
        f"--shared-memory system: the server refuses the region: {reason}; it must run on this machine and allow it"
    )


def _shared(
    target: BenchTarget, requests: Sequence[PreparedRequest], regions: SharedRegions, output_bytes: int | None
) -> list[PreparedRequest]:
    decoded = _HttpForm if target.protocol is Protocol.HTTP else _GrpcForm
    forms = [decoded(request) for request in requests]
    contents = [part for form in forms for part in form.contents]
    name, offsets = regions.create(contents, max(1, sum(_aligned(len(part)) for part in contents)))
    batch = max((form.batch for form in forms), default=1) if target.model.batched else 1
    sizes = {output.name: output_bytes or _output_bytes(output, batch) for output in target.model.outputs}
    outputs, _ = regions.create([], max(1, sum(_aligned(size) for size in sizes.values())))
    places = iter(offsets)
    made = []
    for request, form in zip(requests, forms, strict=True):
        head, body = form.encode([(name, next(places), len(part)) for part in form.contents], _laid_out(outputs, sizes))
        made.append(replace(request, head=head, body=body, next_body=None))
    return made


class _HttpForm:
    """A decoded request: the bytes of its inputs, the batch, and how to encode it without them."""

    def __init__(self, request: PreparedRequest) -> None:
        match = _JSON_LENGTH.search(request.head)
        if match is None:
            raise InputError("--shared-memory is for binary tensors, not for tensors in JSON")
        self._head = request.head[: match.start()] + request.head[match.end() :]
        length = int(match[1])
        self._document = orjson.loads(request.body[:length])
        self.contents = []
        at = length
        for tensor in self._document["inputs"]:
            size = tensor["parameters"]["binary_data_size"]
            self.contents.append(request.body[at : at + size])
            at += size
        self.batch = max((tensor["shape"][0] for tensor in self._document["inputs"] if tensor["shape"]), default=1)

    def encode(self, inputs: Sequence[_Place], outputs: dict[str, _Place]) -> tuple[bytes, bytes]:
        document = self._document
        for tensor, place in zip(document["inputs"], inputs, strict=True):
            tensor["parameters"] = _parameters(place)
        document["outputs"] = [{"name": name, "parameters": _parameters(place)} for name, place in outputs.items()]
        document.get("parameters", {}).pop("binary_data_output", None)
        return self._head.replace(b"application/octet-stream", b"application/json"), orjson.dumps(document)


class _GrpcForm:
    """As `_HttpForm`, of a ModelInferRequest."""

    def __init__(self, request: PreparedRequest) -> None:
        from conch.domain.triton_messages import service_pb2

        self._head = request.head
        self._message = service_pb2.ModelInferRequest.FromString(request.body)
        self.contents = list(self._message.raw_input_contents)
        self.batch = max((tensor.shape[0] for tensor in self._message.inputs if tensor.shape), default=1)
        if len(self.contents) != len(self._message.inputs):
            raise InputError("--shared-memory is for raw tensors, not for typed contents")

    def encode(self, inputs: Sequence[_Place], outputs: dict[str, _Place]) -> tuple[bytes, bytes]:
        from conch.protocols.v2_proto.parameters import encode_parameters

        message = self._message
        message.ClearField("raw_input_contents")
        message.ClearField("outputs")
        for tensor, place in zip(message.inputs, inputs, strict=True):
            encode_parameters(_parameters(place), tensor.parameters)
        for name, place in outputs.items():
            encode_parameters(_parameters(place), message.outputs.add(name=name).parameters)
        return self._head, message.SerializeToString()


def _parameters(place: _Place) -> dict[str, str | int]:
    name, offset, size = place
    return {REGION: name, OFFSET: offset, BYTE_SIZE: size}


def _laid_out(region: str, sizes: dict[str, int]) -> dict[str, _Place]:
    places = {}
    at = 0
    for name, size in sizes.items():
        places[name] = (region, at, size)
        at += _aligned(size)
    return places


def _output_bytes(output: TensorMetadata, batch: int) -> int:
    shape = [batch if not index and dimension < 0 else dimension for index, dimension in enumerate(output.shape)]
    element = ITEM_SIZES.get(output.datatype)
    if element is None or any(dimension < 0 for dimension in shape):
        return DEFAULT_OUTPUT_BYTES
    return max(1, element * prod(shape))


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


# Which process made a region: number and start time of the process, in which namespace of process numbers.


def _pid_space() -> int:
    return Path("/proc/self/ns/pid").stat().st_ino


def _started(pid: int) -> int:
    """Return the start time of a process in clock ticks, 0 if there is none."""
    stat = ProcessStat.read(pid)
    return stat.started if stat is not None else 0


def _is_stale(name: str) -> bool:
    match = _NAME.fullmatch(name)
    if match is None or int(match["space"]) != _pid_space():
        return False
    return _started(int(match["pid"])) != int(match["started"])
