"""Images of models in a real registry: written and read by other tools, pulled by an init container, signed."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
from base64 import b64encode
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from conch.base.errors import ConfigError, NotFound, Unavailable
from conch.clients.repository.command import repo
from conch.server.repository.remote.location import parse_image
from conch.server.repository.remote.mirror import Mirror, open_mirror
from conch.server.repository.remote.oci.manifest import this_platform
from conch.server.repository.remote.oci.registry import OCI_INDEX, OCI_MANIFEST, Registry
from tests.server.remote.peers import IDENTITY, FaultyProxy, Reply
from tests.server.remote.test_http_archive import tarred
from tests.server.remote.test_image import described_as, push
from tests.support.models import write_identity

PAYLOAD = "application/vnd.dev.cosign.simplesigning.v1+json"


@pytest.fixture
def name(registry: str, request: pytest.FixtureRequest) -> str:
    """A name in the registry that only this test uses."""
    return f"{registry}/t{sha256(request.node.nodeid.encode()).hexdigest()[:8]}/models"


@pytest.fixture
def models(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    for model in ("a", "b"):
        write_identity(folder, model)
    (folder / "a" / "1" / "weights.bin").write_bytes(b"one")
    return folder


def pack(models: Path, reference: str, *more: str) -> str:
    """Pack models and return the digest of the image."""
    assert repo(["pack", str(models), reference, *more]) == 0
    image = parse_image(reference)
    return Registry(image).manifest(image.reference)[1]


def sync(reference: str, target: Path, *more: str) -> int:
    return repo(["pull", "--sync", reference, str(target), "--retry-secs=0", *more])


def mirror(reference: str, tmp_path: Path, verify_key: str = "", platform: str = "") -> Mirror:
    return open_mirror(f"oci://{reference}", str(tmp_path / "cache"), verify_key=verify_key, platform=platform)


def files(folder: Path) -> dict[str, bytes]:
    """The files of the models in a folder, without the cache."""
    paths = (path for path in folder.rglob("*") if path.is_file())
    names = {str(path.relative_to(folder)): path.read_bytes() for path in paths}
    return {name: content for name, content in names.items() if not name.startswith(".")}


# --- the init container


def test_a_directory_becomes_equal_to_the_image(
    name: str, models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target, registry, path = tmp_path / "target", *name.split("/", 1)
    (target / "mine").mkdir(parents=True)
    pack(models, f"{name}:1")
    with FaultyProxy(f"http://{registry}") as proxy:
        assert sync(f"{proxy.host}/{path}:1", target) == 0
        assert files(target) == files(models)
        before = (target / "a" / "1" / "weights.bin").stat()
        assert before.st_nlink == 2  # one file for the cache and for the model

        (target / ".conch-12345678").mkdir()  # of a process that was killed
        proxy.seen.clear()
        capsys.readouterr()
        assert sync(f"{proxy.host}/{path}:1", target) == 0
        assert "a  (unchanged)" in capsys.readouterr().out
        assert not [seen for seen in proxy.seen if "/blobs/" in seen.path]
        assert not (target / ".conch-12345678").exists()

        # The same size: only a different time shows a polling server that the file is new.
        (models / "a" / "1" / "weights.bin").write_bytes(b"two")
        shutil.rmtree(models / "b")
        write_identity(models, "c")
        pack(models, f"{name}:1")
        capsys.readouterr()
        assert sync(f"{proxy.host}/{path}:1", target) == 0
        assert "b  (removed)" in capsys.readouterr().out
    assert files(target) == files(models)
    assert (target / "a" / "1" / "weights.bin").stat().st_mtime != before.st_mtime
    assert (target / "mine").is_dir()  # it came from somewhere else

    # The registry is gone: the models that are there serve.
    assert sync(f"{proxy.host}/{path}:1", target) == 0
    assert files(target) == files(models)
    capsys.readouterr()
    assert sync(f"{proxy.host}/{path}:2", target) == 1
    assert "connection refused" in (error := capsys.readouterr().err)
    assert "nothing is cached to use instead: check the address, the network and the proxy" in error


def test_a_failure_writes_no_model(name: str, models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target, registry, path = tmp_path / "target", *name.split("/", 1)
    pack(models, f"{name}:1")
    lost = parse_image(f"{name}:1")
    layers = json.loads(Registry(lost).manifest("1")[0])["layers"]
    with FaultyProxy(f"http://{registry}") as proxy:
        proxy.fault = lambda seen, real: Reply(503) if layers[1]["digest"] in seen.path else None
        assert sync(f"{proxy.host}/{path}:1", target) == 1
        assert files(target) == {}
        proxy.fault = lambda seen, real: Reply(200, b"?" * 3072) if layers[1]["digest"] in seen.path else None
        assert sync(f"{proxy.host}/{path}:1", target) == 1
        assert "a layer is damaged" in capsys.readouterr().err
        assert files(target) == {}
        answers = iter([Reply(503)] * 4)  # one request and its own retries
        proxy.fault = lambda seen, real: next(answers, None)
        assert repo(["pull", "--sync", f"{proxy.host}/{path}:1", str(target), "--retry-secs=60"]) == 0
        assert "or name a filled cache with --repository-cache; retrying in" in capsys.readouterr().err
    assert files(target) == files(models)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process of another user")
def test_an_init_container_needs_neither_a_home_nor_a_user(name: str, models: Path, tmp_path: Path) -> None:
    pack(models, f"{name}:1")
    volume = tmp_path / "volume"
    volume.mkdir()
    os.chown(volume, 123456, 0)
    for folder in (tmp_path, *tmp_path.parents[:3]):
        folder.chmod(folder.stat().st_mode | 0o111)
    # A developer's Python may lie in a folder of root: the user may read everything, and write nothing but the volume.
    reads = ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
    python = ["setpriv", "--reuid=123456", "--regid=0", "--clear-groups", *reads, sys.executable]
    clean = {"cwd": "/", "env": {"PATH": "/usr/bin", "PYTHONDONTWRITEBYTECODE": "1"}}
    if not shutil.which("setpriv") or subprocess.run([*python, "-c", ""], capture_output=True, **clean).returncode:
        pytest.skip("this machine does not let another user run its Python")
    command = [*python, "-m", "conch", "repo", "pull", "--sync", f"{name}:1", str(volume)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, **clean)
    assert done.returncode == 0, done.stderr
    assert f"{volume}/a" in done.stdout
    assert "fetched" in done.stderr
    assert files(volume) == files(models)


def test_sigterm_ends_a_pull_which_can_resume(name: str, models: Path, tmp_path: Path) -> None:
    registry, path = name.split("/", 1)
    pack(models, f"{name}:1")
    with FaultyProxy(f"http://{registry}") as proxy:
        proxy.fault = lambda seen, real: Reply(503)
        command = [
            sys.executable,
            "-m",
            "conch",
            "repo",
            "pull",
            "--sync",
            f"{proxy.host}/{path}:1",
            str(tmp_path / "t"),
        ]
        for number, status in ((signal.SIGTERM, 1), (signal.SIGINT, 130)):
            with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
                assert process.stderr is not None
                assert "retrying in" in process.stderr.readline()
                process.send_signal(number)
                assert "interrupted; fetched files are kept in the cache" in process.stderr.read()
            assert process.returncode == status
    assert sync(f"{name}:1", tmp_path / "t") == 0


# --- images of other tools


@pytest.fixture(scope="module")
def containers() -> Iterator[list[str]]:
    """The flags of buildah and podman for a storage of these tests."""
    if os.geteuid() != 0:
        pytest.skip("buildah and podman need root, or user namespaces that tests cannot rely on")
    # podman refuses a runroot of more than 50 characters, which those of tmp_path can have.
    with tempfile.TemporaryDirectory(prefix="conch-", ignore_cleanup_errors=True) as folder:
        yield ["--root", f"{folder}/root", "--runroot", f"{folder}/run", "--storage-driver", "vfs"]


def installed(program: str) -> str:
    """The path of a program that needs its configuration in /etc, so that it cannot be unpacked elsewhere."""
    return shutil.which(program) or pytest.skip(f"{program} is not installed: apt-get install {program}")


def call(*command: object) -> str:
    """Run a command; skip the test where the machine does not permit containers."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=120, check=False)
    if done.returncode and "ermission denied" in done.stderr + done.stdout:
        pytest.skip(f"{Path(str(command[0])).name} may not do this here: {done.stderr[-300:]}")
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def test_an_image_that_buildah_built_from_scratch_is_servable(
    name: str, models: Path, tmp_path: Path, containers: list[str]
) -> None:
    """The image of a team: its models are below /models, and it has other files."""
    buildah = installed("buildah")
    context = tmp_path / "context"
    shutil.copytree(models, context / "models")
    (context / "config.pbtxt").write_text("")
    (context / "Dockerfile").write_text(
        "FROM scratch\nCOPY models/ /models/\nCOPY config.pbtxt /opt/tritonserver/conf/config.pbtxt\n"
    )
    call(buildah, *containers, "bud", "--isolation", "chroot", "-q", "-t", f"{name}:1", context)
    call(buildah, *containers, "push", "--tls-verify=false", f"{name}:1")
    assert sync(f"{name}:1", tmp_path / "target") == 0
    assert files(tmp_path / "target") == files(models)


