"""Trace and log settings over HTTP."""

from conch.base.errors import InvalidRequest, NotFound
from conch.base.logs import LogSettings
from conch.protocols.http.errors import JSON
from conch.protocols.http.message import HttpRequest
from conch.protocols.http.reply import HttpReply
from conch.protocols.v2_json.settings import read_log_changes, read_trace_changes, settings_document
from conch.server.core.inference import Inference
from conch.server.observability.tracing.observer import Observer


class SettingsEndpoints:
    """Endpoints `/v2/trace/setting`, `/v2/models/<model>/trace/setting` and `/v2/logging`."""

    def __init__(self, inference: Inference, observer: Observer, log: LogSettings) -> None:
        self._inference = inference
        self._observer = observer
        self._log = log

    def trace(self, request: HttpRequest, reply: HttpReply) -> None:
        """Answer with the settings of all models, changed first by a POST. Raises ConchError."""
        self._trace(request, reply, "")

    def model_trace(self, request: HttpRequest, reply: HttpReply, name: str) -> None:
        """Answer with the settings of a model, changed first by a POST. Raises ConchError."""
        check_model(self._inference, name)
        self._trace(request, reply, name)

    def logging(self, request: HttpRequest, reply: HttpReply) -> None:
        """Answer with the log's settings, changed first by a POST. Raises ConchError."""
        if request.method == b"POST":
            self._log.update(read_log_changes(request.body))
            self._observer.follow_verbosity(self._log.log_verbose_level)
        reply.send(200, JSON, settings_document(self._log.document()))

    def _trace(self, request: HttpRequest, reply: HttpReply, model: str) -> None:
        if request.method == b"POST":
            try:
                self._observer.update(model, read_trace_changes(request.body))
            except InvalidRequest as error:  # Triton writes no space here, and one over gRPC
                raise InvalidRequest(error.message.replace("value >= -1, got: ", "value >= -1, got:")) from None
        reply.send(200, JSON, settings_document(self._observer.document(model)))


def check_model(inference: Inference, name: str) -> None:
    """Raise InvalidRequest for a model that is not served: its settings would have no effect."""
    try:
        inference.model(name, None)
    except NotFound:
        raise InvalidRequest(f"Request for unknown model : {name}") from None
