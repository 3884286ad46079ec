"""Whether answers can be made to match what a client wants them to, found out where it harms nobody.

OpenVINO GenAI compiles a schema, an expression or a grammar within the step that computes the first token, for all
requests together; one that it cannot compile leaves its pipeline useless. So a process of its own, `grammar_probe.py`,
compiles each at first. What it chokes on, or takes too long for, is refused.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Union

# How long the process may take to start, and then for each structure.
_START_LIMIT_S = 60.0
_LIMIT_S = 10.0
_REMEMBERED = 256
_MOST_WAITING = 1024

Structure = tuple[str, str]  # kind and value of a `conch.generation.StructuredOutput`


class Grammars:
    """Says of structures whether they are good. The process is started with the first one."""

    def __init__(self) -> None:
        self._verdicts: OrderedDict[Structure, str] = OrderedDict()
        self._asked: set[Structure] = set()
        self._questions: SimpleQueue[Structure] = SimpleQueue()
        self._answers: SimpleQueue[tuple[Structure, str]] = SimpleQueue()
        self._thread: Thread | None = None

    def verdict(self, structure: Structure) -> Union[str, None]:
        """Return what is wrong with a structure, "" if nothing is; None: not known yet, ask again later."""
        while not self._answers.empty():
            answered, wrong = self._answers.get()
            self._asked.discard(answered)
            self._verdicts[answered] = wrong
            if len(self._verdicts) > _REMEMBERED:
                self._verdicts.popitem(last=False)
        if structure in self._verdicts:
            self._verdicts.move_to_end(structure)
            return self._verdicts[structure]
        if structure not in self._asked:
            if len(self._asked) >= _MOST_WAITING:
                return "too many other structures are being compiled"
            self._asked.add(structure)
            self._questions.put(structure)
            if self._thread is None:
                self._thread = Thread(target=self._find_out, name="grammars", daemon=True)
                self._thread.start()
        return None

    # ---- the thread

    def _find_out(self) -> None:
        probe: Union[_Probe, None] = None
        while True:
            structure = self._questions.get()
            try:
                probe = probe or _Probe()
                wrong = probe.ask(structure)
            except OSError as error:
                wrong = f"it could not be compiled: {error}"
            if probe is not None and not probe.alive:
                probe = None
            self._answers.put((structure, wrong))


class _Probe:
    """The process, from its start to its end."""

    def __init__(self) -> None:
        child = str(Path(__file__).resolve().parents[2])
        path = os.pathsep.join(filter(None, (child, os.environ.get("PYTHONPATH"))))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "conch_child.engine.grammar_probe"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # the library complains of what a failed structure leaves behind
            env={**os.environ, "PYTHONPATH": path},
        )
        self._limit_s = _START_LIMIT_S

    @property
    def alive(self) -> bool:
        """Whether it can be asked again."""
        return self._process.poll() is None

    def ask(self, structure: Structure) -> str:
        """Return what is wrong with a structure; one that this process does not survive is."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(structure).encode() + b"\n")
        process.stdin.flush()
        ready, _, _ = select.select([process.stdout], [], [], self._limit_s)
        limit_s, self._limit_s = self._limit_s, _LIMIT_S
        line = process.stdout.readline() if ready else b""
        if line:
            wrong: str = json.loads(line)
            return wrong
        process.kill()
        status = process.wait()
        return f"it takes more than {limit_s:g} s to compile" if not ready else f"compiling it failed ({status})"
