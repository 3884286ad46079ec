"""Shared memory over gRPC: register, unregister and list regions."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from conch.domain.triton_messages import service_pb2
from conch.protocols.regions import not_allowed
from conch.server.core.shared_memory.regions import SharedMemory

# A protobuf message: the classes are created at run time and have no static types.
Message: TypeAlias = Any


class SharedMemoryCalls:
    """The methods for shared memory; all are refused without a `memory`."""

    def __init__(self, memory: SharedMemory | None) -> None:
        self._memory = memory

    def answers(self) -> dict[str, Callable[[Message], Awaitable[Message]]]:
        """Return the handlers by method name."""
        return {
            "SystemSharedMemoryStatus": self._status,
            "SystemSharedMemoryRegister": self._register,
            "SystemSharedMemoryUnregister": self._unregister,
            "CudaSharedMemoryStatus": self._cuda_status,
            "CudaSharedMemoryRegister": self._cuda_register,
            "CudaSharedMemoryUnregister": self._cuda_unregister,
        }

    async def _status(self, request: Message) -> Message:
        response = service_pb2.SystemSharedMemoryStatusResponse()
        for region in self._allowed("SystemSharedMemoryStatus").status(request.name):
            row = response.regions[region.name]
            row.name, row.key, row.offset, row.byte_size = region.name, region.key, region.offset, region.byte_size
        return response

    async def _register(self, request: Message) -> Message:
        memory = self._allowed("SystemSharedMemoryRegister")
        memory.register(request.name, request.key, request.offset, request.byte_size)
        return service_pb2.SystemSharedMemoryRegisterResponse()

    async def _unregister(self, request: Message) -> Message:
        self._allowed("SystemSharedMemoryUnregister").unregister(request.name)
        return service_pb2.SystemSharedMemoryUnregisterResponse()

    async def _cuda_status(self, request: Message) -> Message:
        response = service_pb2.CudaSharedMemoryStatusResponse()
        for region in self._allowed("CudaSharedMemoryStatus").cuda_status(request.name):
            row = response.regions[region.name]
            row.name, row.device_id, row.byte_size = region.name, region.device, region.byte_size
        return response

    async def _cuda_register(self, request: Message) -> Message:
        memory = self._allowed("CudaSharedMemoryRegister")
        memory.register_cuda(request.name, request.raw_handle, request.device_id, request.byte_size)
        return service_pb2.CudaSharedMemoryRegisterResponse()

    async def _cuda_unregister(self, request: Message) -> Message:
        self._allowed("CudaSharedMemoryUnregister").unregister_cuda(request.name)
        return service_pb2.CudaSharedMemoryUnregisterResponse()

    def _allowed(self, call: str) -> SharedMemory:
        if self._memory is None:
            raise not_allowed(call)
        return self._memory
