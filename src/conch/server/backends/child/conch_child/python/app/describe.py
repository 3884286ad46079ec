"""Print the models that a Python file declares, as JSON: how the server reads a file that it does not import itself."""

from __future__ import annotations

import json
import os
import sys
import traceback
from typing import Any, Dict, List, Optional

from .endpoints import DeclarationError, endpoints_of, import_app


def main(path: str) -> None:
    """Print `models` (configurations by name) or `error`, and `files`: modules of the file's folder that it imports.

    What the file itself prints goes to stderr.
    """
    answer = os.dup(1)
    os.dup2(2, 1)
    document: Dict[str, Any] = {}
    failure: Optional[BaseException] = None
    try:
        document["models"] = {name: endpoint.config() for name, endpoint in endpoints_of(import_app(path)).items()}
    except DeclarationError as error:
        document["error"] = str(error)
    except BaseException as error:  # whatever the file raises, SystemExit too
        failure = error
        document["error"] = "{}: the import failed\n{}".format(path, _formatted(error))
    document["files"] = _files(os.path.dirname(os.path.realpath(path)), failure)  # noqa: PTH120
    sys.stdout.flush()
    os.write(answer, json.dumps(document).encode())


def _formatted(error: BaseException) -> str:
    """Return the traceback without the frames of this package and of the import machinery."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<frozen") and "conch_child" not in frame.filename
    ]
    return "".join(traceback.format_list(frames) + traceback.format_exception_only(type(error), error)).rstrip()


def _files(folder: str, failure: Optional[BaseException]) -> List[str]:
    """Return the files of the folder that were imported, and the one that could not be."""
    files = {getattr(module, "__file__", None) or "" for module in list(sys.modules.values())}
    if failure is not None:
        files |= {frame.filename for frame in traceback.extract_tb(failure.__traceback__)}
        files.add(getattr(failure, "filename", None) or "")  # of a SyntaxError
    return sorted(path for path in files if path.startswith(folder + os.sep) and "site-packages" not in path)
