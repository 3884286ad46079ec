"""The messages of gRPC's health checking protocol (grpc.health.v1)."""

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto

from conch.base.protobuf_messages import Field, message_classes, message_file

_STATUSES = ("UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN")
UNKNOWN, SERVING, NOT_SERVING, SERVICE_UNKNOWN = range(4)


def _file() -> FileDescriptorProto:
    messages = {"HealthCheckRequest": (Field("service", 1),), "HealthCheckResponse": ()}
    file = message_file("grpc/health/v1/health.proto", "grpc.health.v1", messages)
    response = file.message_type[1]
    statuses = response.enum_type.add(name="ServingStatus")
    for number, name in enumerate(_STATUSES):
        statuses.value.add(name=name, number=number)
    response.field.add(
        name="status",
        number=1,
        type=FieldDescriptorProto.TYPE_ENUM,
        type_name=".grpc.health.v1.HealthCheckResponse.ServingStatus",
        label=FieldDescriptorProto.LABEL_OPTIONAL,
    )
    service = file.service.add(name="Health")
    for name in ("Check", "Watch"):
        service.method.add(
            name=name,
            input_type=".grpc.health.v1.HealthCheckRequest",
            output_type=".grpc.health.v1.HealthCheckResponse",
            server_streaming=name == "Watch",
        )
    return file


DESCRIPTOR, _classes = message_classes(_file())
HealthCheckRequest = _classes["HealthCheckRequest"]
HealthCheckResponse = _classes["HealthCheckResponse"]
