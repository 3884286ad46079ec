"""A real server with a remote repository, and Triton's client."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from conch.base.errors import Unavailable
from conch.server.repository.roots import open_root
from conch.server.repository.store import Repository
from tests.server.remote.peers import IDENTITY, S3, FaultyProxy, Reply
from tests.support.server_process import ConchProcess

DOUBLE = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", request.inputs()[0].as_numpy() * FACTOR)])
            for request in requests
        ]
"""


def put_multiplier(s3: S3, factor: int) -> None:
    s3.put("repo/times/config.pbtxt", IDENTITY.replace("identity", "python"))
    s3.put("repo/times/1/model.py", DOUBLE.replace("FACTOR", str(factor)))


def asked(client: triton.InferenceServerClient, model: str, value: float) -> float:
    given = triton.InferInput("INPUT0", [1], "FP32")
    given.set_data_from_numpy(np.array([value], np.float32))
    return float(client.infer(model, [given]).as_numpy("OUTPUT0")[0])


@pytest.fixture
def url(proxy: FaultyProxy, s3: S3) -> str:
    return f"s3://{proxy.host}/{s3.bucket}/repo"


def test_polling_follows_a_bucket_and_serving_continues_during_an_outage(
    s3: S3, proxy: FaultyProxy, url: str, tmp_path: Path
) -> None:
    put_multiplier(s3, 2)
    flags = ("--model-control-mode=poll", "--repository-poll-secs=1", f"--repository-cache={tmp_path / 'cache'}")
    with (
        ConchProcess(url, *flags, log=tmp_path / "log") as conch,
        triton.InferenceServerClient(conch.http, network_timeout=30) as client,
    ):
        assert asked(client, "times", 21) == 42
        proxy.fault = lambda seen, real: Reply(403, b"<Error><Code>AccessDenied</Code></Error>")
        put_multiplier(s3, 3)
        s3.put_identity("other", weights=b"1")
        conch.until_logged(r"polling the model repository failed.*: s3://.*: access denied: 403 Forbidden AccessDenied")
        assert asked(client, "times", 21) == 42
        proxy.fault = lambda seen, real: None
        conch.until_logged("successfully loaded 'other'")
        conch.until_logged(r"(?s)successfully loaded 'times'.*successfully loaded 'times'")
        assert asked(client, "times", 21) == 63
        s3.delete("repo/other/config.pbtxt")
        s3.delete("repo/other/1/weights.bin")
        conch.until("/v2/models/other/ready", 400)
        assert "secret-of-a-test" not in conch.text


def test_a_start_during_an_outage_serves_cached_models(s3: S3, proxy: FaultyProxy, url: str, tmp_path: Path) -> None:
    put_multiplier(s3, 2)
    s3.put_identity("lost", weights=b"not in the cache any more")
    flags = ("--model-control-mode=poll", "--repository-poll-secs=1", f"--repository-cache={tmp_path / 'cache'}")
    with ConchProcess(url, *flags, log=tmp_path / "first"):
        pass
    for path in tmp_path.glob("cache/*/objects/*"):
        if path.read_bytes().startswith(b"not in"):
            path.unlink()
    put_multiplier(s3, 3)
    proxy.fault = lambda seen, real: Reply(503, b"<Error><Code>SlowDown</Code></Error>")
    with (
        ConchProcess(url, *flags, log=tmp_path / "log") as conch,
        triton.InferenceServerClient(conch.http, network_timeout=30) as client,
    ):
        assert asked(client, "times", 21) == 42
        warning = r"SlowDown; until it answers, models are served from the cache: 'times' as of 20\d\d-.* UTC"
        assert len(re.findall(f"503 Service Unavailable {warning}", conch.text)) == 1
        proxy.fault = lambda seen, real: None
        conch.until_logged(r"(?s)successfully loaded 'times'.*successfully loaded 'times'")
        conch.until_logged("successfully loaded 'lost'")
        assert asked(client, "times", 21) == 63


