"""`/v2/limits`: the limits of requests and tokens per second in force, and those that the administrator sets."""

from collections.abc import Awaitable, Callable
from time import monotonic_ns

import orjson

from conch.base.errors import ConfigError, InvalidRequest, Unsupported
from conch.domain.limits import RATES, Limits, Quantity, read_limits
from conch.protocols.http.errors import JSON
from conch.protocols.http.long_replies import ReplyTasks
from conch.protocols.http.message import HttpRequest
from conch.protocols.http.reply import HttpReply
from conch.server.frontends.parts import Parts
from conch.server.limits.limiter import Limiter
from conch.server.limits.manager import LimitManager

_KINDS = (("soft", False), ("enforced", True))


class LimitsEndpoints:
    """Serves `/v2/limits`."""

    def __init__(self, parts: Parts, tasks: ReplyTasks) -> None:
        self._inference = parts.inference
        self._manager = parts.limits
        self._tasks = tasks
        self._tenants = parts.tenants

    def answer(self, request: HttpRequest, reply: HttpReply) -> None:
        """GET the limits in force, PUT those of the administrator, or DELETE them. Raises ConchError."""
        manager = self._present()
        if request.method == b"GET":
            reply.send(200, JSON, orjson.dumps(self._document(manager)))
            return
        limits: Limits = {}
        if request.method == b"PUT":
            limits = _read(request)
        elif len(request.body):
            raise InvalidRequest("DELETE takes no body; it removes all limits of the administrator")
        who = self._who(request, reply)
        what = "limits set" if request.method == b"PUT" else "limits removed"
        self._change(reply, manager, lambda: manager.set_admin(limits, who, what))

    def roll_back(self, request: HttpRequest, reply: HttpReply) -> None:
        """Undo the last change by the administrator. Raises ConchError."""
        manager = self._present()
        who = self._who(request, reply)

        async def undo() -> bool:
            if not await manager.roll_back(who):
                raise InvalidRequest("there is no change by the administrator since the start to roll back")
            return True

        self._change(reply, manager, undo)

    def _change(self, reply: HttpReply, manager: LimitManager, change: Callable[[], Awaitable[bool]]) -> None:
        async def answer() -> None:
            changed = await change()
            document = {"changed": changed, "audited": manager.audit is not None, **self._document(manager)}
            reply.send(200, JSON, orjson.dumps(document))

        self._tasks.run(reply, answer())

    def _present(self) -> LimitManager:
        if self._manager is None:
            raise Unsupported("this server has no limits")
        return self._manager

    def _who(self, request: HttpRequest, reply: HttpReply) -> str:
        key = self._tenants.key_name(request)
        return f"key:{key}" if key else f"client:{reply.peer or 'unix socket'}"

    def _document(self, manager: LimitManager) -> dict[str, object]:
        return {**manager.document(), "models": self._models(manager.limiter)}

    def _models(self, limiter: Limiter) -> list[dict[str, object]]:
        """Return limits and rates of each model version, all tenants together, and of an ensemble those of its stages.

        `effective_requests_per_second` is the rate of an ensemble at which it or one of its stages is at its limit.
        """
        found: list[dict[str, object]] = []
        for model in self._inference.models():
            entry = _version_entry(limiter, model.config.name, str(model.version))
            stages = self._inference.stages(model).items()
            if stages:
                entry["stages"] = [
                    _version_entry(limiter, stage.config.name, str(stage.version))
                    | {"requests_per_request": requests.number, "exact": requests.exact}
                    for stage, requests in stages
                ]
                factors = [(model.config.name, str(model.version), 1)]
                factors += [(stage.config.name, str(stage.version), requests.number) for stage, requests in stages]
                entry["effective_requests_per_second"] = {
                    kind: limiter.table.tightest(factors, Quantity.REQUESTS, enforced=enforced)
                    for kind, enforced in _KINDS
                }
            found.append(entry)
        return found


def _read(request: HttpRequest) -> Limits:
    try:
        return read_limits(orjson.loads(request.body), "body")
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"the body is not JSON: {error}") from None
    except ConfigError as error:
        raise InvalidRequest(error.message) from None


def _version_entry(limiter: Limiter, model: str, version: str) -> dict[str, object]:
    one = [(model, version, 1)]
    limits = {
        quantity.value: {kind: limiter.table.tightest(one, quantity, enforced=enforced) for kind, enforced in _KINDS}
        for quantity in RATES
    }
    rate = limiter.rate(model, version, monotonic_ns())
    return {"model": model, "version": version, **limits, "requests_in_last_second": rate}
