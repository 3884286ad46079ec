"""Read and extract untrusted archives with bounded memory and disk space; make small ones."""

import bz2
import gzip
import lzma
import os
import tarfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader, BytesIO, RawIOBase
from pathlib import Path
from typing import IO, Any, BinaryIO, Self, cast
from zipfile import ZIP_LZMA, ZipFile, ZipInfo

from conch.base.control_characters import has_control_characters
from conch.base.errors import ConfigError

# A header that extends another one holds a path and a few numbers.
MAX_EXTENSION_BYTES = 64 << 10
MAX_EXTENSIONS_BYTES = 128 << 20  # of all together
MAX_GLOBAL_EXTENSIONS_BYTES = 1 << 20  # of those for all following members, which tarfile keeps in memory
MAX_DIRECTORY_BYTES = 64 << 20  # of a zip file, about 100 for each member
MAX_DICTIONARY_BYTES = 256 << 20  # of xz; `xz -9` needs less
_EXTENSIONS = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)
_CHUNK_BYTES = 64 << 10
MAX_PATH_BYTES = 2048
MAX_PATH_DEPTH = 64
# The limit of the `zstd` program without `--long`.
_MAX_WINDOW_BYTES = 128 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ArchiveLimits:
    """Limits for one archive. Weights hardly compress, so a large archive with a high ratio is an attack."""

    total_bytes: int = 1 << 40
    ratio: int = 100
    ratio_from_bytes: int = 1 << 30  # of contents; below, the ratio is not checked
    entries: int = 200_000


class ArchiveBudget:
    """Count entries and bytes of an archive of `packed` bytes. `where` is for messages."""

    def __init__(self, limits: ArchiveLimits, packed: int, where: str) -> None:
        self._limits = limits
        self._max_bytes = min(limits.total_bytes, max(limits.ratio_from_bytes, limits.ratio * packed))
        self._where = where
        self._bytes = self._entries = 0

    def count(self) -> None:
        """Count an entry. Raises ConfigError above the limit."""
        self._entries += 1
        if self._entries > self._limits.entries:
            raise ConfigError(f"{self._where}: more than {self._limits.entries} files")

    def spend(self, count: int) -> None:
        """Count bytes of contents. Raises ConfigError above the limit."""
        self._bytes += count
        if self._bytes > self._max_bytes:
            raise ConfigError(
                f"{self._where}: expands to more than {self._max_bytes} bytes, the limit against archives that are "
                "made to fill a disk"
            )


@contextmanager
def opened_tar(file: Path, where: str) -> Iterator[tarfile.TarFile]:
    """Open a tar file, compressed or not, for sequential reading. Raises as `tar_members`."""
    with (
        file.open("rb") as packed,
        _decompressed(packed) as opened,
        tarfile.open(fileobj=opened, mode="r|", tarinfo=_bounded_header(where)) as archive,
    ):
        yield archive


def tar_members(file: Path, where: str) -> Iterator[tuple[tarfile.TarInfo, Callable[[], IO[bytes]]]]:
    """Yield each member of a tar file, compressed or not, with a function that opens it before the next is read.

    Raises ConfigError for headers that are too large and for sparse files; OSError, EOFError, TarError, LZMAError and
    zlib's errors for a damaged archive.
    """
    with opened_tar(file, where) as archive:
        while (member := archive.next()) is not None:
            # tarfile keeps all members for look-ups by name, which are not used here.
            vars(archive)["members"].clear()

            def contents(member: tarfile.TarInfo = member) -> IO[bytes]:
                stream = archive.extractfile(member)
                if stream is None:
                    raise tarfile.ReadError(f"'{member.name}' has no contents")
                return stream

            yield member, contents


def zip_members(file: Path, where: str) -> Iterator[tuple[ZipInfo, Callable[[], IO[bytes]]]]:
    """Yield each member of a zip file with a function that opens it.

    Raises ConfigError for a directory that is too large and for members compressed with LZMA, whose memory zipfile does
    not bound; zipfile's errors for a damaged archive.
    """
    with file.open("rb") as packed, ZipFile(cast("IO[bytes]", _BoundedReads(packed, where))) as archive:
        for member in archive.infolist():
            if member.compress_type == ZIP_LZMA:
                raise ConfigError(f"{where}: {member.filename!a} is compressed with LZMA; use deflate or zstd's tar")

            def contents(member: ZipInfo = member) -> IO[bytes]:
                return archive.open(member)

            yield member, contents


