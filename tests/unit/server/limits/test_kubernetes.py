"""Limits from annotations, against an API server over HTTPS."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from conch.base.errors import ConfigError
from conch.base.kubernetes.api import ApiServerAddress, KubernetesApi, KubernetesError, PodIdentity
from conch.domain.limits import EACH, LimitKey, Quantity, Subject, read_annotations
from conch.server.limits.kubernetes_source import SOURCE, KubernetesSource, delay_s, failures_after
from conch.server.limits.manager import LimitManager
from tests.unit.server.limits.api_server import DEPLOYMENTS, NAMESPACE, PODS, REPLICA_SETS, ApiServer, Cluster

POD = "llm-7c9-x2k"
EACH_MODEL = LimitKey(Subject(EACH), Quantity.REQUESTS, False)


class Followed:
    """A manager that follows a cluster."""

    def __init__(self, cluster: Cluster, server: ApiServer, manager: LimitManager) -> None:
        self.cluster = cluster
        self.server = server
        self.manager = manager

    @property
    def limit(self) -> int | None:
        return self.manager.sources[SOURCE].limits.get(EACH_MODEL)

    @property
    def up(self) -> bool:
        return self.manager.sources[SOURCE].up

    @property
    def error(self) -> str:
        return self.manager.sources[SOURCE].error

    def annotate(self, **annotations: str) -> None:
        self.cluster.put(DEPLOYMENTS, "llm", **annotations)

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not holds():
                await asyncio.sleep(0.01)


@asynccontextmanager
async def following(folder: Path, *, resync_s: float = 300, up: bool = True) -> AsyncIterator[Followed]:
    cluster = Cluster()
    cluster.put(PODS, POD, owner=("apps/v1", "ReplicaSet", "llm-7c9"))
    cluster.put(REPLICA_SETS, "llm-7c9", owner=("apps/v1", "Deployment", "llm"))
    cluster.put(DEPLOYMENTS, "llm", max_qps="80")
    server = ApiServer(folder, cluster)
    server.start()
    if not up:
        server.stop()
    pod = PodIdentity(ApiServerAddress("127.0.0.1", server.port, folder), NAMESPACE, POD)
    source = KubernetesSource(KubernetesApi(pod.server), pod, resync_s=resync_s)
    manager = LimitManager(install=lambda limiter: None, served=list, kubernetes=source.watch)
    await manager.start()
    try:
        followed = Followed(cluster, server, manager)
        if up:
            await followed.until(lambda: followed.limit == 80)
        yield followed
    finally:
        await manager.stop()
        server.stop()


async def test_annotations_of_the_owner_are_followed_and_rolled_back(tmp_path: Path) -> None:
    async with following(tmp_path) as followed:
        assert followed.up
        followed.annotate(max_qps="40")
        await followed.until(lambda: followed.limit == 40)
        followed.annotate(max_qps="80")
        await followed.until(lambda: followed.limit == 80)
        followed.annotate()
        await followed.until(lambda: followed.limit is None)
        assert followed.manager.sources[SOURCE].changes == 3


@pytest.mark.parametrize("as_status", [False, True])
async def test_after_410_the_object_is_listed_again(tmp_path: Path, as_status: bool) -> None:
    async with following(tmp_path) as followed:
        followed.cluster.gone_as_status = as_status
        await followed.until(lambda: followed.cluster.watches() > 0)
        followed.cluster.put(DEPLOYMENTS, "llm", max_qps="41")
        followed.cluster.compact()
        await followed.until(lambda: followed.limit == 41)
        followed.annotate(max_qps="42")
        await followed.until(lambda: followed.limit == 42)
        assert followed.up


@pytest.mark.slow
@pytest.mark.parametrize("cut", ["line", "chunk", "garbage"])
async def test_a_watch_that_is_cut_off_is_continued(tmp_path: Path, cut: str) -> None:
    async with following(tmp_path) as followed:
        await followed.until(lambda: followed.cluster.watches() > 0)
        followed.cluster.cut_next = cut
        followed.annotate(max_qps="43")
        await followed.until(lambda: followed.limit == 43)
        await followed.until(lambda: followed.up)


@pytest.mark.slow
async def test_without_the_api_server_the_last_limits_stay_in_force(tmp_path: Path) -> None:
    async with following(tmp_path) as followed:
        await asyncio.to_thread(followed.server.stop)
        await followed.until(lambda: not followed.up)
        assert followed.limit == 80
        assert "refused" in followed.error or "reset" in followed.error or "closed" in followed.error
        followed.cluster.put(DEPLOYMENTS, "llm", max_qps="44")
        followed.server.start()
        await followed.until(lambda: followed.limit == 44)
        assert followed.up


@pytest.mark.parametrize(("status", "longest_s"), [(0, 1.0), (403, 15.0), (503, 15.0)])
def test_an_api_server_that_was_down_for_long_is_asked_again_soon(status: int, longest_s: float) -> None:
    waited_s, failures = 0.0, 0
    while waited_s < 60:
        failures = failures_after(KubernetesError("down", status), failures)
        waited_s += delay_s(failures)
    assert delay_s(failures) == longest_s
    # The first refusal after an outage does not wait for long either.
    failures = failures_after(KubernetesError("down"), failures)
    assert delay_s(failures_after(KubernetesError("starting", 503), failures)) == 2


@pytest.mark.slow
async def test_an_api_server_that_is_down_at_the_start_is_found_later(tmp_path: Path) -> None:
    async with following(tmp_path, up=False) as followed:
        await followed.until(lambda: "refused" in followed.error)
        followed.server.start()
        await followed.until(lambda: followed.limit == 80)


@pytest.mark.parametrize("value", ["80qps", "-1", "1e10", "", "NaN", "eighty"])
async def test_an_invalid_annotation_keeps_the_last_limits(tmp_path: Path, value: str) -> None:
    async with following(tmp_path) as followed:
        followed.annotate(max_qps=value)
        await followed.until(lambda: not followed.up)
        assert followed.limit == 80
        assert followed.error.startswith(f"annotation max_qps: {value!r} ")
        followed.annotate(max_qps="1e9")
        await followed.until(lambda: followed.limit == 10**9)
        assert followed.up


async def test_a_rotated_token_is_read(tmp_path: Path) -> None:
    async with following(tmp_path, resync_s=0.2) as followed:
        followed.cluster.token = "token-2"
        followed.cluster.compact()
        await followed.until(lambda: "Unauthorized" in followed.error)
        (tmp_path / "token").write_text("token-2")
        followed.annotate(max_qps="45")
        await followed.until(lambda: followed.limit == 45)


async def test_the_object_is_listed_periodically(tmp_path: Path) -> None:
    async with following(tmp_path, resync_s=0.01) as followed:
        # A change that no watch reports.
        followed.cluster.objects[DEPLOYMENTS, "llm"]["metadata"]["annotations"] = {"max_qps": "46"}
        followed.cluster.compact()
        await followed.until(lambda: followed.limit == 46)


@pytest.mark.slow
async def test_a_deleted_object_keeps_the_limits_until_there_is_another(tmp_path: Path) -> None:
    async with following(tmp_path) as followed:
        followed.cluster.delete(DEPLOYMENTS, "llm")
        await followed.until(lambda: "does not exist" in followed.error or "not found" in followed.error)
        assert followed.limit == 80
        followed.annotate(max_qps="47")
        await followed.until(lambda: followed.limit == 47)


async def test_another_certificate_authority_is_refused(tmp_path: Path) -> None:
    async with following(tmp_path, up=False) as followed:
        (tmp_path / "other").mkdir()
        other = ApiServer(tmp_path / "other", followed.cluster)
        other.port = followed.server.port
        other.start()
        try:
            await followed.until(lambda: "certificate verify failed" in followed.error)
        finally:
            other.stop()


def test_all_annotations() -> None:
    annotations = {
        "conch.ai/max-qps": "100",
        "conch.ai/max-tokens-per-second": "2e3",
        "conch.ai/limits-enforced": "true",
        "conch.ai/limits": "limits: [{model: m, tenant: acme, requests_per_second: 10}]",
        "conch.ai/limits-shared": "true",
        "conch.ai/other-tool": "x",
    }
    limits = read_annotations({"metadata": {"annotations": annotations}, "spec": {"replicas": 4}})
    assert limits == {
        LimitKey(Subject(EACH), Quantity.REQUESTS, True): 25,
        LimitKey(Subject(EACH), Quantity.TOKENS, True): 500,
        LimitKey(Subject("m", "", "acme"), Quantity.REQUESTS, False): 2,
    }


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("conch.ai/max_qps", "80", "unknown annotation 'conch.ai/max_qps', expected one of max_qps, conch.ai/max-qps"),
        ("conch.ai/limits-enforced", "yes", '\'yes\' must be "true" or "false"'),
        ("conch.ai/limits", "limits: {", "annotation conch.ai/limits: invalid YAML"),
        ("conch.ai/max-qps", "-1", "annotation conch.ai/max-qps: '-1' is negative"),
    ],
)
def test_errors_name_the_annotation(name: str, value: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read_annotations({"metadata": {"annotations": {name: value}}})
    assert message in raised.value.message


@pytest.mark.parametrize("document", [{}, {"metadata": None}, {"metadata": {}}, {"metadata": {"annotations": None}}])
def test_objects_without_annotations_have_no_limits(document: dict[str, object]) -> None:
    assert read_annotations(document) == {}


def test_outside_of_a_pod_the_flag_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="KUBERNETES_SERVICE_HOST is not set"):
        PodIdentity.of_this_pod({"HOSTNAME": "x"}, tmp_path)
    with pytest.raises(ConfigError, match="the pod has no service account"):
        PodIdentity.of_this_pod({"HOSTNAME": "x", "KUBERNETES_SERVICE_HOST": "h"}, tmp_path)
    environment = {"HOSTNAME": "x", "POD_NAME": "p", "POD_NAMESPACE": "n", "KUBERNETES_SERVICE_HOST": "h"}
    assert PodIdentity.of_this_pod(environment, tmp_path) == PodIdentity(ApiServerAddress("h", 443, tmp_path), "n", "p")
