"""The audit log: what a change, a truncation, a move and a crash leave behind, and rotation."""

import json
import os
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from conch.base.errors import ConfigError
from conch.machine.condition import CautiousClock
from conch.server.commands.audit import audit
from conch.server.limits.audit_log import AuditLog, log_files, verify


def write(path: Path, number: int = 8) -> None:
    log = AuditLog(path)
    log.open()
    for index in range(number):
        log.append({"what": "limits set", "who": "key:ops", "source": "admin", "before": [], "after": [index]})
    log.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write(tmp_path / "audit.jsonl")
    return tmp_path / "audit.jsonl"


def findings(*paths: Path) -> list[tuple[int, str]]:
    return [(finding.line, finding.text) for finding in verify(paths).findings]


def test_an_untouched_log_is_intact(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert audit(["verify", str(path)]) == 0
    chain = verify([path])
    assert capsys.readouterr().out == f"intact: records 1 to 8, hash {chain.hash}\n"
    assert audit(["verify", "--json", str(path)]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown == {"intact": True, "records": 8, "first": 1, "last": 8, "hash": chain.hash, "findings": []}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(Path(f"{path}.head").stat().st_mode) == 0o600
    record = json.loads(path.read_text().splitlines()[2])
    assert {"what", "who", "source", "before", "after", "time", "seq", "previous", "hash"} == set(record)


@pytest.mark.slow
def test_every_changed_byte_is_found_with_its_line(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    intact = path.read_bytes()
    lines = intact.splitlines(keepends=True)
    starts = [sum(map(len, lines[:index])) for index in range(len(lines))]
    for line in (0, 3):
        for offset in range(len(lines[line]) - 1):
            at = starts[line] + offset
            path.write_bytes(intact[:at] + bytes([intact[at] ^ 1]) + intact[at + 1 :])
            # A byte that becomes a line feed makes two lines of one.
            faults = findings(path)
            assert faults, f"byte {offset} of line {line + 1}"
            assert faults[0][0] == line + 1, f"byte {offset} of line {line + 1}: {faults}"
    path.write_bytes(intact.replace(b'"after":[4]', b'"after":[9]'))
    assert audit(["verify", str(path)]) == 1
    assert capsys.readouterr().out == f"{path}:5: record 5 was changed\n"
    assert audit(["verify", "--json", str(path)]) == 1
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert finding == {"file": str(path), "line": 5, "text": "record 5 was changed"}


def test_records_that_are_removed_moved_or_repeated_are_found_with_their_line(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    for changed, line in (
        ([*lines[:3], *lines[4:]], 4),
        ([*lines[:2], lines[3], lines[2], *lines[4:]], 3),
        ([*lines[:4], lines[3], *lines[4:]], 5),
    ):
        path.write_bytes(b"".join(changed))
        faults = findings(path)
        assert faults[0][0] == line
        assert "missing or out of order" in faults[0][1]


def test_truncation_is_found_by_the_head(path: Path) -> None:
    intact = path.read_bytes()
    lines = intact.splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:5]))
    assert findings(path) == [(0, "records 6 to 8 are missing at the end: the file was truncated")]
    path.write_bytes(intact[:-20])
    faults = findings(path)
    assert faults[0] == (8, "the record is incomplete: a crash while it was written, or the file was truncated")
    assert "missing at the end" in faults[1][1]


def test_lost_first_records_are_found(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[3:]))
    text = "the file begins with record 4, which begins no file: the records before it were removed"
    assert findings(path) == [(1, text)]
    log = AuditLog(path)
    log.open()
    log.close()
    assert text in caplog.text
    assert any(text in finding for _, finding in findings(path))


def test_a_lost_head_is_found(path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:5]))
    Path(f"{path}.head").unlink()
    assert findings(path)[0][1].startswith("the head is missing, so that records may be missing at the end")
    log = AuditLog(path)
    log.open()
    log.close()
    assert "audit.jsonl.head: the head was changed or removed" in caplog.text
    assert any("the head was changed or removed" in text for _, text in findings(path))


def test_a_rewritten_log_is_found_by_a_record_known_elsewhere(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With all files in hand an attacker can write an intact log; not one with the hash in another machine's log."""
    log = AuditLog(path)
    log.open()
    witness = log.last
    log.close()
    expect = ["verify", str(path), "--expect-record", witness]
    assert audit(expect) == 0
    log.open()
    log.append({"what": "limits set", "who": "me"})
    log.close()
    assert audit(expect) == 0
    for file in (path, Path(f"{path}.head")):
        file.unlink()
    write(path, 4)
    assert audit(["verify", str(path)]) == 0
    assert audit(expect) == 1
    assert f"{path}: record 8 is missing: the log was truncated" in capsys.readouterr().out
    write(path, 8)
    assert audit(expect) == 1
    assert f"{path}: record 8 is another one: the log was rewritten" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="2"):
        audit(["verify", str(path), "--expect-record", "8"])


