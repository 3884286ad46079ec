"""A real server follows the tag of an image: promotion, rollback, outage, damage, missing signatures; modelcars."""

import io
import os
import shutil
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import tritonclient.http as triton

from conch.base.errors import ModelLoadError
from conch.base.files.confined import confined_path, real_path
from conch.clients.repository.command import repo
from conch.server.repository.remote.location import parse_image
from conch.server.repository.remote.oci.manifest import this_platform
from conch.server.repository.remote.oci.registry import Registry
from tests.server.remote.peers import IDENTITY, FaultyProxy, Reply
from tests.server.remote.test_http_archive import member
from tests.server.remote.test_model_images import Signer, call, containers, files, installed, pack, push_index
from tests.server.remote.test_serving import DOUBLE, asked
from tests.support.models import write_identity
from tests.support.server_process import ConchProcess

__all__ = ["containers"]


class Load:
    """Sends requests one after another, and keeps the factors of the answers in their order, each once."""

    def __init__(self, address: str) -> None:
        self.factors: list[float] = []
        self.failures: list[BaseException] = []
        self._address = address
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        with triton.InferenceServerClient(self._address, network_timeout=60) as client:
            while not self._stop.is_set():
                try:
                    factor = asked(client, "times", 1)
                except Exception as error:
                    self.failures.append(error)
                    return
                if self.factors[-1:] != [factor]:
                    self.factors.append(factor)
                time.sleep(0.005)

    def __enter__(self) -> "Load":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def until(self, factor: float) -> None:
        """Return when an answer has this factor."""
        wait_for(lambda: self.factors[-1:] == [factor] or bool(self.failures))
        assert not self.failures


def wait_for(condition: Callable[[], bool], limit_s: float = 60) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def write_multiplier(folder: Path, factor: int) -> None:
    (folder / "times" / "1").mkdir(parents=True, exist_ok=True)
    (folder / "times" / "config.pbtxt").write_text(IDENTITY.replace("identity", "python"))
    (folder / "times" / "1" / "model.py").write_text(DOUBLE.replace("FACTOR", str(factor)))


def test_a_server_follows_a_tag_and_loses_no_request(registry: str, tmp_path: Path) -> None:
    name, signer = f"{registry}/serving/models", Signer(tmp_path)
    digests = {}
    for factor in (2, 3, 4, 5):
        write_multiplier(tmp_path / "models", factor)
        digests[factor] = pack(tmp_path / "models", f"{name}:{factor}")
        if factor != 5:
            signer.sign(name, digests[factor])

    def release(factor: int) -> None:
        assert repo(["tag", f"{name}@{digests[factor]}", "stable"]) == 0

    release(2)
    flags = (
        "--model-control-mode=poll",
        "--repository-poll-secs=1",
        f"--repository-cache={tmp_path / 'cache'}",
        f"--repository-verify-key={signer.public}",
    )
    with FaultyProxy(f"http://{registry}") as proxy:
        url = f"oci://{proxy.host}/serving/models:stable"
        with ConchProcess(url, *flags, log=tmp_path / "log") as conch:
            with Load(conch.http) as load:
                load.until(2)
                release(3)
                load.until(3)
                release(2)  # the rollback
                load.until(2)
                release(5)
                conch.until_logged(f"refused: {digests[5]} is not signed")
                _damage(proxy, name, digests[4])
                release(4)
                conch.until_logged("a layer is damaged")
                proxy.fault = lambda seen, real: Reply(503)
                conch.until_logged("the registry answered 503")
                proxy.fault = lambda seen, real: None
                load.until(4)
            assert load.factors == [2, 3, 2, 4]
            assert f"{url} is {digests[3]} with a valid signature" in conch.text
        proxy.fault = lambda seen, real: Reply(503)
        with (
            ConchProcess(url, *flags, log=tmp_path / "again") as conch,
            triton.InferenceServerClient(conch.http) as client,
        ):
            assert asked(client, "times", 1) == 4
            assert "until it answers, models are served from the cache: 'times'" in conch.text


