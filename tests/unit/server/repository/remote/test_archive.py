"""Harmful archives: each is refused with the reason, in bounded time and memory."""

import io
import lzma
import os
import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from time import process_time

import pytest

from conch.base import archives
from conch.base.archives import ArchiveLimits
from conch.base.errors import ConfigError
from conch.server.repository.remote.archive import Unpacker
from conch.server.repository.remote.cache import Cache
from conch.server.repository.remote.listing import RemoteFile
from conch.server.repository.remote.tree import merged

FEW = ArchiveLimits(entries=100)


def unpacked(root: Path, data: bytes, suffix: str = ".tar", limits: ArchiveLimits | None = None) -> list[str]:
    file = root / "archive"
    file.write_bytes(data)
    cache = Cache(root / "cache")
    cache.open()
    return [entry.path for entry in Unpacker(cache, "there", limits).unpack(file, suffix)]


def header(name: str, kind: bytes = tarfile.REGTYPE, *, link: str = "", size: int = 0) -> bytes:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, link, size
    return info.tobuf(tarfile.GNU_FORMAT, errors="surrogateescape")


def links(pairs: Iterable[tuple[str, str]], kind: bytes = tarfile.SYMTYPE) -> bytes:
    return b"".join(header(name, kind, link=target) for name, target in pairs)


def sparse_pax() -> bytes:
    info = tarfile.TarInfo("m/1/w")
    info.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "9999999999"}
    return info.tobuf(tarfile.PAX_FORMAT)


