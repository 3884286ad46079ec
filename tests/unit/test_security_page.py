"""docs/security.md names bounds and defaults: its tables hold exactly what the code does."""

import re
import tomllib
from pathlib import Path

import pytest

from conch.base.archives import bounded_tar
from conch.domain import generation
from conch.domain.config import labels, limits
from conch.domain.llm import chat_prompt
from conch.domain.tensor import MAX_RANK
from conch.machine import memory
from conch.protocols.access import api_keys
from conch.protocols.access.authorization import MODEL_HEALTH, Access, Denial
from conch.protocols.access.restrictions import CATEGORIES, Restrictions
from conch.protocols.connections import loop_budget
from conch.protocols.connections.body_budget import UNCHARGED_BYTES
from conch.protocols.http import request_reader
from conch.protocols.http.message import HttpLimits
from conch.protocols.http2.limits import Http2Limits
from conch.protocols.openai import embeddings as openai_embeddings
from conch.protocols.openai import extensions as openai_extensions
from conch.protocols.openai import fields as openai_fields
from conch.protocols.openai import large as large_openai
from conch.protocols.openai import requests as openai_requests
from conch.protocols.v2_json import data as json_data
from conch.protocols.v2_json import large as large_json
from conch.protocols.v2_proto.inference import MAX_ENTRIES
from conch.server.backends.python import outgoing_bls
from conch.server.core.ensembles import nesting
from conch.server.core.shared_memory import regions as shared_memory
from conch.server.core.validation import MAX_STRING_ELEMENTS
from conch.server.frontends.grpc import framing
from conch.server.frontends.offload import fair_queue, pool
from conch.server.frontends.openai import chat
from conch.server.frontends.openai import exchange as openai_exchange
from conch.server.frontends.v2_grpc import stream as v2_grpc_stream
from conch.server.frontends.v2_http import generate as v2_http_generate
from conch.server.frontends.v2_http import infer as v2_http_infer
from conch.server.observability.metrics import loop_lag
from conch.server.observability.tracing import observer
from conch.server.options.parser import parse
from conch.server.options.server_options import FLAGS
from conch.server.repository import override, watch
from conch.server.repository.remote import archive, listing

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text()
HTTP = HttpLimits()
HTTP2 = Http2Limits()
MIN_REQUEST_MEMORY_BYTES = memory._MIN_REQUEST_MEMORY_BYTES
WORKER_MEMORY = f"{memory._MIN_WORKER_MEMORY_BYTES >> 30} GiB to {pool.MAX_WORKER_MEMORY_BYTES >> 30} GiB"
OPTIONS = parse([f"--model-repository={ROOT}"], {})
NAMED = {name for flag in FLAGS for name in (flag.name, *flag.aliases)}


def size(count: float) -> str:
    """Write a number of bytes in the largest unit that divides it."""
    for exponent, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if count >= 2**exponent and not count % 2**exponent:
            return f"{int(count) >> exponent:,} {unit}"
    return f"{count:,} bytes"


def seconds(count: float) -> str:
    return f"{count:g} s"


