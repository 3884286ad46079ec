"""Find the Prometheus metrics of a server."""

import re

from conch.measure.bench.load_plan import Endpoint, Transport
from conch.measure.bench.targets.http_probe import HttpProbe, place
from conch.measure.bench.targets.target import TargetError

_TIMEOUT_S = 2.0
_OF_INFERENCE = re.compile(rb"^(?:nv_inference|nv_|conch_|vllm:|ovms_)", re.MULTILINE)
# HTTP and gRPC ports, and where Triton and Conch have their metrics by default.
_USUAL = {8000: 8002, 8001: 8002}


def find_metrics(endpoint: Endpoint, root: str) -> str | None:
    """Return the URL of the metrics: on the same port, or where they are with Triton's default ports; None otherwise.

    Only metrics of an inference server count. Keys go to the same port only.
    """
    candidates = [] if endpoint.transport is Transport.GRPC else [(endpoint, root)]
    other = _USUAL.get(endpoint.port, endpoint.port + (1 if endpoint.transport is Transport.GRPC else 2))
    if other < 65_536:
        candidates.append((Endpoint(endpoint.host, other, Transport.HTTP1), ""))
    for candidate, path in candidates:
        probe = HttpProbe(candidate, _TIMEOUT_S)
        try:
            answer = probe.get(f"{path}/metrics")
        except TargetError:
            continue
        finally:
            probe.close()
        if answer.status == 200 and _OF_INFERENCE.search(answer.body):
            return f"{'https' if candidate.tls else 'http'}://{place(candidate)}{path}/metrics"
    return None
