"""gRPC server reflection (grpc.reflection.v1 and v1alpha): what services and messages a server has.

The messages are made here, as those of the health protocol, because their package needs the gRPC library. Both versions
have equal ones.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from conch.base.errors import InvalidRequest
from conch.domain.tensor import Buffer

SERVICES = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")
_PACKAGE = "grpc.reflection.v1"
_NOT_FOUND, _UNIMPLEMENTED = 5, 12
_MAX_QUESTION_BYTES = 65_536
# Message → fields in order of (name, number, type, whether repeated, whether of the oneof). Other types are messages.
_MESSAGES: dict[str, tuple[tuple[str, int, str, bool, bool], ...]] = {
    "ExtensionRequest": (
        ("containing_type", 1, "string", False, False),
        ("extension_number", 2, "int32", False, False),
    ),
    "ServerReflectionRequest": (
        ("host", 1, "string", False, False),
        ("file_by_filename", 3, "string", False, True),
        ("file_containing_symbol", 4, "string", False, True),
        ("file_containing_extension", 5, "ExtensionRequest", False, True),
        ("all_extension_numbers_of_type", 6, "string", False, True),
        ("list_services", 7, "string", False, True),
    ),
    "FileDescriptorResponse": (("file_descriptor_proto", 1, "bytes", True, False),),
    "ServiceResponse": (("name", 1, "string", False, False),),
    "ListServiceResponse": (("service", 1, "ServiceResponse", True, False),),
    "ErrorResponse": (("error_code", 1, "int32", False, False), ("error_message", 2, "string", False, False)),
    "ServerReflectionResponse": (
        ("valid_host", 1, "string", False, False),
        ("original_request", 2, "ServerReflectionRequest", False, False),
        ("file_descriptor_response", 4, "FileDescriptorResponse", False, True),
        ("list_services_response", 6, "ListServiceResponse", False, True),
        ("error_response", 7, "ErrorResponse", False, True),
    ),
}
_TYPES = {
    "string": FieldDescriptorProto.TYPE_STRING,
    "bytes": FieldDescriptorProto.TYPE_BYTES,
    "int32": FieldDescriptorProto.TYPE_INT32,
}


def _file() -> FileDescriptorProto:
    file = FileDescriptorProto(name="grpc/reflection/v1/reflection.proto", package=_PACKAGE, syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        if any(of_choice for *_, of_choice in fields):
            message.oneof_decl.add(name="choice")
        for field, number, kind, repeated, of_choice in fields:
            label = FieldDescriptorProto.LABEL_REPEATED if repeated else FieldDescriptorProto.LABEL_OPTIONAL
            added = message.field.add(name=field, number=number, label=label)
            added.type = _TYPES.get(kind, FieldDescriptorProto.TYPE_MESSAGE)
            if kind not in _TYPES:
                added.type_name = f".{_PACKAGE}.{kind}"
            if of_choice:
                added.oneof_index = 0
    return file


_pool = DescriptorPool()
_pool.Add(_file())
_Request: Any = GetMessageClass(_pool.FindMessageTypeByName(f"{_PACKAGE}.ServerReflectionRequest"))
_Response: Any = GetMessageClass(_pool.FindMessageTypeByName(f"{_PACKAGE}.ServerReflectionResponse"))


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
        request = _Request()
        try:
            if len(data) > _MAX_QUESTION_BYTES:
                raise InvalidRequest("the question is too large")
            request.ParseFromString(bytes(data))
        except DecodeError:
            raise InvalidRequest("the question is not a ServerReflectionRequest") from None
        response = _Response(valid_host=request.host, original_request=request)
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
    found = {file.name: file}
    waiting = [file]
    while waiting:
        for imported in waiting.pop().dependencies:
            if imported.name not in found:
                found[imported.name] = imported
                waiting.append(imported)
    yield from found.values()


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
