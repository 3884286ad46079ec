"""Check label files: readable, with one line for each class."""

from collections.abc import Iterator
from math import prod

from conch.base.errors import ModelLoadError
from conch.check.finding import Edit, Finding, Place
from conch.check.model import CheckedModel
from conch.check.source import SourceFile
from conch.domain.config.labels import read_labels


def check_labels(model: CheckedModel) -> Iterator[Finding]:
    """Check the label files of all outputs."""
    try:
        labels = read_labels(model.config, model.directory)
    except ModelLoadError as error:
        yield Finding("label-file", model.folder.locate(error.message), error.message)
        return
    for index, output in enumerate(model.config.outputs):
        if output.name not in labels:
            continue
        path = model.directory / output.label_filename
        count, classes = len(labels[output.name]), prod(output.dims)
        if -1 not in output.dims and count != classes:
            message = (
                f"{path.name} has {count} labels, but output '{output.name}' of model '{model.name}' has {classes} "
                "classes"
            )
            yield Finding("label-count", model.folder.field(f"output[{index}].label_filename"), message)
        source = SourceFile.read(path)
        if source and "\r\n" in source.text:
            edits = tuple(
                Edit(at, at + 1, "") for at, mark in enumerate(source.text) if source.text[at : at + 2] == "\r\n"
            )
            yield Finding("label-line-ends", Place(path, 1, 1), f"lines of {path.name} end in CR LF", edits=edits)
