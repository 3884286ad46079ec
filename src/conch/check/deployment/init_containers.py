"""Check init containers against the Dockerfiles of the images that they run in."""

from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from conch.check.deployment.dockerfiles import stages_of
from conch.check.deployment.workloads import PodOwner
from conch.check.finding import Finding, Related
from conch.check.source import SourceFile

_COPIES = ("cp", "sh", "bash", "/bin/cp", "/bin/sh", "/bin/bash", "rsync", "tar")


def check_init_containers(dockerfiles: Sequence[SourceFile], workloads: Sequence[PodOwner]) -> Iterator[Finding]:
    """Find init containers that copy files out of an image FROM scratch.

    The image is recognised by the path that is copied: the Dockerfile writes to it.
    """
    final = [stages[-1] for source in dockerfiles if (stages := stages_of(source))]
    data = [each for each in final if each.image == "scratch" and not each.has_programs]
    for workload in workloads:
        for container in workload.containers("initContainers"):
            words = container.words
            if not words or PurePosixPath(words[0]).name not in _COPIES:
                continue
            for stage in data:
                folders = [path.rstrip("/") for path in stage.destinations if path.rstrip("/")]
                copied = next((each for each in folders if any(_below(word, each) for word in words[1:])), None)
                if copied:
                    message = (
                        f"init container '{container.name}' runs {words[0]} to copy {copied}, but its image is built "
                        "FROM scratch and contains no program"
                    )
                    related = Related(stage.begin, f"the image with {copied} is built FROM scratch")
                    place = container.place()
                    yield Finding("init-container-scratch", place, message, related=(related,))


def _below(word: str, folder: str) -> bool:
    return word.rstrip("/.*") == folder or word.startswith(f"{folder}/")
