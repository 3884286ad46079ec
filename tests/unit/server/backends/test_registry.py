"""Finding backends: the server's own, and those of installed packages."""

import sys
from pathlib import Path

import pytest

from conch.base.errors import ModelLoadError
from conch.server.backends.identity import IdentityBackend
from conch.server.backends.registry import ineffective_settings, load_backend


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of installed packages."""
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def install(site: Path, package: str, entry_point: str, module: str = "") -> None:
    """What an installer would leave: the metadata of a package, and a module named for it."""
    about = site / f"{package}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[conch.backends]\n{entry_point}\n")
    (site / f"{package}.py").write_text(module)
    sys.modules.pop(package, None)


def test_a_backend_of_this_server() -> None:
    assert isinstance(load_backend("identity", {}), IdentityBackend)


def test_a_backend_of_a_package(site: Path) -> None:
    module = (
        "from conch.server.backends.identity import IdentityBackend\n"
        "class Mirror(IdentityBackend):\n    name = 'mirror'\n"
    )
    install(site, "mirrors", "mirror = mirrors:Mirror", module)
    assert load_backend("mirror", {}).name == "mirror"


def test_an_unknown_backend_is_refused_with_those_there_are(site: Path) -> None:
    install(site, "mirrors", "mirror = mirrors:Mirror")
    with pytest.raises(
        ModelLoadError,
        match=r"^unable to find backend library for backend 'x', .* This server has: fil, identity, mirror, ",
    ):
        load_backend("x", {})


def test_no_package_takes_the_name_of_a_backend_of_the_server(site: Path) -> None:
    install(site, "mirrors", "identity = mirrors:Mirror")
    with pytest.raises(
        ModelLoadError, match=r"^backend 'identity' is built in, and the package 'mirrors' provides another; uninstall"
    ):
        load_backend("identity", {})


def test_two_packages_of_one_name_are_named(site: Path) -> None:
    install(site, "mirrors", "mirror = mirrors:Mirror")
    install(site, "glass", "mirror = glass:Mirror")
    with pytest.raises(
        ModelLoadError, match=r"'mirror' is provided by the package '\w+' and the package '\w+'; uninstall"
    ):
        load_backend("mirror", {})


@pytest.mark.parametrize(
    ("entry_point", "module", "said"),
    [
        ("mirrors:Mirror", "import not_there", "ModuleNotFoundError: No module named 'not_there'"),
        ("mirrors:Mirror", "", "AttributeError: module 'mirrors' has no attribute 'Mirror'"),
        ("mirrors:Mirror", "class Mirror:\n    def __init__(self): raise OSError('cracked')", "OSError: cracked"),
        ("mirrors:dict", "dict = dict", "is a dict, not a conch.server.backends.base.Backend"),
    ],
)
def test_a_broken_package_is_named_with_the_cause(site: Path, entry_point: str, module: str, said: str) -> None:
    install(site, "mirrors", f"mirror = {entry_point}", module)
    with pytest.raises(ModelLoadError) as raised:
        load_backend("mirror", {})
    assert raised.value.message.startswith(f"backend 'mirror' ({entry_point} of the package 'mirrors')")
    assert raised.value.message.endswith(said)


def test_settings_of_backends_that_do_not_exist() -> None:
    assert ineffective_settings(["python", "", "onnxruntime"]) == []
    assert ineffective_settings(["tensorflow", "pythn", "pythn"]) == [
        "--backend-config=pythn,… has no effect: there is no backend 'pythn'; did you mean 'python'?",
        "--backend-config=tensorflow,… has no effect: there is no backend 'tensorflow'",
    ]
