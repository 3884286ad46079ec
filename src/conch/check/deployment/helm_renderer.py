"""A process that renders charts with the package helm-python-sdk, the only module that imports it.

    python -m conch.check.deployment.helm_renderer CHART [VALUES…]

prints JSON: for the defaults and for each file of values, `{"manifests": {template: text}}` or `{"error": message}`. It
is a separate process, because the library is a Go program with signal handlers, and a template may run for ever.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def main(arguments: Sequence[str]) -> None:
    """Render a chart and print the manifests."""
    import helm_python

    from conch.base.yaml_documents import YamlError, load_documents

    chart, *files = arguments
    attempts: list[dict[str, Any]] = []
    for file in [None, *files]:
        try:
            documents = load_documents(Path(file).read_text(encoding="utf-8")) if file else []
            values = documents[0].value if documents else {}
            with helm_python.Chart.load(chart) as loaded:
                manifests = loaded.render(values, name="release", namespace="default")
            attempts.append({"manifests": manifests})
        except (helm_python.HelmError, YamlError, UnicodeDecodeError) as error:
            attempts.append({"error": str(error)})
    print(json.dumps(attempts))


if __name__ == "__main__":
    main(sys.argv[1:])