def zipped(write: Callable[[zipfile.ZipFile], None]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        write(archive)
    return stream.getvalue()


def zip_link(name: str, target: bytes) -> bytes:
    info = zipfile.ZipInfo(name)
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    return zipped(lambda archive: archive.writestr(info, target))


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (
            header("x", tarfile.XHDTYPE, size=1 << 30),
            "has 1073741824 bytes of names .*; the limits are 65536",
        ),
        (header("x", tarfile.XGLTYPE, size=1 << 30), "names and attributes"),
        (header("x", tarfile.GNUTYPE_LONGNAME, size=1 << 30), "names and attributes"),
        (header("x", tarfile.GNUTYPE_LONGLINK, size=1 << 30), "names and attributes"),
        (header("x", tarfile.SOLARIS_XHDTYPE, size=1 << 30), "names and attributes"),
        ((header("x", tarfile.GNUTYPE_LONGNAME, size=2) + b"ab".ljust(512, b"\0")) * 5_000, "cannot be read"),
        (header("m/1/w", tarfile.GNUTYPE_SPARSE, size=0), "'m/1/w' is a sparse file"),
        (sparse_pax(), "is a sparse file"),
        (links((f"m/{n}", f"{n + 1}") for n in range(2_000)), "through a chain of more than 40 links"),
        (links((f"m/{n}", f"m/{n + 1}") for n in range(2_000)), "leads to"),
        (links([("m/a", "b"), ("m/b", "a")]), "leads to 'm/.*', which is not in the archive"),
        (links([("m/a", "../../etc")]), "the link 'm/a' leads out of the repository"),
        (links([("m/a", "/etc/passwd")]), "the link 'm/a' leads out of the repository"),
        (links([("m/a", "/etc/passwd")], tarfile.LNKTYPE), "the link 'm/a' leads out of the repository"),
        (links([("m/a", "\udcff\udcfe")]), r"the path 'm/\\udcff\\udcfe' is not UTF-8"),
        (links([("m/\udcff", "a")]), r"the path 'm/\\udcff' is not UTF-8"),
        (header("m/\udcff"), "is not UTF-8"),
        (header("m/d", tarfile.BLKTYPE), "is a device or pipe"),
        (header("m/d", tarfile.CHRTYPE), "is a device or pipe"),
        (header("m/d", tarfile.FIFOTYPE), "is a device or pipe"),
        (header("m/d", b"Z"), "is a device or pipe|damaged"),
        (header("../m"), "leads out of its folder"),
        (header("/".join("a" * 300)), "is 300 folders deep; the limit is 64"),
        (header("m/" + "a" * 300), "has 302 bytes; the limits are 2048, and 255 for each name"),
        (header("m/a") + header("m/a/b"), "'m/a' is both a file and a folder"),
        (b"\x1f\x8b" + bytes(100), "damaged|cannot be read"),
        (b"\xfd7zXZ\0" + bytes(100), "damaged"),
        (b"BZh9" + bytes(100), "damaged|cannot be read"),
        (os.urandom(2048), "damaged"),
    ],
    ids=lambda value: None if isinstance(value, bytes) else value[:30],
)
def test_harmful_archives_are_refused(tmp_path: Path, data: bytes, complaint: str) -> None:
    began = process_time()
    with pytest.raises(ConfigError, match=complaint) as raised:
        unpacked(tmp_path, data)
    assert raised.value.message.encode()
    assert len(raised.value.message) < 2_000
    assert process_time() - began < 30


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (zip_link("m/a", b"\xff\xfe"), "is not UTF-8"),
        (zip_link("m/a", b"/etc/passwd"), "leads out of the repository"),
        (zip_link("m/a", b"x" * 5_000), "the limits are 2048, and 255 for each name"),
        (
            zipped(lambda archive: archive.writestr("m/a", b"x" * 100, zipfile.ZIP_LZMA)),
            "there: 'm/a' is compressed with LZMA",
        ),
        (zipped(lambda archive: [archive.writestr(f"m/{n}", b"") for n in range(101)] and None), "more than 100 files"),
    ],
)
def test_harmful_zip_files_are_refused(tmp_path: Path, data: bytes, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        unpacked(tmp_path, data, ".zip", FEW)


def test_links_count_as_their_targets(tmp_path: Path) -> None:
    files = b"".join(header(f"m/1/{number}") for number in range(60))
    with pytest.raises(ConfigError, match="more than 100 files"):
        unpacked(tmp_path, files + links([("m/2", "1")]), limits=FEW)
    with pytest.raises(ConfigError, match="more than 100 files"):
        unpacked(tmp_path, links((f"m/{number}", "x") for number in range(101)), limits=FEW)


def test_many_links_to_many_files_take_time_by_their_number(tmp_path: Path) -> None:
    began = process_time()
    files = b"".join(header(f"m/1/{number}") for number in range(100))
    entries = unpacked(tmp_path, files + links((f"m/2/{number}", f"../1/{number % 100}") for number in range(2_000)))
    assert len(entries) == 2_100
    assert process_time() - began < 60


def test_headers_are_bounded_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MAX_EXTENSIONS_BYTES", 3_000)
    long = header("x", tarfile.GNUTYPE_LONGNAME, size=200) + b"m/name".ljust(512, b"\0") + header("y")
    assert unpacked(tmp_path, long * 15) == ["m/name"]
    with pytest.raises(ConfigError, match="3000 for all members together"):
        unpacked(tmp_path, long * 16)


def test_the_dictionary_of_xz_and_the_directory_of_zip_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = header("m/config.pbtxt") + bytes(1024)
    packed = lzma.compress(content, filters=[{"id": lzma.FILTER_LZMA2, "dict_size": 8 << 20}])
    assert unpacked(tmp_path, packed) == ["m/config.pbtxt"]
    assert unpacked(tmp_path, lzma.compress(content[:700]) + lzma.compress(content[700:])) == ["m/config.pbtxt"]
    monkeypatch.setattr(archives, "MAX_DICTIONARY_BYTES", 1 << 20)
    with pytest.raises(ConfigError, match="damaged: Memory usage limit"):
        unpacked(tmp_path, packed)
    files = zipped(lambda archive: [archive.writestr(f"m/{number}", b"") for number in range(99)] and None)
    assert len(unpacked(tmp_path, files, ".zip", FEW)) == 99
    monkeypatch.setattr(archives, "MAX_DIRECTORY_BYTES", 1_000)
    with pytest.raises(ConfigError, match="the directory of the zip file has more than 1000 bytes"):
        unpacked(tmp_path, files, ".zip", FEW)


def test_the_last_member_of_a_path_counts(tmp_path: Path) -> None:
    assert unpacked(tmp_path, header("m/a") * 50) == ["m/a"]


def test_whiteouts_take_time_by_their_number() -> None:
    began = process_time()
    files = [RemoteFile(f"m/{number}/w", "00", 0) for number in range(20_000)]
    gone = [RemoteFile(f"m/.wh.{number}", "00", 0) for number in range(0, 20_000, 2)]
    assert len(merged([files, gone], "there")) == 10_000
    assert merged([files, [RemoteFile("m/.wh..wh..opq", "00", 0)]], "there") == []
    assert process_time() - began < 30
    with pytest.raises(ConfigError, match="there: more than 100 files"):
        merged([files[:60], [RemoteFile(f"n/{number}", "00", 0) for number in range(60)]], "there", max_entries=100)