def _bounded_header(where: str) -> type[tarfile.TarInfo]:
    """Return a header class for one archive that counts the bytes of extension headers."""
    extensions = global_extensions = 0

    class Header(tarfile.TarInfo):
        @classmethod
        def frombuf(cls, buf: bytes | bytearray, encoding: str | None, errors: str) -> Self:
            nonlocal extensions, global_extensions
            header = super().frombuf(buf, encoding, errors)  # type: ignore[arg-type]
            if header.type in _EXTENSIONS:
                extensions += header.size
                global_extensions += header.size if header.type == tarfile.XGLTYPE else 0
                if (
                    header.size > MAX_EXTENSION_BYTES
                    or extensions > MAX_EXTENSIONS_BYTES
                    or global_extensions > MAX_GLOBAL_EXTENSIONS_BYTES
                ):
                    raise ConfigError(
                        f"{where}: a header of the archive has {header.size} bytes of names and attributes; "
                        f"the limits are {MAX_EXTENSION_BYTES}, and {MAX_EXTENSIONS_BYTES} for all members together"
                    )
            return header

        # tarfile reads lists of holes into memory, and they can be as long as the archive.

        def _proc_sparse(self, _archive: tarfile.TarFile) -> tarfile.TarInfo:
            raise ConfigError(f"{where}: {self.name!a} is a sparse file; make the archive without --sparse")

        def _proc_gnusparse_10(self, member: tarfile.TarInfo, *_: Any) -> None:
            raise ConfigError(f"{where}: {member.name!a} is a sparse file; make the archive without --sparse")

        def _proc_gnusparse_00(self, member: tarfile.TarInfo, *_: Any) -> None:
            self._proc_gnusparse_10(member)

        def _proc_gnusparse_01(self, member: tarfile.TarInfo, *_: Any) -> None:
            self._proc_gnusparse_10(member)

    return Header


class _Xz(RawIOBase):
    """The decompressed bytes of an xz file. Reading raises LZMAError if its dictionary exceeds the memory limit."""

    def __init__(self, packed: BinaryIO) -> None:
        super().__init__()
        self._packed = packed
        self._unpacker = lzma.LZMADecompressor(memlimit=MAX_DICTIONARY_BYTES)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while True:
            if self._unpacker.eof:
                rest = self._unpacker.unused_data.lstrip(b"\0") or self._packed.read(_CHUNK_BYTES).lstrip(b"\0")
                if not rest:
                    return 0
                self._unpacker = lzma.LZMADecompressor(memlimit=MAX_DICTIONARY_BYTES)
                chunk = rest
            else:
                chunk = self._packed.read(_CHUNK_BYTES) if self._unpacker.needs_input else b""
                if not chunk and self._unpacker.needs_input:
                    raise EOFError("the compressed data ends early")
            data = self._unpacker.decompress(chunk, len(buffer))
            if data:
                buffer[: len(data)] = data
                return len(data)


class _BoundedReads:
    """A file whose reads are limited to the maximum size of a zip directory, which zipfile reads at once."""

    def __init__(self, file: BinaryIO, where: str) -> None:
        self._file = file
        self._where = where
        self.seek = file.seek
        self.tell = file.tell
        self.close = file.close
        self.seekable = file.seekable

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(min(size, MAX_DIRECTORY_BYTES + 1) if size >= 0 else MAX_DIRECTORY_BYTES + 1)
        if len(data) > MAX_DIRECTORY_BYTES:
            raise ConfigError(f"{self._where}: the directory of the zip file has more than {MAX_DIRECTORY_BYTES} bytes")
        return data


def _decompressed(packed: BinaryIO) -> IO[bytes]:
    """Return the decompressed bytes of a file, its format detected by the first bytes."""
    begin = packed.read(8)
    packed.seek(0)
    if begin.startswith(b"\x1f\x8b"):
        return cast("IO[bytes]", gzip.GzipFile(fileobj=packed))
    if begin.startswith(b"BZh"):
        return bz2.BZ2File(packed)
    if begin.startswith(b"\xfd7zXZ\0"):
        return BufferedReader(_Xz(packed))
    if begin.startswith(b"\x28\xb5\x2f\xfd"):
        return BufferedReader(_Zstd(packed))
    return packed


