"""`conch dashboards`: write Grafana dashboards, as files or as ConfigMaps."""

import json
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from conch.base.command_line.command_parser import CommandParser
from conch.base.command_line.option_types import label, namespace

_FAILURE = 1
_LABEL = ("grafana_dashboard", "1")
_INDENT = 2


def dashboards(arguments: Sequence[str]) -> int:
    """Write or list the dashboards; return the exit status: 0, 1 after a failure, 2 for invalid arguments."""
    parser = _parser()
    options = parser.parse_args(arguments)
    for name in ("namespace", "folder", "label"):
        if getattr(options, name) is not None and not options.configmaps:
            parser.error(f"--{name} is for --configmaps only")
    if options.json and not options.list:
        parser.error("--json is for --list only")
    try:
        if options.list:
            _list(options)
        elif options.configmaps:
            _write_config_maps(options)
        else:
            _write_files(options)
    except OSError as error:
        if not error.filename:  # of a pipe
            raise
        print(f"conch dashboards: cannot write {error.filename}: {error.strerror}", file=sys.stderr)
        return _FAILURE
    return 0


def _parser() -> CommandParser:
    parser = CommandParser("conch dashboards", description="Write dashboards for Grafana 10 to 12.")
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--output", metavar="DIR", type=Path, help="write one JSON file for each dashboard")
    action.add_argument(
        "--configmaps", action="store_true", help="print ConfigMaps that the sidecar of Grafana's charts loads"
    )
    action.add_argument("--list", action="store_true", help="list dashboards and their panels")
    parser.add_argument(
        "--dcgm-names", choices=("legacy", "4.7"), default="legacy", help="names of NVIDIA's metrics (default: legacy)"
    )
    parser.add_argument("--namespace", type=namespace, help="namespace of ConfigMaps")
    parser.add_argument("--folder", help="folder in Grafana, as annotation grafana_folder of ConfigMaps")
    parser.add_argument(
        "--label",
        metavar="NAME=VALUE",
        type=label,
        help="label by which the sidecar finds ConfigMaps (default: grafana_dashboard=1)",
    )
    parser.add_argument("--json", action="store_true", help="with --list: print JSON, with all queries")
    return parser


def _write_files(options: Namespace) -> None:
    from conch.operate.monitoring.dashboards.catalog import all_dashboards
    from conch.operate.monitoring.dashboards.grafana import dashboard_json

    options.output.mkdir(parents=True, exist_ok=True)
    for dashboard in all_dashboards(options.dcgm_names):
        path = options.output / f"{dashboard.uid}.json"
        path.write_text(dashboard_json(dashboard), encoding="utf-8")
        print(path)


def _write_config_maps(options: Namespace) -> None:
    from conch.base.yaml_documents import dump_documents
    from conch.operate.monitoring.dashboards.catalog import all_dashboards
    from conch.operate.monitoring.dashboards.grafana import config_map

    objects = (
        config_map(dashboard, options.namespace or "", options.label or _LABEL, options.folder or "")
        for dashboard in all_dashboards(options.dcgm_names)
    )
    sys.stdout.write(dump_documents(objects))


def _list(options: Namespace) -> None:
    from conch.operate.monitoring.dashboards.catalog import all_dashboards

    listed = all_dashboards(options.dcgm_names)
    if options.json:
        document = [
            {
                "uid": dashboard.uid,
                "title": dashboard.title,
                "description": dashboard.description,
                "panels": [
                    {
                        "title": panel.title,
                        "description": panel.description,
                        "unit": panel.unit,
                        "queries": [query.expr for query in panel.queries],
                    }
                    for panel in dashboard.panels
                ],
            }
            for dashboard in listed
        ]
        print(json.dumps(document, indent=_INDENT))
        return
    for dashboard in listed:
        print(f"{dashboard.uid}  {dashboard.title}: {dashboard.description}")
        for row in dashboard.rows:
            print(f"  {row.title}: {', '.join(panel.title for panel in row.panels)}")
