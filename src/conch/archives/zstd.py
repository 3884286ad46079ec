"""Archives that are compressed with zstd, as layers of images may be.

The only module that knows `zstandard`.
"""

from io import BufferedReader, RawIOBase
from typing import Any, BinaryIO, Final

from conch.errors import ConfigError

try:
    from zstandard import ZstdDecompressor, ZstdError
except ImportError as missing:
    raise ConfigError(
        "archives that are compressed with zstd need the package 'zstandard': pip install 'conch-server[remote]'"
    ) from missing

# What may have to be remembered to go on: what `zstd` itself takes unless it is told `--long`.
_MOST_WINDOW: Final = 128 * 1024 * 1024


def opened(file: BinaryIO) -> BufferedReader:
    """Return what a file becomes, never more of it than is asked for. Reading raises EOFError where it is damaged."""
    return BufferedReader(_Unpacked(file))


class _Unpacked(RawIOBase):
    def __init__(self, file: BinaryIO) -> None:
        super().__init__()
        # Some writers make many frames, so that parts can be fetched by themselves.
        self._reader = ZstdDecompressor(max_window_size=_MOST_WINDOW).stream_reader(file, read_across_frames=True)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            return int(self._reader.readinto(buffer))
        except ZstdError as error:
            raise EOFError(str(error)) from None
