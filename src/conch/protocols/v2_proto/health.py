"""The messages of gRPC's health checking protocol (grpc.health.v1), without the gRPC library that its package needs.

They have a separate descriptor pool. A pool can define a protobuf file only once, and a program may import the package
`grpc_health` in the same process, as the official clients do.
"""

from typing import Any

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

UNKNOWN, SERVING, NOT_SERVING, SERVICE_UNKNOWN = range(4)


def _file() -> FileDescriptorProto:
    file = FileDescriptorProto(name="grpc/health/v1/health.proto", package="grpc.health.v1", syntax="proto3")
    request = file.message_type.add(name="HealthCheckRequest")
    request.field.add(
        name="service", number=1, type=FieldDescriptorProto.TYPE_STRING, label=FieldDescriptorProto.LABEL_OPTIONAL
    )
    response = file.message_type.add(name="HealthCheckResponse")
    statuses = response.enum_type.add(name="ServingStatus")
    for number, name in enumerate(("UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN")):
        statuses.value.add(name=name, number=number)
    response.field.add(
        name="status",
        number=1,
        type=FieldDescriptorProto.TYPE_ENUM,
        type_name=".grpc.health.v1.HealthCheckResponse.ServingStatus",
        label=FieldDescriptorProto.LABEL_OPTIONAL,
    )
    service = file.service.add(name="Health")
    package = ".grpc.health.v1"
    for name in ("Check", "Watch"):
        service.method.add(
            name=name,
            input_type=f"{package}.HealthCheckRequest",
            output_type=f"{package}.HealthCheckResponse",
            server_streaming=name == "Watch",
        )
    return file


_pool = DescriptorPool()
_pool.Add(_file())


def _message(name: str) -> Any:
    return GetMessageClass(_pool.FindMessageTypeByName(f"grpc.health.v1.{name}"))


DESCRIPTOR = _pool.FindFileByName("grpc/health/v1/health.proto")
HealthCheckRequest = _message("HealthCheckRequest")
HealthCheckResponse = _message("HealthCheckResponse")
