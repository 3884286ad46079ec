"""TLS of a listener: its certificate and key, loaded again when the files change."""

import ssl
from dataclasses import dataclass
from logging import getLogger

from conch.base.errors import ConfigError
from conch.base.files.stamps import file_stamp

_log = getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files, and the start of the flags that name them: `--http` for `--http-server-cert`.

    With a `root`, clients need a certificate of its authority.
    """

    flags: str
    certificate: str
    key: str
    root: str = ""


class ReloadedTls:
    """The TLS context of a listener. `refresh` loads files that have changed; connections that are open stay."""

    def __init__(self, files: TlsFiles, protocol: str) -> None:
        """Load the files; `protocol` is that of ALPN. Raises ConfigError for one that is missing or wrong."""
        self._files = files
        self._protocol = protocol
        self._stamps = self._read_stamps()
        self.context = self._load(self._new())
        self._failed = ""

    def refresh(self) -> None:
        """Load the files again if they have changed. If they do not fit together, the former ones stay in use."""
        stamps = self._read_stamps()
        if stamps == self._stamps:
            return
        try:
            self._load(self._new())  # first, because a failure leaves a context with a half of the pair
            self._load(self.context)
        except ConfigError as error:
            if self._failed != error.message:  # an update may be halfway
                self._failed = error.message
                _log.warning("%s; the certificate that was loaded before stays in use", error)
            return
        self._stamps, self._failed = stamps, ""
        _log.info("loaded the certificate %s-server-cert again: '%s'", self._files.flags, self._files.certificate)

    def _new(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols([self._protocol])
        return context

    def _load(self, context: ssl.SSLContext) -> ssl.SSLContext:
        files = self._files
        flags = f"{files.flags}-server-cert, {files.flags}-server-key"
        paths = f"'{files.certificate}', '{files.key}'"
        try:
            # An empty password for an encrypted key: an error instead of a prompt.
            context.load_cert_chain(files.certificate, files.key, password="")
            if files.root:
                flags, paths = f"{files.flags}-root-cert", f"'{files.root}'"
                context.load_verify_locations(files.root)
                context.verify_mode = ssl.CERT_REQUIRED
        except ssl.SSLError as error:
            raise ConfigError(f"{flags}: {paths} cannot be used: {error.reason or error}") from None
        except OSError as error:
            raise ConfigError(f"{flags}: cannot read {paths}: {error.strerror}") from None
        return context

    def _read_stamps(self) -> list[tuple[int, ...]]:
        files = self._files
        return [file_stamp(path) for path in (files.certificate, files.key, files.root)]
