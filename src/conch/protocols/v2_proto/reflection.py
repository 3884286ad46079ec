"""gRPC server reflection (grpc.reflection.v1 and v1alpha): what services and messages a server has.

Both versions have equal messages.
"""

from collections.abc import Iterable, Iterator

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.message import DecodeError

from conch.base.errors import InvalidRequest
from conch.base.protobuf_messages import Field, message_classes, message_file
from conch.domain.tensor import Buffer

SERVICES = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")
_NOT_FOUND, _UNIMPLEMENTED = 5, 12
_MAX_QUESTION_BYTES = 65_536
_, _classes = message_classes(
    message_file(
        "grpc/reflection/v1/reflection.proto",
        "grpc.reflection.v1",
        {
            "ExtensionRequest": (Field("containing_type", 1), Field("extension_number", 2, "int32")),
            "ServerReflectionRequest": (
                Field("host", 1),
                Field("file_by_filename", 3, choice=True),
                Field("file_containing_symbol", 4, choice=True),
                Field("file_containing_extension", 5, "ExtensionRequest", choice=True),
                Field("all_extension_numbers_of_type", 6, choice=True),
                Field("list_services", 7, choice=True),
            ),
            "FileDescriptorResponse": (Field("file_descriptor_proto", 1, "bytes", repeated=True),),
            "ServiceResponse": (Field("name", 1),),
            "ListServiceResponse": (Field("service", 1, "ServiceResponse", repeated=True),),
            "ErrorResponse": (Field("error_code", 1, "int32"), Field("error_message", 2)),
            "ServerReflectionResponse": (
                Field("valid_host", 1),
                Field("original_request", 2, "ServerReflectionRequest"),
                Field("file_descriptor_response", 4, "FileDescriptorResponse", choice=True),
                Field("list_services_response", 6, "ListServiceResponse", choice=True),
                Field("error_response", 7, "ErrorResponse", choice=True),
            ),
        },
    )
)


class Reflection:
    """Answers questions about the files that define services, and those that they import."""

    def __init__(self, files: Iterable[FileDescriptor]) -> None:
        self._files: dict[str, FileDescriptor] = {}
        self._services = list(SERVICES)
        for file in files:
            self._services += [service.full_name for service in file.services_by_name.values()]
            self._files |= {imported.name: imported for imported in _with_imports(file)}
        self._symbols = {symbol: file for file in self._files.values() for symbol in _symbols(file)}

    def answer(self, data: Buffer) -> bytes:
        """Return the answer to a question, in bytes. Raises InvalidRequest for one that is malformed."""
        request = _classes["ServerReflectionRequest"]()
        try:
            if len(data) > _MAX_QUESTION_BYTES:
                raise InvalidRequest("the question is too large")
            request.ParseFromString(bytes(data))
        except DecodeError:
            raise InvalidRequest("the question is not a ServerReflectionRequest") from None
        response = _classes["ServerReflectionResponse"](valid_host=request.host, original_request=request)
        kind = request.WhichOneof("choice")
        if kind == "list_services":
            for name in sorted(self._services):
                response.list_services_response.service.add(name=name)
        elif kind in ("file_by_filename", "file_containing_symbol"):
            name = getattr(request, kind)
            file = (self._files if kind == "file_by_filename" else self._symbols).get(name)
            if file is None:
                response.error_response.error_code = _NOT_FOUND
                response.error_response.error_message = "not found"
            else:
                response.file_descriptor_response.file_descriptor_proto.extend(
                    imported.serialized_pb for imported in _with_imports(file)
                )
        else:  # proto3 has no extensions
            response.error_response.error_code = _UNIMPLEMENTED
            response.error_response.error_message = "there are no extensions"
        encoded: bytes = response.SerializeToString()
        return encoded


def _with_imports(file: FileDescriptor) -> Iterator[FileDescriptor]:
    """Yield a file and, once each, the files that it imports."""
    files = {file.name: file}
    waiting = [file]
    while waiting:
        for imported in waiting.pop().dependencies:
            if imported.name not in files:
                files[imported.name] = imported
                waiting.append(imported)
    yield from files.values()


def _symbols(file: FileDescriptor) -> Iterator[str]:
    """Yield the full names of services, methods, messages and enumerations of a file."""
    for service in file.services_by_name.values():
        yield service.full_name
        for method in service.methods:
            yield method.full_name
    yield from (enum.full_name for enum in file.enum_types_by_name.values())
    waiting = list(file.message_types_by_name.values())
    while waiting:
        message = waiting.pop()
        yield message.full_name
        yield from (enum.full_name for enum in message.enum_types)
        waiting += message.nested_types
