"""docs/security.md names bounds and defaults: its tables hold exactly what the code does."""

import re
import tomllib
from pathlib import Path

from tools import security_page

from conch.protocols.access.authorization import MODEL_HEALTH, Access, Denial
from conch.protocols.access.restrictions import CATEGORIES, Restrictions
from conch.server.options.parser import parse
from conch.server.options.server_options import FLAGS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text()
OPTIONS = parse([f"--model-repository={ROOT}"], {})
NAMED = {name for flag in FLAGS for name in (flag.name, *flag.aliases)}


def table(heading: str) -> list[list[str]]:
    """Return the cells of the rows of the first table below a heading."""
    section = re.split(rf"^#+ {re.escape(heading)}$", PAGE, maxsplit=1, flags=re.MULTILINE)[1]
    section = re.split(r"^#+ ", section, maxsplit=1, flags=re.MULTILINE)[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def test_the_bounds_are_those_of_the_code() -> None:
    assert security_page.page(PAGE) == PAGE, "run `make docs`"
    for heading, bounds in security_page.BOUNDS.items():
        assert table(heading) == [[bound, ", ".join(number)] for bound, *number in bounds]


def test_defaults_are_those_of_the_code() -> None:
    assert [row[0] for row in table("Defaults")] == [
        "HTTP and `/v1` address",
        "gRPC address",
        "Metrics address",
        "Separate OpenAI API port",
        "`/docs`; `/v2/limits` and `/v2/debug` without keys",
        "API keys",
        "Model loading by clients",
        "Client shared memory",
        "Native libraries named by configurations",
        "Pickles in `--model-dir`",
        "Debuggers and core dumps of the server",
        "User, Landlock and limits of model processes",
        "Variables inherited by model processes",
        "TLS",
        "Traces",
        "Request log",
        "Response cache",
    ]
    said = {row[0]: row[1] for row in table("Defaults")}
    assert said["HTTP and `/v1` address"] == f"{OPTIONS.http_address}:{OPTIONS.http_port}"
    assert said["gRPC address"] == f"{OPTIONS.grpc_address}:{OPTIONS.grpc_port}"
    assert said["Metrics address"] == f"the HTTP address, port {OPTIONS.metrics_port}"
    assert parse([f"--model-repository={ROOT}", "--http-address=::1"], {}).metrics_address == "::1"
    assert OPTIONS.openai_port == -1
    assert (OPTIONS.docs_remote, OPTIONS.limits_admin_remote, OPTIONS.debug_remote) == (False, False, False)
    assert (OPTIONS.api_key_file, OPTIONS.openai_api_key, OPTIONS.openai_api_key_file) == ("", (), "")
    assert (OPTIONS.http_restricted_api, OPTIONS.grpc_restricted_protocol) == ((), ())
    assert OPTIONS.model_control_mode == "none"
    assert not OPTIONS.allow_pickled_models
    switches = (OPTIONS.allow_client_shm, OPTIONS.allow_native_extensions, OPTIONS.process_debugging)
    assert switches == (False, False, False)
    assert (OPTIONS.grpc_use_ssl, OPTIONS.grpc_use_ssl_mutual, OPTIONS.log_requests) == (False, False, "off")
    assert (OPTIONS.model_env_allow, OPTIONS.model_env_deny, OPTIONS.backend_config) == ((), (), ())
    assert OPTIONS.cache_bytes == 0
    assert OPTIONS.trace_config == ()


def test_every_flag_on_the_page_exists() -> None:
    flags = set(re.findall(r"--([a-z][a-z0-9-]+)", PAGE))
    assert len(flags) > 25
    assert flags - NAMED == set()


def test_the_page_lists_the_scopes_of_keys() -> None:
    class Keys:
        scoped = False

        def find(self, authorization: bytes) -> None:
            return None

    access = Access(None, Keys())  # type: ignore[arg-type]
    every = [*CATEGORIES, MODEL_HEALTH, "metrics"]

    def refused(*, openai: bool) -> set[str]:
        return {path for path in every if access.denied(path, lambda _: (), openai=openai) is not None}

    assert refused(openai=False) == {"inference"}
    assert {"inference", "metadata", "model-repository"} <= refused(openai=True)
    Keys.scoped = True
    assert refused(openai=False) == set(every) - {"health"}
    assert Access(Restrictions(["inference:key=value"], flag="--http-restricted-api")).denied(
        "inference", lambda _: (b"value", b"value")
    ) == (Denial.REPEATED, "header 'key' is sent more than once", "")


def test_links_of_the_page_lead_somewhere() -> None:
    for page, folder in ((PAGE, ROOT / "docs"), ((ROOT / "SECURITY.md").read_text(), ROOT)):
        links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)]+)\)", page) if "://" not in link]
        assert links
        assert [link for link in links if link and not (folder / link).exists()] == []


def test_reports_go_to_the_address_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"{project['urls']['Homepage']}/security/advisories/new" in (ROOT / "SECURITY.md").read_text()
