"""A real Prometheus that scrapes the replicas and evaluates the shipped recording rules."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conch.base.errors import Unavailable
from conch.base.http.client import answers_ok
from conch.base.http.prometheus import ask_prometheus
from conch.base.yaml_documents import dump_documents
from conch.operate.fleet.child import Child
from conch.operate.fleet.replicas import Replica
from conch.operate.fleet.timing import LOOKBACK_S, SCRAPE_INTERVAL_S, Timing
from conch.operate.monitoring.rules.rule import rule_file
from conch.operate.monitoring.rules.shipped_alerts import recording_rules

_QUERY_TIMEOUT_S = 2.0
_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 10.0
_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class SeriesValue:
    """A series of the result of an instant query."""

    labels: Mapping[str, str]
    value: float
    at_s: float  # Unix time


def query(url: str, expr: str) -> list[SeriesValue]:
    """Return the result of an instant query. Raises Unavailable with the reason."""
    try:
        rows = ask_prometheus(url, "query", {"query": expr}, _QUERY_TIMEOUT_S)["result"]
    except Unavailable as error:
        raise Unavailable(f"Prometheus does not answer the query {expr}: {error.message}") from None
    return [SeriesValue(row["metric"], float(row["value"][1]), float(row["value"][0])) for row in rows]


def configuration(timing: Timing, job: str, rules: Path, targets: Path) -> dict[str, Any]:
    """Return the configuration: one job that reads its targets from a file."""
    interval = timing.shortened(SCRAPE_INTERVAL_S)
    discovery = {"files": [str(targets)], "refresh_interval": "1s"}
    return {
        "global": {"scrape_interval": interval, "scrape_timeout": interval, "evaluation_interval": interval},
        "rule_files": [str(rules)],
        "scrape_configs": [{"job_name": job, "file_sd_configs": [discovery]}],
    }


def target_groups(replicas: Sequence[Replica], namespace: str) -> list[dict[str, Any]]:
    """Return a document of file_sd: each replica with the labels that a PodMonitor gives its pod."""
    return [
        {"targets": [replica.address("metrics")], "labels": {"namespace": namespace, "pod": replica.name}}
        for replica in replicas
    ]


class PrometheusProcess:
    """Prometheus on 127.0.0.1. Life: `start`, `supervise` until cancelled, `stop`."""

    def __init__(self, program: str, folder: Path, port: int, timing: Timing, *, job: str, namespace: str) -> None:
        """`job` and `namespace` are labels of all series."""
        self._port = port
        self._timing = timing
        self._job = job
        self._namespace = namespace
        self._targets = folder / "targets.json"
        self._rules = folder / "rules.yaml"
        self._configuration = folder / "prometheus.yaml"
        command = [
            program,
            f"--config.file={self._configuration}",
            f"--storage.tsdb.path={folder / 'prometheus'}",
            f"--web.listen-address=127.0.0.1:{port}",
            f"--query.lookback-delta={timing.shortened(LOOKBACK_S)}",
            "--log.level=warn",
        ]
        self.child = Child(command, folder / "prometheus.log")

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._port}"

    async def start(self) -> None:
        """Write the files, start, and wait until it is ready. Raises Unavailable."""
        group = self._timing.shortened_rules(recording_rules())
        self._rules.write_text(dump_documents([rule_file([group])]))
        if not self._targets.exists():
            self.set_targets(())
        self._configuration.write_text(
            dump_documents([configuration(self._timing, self._job, self._rules, self._targets)])
        )
        await self.child.start()
        try:
            async with asyncio.timeout(_START_TIMEOUT_S):
                while not await self.is_ready():
                    if self.child.status is not None:
                        raise Unavailable(f"Prometheus ended with status {self.child.status}: {self.child.tail}")
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise Unavailable(f"Prometheus is not ready after {_START_TIMEOUT_S:.0f} s: {self.child.tail}") from None

    async def is_ready(self) -> bool:
        """Return whether it answers."""
        return await asyncio.to_thread(answers_ok, f"{self.url}/-/ready", _QUERY_TIMEOUT_S)

    def set_targets(self, replicas: Sequence[Replica]) -> None:
        """Scrape these replicas."""
        written = self._targets.with_suffix(".new")
        written.write_text(json.dumps(target_groups(replicas, self._namespace)))
        written.replace(self._targets)

    async def query(self, expr: str) -> list[SeriesValue]:
        """Return the result of an instant query. Raises Unavailable."""
        return await asyncio.to_thread(query, self.url, expr)

    async def stop(self) -> None:
        """End."""
        await self.child.stop(_STOP_TIMEOUT_S)
