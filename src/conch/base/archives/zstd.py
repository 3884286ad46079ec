"""Decompress zstd archives, such as layers of OCI images. The only module that imports `zstandard`."""

from io import BufferedReader, RawIOBase
from typing import Any, BinaryIO, Final

from conch.base.errors import ConfigError

try:
    from zstandard import ZstdDecompressor, ZstdError
except ImportError as missing:
    raise ConfigError(
        "archives compressed with zstd need the package 'zstandard': pip install 'conch-server[remote]'"
    ) from missing

# The limit of the `zstd` program without `--long`.
_MAX_WINDOW_BYTES: Final = 128 * 1024 * 1024


def opened(file: BinaryIO) -> BufferedReader:
    """Return the decompressed stream of a file. Reading raises EOFError where the file is damaged."""
    return BufferedReader(_Unpacked(file))


class _Unpacked(RawIOBase):
    def __init__(self, file: BinaryIO) -> None:
        super().__init__()
        # Some writers make many frames, so that parts can be fetched separately.
        self._reader = ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES).stream_reader(file, read_across_frames=True)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            return int(self._reader.readinto(buffer))
        except ZstdError as error:
            raise EOFError(str(error)) from None