def test_skopeo_and_podman_read_packed_images(name: str, models: Path, tmp_path: Path, containers: list[str]) -> None:
    digest = pack(models, f"{name}:1")
    podman, skopeo = installed("podman"), installed("skopeo")
    call(podman, *containers, "pull", "-q", "--tls-verify=false", f"{name}:1")
    mounted = Path(call(podman, *containers, "image", "mount", f"{name}:1").strip().splitlines()[-1])
    assert files(mounted) == files(models)  # what an image volume at /models shows
    copied = ["copy", "-q", "--src-tls-verify=false", "--dest-tls-verify=false"]
    call(skopeo, *copied, f"docker://{name}@{digest}", f"docker://{name}:copied")
    call(skopeo, *copied, "--format=v2s2", f"docker://{name}@{digest}", f"docker://{name}:docker")
    assert Registry(parse_image(f"{name}:1")).digest("copied") == digest
    for tag in ("copied", "docker"):
        assert sync(f"{name}:{tag}", tmp_path / tag) == 0
        assert files(tmp_path / tag) == files(models)


# --- layouts


def test_models_below_a_folder_of_an_operating_system(name: str, tmp_path: Path) -> None:
    outside = tarred({"bin/sh": _link("bin/sh", "/usr/bin/sh"), "etc/passwd": b"", "models/a/config.pbtxt": b""})
    push(f"{name}:1", outside, tarred({"models/a/config.pbtxt": IDENTITY.encode(), "models/a/1/x": b"1"}))
    assert list(mirror(f"{name}:1", tmp_path).scan()) == ["a"]
    push(f"{name}:2", tarred({"bin/sh": b"", "models/1/x": b"", "models/config.pbtxt": b""}))
    assert list(mirror(f"{name}:2", tmp_path).scan()) == ["models"]  # one model, with the image's name
    push(f"{name}:3", tarred({"models/a/1/x": b"", "l": _link("models/a/1/l", "/etc/passwd")}))
    with pytest.raises(ConfigError, match="the link 'models/a/1/l' leads out"):
        mirror(f"{name}:3", tmp_path).scan()
    push(f"{name}:4", tarred({"bin/sh": b"", "etc/passwd": b""}))
    with pytest.raises(NotFound, match=r"contains no models: expected MODEL/config\.pbtxt .* found bin, etc"):
        mirror(f"{name}:4", tmp_path).scan()


