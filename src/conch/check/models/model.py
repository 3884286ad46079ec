"""A checked model: its folder, and its configuration as far as it can be completed."""

import re
from dataclasses import dataclass, replace
from pathlib import Path

from conch.check.finding import Place
from conch.check.models.pbtxt_index import PbtxtIndex
from conch.check.source import SourceFile
from conch.domain.model_config import ModelConfig
from conch.server.repository.store import ModelFiles


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A model's folder and the text of its configuration, if it has one."""

    directory: Path
    source: SourceFile | None  # config.pbtxt

    @property
    def name(self) -> str:
        """The model's name."""
        return self.directory.name

    def locate(self, sentence: str) -> Place:
        """Return the place in the configuration that a message is about; the folder if there is no configuration."""
        if self.source is None:
            return Place(self.directory)
        # Messages name unnamed groups by their default name, which the text does not contain.
        sentence = re.sub(rf"instance group '?{re.escape(self.name)}_(\d+)", r"instance_group[\1]", sentence)
        return self.source.at(PbtxtIndex(self.source.text).locate(sentence))

    def field(self, path: str) -> Place:
        """Return the place of a field such as `output[0].dims`; the beginning of the file if it is absent."""
        if self.source is None:
            return Place(self.directory)
        return self.source.at(PbtxtIndex(self.source.text).fields.get(path, 0))


@dataclass(frozen=True, slots=True)
class CheckedModel:
    """A model whose configuration could be read, perhaps after fields with errors were fixed or removed.

    `config` has the defaults, and is completed from the model file if that can be read without its framework.
    """

    folder: ModelFolder
    files: ModelFiles
    config: ModelConfig

    @property
    def name(self) -> str:
        """The model's name."""
        return self.folder.name

    @property
    def directory(self) -> Path:
        """`<repository>/<model>`."""
        return self.folder.directory

    @property
    def knows_tensors(self) -> bool:
        """Whether inputs and outputs are known."""
        return bool(self.config.inputs) and bool(self.config.outputs)

    def completed(self, config: ModelConfig) -> "CheckedModel":
        """Return a copy of the model with a more complete configuration."""
        return replace(self, config=config)
