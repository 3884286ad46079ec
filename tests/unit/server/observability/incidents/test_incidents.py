"""When bundles are written: one at a time, not too often, a bounded number; a full folder costs only the bundle."""

import asyncio
import logging
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from conch.base.errors import Unavailable
from conch.domain.events.bundle import Bundle
from conch.domain.events.log import EventLog
from conch.server.observability.incidents import incidents as module
from conch.server.observability.incidents.incidents import Incidents, Sources
from conch.server.observability.incidents.triggers import Counts, Incident, Triggers

DEATH, BY_HAND = Incident("death", "a process died"), Incident("signal", "SIGUSR2")


class Server:
    """What bundles are made of; `gate` holds the reading of events back."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.counts = Counts(0, 0, 0, 0)
        self.overrun_before = 0

    async def events(self, last_s: float) -> EventLog:
        await self.gate.wait()
        secret = {"models": {"m": {"parameters": {"HF_TOKEN": {"string_value": "s3cret"}}}}}
        return EventLog.of_rows(
            {"requests": [{"number": 1}]}, overrun_before=self.overrun_before, monotonic_ns=2**62, server=secret
        )

    def sources(self) -> Sources:
        return Sources(
            self.events,
            lambda: iter([b"a 1\n", b"b 2\n"]),
            lambda: {"m/1": {"config": {}}},
            dict,
            lambda: {"python": "3"},
            lambda: [{"number": 1}],
            lambda: {"m/1": self.counts},
        )


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_AFTER_S", 0.01)
    monkeypatch.setattr(module, "_SAMPLE_S", 0.01)


@asynccontextmanager
async def running(
    server: Server, folder: Path | None, *, keep: int = 3, interval_s: float = 0, failures: int = 0
) -> AsyncIterator[Incidents]:
    incidents = Incidents(server.sources(), Triggers(0, failures), folder, keep, interval_s)
    incidents.start()
    try:
        yield incidents
    finally:
        server.gate.set()
        await incidents.stop()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.005)


def bundles(folder: Path) -> list[Bundle]:
    return [Bundle.read(path) for path in sorted(folder.glob("*.zst"), key=lambda file: file.stat().st_mtime_ns)]


async def test_a_bundle_has_what_the_server_knows(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    server = Server()
    logging.getLogger("conch").setLevel(logging.INFO)
    async with running(server, tmp_path / "new" / "folder") as incidents:
        logging.getLogger("conch.x").warning("a line of the log")
        assert incidents.report(BY_HAND) == "a bundle is being made"
        await until(lambda: bundles(tmp_path / "new/folder"))
    (bundle,) = bundles(tmp_path / "new/folder")
    assert (bundle.manifest["reason"], bundle.manifest["detail"]) == ("signal", "SIGUSR2")
    assert bundle.metrics == "a 1\nb 2\n"
    assert (bundle.environment, list(bundle.requests)) == ({"python": "3"}, [{"number": 1}])
    assert "a line of the log" in bundle.log_lines
    assert list(bundle.log.requests["number"]) == [1]
    assert bundle.log.server["models"]["m"]["parameters"] == {"HF_TOKEN": "[redacted]"}
    (path,) = (tmp_path / "new/folder").iterdir()
    assert path.stat().st_mode & 0o777 == 0o600
    assert "wrote the incident bundle" in caplog.text


async def test_two_incidents_at_once_are_one_bundle_that_names_both(tmp_path: Path) -> None:
    server = Server()
    server.gate.clear()
    async with running(server, tmp_path) as incidents:
        assert incidents.report(DEATH) == "a bundle is being made"
        assert incidents.report(BY_HAND) == "the bundle that is being made, or the next one, notes it"
        server.gate.set()
        await until(lambda: bundles(tmp_path))
    (bundle,) = bundles(tmp_path)
    assert [note["reason"] for note in bundle.manifest["incidents"]] == ["death", "signal"]


async def test_an_incident_soon_after_a_bundle_is_noted_in_the_next(tmp_path: Path) -> None:
    async with running(Server(), tmp_path, interval_s=1000) as incidents:
        incidents.report(DEATH)
        await until(lambda: bundles(tmp_path) and incidents._writing is None)
        assert "the next bundle will note it" in incidents.report(DEATH)
        assert incidents.report(BY_HAND) == "a bundle is being made"  # by hand it is made at any time
        await until(lambda: len(bundles(tmp_path)) == 2)
    assert [[note["reason"] for note in bundle.manifest["incidents"]] for bundle in bundles(tmp_path)] == [
        ["death"],
        ["death", "signal"],
    ]


async def test_a_bounded_number_is_kept(tmp_path: Path) -> None:
    async with running(Server(), tmp_path, keep=2) as incidents:
        for number in range(4):
            incidents.report(Incident("signal", f"number {number}"))
            await until(lambda: incidents._writing is None)
    assert [bundle.manifest["detail"] for bundle in bundles(tmp_path)] == ["number 2", "number 3"]


async def test_a_folder_that_cannot_be_written_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "folder"
    folder.write_text("a file is in its place")
    async with running(Server(), folder) as incidents:
        for _ in range(3):
            incidents.report(BY_HAND)
            await until(lambda: incidents._writing is None)
        assert "File exists" in incidents.problem
        assert caplog.text.count("cannot write the bundle of an incident") == 1
        folder.unlink()
        incidents.report(BY_HAND)
        await until(lambda: incidents._writing is None)
        assert not incidents.problem
    assert len(bundles(folder)[0].manifest["incidents"]) == 4
    shutil.rmtree(folder)


async def test_counters_are_watched(tmp_path: Path) -> None:
    server = Server()
    async with running(server, tmp_path, failures=5) as incidents:
        await until(lambda: incidents._triggers._samples)
        server.counts = Counts(0, 0, 9, 0)
        await until(lambda: bundles(tmp_path))
    assert bundles(tmp_path)[0].manifest["detail"] == "9 requests for model 'm/1' failed in 10 s"


async def test_without_a_folder_incidents_are_counted_and_bundles_are_for_clients(tmp_path: Path) -> None:
    server = Server()
    server.overrun_before = 2**62 - 5_000_000_000
    async with running(server, None) as incidents:
        assert incidents.report(BY_HAND) == "no bundle is written without --incident-dir"
        (tmp_path / "x.zst").write_bytes(await incidents.bundle(60, Incident("request", "asked")))
        (bundle,) = bundles(tmp_path)
        assert bundle.missing == ("the event log holds the last 5 s only: earlier rows were overwritten",)
        assert [note["reason"] for note in bundle.manifest["incidents"]] == ["signal"]
        points = next(incidents.families()).points
        assert {point.labels["reason"]: point.value for point in points}["signal"] == 1
        server.gate.clear()
        held = asyncio.ensure_future(incidents.bundle(60, BY_HAND))
        await asyncio.sleep(0)
        with pytest.raises(Unavailable, match="another incident bundle is being made"):
            await incidents.bundle(60, BY_HAND)
        server.gate.set()
        assert await held


async def test_a_signal_handler_may_report(tmp_path: Path) -> None:
    async with running(Server(), tmp_path) as incidents:
        await asyncio.to_thread(incidents.on_signal)
        await until(lambda: bundles(tmp_path))
    incidents.on_signal()