def test_another_log_in_its_place_is_found(path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.jsonl"
    write(other, 8)
    path.write_bytes(other.read_bytes().replace(b"x", b"x"))
    assert "is not the one that was written last" in findings(path)[0][1]


def test_a_crash_in_a_record_is_repaired_and_reported(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with path.open("ab") as file:
        file.write(b'{"after":[],"before"')
    assert findings(path)[0][0] == 9
    log = AuditLog(path)
    log.open()
    log.append({"what": "limits set", "who": "me"})
    log.close()
    assert "dropped an incomplete record of 20 bytes" in caplog.text
    assert findings(path) == []
    assert json.loads(path.read_text().splitlines()[8])["what"] == "incomplete record dropped"
    assert verify([path]).seq == 10


def test_damage_is_recorded_at_the_start_and_stays_visible(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:5]))
    for _ in range(3):
        log = AuditLog(path)
        log.open()
        log.close()
    assert "records 6 to 8 are missing at the end" in caplog.text
    texts = [text for _, text in findings(path)]
    assert any("the server found at its start: audit.jsonl: records 6 to 8 are missing" in text for text in texts)
    assert "record 9 follows record 5: records are missing or out of order" in texts
    path.unlink()
    log = AuditLog(path)
    log.open()
    log.close()
    assert any("missing at the end" in text for _, text in findings(path))


def test_two_servers_cannot_write_to_one_log(path: Path) -> None:
    first, second = AuditLog(path), AuditLog(path)
    first.open()
    with pytest.raises(ConfigError, match="another server writes to"):
        second.open()
    first.close()
    second.open()
    second.close()


def test_an_unwritable_place_is_an_error_of_the_start(tmp_path: Path) -> None:
    (tmp_path / "audit.jsonl").mkdir()
    with pytest.raises(ConfigError, match="cannot write"):
        AuditLog(tmp_path / "audit.jsonl").open()


def test_rotation_keeps_the_chain_and_retention_deletes_old_files(tmp_path: Path) -> None:
    path, now = tmp_path / "audit.jsonl", datetime(2026, 1, 1, tzinfo=UTC)
    clock = [now]
    elapsed = [0.0]
    retention = CautiousClock(lambda: clock[0].timestamp(), lambda: elapsed[0])
    log = AuditLog(path, max_bytes=1000, now=lambda: clock[0], clock=retention)
    log.carried = lambda: {"source": "admin", "after": ["x"]}
    log.open()
    for number in range(20):
        clock[0] += timedelta(days=1)
        elapsed[0] += 86_400
        log.append({"what": "limits set", "who": "me", "after": [number]})
        for file in log_files(path):
            os.utime(file, (clock[0].timestamp(), clock[0].timestamp())) if file == path else None
    files = log_files(path)
    assert len(files) > 3
    assert findings(*files) == []
    assert findings(*reversed(files)) == []
    assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in files)
    assert json.loads(files[1].read_text().splitlines()[0])["after"] == ["x"]
    # A rotated file that lost its last records, together with all that came later.
    content, times = files[1].read_bytes(), files[1].stat()
    files[1].write_bytes(b"".join(content.splitlines(keepends=True)[:-1]))
    assert "the file was truncated" in findings(*files[:2])[0][1]
    files[1].write_bytes(content)
    os.utime(files[1], ns=(times.st_atime_ns, times.st_mtime_ns))
    # All current records, but not the head, which says what they were.
    assert "missing at the end" in findings(*files[:-1], Path(f"{path}.head"))[0][1]
    # A file in between that is missing breaks the chain at the first line of the next one.
    (finding,) = verify([files[0], *files[2:]]).findings
    assert (finding.file, finding.line) == (str(files[2]), 1)
    clock[0] += timedelta(days=185)  # a step, which makes nothing old
    log.append({"what": "limits set", "who": "me"})
    assert files[:-1] == log_files(path)[: len(files) - 1]
    last = verify(log_files(path)).seq
    elapsed[0] += 185 * 86_400
    clock[0] += timedelta(days=31)  # the current file is due
    log.append({"what": "limits set", "who": "me"})
    kept = log_files(path)
    assert 0 < len(kept) < len(files)
    chain = verify(kept)
    assert chain.findings == []
    assert chain.first_seq > 1
    assert chain.seq == last + 2
    log.close()
    again = AuditLog(path)
    assert again.open()[0]["after"] == ["x"]
    again.close()


def test_a_full_disk_leaves_the_log_as_it_was(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = AuditLog(path)
    log.open()
    before = path.read_bytes()
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, data[:10]))
    with pytest.raises(OSError, match="No space left"):
        log.append({"what": "limits set", "who": "me"})
    assert path.read_bytes() == before
    monkeypatch.undo()
    # The head cannot be written: the record is not there either.
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space left"):
        log.append({"what": "limits set", "who": "me"})
    assert path.read_bytes() == before
    monkeypatch.setattr(os, "pwrite", pwrite)
    log.append({"what": "limits set", "who": "me"})
    log.close()
    assert findings(path) == []


def test_files_without_records_and_missing_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").touch()
    assert audit(["verify", str(tmp_path / "empty")]) == 2
    assert audit(["verify", str(tmp_path / "missing")]) == 2
    assert "cannot read" in capsys.readouterr().err


def test_a_file_of_something_else_is_not_an_audit_log(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = path.with_name("README.md")
    other.write_text("# Title\n\n{}\ntext\n")
    assert audit(["verify", str(other)]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert f"{other}: not an audit log; no line is a record" in output.err
    # A log whose records were all changed is damaged.
    path.write_text(path.read_text().replace("key:ops", "key:eve"))
    Path(f"{path}.head").unlink()
    assert audit(["verify", str(path)]) == 1
