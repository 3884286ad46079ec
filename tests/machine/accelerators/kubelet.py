"""A PodResources service as the kubelet's, by grpcio on a Unix socket."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from conch.machine.accelerators.kubelet import message_class


class Kubelet:
    """A PodResources service with one pod that has a GPU. `before` runs before each answer."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.before: Callable[[], None] = lambda: None
        self.pods = 1
        self.device = "GPU-"  # the ids of devices begin with it, and end with the number of the pod

    def list(self, _request: Any, _context: grpc.ServicerContext) -> Any:
        self.before()
        response = message_class("ListPodResourcesResponse")()
        for number in range(self.pods):
            pod = response.pod_resources.add(name=f"triton-{number}", namespace="ml")
            container = pod.containers.add(name="server")
            container.devices.add(resource_name="nvidia.com/gpu", device_ids=[f"{self.device}{number}"])
        return response

    def allocatable(self, _request: Any, _context: grpc.ServicerContext) -> Any:
        response = message_class("AllocatableResourcesResponse")()
        response.devices.add(resource_name="nvidia.com/gpu", device_ids=["GPU-0", "GPU-1"])
        return response

    @contextmanager
    def serve(self) -> Iterator[None]:
        self.path.unlink(missing_ok=True)
        methods = {
            name: grpc.unary_unary_rpc_method_handler(
                answer,
                request_deserializer=message_class(request).FromString,
                response_serializer=message_class(response).SerializeToString,
            )
            for name, answer, request, response in (
                ("List", self.list, "ListPodResourcesRequest", "ListPodResourcesResponse"),
                (
                    "GetAllocatableResources",
                    self.allocatable,
                    "AllocatableResourcesRequest",
                    "AllocatableResourcesResponse",
                ),
            )
        }
        with ThreadPoolExecutor(2) as threads:
            server = grpc.server(threads)
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("v1.PodResourcesLister", methods),))
            server.add_insecure_port(f"unix://{self.path}")
            server.start()
            try:
                yield
            finally:
                server.stop(None).wait()
