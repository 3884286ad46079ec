"""Terraform with its provider, the AWS of aws.py, and AWS's command line, for the tests of the blueprint."""

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.operate.terraform.aws import EksParts, running_aws
from tests.operate.terraform.blueprint import Blueprint

ROOT = Path(__file__).parents[3]
_OVERRIDE = 'provider "aws" {\n  s3_use_path_style = true\n}\n'


@pytest.fixture(scope="package")
def aws_service() -> Iterator[tuple[str, EksParts]]:
    """URL of an AWS, and the parts of EKS in it that are not moto's."""
    # Without the managed policies, no role could have one attached.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MOTO_IAM_LOAD_MANAGED_POLICIES", "true")
        with running_aws() as service:
            yield service


@pytest.fixture(scope="package")
def aws_command() -> Path:
    """The folder of AWS's command line, in a separate environment: it needs an older botocore than moto."""
    if installed := shutil.which("aws"):
        return Path(installed).parent
    folder = ROOT / ".venv" / "awscli"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "bin" / "aws").exists():
            subprocess.run([sys.executable, "-m", "venv", folder], check=True, capture_output=True, timeout=120)
            install = [folder / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check", "awscli"]
            done = subprocess.run(install, capture_output=True, text=True, check=False, timeout=300)
            if done.returncode:
                pytest.skip(f"awscli cannot be installed: {done.stderr[-200:]}")
    return folder / "bin"


@pytest.fixture(scope="package")
def provider_settings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment with which terraform finds its provider. Skips the test where there is none."""
    if shutil.which("terraform") is None:
        pytest.skip("terraform is not installed, and no package registry has it")
    folders = [Path("/usr/share/terraform/plugins"), *Path("/opt").glob("*")]
    mirror = next((folder for folder in folders if (folder / "registry.terraform.io/hashicorp/aws").is_dir()), None)
    if mirror is None:
        pytest.skip("the provider hashicorp/aws is not installed, and no package registry has it")
    file = tmp_path_factory.mktemp("terraform") / "terraform.rc"
    file.write_text(f'provider_installation {{\n  filesystem_mirror {{\n    path = "{mirror}"\n  }}\n}}\n')
    return {"TF_CLI_CONFIG_FILE": str(file), "TF_IN_AUTOMATION": "1", "CHECKPOINT_DISABLE": "1"}


@pytest.fixture(scope="package")
def blueprint(
    provider_settings: dict[str, str],
    aws_service: tuple[str, EksParts],
    aws_command: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Blueprint:
    """An initialized copy of the blueprint, whose provider and command line ask the AWS of aws.py."""
    folder = tmp_path_factory.mktemp("eks")
    for path in (ROOT / "deploy" / "terraform" / "eks").iterdir():
        if path.is_file() and ".tfstate" not in path.name:
            shutil.copy(path, folder)
    (folder / "test_override.tf").write_text(_OVERRIDE)
    url, parts = aws_service
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "TF_"))},
        **provider_settings,
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "key-of-a-test",
        "AWS_SECRET_ACCESS_KEY": "secret-of-a-test",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_PAGER": "",
        "CLEANUP_PAUSE_S": "1",
        "NO_PROXY": "127.0.0.1",
        "PATH": f"{aws_command}{os.pathsep}{os.environ['PATH']}",
    }
    blueprint = Blueprint(folder, environment, parts)
    done = blueprint.run("terraform", "init", "-input=false", "-no-color")
    assert done.returncode == 0, done.stderr
    return blueprint
