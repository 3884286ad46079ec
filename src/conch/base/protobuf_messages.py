"""Protobuf messages that are declared in tables, for services whose packages need the gRPC library."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

_SCALARS = {
    "string": FieldDescriptorProto.TYPE_STRING,
    "bytes": FieldDescriptorProto.TYPE_BYTES,
    "int32": FieldDescriptorProto.TYPE_INT32,
}


class Field(NamedTuple):
    """A field. `kind` is a scalar, or a message of the same file; `choice`: it is of the oneof of this name."""

    name: str
    number: int
    kind: str = "string"
    repeated: bool = False
    choice: bool = False


def message_file(name: str, package: str, messages: Mapping[str, Sequence[Field]]) -> FileDescriptorProto:
    """Return the file of messages with these fields."""
    file = FileDescriptorProto(name=name, package=package, syntax="proto3")
    for title, fields in messages.items():
        message = file.message_type.add(name=title)
        if any(field.choice for field in fields):
            message.oneof_decl.add(name="choice")
        for field in fields:
            label = FieldDescriptorProto.LABEL_REPEATED if field.repeated else FieldDescriptorProto.LABEL_OPTIONAL
            added = message.field.add(name=field.name, number=field.number, label=label)
            added.type = _SCALARS.get(field.kind, FieldDescriptorProto.TYPE_MESSAGE)
            if field.kind not in _SCALARS:
                added.type_name = f".{package}.{field.kind}"
            if field.choice:
                added.oneof_index = 0
    return file


def message_classes(file: FileDescriptorProto) -> tuple[FileDescriptor, dict[str, Any]]:
    """Return the description of a file, and the classes of its messages by name.

    They have a separate pool: a pool can define a file only once, and a program may import the package that does, too.
    """
    pool = DescriptorPool()
    pool.Add(file)
    described: FileDescriptor = pool.FindFileByName(file.name)
    return described, {name: GetMessageClass(kind) for name, kind in described.message_types_by_name.items()}