FIXED = "fixed"
# Table below "## Bounds" → bound → number and flag. The page has them in this order.
BOUNDS = {
    "Per request": {
        "HTTP request head": (f"{size(HTTP.head_bytes)}, {HTTP.head_fields} fields", FIXED),
        "gRPC request head": (size(HTTP2.header_bytes), FIXED),
        "JSON or decompressed body over HTTP": (size(OPTIONS.http_max_input_size), "`--http-max-input-size`"),
        "Body with binary tensors over HTTP": (size(v2_http_infer._MAX_BINARY_BODY), "`--request-memory-limit`"),
        "Chunks of an HTTP body": (f"{request_reader._MAX_CHUNKS:,}", FIXED),
        "gRPC message": (size(framing.MAX_MESSAGE_SIZE), "`--request-memory-limit`"),
        "Decompressed gRPC message": (size(framing.MAX_DECOMPRESSED_BYTES), FIXED),
        "Inputs; outputs; parameters": (f"{MAX_ENTRIES:,} each", FIXED),
        "Id and names of a large JSON request": (size(large_json.MAX_NAMES_BYTES), FIXED),
        "Dimensions of a tensor": (f"{MAX_RANK}", FIXED),
        "Nesting of arrays in `data`": (f"{json_data.MAX_DEPTH}", FIXED),
        "BYTES elements": (f"{MAX_STRING_ELEMENTS:,}", FIXED),
        "Token ids over the OpenAI API": (f"{large_openai.MAX_TOKEN_IDS:,}", FIXED),
        "Text over the OpenAI API": (size(large_openai.MAX_TEXT_BYTES), FIXED),
        "JSON nesting over the OpenAI API": (f"{openai_fields._MAX_DEPTH}", FIXED),
        "Prompts of a completion": (f"{openai_requests.MAX_PROMPTS:,}", FIXED),
        "Inputs of embeddings": (f"{openai_embeddings.MAX_INPUTS:,}", FIXED),
        "Choices (`n`)": (f"{generation.MAX_N}", FIXED),
        "Stop strings": (f"{generation.MAX_STOPS}, {generation.MAX_STOP_CHARACTERS:,} characters each", FIXED),
        "Logit biases and token lists": (f"{generation.MAX_BIASES:,}", FIXED),
        "Schema or grammar": (f"{generation.MAX_STRUCTURE_CHARACTERS:,} characters", FIXED),
        "Parameters, copied for each prompt": (size(generation.MAX_COPIED_PARAMS), FIXED),
        "Prompts repeated for each choice": (
            f"{openai_requests.MAX_REPEATED_PROMPT:,} characters or tokens",
            FIXED,
        ),
        "Request id of a client": (f"{openai_extensions.MAX_REQUEST_ID_CHARACTERS} characters", FIXED),
        "Chat template": (f"{chat_prompt.MAX_TEMPLATE_CHARACTERS:,} characters", FIXED),
        "Chat template rendering": (
            f"{seconds(chat.MAX_TEMPLATE_S)}, {size(chat.MAX_TEMPLATE_MEMORY_BYTES)}",
            FIXED,
        ),
        "Prompt rendered by a template": (size(chat_prompt.MAX_PROMPT_BYTES), FIXED),
        "JSON parsed on the event loop": (size(large_json.MAX_INLINE_BYTES), FIXED),
    },
    "Per connection": {
        "Receive timeout": (
            f"{seconds(HTTP.receive_grace_s)}, and 1 s per {size(HTTP.receive_bytes_per_s)}",
            FIXED,
        ),
        "HTTP/2 preface timeout": (seconds(HTTP2.preface_s), FIXED),
        "Stalled write timeout, HTTP": (seconds(HTTP.stalled_write_s), FIXED),
        "Stalled write timeout, gRPC": (seconds(HTTP2.stalled_write_s), FIXED),
        "Stalled write timeout, gRPC, above the buffer": (seconds(HTTP2.stalled_full_s), FIXED),
        "Idle timeout, HTTP": (seconds(HTTP.idle_s), FIXED),
        "Parsing per event loop iteration": (f"{loop_budget._SLICE_S * 1000:g} ms", FIXED),
        "Unsent tokens over HTTP": (size(openai_exchange._MAX_UNSENT_BYTES), FIXED),
        "Unsent responses of `generate_stream`": (size(v2_http_generate._MAX_UNSENT_BYTES), FIXED),
        "Unsent responses of a gRPC stream": (size(v2_grpc_stream._MAX_UNSENT_BYTES), FIXED),
        "Concurrent HTTP/2 streams": (f"{HTTP2.streams:,}", FIXED),
        "Receive window of a stream; of the connection": (
            f"{size(HTTP2.stream_window)}; {size(HTTP2.connection_window)}",
            FIXED,
        ),
        "Buffered gRPC requests": (size(HTTP2.held_bytes), FIXED),
        "HTTP/2 frame": (size(HTTP2.frame_bytes), FIXED),
        "CONTINUATION frames per head": (f"{HTTP2.continuations}", FIXED),
        "Stream resets": (f"{HTTP2.resets:,}, then {HTTP2.resets_per_s:g} per second", FIXED),
        "Frames without effect": (f"{HTTP2.noise_frames:,}, then {HTTP2.noise_frames_per_s:g} per second", FIXED),
        "Small DATA frames": (f"{HTTP2.small_frames:,}, then {HTTP2.small_frames_per_s:,.0f} per second", FIXED),
        "Early pings": (f"{OPTIONS.grpc_http2_max_ping_strikes}", "`--grpc-http2-max-ping-strikes`"),
    },
    "Per server": {
        "HTTP connections; gRPC connections": (f"{HTTP.connections:,}; {HTTP2.connections:,}", "`ulimit -n`"),
        "Request body memory": (
            f"1/{memory._REQUEST_MEMORY_SHARE} of free memory, at least {size(MIN_REQUEST_MEMORY_BYTES)}",
            "`--request-memory-limit`",
        ),
        "Unsent answers of a listener, checked each second": (
            f"1/{memory._REQUEST_MEMORY_SHARE} of free memory, at least {size(MIN_REQUEST_MEMORY_BYTES)}",
            FIXED,
        ),
        "Body size exempt from that memory": (size(UNCHARGED_BYTES), FIXED),
        "Queued requests per model": (f"{OPTIONS.default_max_queue_size:,}", "`--default-max-queue-size`"),
        "Large messages queued for workers": (f"{pool.MAX_WAITING_JOBS:,}", FIXED),
        "Worker time per message": (seconds(pool.MAX_JOB_S), FIXED),
        "Worker processor time per message": (
            f"{seconds(pool.BASE_CPU_S)}, and {seconds(pool.CPU_S_PER_BYTE * 2**20)} per MiB",
            FIXED,
        ),
        "Message that counts as large for workers": (f"{fair_queue.LARGE_JOB_BYTES >> 20} MiB", FIXED),
        "Worker memory": (
            f"1/{memory._WORKER_MEMORY_SHARE} of free memory; each {WORKER_MEMORY}",
            FIXED,
        ),
        "Event loop stall threshold": (f"{loop_lag.MAX_BLOCKED_S * 1000:g} ms", FIXED),
        "Shared memory regions": (f"{shared_memory._MAX_REGIONS:,}", FIXED),
        "Concurrent BLS calls of an instance": (f"{outgoing_bls._MAX_RUNNING}", FIXED),
        "Traces queued for writing": (f"{observer._MAX_QUEUED_TRACES:,}, {size(observer._MAX_QUEUED_BYTES)}", FIXED),
        "Key file reload delay": (f"{2 * api_keys._WATCH_S:g} s", FIXED),
        "Drain timeout at shutdown": (
            seconds(OPTIONS.exit_timeout_secs),
            "`--exit-timeout-secs`",
        ),
    },
    "Per model": {
        "Configuration": (size(limits.MAX_CONFIG_BYTES), FIXED),
        "Entries per list; in all lists": (f"{limits.MAX_LIST_ENTRIES:,}; {limits.MAX_ENTRIES:,}", FIXED),
        "Instances of a version": (f"{limits.MAX_INSTANCES:,}", FIXED),
        "Direct sequence slots": (f"{limits.MAX_DIRECT_SLOTS:,}", FIXED),
        "Ensemble steps": (f"{limits.MAX_STEPS}", FIXED),
        "Ensemble nesting; executions per request": (
            f"{nesting.MAX_ENSEMBLE_DEPTH}; {nesting.MAX_ENSEMBLE_RUNS:,}",
            FIXED,
        ),
        "Warm-up requests per sample; batch size": (
            f"{limits.MAX_WARMUP_REQUESTS:,}; {limits.MAX_WARMUP_BATCH:,}",
            FIXED,
        ),
        "Warm-up data of all instances": (size(limits.MAX_WARMUP_BYTES), FIXED),
        "Initial states": (size(limits.MAX_GENERATED_BYTES), FIXED),
        "Label file": (size(labels.MAX_LABEL_BYTES), FIXED),
        "Files and folders compared for changes": (f"{watch.MAX_ENTRIES:,}", FIXED),
        "Files of a load request": (f"{override.MAX_FILES:,}; {size(override.MAX_FILES_BYTES)}", FIXED),
        "Path of an uploaded file": (f"{size(override.MAX_PATH_BYTES)}, {override.MAX_PATH_DEPTH} folders", FIXED),
        "Name or path in a configuration": (f"{limits.MAX_STRING_CHARS:,} characters", FIXED),
        "Path in an archive": (
            f"{size(listing.MAX_PATH_BYTES)}, {listing.MAX_PATH_DEPTH} folders, names of {listing.MAX_NAME_BYTES}",
            FIXED,
        ),
        "Extended header in an archive; total": (
            f"{size(bounded_tar.MAX_EXTENSION_BYTES)}; {size(bounded_tar.MAX_EXTENSIONS_BYTES)}",
            FIXED,
        ),
        "Link chain in an archive": (f"{archive.MAX_LINK_CHAIN}", FIXED),
    },
}