def zstd_tar(members: Iterable[tuple[str, bytes]]) -> bytes:
    """Return a tar file of named contents, compressed with zstd. Each one can be read without what follows it."""
    from zstandard import FLUSH_BLOCK, ZstdCompressor

    packed = BytesIO()
    with (
        ZstdCompressor(write_checksum=True).stream_writer(packed, closefd=False) as stream,
        tarfile.open(fileobj=stream, mode="w|", format=tarfile.USTAR_FORMAT, bufsize=tarfile.BLOCKSIZE) as archive,
    ):
        for name, content in members:
            header = tarfile.TarInfo(name)
            header.size, header.mode = len(content), 0o600
            archive.addfile(header, BytesIO(content))
            stream.flush(FLUSH_BLOCK)
    return packed.getvalue()


def extract_tar(archive: Path, target: Path, limits: ArchiveLimits | None = None) -> None:
    """Extract a tar archive, compressed or not, into an empty folder.

    Symbolic links may lead out of the folder, as those of Python environments to the system's interpreter do; nothing
    is written through them. Raises ConfigError for an unsafe archive, OSError, EOFError, TarError, LZMAError and zlib's
    errors for a damaged one.
    """
    budget = ArchiveBudget(limits or ArchiveLimits(), archive.stat().st_size, f"'{archive}'")
    with opened_tar(archive, f"'{archive}'") as tar:
        tar.extractall(target, members=_checked(tar, target, budget), filter="tar")


def _checked(tar: tarfile.TarFile, target: Path, budget: ArchiveBudget) -> Iterator[tarfile.TarInfo]:
    """Yield each member that may be extracted now, before the next header is read."""
    folders = {target}
    while (member := tar.next()) is not None:
        # tarfile keeps all members for look-ups by name, which are not used here.
        vars(tar)["members"].clear()
        budget.count()
        budget.spend(member.size)
        if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
            raise ConfigError(f"{_shown(member)} is a device or pipe")
        path = _place(member, member.name, target, folders)
        if path.is_symlink():
            raise ConfigError(f"{_shown(member)} would replace a link")
        if member.islnk():
            source = _place(member, member.linkname, target, folders)
            if source.is_symlink() or not source.is_file():
                raise ConfigError(f"{_shown(member)} is a hard link to a file that does not precede it in the archive")
        elif member.issym() and len(os.fsencode(member.linkname)) > MAX_PATH_BYTES:
            raise ConfigError(f"{_shown(member)} links to a path of more than {MAX_PATH_BYTES} bytes")
        yield member


def _place(member: tarfile.TarInfo, name: str, target: Path, folders: set[Path]) -> Path:
    """Return the path of a name, after a check that no folder above it is a link; `folders` are already checked."""
    if has_control_characters(name):
        raise ConfigError(f"{_shown(member)} contains control characters")
    relative = Path(name.lstrip("/"))
    if ".." in relative.parts or len(os.fsencode(name)) > MAX_PATH_BYTES or len(relative.parts) > MAX_PATH_DEPTH:
        raise ConfigError(f"{_shown(member)} leads out of the archive, or is too long or deep a path")
    path = target / relative
    above = path.parent
    missing = []
    while above not in folders and above != target.parent:
        missing.append(above)
        above = above.parent
    for folder in missing:
        if folder.is_symlink():
            raise ConfigError(f"{_shown(member)} is below a link")
        if folder.is_dir():
            folders.add(folder)
    return path


def _shown(member: tarfile.TarInfo) -> str:
    return ascii(member.name[:200])


class _Zstd(RawIOBase):
    """The decompressed bytes of a zstd file. Reading raises EOFError where the file is damaged."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__()
        from zstandard import ZstdDecompressor, ZstdError  # ten milliseconds, which most commands need not wait

        self._damaged = ZstdError
        # Some writers make many frames, so that parts can be fetched separately.
        self._reader = ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES).stream_reader(file, read_across_frames=True)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            return int(self._reader.readinto(buffer))
        except self._damaged as error:
            raise EOFError(str(error)) from None
