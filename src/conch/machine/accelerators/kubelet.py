"""The devices of containers, from the kubelet's PodResources service, v1. The only module here with grpc.

The messages are built from the fields that are needed; protobuf skips the others.
"""

import errno
import socket
from functools import cache
from pathlib import Path
from typing import Any, cast

import grpc

from conch.base.protobuf_messages import Field, message_classes, message_file
from conch.machine.accelerators.collectors import CollectorError
from conch.machine.accelerators.families import PodContainer
from conch.machine.accelerators.pod_attribution import Allocation

DEFAULT_TIMEOUT_S = 5.0
MAX_MESSAGE_BYTES = 16 << 20

_SERVICE = "v1.PodResourcesLister"
_MESSAGES = {
    "ListPodResourcesRequest": (),
    "ListPodResourcesResponse": (Field("pod_resources", 1, "PodResources", repeated=True),),
    "AllocatableResourcesRequest": (),
    "AllocatableResourcesResponse": (Field("devices", 1, "ContainerDevices", repeated=True),),
    "PodResources": (
        Field("name", 1),
        Field("namespace", 2),
        Field("containers", 3, "ContainerResources", repeated=True),
    ),
    "ContainerResources": (Field("name", 1), Field("devices", 2, "ContainerDevices", repeated=True)),
    "ContainerDevices": (Field("resource_name", 1), Field("device_ids", 2, repeated=True)),
}


class PodResources:
    """A client of the kubelet. Each call connects again: the socket is another one after the kubelet restarted."""

    def __init__(self, path: Path, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        self.path = path
        self._timeout_s = timeout_s

    def allocations(self) -> list[Allocation]:
        """Return the devices of all containers of the node. Blocks; raises CollectorError with the cause."""
        response = self._call("List", "ListPodResourcesRequest", "ListPodResourcesResponse")
        return [
            Allocation(devices.resource_name, device, PodContainer(pod.namespace, pod.name, container.name))
            for pod in response.pod_resources
            for container in pod.containers
            for devices in container.devices
            for device in devices.device_ids
        ]

    def allocatable(self) -> list[tuple[str, str]]:
        """Return resource and id of all devices that the node's device plugins offer. Blocks; raises CollectorError."""
        response = self._call("GetAllocatableResources", "AllocatableResourcesRequest", "AllocatableResourcesResponse")
        return [(devices.resource_name, device) for devices in response.devices for device in devices.device_ids]

    def _call(self, method: str, request: str, response: str) -> Any:
        self._probe()
        options = [("grpc.max_receive_message_length", MAX_MESSAGE_BYTES), ("grpc.enable_http_proxy", 0)]
        with grpc.insecure_channel(f"unix://{self.path.absolute()}", options) as channel:
            call = channel.unary_unary(
                f"/{_SERVICE}/{method}",
                request_serializer=message_class(request).SerializeToString,
                response_deserializer=message_class(response).FromString,
            )
            try:
                return call(message_class(request)(), timeout=self._timeout_s)
            except grpc.RpcError as error:
                raise CollectorError(f"the kubelet at {self.path} {self._cause(error)}") from error

    def _probe(self) -> None:
        """Connect once, for a plain error: gRPC retries and hides the cause. Raises CollectorError."""
        try:
            with socket.socket(socket.AF_UNIX) as probe:
                probe.settimeout(self._timeout_s)
                probe.connect(str(self.path))
        except FileNotFoundError as error:
            raise CollectorError(
                f"{self.path} does not exist: mount /var/lib/kubelet/pod-resources of the node into the container"
            ) from error
        except PermissionError as error:
            raise CollectorError(f"permission to connect to {self.path} denied: run as root") from error
        except OSError as error:
            cause = errno.errorcode.get(error.errno or 0, "") or str(error)
            raise CollectorError(f"cannot connect to the kubelet at {self.path}: {cause}") from error

    def _cause(self, error: grpc.RpcError) -> str:
        call = cast("grpc.Call", error)  # what a unary call raises is its state too
        if call.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            return f"did not answer within {self._timeout_s:g} s"
        return f"refused with {call.code().name}: {call.details()}"


def message_class(name: str) -> Any:
    """Return the class of a message of the service."""
    return _classes()[name]


@cache
def _classes() -> dict[str, Any]:
    return message_classes(message_file("conch/podresources.proto", "v1", _MESSAGES))[1]