def table(heading: str) -> list[list[str]]:
    """Return the cells of the rows of the first table below a heading."""
    section = re.split(rf"^#+ {re.escape(heading)}$", PAGE, maxsplit=1, flags=re.MULTILINE)[1]
    section = re.split(r"^#+ ", section, maxsplit=1, flags=re.MULTILINE)[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows[2:]]


@pytest.mark.parametrize("heading", BOUNDS)
def test_bounds_are_those_of_the_code(heading: str) -> None:
    assert table(heading) == [[bound, *said] for bound, said in BOUNDS[heading].items()]


def test_defaults_are_those_of_the_code() -> None:
    assert [row[0] for row in table("Defaults")] == [
        "HTTP and `/v1` address",
        "gRPC address",
        "Metrics address",
        "Separate OpenAI API port",
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
    found = set(re.findall(r"--([a-z][a-z0-9-]+)", PAGE))
    assert len(found) > 25
    assert found - NAMED == set()


def test_the_page_lists_the_scopes_of_keys() -> None:
    class Keys:
        scoped = False

        def find(self, authorization: bytes) -> None:
            return None

    access = Access(None, Keys())  # type: ignore[arg-type]
    every = [*CATEGORIES, MODEL_HEALTH, "metrics"]

    def refused(*, openai: bool) -> set[str]:
        return {one for one in every if access.denied(one, lambda _: (), openai=openai) is not None}

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