def _link(path: str, target: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(path)
    info.type, info.linkname = tarfile.SYMTYPE, target
    return info


def test_a_modelcar_keeps_its_base_for_each_platform(name: str, models: Path, tmp_path: Path) -> None:
    shell = tarred({"bin/sh": b"#!"}, "w")
    base = f"{name}/base"
    push_index(base, {"linux/amd64": shell, "linux/arm64": shell, "linux/s390x": shell, "unknown/unknown": shell})
    pack(models, f"{name}:car", "--modelcar", f"{base}:1")
    image = Registry(parse_image(f"{name}:car"))
    index = json.loads(image.manifest("car")[0])
    assert [manifest["platform"]["architecture"] for manifest in index["manifests"]] == ["amd64", "arm64"]
    for entry in index["manifests"]:
        manifest = json.loads(image.manifest(entry["digest"])[0])
        config = manifest["config"]
        document = json.loads(b"".join(image.read_blob(config["digest"], 0, config["size"], config["size"])))
        assert len(document["rootfs"]["diff_ids"]) == len(manifest["layers"]) == 3
        assert document["config"] == {"Cmd": ["sh"]}
    assert sync(f"{name}:car", tmp_path / "target") == 0
    assert files(tmp_path / "target") == files(models)


def push_index(name: str, layers: dict[str, bytes]) -> None:
    """Put an image for several platforms into the registry, with the tag 1."""
    registry = Registry(parse_image(f"{name}:1"), writes=True)
    manifests = []
    for platform, layer in layers.items():
        system, _, machine = platform.partition("/")
        rootfs = {"type": "layers", "diff_ids": [f"sha256:{sha256(layer).hexdigest()}"]}
        config = json.dumps(
            {"os": system, "architecture": machine, "config": {"Cmd": ["sh"]}, "rootfs": rootfs}
        ).encode()
        for blob in (layer, config):
            registry.write_blob(f"sha256:{sha256(blob).hexdigest()}", len(blob), lambda blob=blob: [blob])
        document = {
            "schemaVersion": 2,
            "mediaType": OCI_MANIFEST,
            "config": described_as("application/vnd.oci.image.config.v1+json", config),
            "layers": [described_as("application/vnd.oci.image.layer.v1.tar", layer)],
        }
        body = json.dumps(document).encode()
        registry.write_manifest(f"sha256:{sha256(body).hexdigest()}", body)
        target = {"os": system, "architecture": machine}
        manifests.append({**described_as(OCI_MANIFEST, body), "platform": target})
    registry.write_manifest(
        "1", json.dumps({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": manifests}).encode()
    )


def test_the_image_of_this_machine_is_chosen(name: str, tmp_path: Path) -> None:
    ours, others = (tarred({f"{name}/1/x": b""}, "w") for name in ("ours", "others"))
    other = "linux/s390x"
    push_index(f"{name}/both", {other: others, this_platform(): ours, "unknown/unknown": others})
    assert list(mirror(f"{name}/both:1", tmp_path).scan()) == ["ours"]
    assert list(mirror(f"{name}/both:1", tmp_path, platform=other).scan()) == ["others"]
    push_index(f"{name}/wrong", {other: others, "linux/ppc64le": others})
    with pytest.raises(ConfigError, match=rf"has no image for {this_platform()}, only for {other} \(sha256:\w+\), .*"):
        mirror(f"{name}/wrong:1", tmp_path).scan()
    push_index(f"{name}/only", {other: others, "unknown/unknown": ours})
    assert list(mirror(f"{name}/only:1", tmp_path).scan()) == ["others"]  # models for any machine


def test_artefacts_other_than_images_are_named(name: str, tmp_path: Path) -> None:
    push(f"{name}:chart", b"?", kind="application/vnd.cncf.helm.chart.content.v1.tar+gzip")
    with pytest.raises(ConfigError, match=r"a layer has the type 'application/vnd\.cncf\.helm"):
        mirror(f"{name}:chart", tmp_path).scan()


# --- tags, digests and signatures


def test_polls_of_an_unchanged_image_fetch_nothing(name: str, models: Path, tmp_path: Path) -> None:
    registry, path = name.split("/", 1)
    digest = pack(models, f"{name}:1")
    with FaultyProxy(f"http://{registry}") as proxy:
        tagged = mirror(f"{proxy.host}/{path}:1", tmp_path)
        pinned = mirror(f"{proxy.host}/{path}:1@{digest}", tmp_path)
        tagged.scan()
        pinned.scan()
        proxy.seen.clear()
        tagged.scan()
        assert [seen.method for seen in proxy.seen] == ["HEAD"]  # registries limit GET
        pinned.scan()
        assert len(proxy.seen) == 1
        with pytest.raises(NotFound):
            mirror(f"{proxy.host}/{path}:1@sha256:{'0' * 64}", tmp_path).scan()


class Signer:
    """Signs images as cosign does with a key."""

    def __init__(self, folder: Path) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.public = folder / f"{id(self)}.pub"
        self.public.write_bytes(pem(self._key))

    def sign(self, name: str, digest: str, signed: str = "") -> None:
        """Write the signature of an image, or one that is for the digest `signed`."""
        critical = {
            "identity": {"docker-reference": name},
            "image": {"docker-manifest-digest": signed or digest},
            "type": "cosign container image signature",
        }
        payload = json.dumps({"critical": critical, "optional": None}).encode()
        signature = b64encode(self._key.sign(payload, ec.ECDSA(SHA256()))).decode()
        self.write(name, digest, payload, signature)

    def write(self, name: str, digest: str, payload: bytes, signature: str) -> None:
        """Write a manifest with a payload and its signature."""
        registry = Registry(parse_image(f"{name}:1"), writes=True)
        for blob in (b"{}", payload):
            registry.write_blob(f"sha256:{sha256(blob).hexdigest()}", len(blob), lambda blob=blob: [blob])
        document = {
            "schemaVersion": 2,
            "mediaType": OCI_MANIFEST,
            "config": described_as("application/vnd.oci.image.config.v1+json", b"{}"),
            "layers": [
                {**described_as(PAYLOAD, payload), "annotations": {"dev.cosignproject.cosign/signature": signature}}
            ],
        }
        registry.write_manifest(f"{digest.replace(':', '-')}.sig", json.dumps(document).encode())


def pem(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def test_only_signed_images_are_used(
    name: str, models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    signer, other = Signer(tmp_path), Signer(tmp_path)
    target = tmp_path / "target"

    def refused(tag: str, key: Path = signer.public) -> str:
        capsys.readouterr()
        assert sync(f"{name}:{tag}", target, "--verify-key", str(key)) == 1
        assert files(target) == {}
        return capsys.readouterr().err

    first = pack(models, f"{name}:1")
    assert f"refused: {first} is not signed; sign it with: cosign sign --key" in refused("1")
    signer.sign(name, first, signed=f"sha256:{'1' * 64}")
    assert f"refused: the signature is for sha256:{'1' * 64}, not for {first}" in refused("1")
    other.sign(name, first)
    assert f"refused: no signature of {first} was made with the key in '{signer.public}'" in refused("1")
    signer.write(name, first, b'{"critical": {}}', "bm8=")
    assert "no signature" in refused("1")
    signer.write(name, first, b"{}", "?")
    assert "its signature cannot be read" in refused("1")
    signer.sign(name, first)
    assert sync(f"{name}:1", target, "--verify-key", str(signer.public)) == 0
    assert files(target) == files(models)

    both = tmp_path / "both.pub"
    both.write_bytes(other.public.read_bytes() + signer.public.read_bytes())
    assert sync(f"{name}:1", tmp_path / "again", "--verify-key", str(both)) == 0


def test_a_cache_that_was_filled_without_a_key_is_not_trusted(name: str, models: Path, tmp_path: Path) -> None:
    registry, path = name.split("/", 1)
    signer = Signer(tmp_path)
    digest = pack(models, f"{name}:1")
    with FaultyProxy(f"http://{registry}") as proxy:
        where = f"{proxy.host}/{path}:1"
        mirror(where, tmp_path).scan()
        signer.sign(name, digest)
        proxy.fault = lambda seen, real: Reply(503)
        with pytest.raises(Unavailable, match="nothing is cached"):
            mirror(where, tmp_path, str(signer.public)).scan()
        proxy.fault = lambda seen, real: None
        mirror(where, tmp_path, str(signer.public)).scan()
        proxy.fault = lambda seen, real: Reply(503)
        assert list(mirror(where, tmp_path, str(signer.public)).scan()) == ["a", "b"]


def test_keys_that_cannot_verify_are_named(name: str, tmp_path: Path) -> None:
    key = tmp_path / "key"
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        mirror(f"{name}:1", tmp_path, str(key))
    key.write_text("-----BEGIN PRIVATE KEY-----")
    with pytest.raises(ConfigError, match="is not a public key in PEM form"):
        mirror(f"{name}:1", tmp_path, str(key))
    key.write_bytes(pem(ec.generate_private_key(ec.SECP384R1())))
    with pytest.raises(ConfigError, match="is not an ECDSA key of the curve P-256"):
        mirror(f"{name}:1", tmp_path, str(key))
    with pytest.raises(ConfigError, match="is not an OCI image; signatures are verified only for oci://"):
        open_mirror("https://example.com/models.tar", str(tmp_path), verify_key=str(key))
