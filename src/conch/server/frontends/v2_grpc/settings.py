"""TraceSetting and LogSettings."""

from typing import Any

from conch.base.errors import Code, ConchError, InvalidRequest
from conch.base.logs import LogSettings
from conch.protocols.v2_proto import settings as settings_proto
from conch.server.core.inference import Inference
from conch.server.frontends.v2_http.settings import check_model
from conch.server.observability.tracing.observer import Observer


class SettingsCalls:
    """The methods TraceSetting and LogSettings."""

    def __init__(self, inference: Inference, observer: Observer, log: LogSettings) -> None:
        self._inference = inference
        self._observer = observer
        self._log = log

    async def trace(self, request: Any) -> Any:
        """Answer with the settings of a model, or of all, after applying the requested changes."""
        model = request.model_name
        if model:
            check_model(self._inference, model)
        if request.settings:
            self._observer.update(model, settings_proto.read_trace_changes(request))
        return settings_proto.trace_settings(self._observer.document(model))

    async def logging(self, request: Any) -> Any:
        """Answer with the log's settings after applying the requested changes."""
        try:
            self._log.update(settings_proto.read_log_changes(request))
        except ConchError as error:
            if error.code is Code.UNAVAILABLE:  # which Triton says over HTTP only
                raise InvalidRequest(error.message.replace("--log_format", "log_format")) from None
            raise
        self._observer.follow_verbosity(self._log.log_verbose_level)
        return settings_proto.log_settings(self._log.document())