def _damage(proxy: FaultyProxy, name: str, digest: str) -> None:
    manifest, _ = Registry(parse_image(f"{name}@{digest}")).manifest(digest)
    proxy.fault = lambda seen, real: (
        Reply(200, b"?" * len(real().body)) if seen.path.rpartition("/")[2] in manifest.decode() else None
    )


def shell_layer(busybox: str) -> bytes:
    """A layer with the programs that KServe calls."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        archive.add(busybox, "bin/busybox")
        for program in ("sh", "ln", "sleep", "ls", "["):
            archive.addfile(member(f"bin/{program}", tarfile.SYMTYPE, "busybox"))
    return stream.getvalue()


# --- modelcars: KServe links /mnt/models to /proc/PID/root/models


@contextmanager
def process_in(root: Path) -> Iterator[Path]:
    """A process whose root folder is another one; yields its link in /proc."""
    if os.geteuid() != 0:
        pytest.skip("only root can give a process another root folder")
    script = "import os, sys; os.chroot(sys.argv[1]); print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", script, str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        if not process.stdout.readline():
            pytest.skip("chroot is not permitted here")
        yield Path(f"/proc/{process.pid}/root")


def test_a_server_reads_models_through_another_containers_root(tmp_path: Path) -> None:
    root, link = tmp_path / "root", tmp_path / "models"
    write_identity(root / "models", "a")
    (root / "models" / "a" / "inside.txt").symlink_to("1/../labels.txt")
    (root / "models" / "a" / "outside.txt").symlink_to("/etc/passwd")
    with process_in(root) as place:
        link.symlink_to(place / "models")
        model = link / "a"
        assert real_path(model / "inside.txt") == place / "models" / "a" / "labels.txt"
        assert confined_path(model, "inside.txt", "label_filename", "a")
        with pytest.raises(ModelLoadError, match="leads out of the model's directory"):
            confined_path(model, "outside.txt", "label_filename", "a")
        with ConchProcess(link, log=tmp_path / "log") as conch, triton.InferenceServerClient(conch.http) as client:
            assert asked(client, "a", 7) == 7


def test_a_modelcar_runs_as_kserve_starts_it(registry: str, tmp_path: Path, containers: list[str]) -> None:
    podman, busybox = installed("podman"), shutil.which("busybox")
    if not busybox or not installed("runc"):
        pytest.skip("busybox is not installed: apt-get install busybox-static")
    name, models = f"{registry}/modelcar/models", tmp_path / "source"
    write_identity(models, "a")
    push_index(f"{name}/base", {this_platform(): shell_layer(busybox)})
    pack(models, f"{name}:1", "--modelcar", f"{name}/base:1")
    call(podman, *containers, "pull", "-q", "--tls-verify=false", f"{name}:1")
    mount = tmp_path / "mnt"
    mount.mkdir()
    # Other limits and another runtime, because a machine may not permit podman's.
    limits = ["--ulimit=nofile=1024:1024", "--ulimit=nproc=1000:1000", "--network=none"]
    run = [podman, *containers, "--runtime=runc", "run", "--rm", *limits]
    prefetch = '[ -d /models ] && [ "$(ls -A /models)" ] && echo OK'
    assert call(*run, f"{name}:1", "sh", "-c", prefetch).strip() == "OK"
    script = "ln -sf /proc/$$/root/models /mnt/models && sleep infinity"
    car = [*run, "--pid=host", "--init=false", "--detach", f"--volume={mount}:/mnt", f"{name}:1", "sh", "-c", script]
    container = call(*car).strip()
    try:
        wait_for((mount / "models" / "a").is_dir)
        assert files(mount / "models") == files(models)
    finally:
        call(podman, *containers, "rm", "--force", "--time=0", container)