def test_explicit_loads_use_the_cache_until_the_bucket_answers(
    s3: S3, proxy: FaultyProxy, url: str, tmp_path: Path
) -> None:
    put_multiplier(s3, 2)
    s3.put_identity("other")
    flags = ("--model-control-mode=explicit", f"--repository-cache={tmp_path / 'cache'}")
    with ConchProcess(url, *flags, "--load-model=times", log=tmp_path / "first"):
        pass
    put_multiplier(s3, 3)
    proxy.fault = lambda seen, real: Reply(503, b"<Error><Code>SlowDown</Code></Error>")
    with (
        ConchProcess(url, *flags, log=tmp_path / "log") as conch,
        triton.InferenceServerClient(conch.http, network_timeout=30) as client,
    ):
        assert [row["name"] for row in client.get_model_repository_index()] == ["times"]
        client.load_model("times")
        assert asked(client, "times", 21) == 42
        conch.until_logged("model 'times' is loaded from the cache: .*SlowDown")
        with pytest.raises(InferenceServerException, match="SlowDown; model 'times' is served from the cache"):
            client.load_model("times")
        with pytest.raises(InferenceServerException, match="failed to load 'other'"):
            client.load_model("other")
        assert asked(client, "times", 21) == 42
        proxy.fault = lambda seen, real: None
        client.load_model("times")
        assert asked(client, "times", 21) == 63
        client.load_model("other")


@pytest.mark.parametrize("status", [403, 503])
def test_a_start_without_access_or_cache_fails(s3: S3, proxy: FaultyProxy, tmp_path: Path, status: int) -> None:
    """Keys that were taken away are no reason to serve on, and where nothing was fetched there is nothing to serve."""
    put_multiplier(s3, 2)
    url = f"s3://{proxy.host}/{s3.bucket}/repo"
    if status == 403:
        Repository([open_root(url, str(tmp_path / "cache"))]).snapshot()
        Repository([open_root(url, str(tmp_path / "cache"))]).read("times")
    proxy.fault = lambda seen, real: Reply(status, b"")
    with pytest.raises(Unavailable, match=str(status)):
        Repository([open_root(url, str(tmp_path / "cache"))]).snapshot()


def test_an_explicit_load_fetches_that_model_and_a_failed_one_changes_nothing(
    s3: S3, proxy: FaultyProxy, url: str, tmp_path: Path
) -> None:
    put_multiplier(s3, 2)
    s3.put_identity("other", weights=b"never fetched")
    flags = ("--model-control-mode=explicit", f"--repository-cache={tmp_path / 'cache'}")
    with (
        ConchProcess(url, *flags, log=tmp_path / "log") as conch,
        triton.InferenceServerClient(conch.http, network_timeout=30) as client,
    ):
        assert [row["name"] for row in client.get_model_repository_index()] == ["other", "times"]
        client.load_model("times")
        assert asked(client, "times", 21) == 42
        put_multiplier(s3, 5)
        proxy.fault = lambda seen, real: Reply(real().status, b"", cut=0) if "model.py" in seen.path else None
        with pytest.raises(InferenceServerException, match=r"times/1/model\.py"):
            client.load_model("times")
        assert asked(client, "times", 21) == 42
        proxy.fault = lambda seen, real: None
        client.load_model("times")
        assert asked(client, "times", 21) == 105
        assert not any("weights" in seen.path for seen in proxy.seen if "list-type" not in seen.path)
        client.unload_model("times")


@pytest.mark.parametrize(
    ("repository", "reason"),
    [
        ("s3://HOST/no-such-bucket/repo", "404 Not Found NoSuchBucket"),
        ("s3://https://host/b", "the endpoint needs a port"),
    ],
)
def test_an_unreadable_repository_fails_the_start(
    s3_endpoint: str, tmp_path: Path, repository: str, reason: str
) -> None:
    url = repository.replace("HOST", s3_endpoint.removeprefix("http://"))
    flags = [f"--model-repository={url}", f"--repository-cache={tmp_path}", "--http-port=0", "--grpc-port=0"]
    ended = subprocess.run(
        [sys.executable, "-m", "conch", "serve", *flags, "--allow-metrics=false"],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert ended.returncode == 1
    assert f"cannot start: {url.partition('?')[0]}" in ended.stderr or "cannot start: model repository" in ended.stderr
    assert reason in ended.stderr
    assert "Traceback" not in ended.stderr
