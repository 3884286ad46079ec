"""Write the bounds on docs/security.md from those of the code: `python -m tools.security_page`.

A bound is declared here once: its heading and name on the page, its number, and the flag that changes it.
"""

import re
from pathlib import Path

from conch.base import archives
from conch.domain import generation
from conch.domain.config import size_limits as limits
from conch.domain.files import model_folder
from conch.domain.llm import chat_prompt, images
from conch.domain.tensor import MAX_RANK
from conch.machine import memory
from conch.protocols.access import api_keys
from conch.protocols.connections import loop_budget
from conch.protocols.connections.body_budget import UNCHARGED_BYTES
from conch.protocols.http import request_reader
from conch.protocols.http.message import HttpLimits
from conch.protocols.http2.limits import Http2Limits
from conch.protocols.openai import embeddings as openai_embeddings
from conch.protocols.openai import fields as openai_fields
from conch.protocols.openai import large as large_openai
from conch.protocols.openai import requests as openai_requests
from conch.protocols.v2_json import data as json_data
from conch.protocols.v2_json import large as large_json
from conch.protocols.v2_proto.inference import MAX_ENTRIES
from conch.server.backends.child.conch_child.ipc import metric_area, wire
from conch.server.backends.engines import untrusted_events
from conch.server.backends.processes import child_process
from conch.server.backends.python import model_control, outgoing_bls, tensor_exchange
from conch.server.backends.python.settings import PythonSettings
from conch.server.core import generative_model
from conch.server.core.ensembles import nesting
from conch.server.core.shared_memory import regions as shared_memory
from conch.server.core.validation import MAX_STRING_ELEMENTS
from conch.server.frontends.grpc import framing
from conch.server.frontends.offload import fair_queue, pool
from conch.server.frontends.openai import chat, response_store
from conch.server.frontends.openai import exchange as openai_exchange
from conch.server.frontends.openai.batches import store as batch_store
from conch.server.frontends.v2_grpc import infer_stream
from conch.server.frontends.v2_http import generate as v2_http_generate
from conch.server.frontends.v2_http import infer as v2_http_infer
from conch.server.frontends.v2_http import management
from conch.server.observability.metrics import loop_lag
from conch.server.observability.tracing import observer
from conch.server.options.parser import parse
from conch.server.repository import override, watch
from conch.server.repository.remote import archive, listing

PAGE = Path(__file__).parents[1] / "docs" / "security.md"
HTTP = HttpLimits()
HTTP2 = Http2Limits()
OPTIONS = parse(["--model-repository=."], {})


def size(count: float) -> str:
    """Write a number of bytes in the largest unit that divides it."""
    for exponent, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if count >= 2**exponent and not count % 2**exponent:
            return f"{int(count) >> exponent:,} {unit}"
    return f"{count:,} bytes"


def seconds(count: float) -> str:
    return f"{count:g} s"


MIN_REQUEST_MEMORY = size(memory.MIN_REQUEST_MEMORY_BYTES)
WORKER_MEMORY = f"{size(memory.MIN_WORKER_MEMORY_BYTES)} to {size(pool.MAX_WORKER_MEMORY_BYTES)}"

_TABLE = "| bound | number |"
# Heading below "## Bounds" → bound, number and the flag that changes it, if any.
BOUNDS: dict[str, tuple[tuple[str, ...], ...]] = {
    "Per request": (
        ("HTTP request head", f"{size(HTTP.head_bytes)}, {HTTP.head_fields} fields"),
        ("gRPC request head", size(HTTP2.header_bytes)),
        ("JSON or decompressed body over HTTP", size(OPTIONS.http_max_input_size), "`--http-max-input-size`"),
        ("Body with binary tensors over HTTP", size(v2_http_infer.MAX_BINARY_BODY), "`--request-memory-limit`"),
        ("Chunks of an HTTP body", f"{request_reader.MAX_CHUNKS:,}"),
        ("gRPC message", size(framing.MAX_MESSAGE_SIZE), "`--request-memory-limit`"),
        ("Decompressed gRPC message", size(framing.MAX_DECOMPRESSED_BYTES)),
        ("Inputs; outputs; parameters", f"{MAX_ENTRIES:,} each"),
        ("Id and names of a large JSON request", size(large_json.MAX_NAMES_BYTES)),
        ("Dimensions of a tensor", f"{MAX_RANK}"),
        ("Nesting of arrays in `data`", f"{json_data.MAX_DEPTH}"),
        ("BYTES elements", f"{MAX_STRING_ELEMENTS:,}"),
        ("Token ids over the OpenAI API", f"{large_openai.MAX_TOKEN_IDS:,}"),
        ("Text over the OpenAI API", size(large_openai.MAX_TEXT_BYTES)),
        ("JSON nesting over the OpenAI API", f"{openai_fields.MAX_DEPTH}"),
        ("Prompts of a completion", f"{openai_requests.MAX_PROMPTS:,}"),
        ("Inputs of embeddings", f"{openai_embeddings.MAX_INPUTS:,}"),
        ("Choices (`n`)", f"{generation.MAX_N}"),
        ("Stop strings", f"{generation.MAX_STOPS}, {generation.MAX_STOP_CHARACTERS:,} characters each"),
        ("Logit biases and token lists", f"{generation.MAX_BIASES:,}"),
        ("Schema or grammar", f"{generation.MAX_STRUCTURE_CHARACTERS:,} characters"),
        ("Parameters, copied for each prompt", size(generation.MAX_COPIED_PARAMS)),
        ("Prompts repeated for each choice", f"{openai_requests.MAX_REPEATED_PROMPT:,} characters or tokens"),
        ("Request id of a client", f"{openai_requests.MAX_REQUEST_ID_CHARACTERS} characters"),
        ("Chat template", f"{chat.MAX_TEMPLATE_CHARACTERS:,} characters"),
        ("Chat template rendering", f"{seconds(chat.MAX_TEMPLATE_S)}, {size(chat.MAX_TEMPLATE_MEMORY_BYTES)}"),
        ("Prompt rendered by a template", size(chat_prompt.MAX_PROMPT_BYTES)),
        ("Images", f"{size(images.MAX_IMAGE_BYTES)}, {images.MAX_IMAGE_PIXELS:,} pixels"),
        ("Scans and other segments of a JPEG", f"{images.MAX_JPEG_SCANS} and {images.MAX_JPEG_SEGMENTS}"),
        ("JSON parsed on the event loop", size(large_json.MAX_INLINE_BYTES)),
    ),
    "Per connection": (
        ("Receive timeout", f"{seconds(HTTP.receive_grace_s)}, and 1 s per {size(HTTP.receive_bytes_per_s)}"),
        ("HTTP/2 preface timeout", seconds(HTTP2.preface_s)),
        ("Stalled write timeout, HTTP", seconds(HTTP.stalled_write_s)),
        ("Stalled write timeout, gRPC", seconds(HTTP2.stalled_write_s)),
        ("Stalled write timeout, gRPC, above the buffer", seconds(HTTP2.stalled_full_s)),
        ("Idle timeout, HTTP", seconds(HTTP.idle_s)),
        ("Parsing per event loop iteration", f"{loop_budget.SLICE_S * 1000:g} ms"),
        ("Unsent tokens over HTTP", size(openai_exchange.MAX_UNSENT_BYTES)),
        ("Unsent responses of `generate_stream`", size(v2_http_generate.MAX_UNSENT_BYTES)),
        ("Unsent responses of a gRPC stream", size(infer_stream.MAX_UNSENT_BYTES)),
        ("Concurrent HTTP/2 streams", f"{HTTP2.streams:,}"),
        (
            "Receive window of a stream; of the connection",
            f"{size(HTTP2.stream_window)}; {size(HTTP2.connection_window)}",
        ),
        ("Buffered gRPC requests", size(HTTP2.held_bytes)),
        ("HTTP/2 frame", size(HTTP2.frame_bytes)),
        ("CONTINUATION frames per head", f"{HTTP2.continuations}"),
        ("Stream resets", f"{HTTP2.resets:,}, then {HTTP2.resets_per_s:g} per second"),
        (
            "Stream resets from one address or IPv6 /64, over all connections",
            f"{HTTP2.peer_resets:,}, then {HTTP2.peer_resets_per_s:,.0f} per second",
        ),
        ("Frames without effect", f"{HTTP2.noise_frames:,}, then {HTTP2.noise_frames_per_s:g} per second"),
        ("Small DATA frames", f"{HTTP2.small_frames:,}, then {HTTP2.small_frames_per_s:,.0f} per second"),
        ("Early pings", f"{OPTIONS.grpc_http2_max_ping_strikes}", "`--grpc-http2-max-ping-strikes`"),
    ),
    "Per process of a model or engine": (
        (
            "Shared memory, per direction",
            size(PythonSettings().shm_limit_size),
            "`--backend-config=python,shm-limit-byte-size`",
        ),
        ("Tensors of a message beyond the shared memory", size(wire.MAX_CHILD_PAYLOAD_SIZE)),
        ("Header of a message", f"{size(wire.MAX_CHILD_HEADER_SIZE)}, {wire.MAX_VALUES:,} values"),
        ("Time for messages per event loop iteration", f"{child_process.MAX_TURN_NS / 1e6:g} ms"),
        ("Log", f"{child_process.MAX_LINES_PER_S:,} lines and {size(child_process.MAX_BYTES_PER_S)} per second"),
        ("Text of an error or log message", f"{wire.MAX_TEXT:,} characters"),
        ("Unread answers to its messages; unread prompts", f"{size(child_process.MAX_UNREAD_BYTES)} each"),
        ("Open BLS calls; loads and unloads in progress", f"{outgoing_bls.MAX_OPEN:,}; {model_control.MAX_TASKS:,}"),
        (
            "Time series of custom metrics; families",
            f"{metric_area.MAX_SERIES:,}, {size(metric_area.AREA_BYTES)}; {metric_area.MAX_SERIES:,}",
        ),
        ("Tokens of a generation", f"as requested, and {untrusted_events.SLACK_TOKENS:,} for each sequence"),
    ),
    "Per server": (
        ("HTTP connections; gRPC connections", f"{HTTP.connections:,}; {HTTP2.connections:,}", "`ulimit -n`"),
        (
            "Request body memory",
            f"1/{memory.REQUEST_MEMORY_SHARE} of free memory, at least {MIN_REQUEST_MEMORY}",
            "`--request-memory-limit`",
        ),
        (
            "Unsent answers of a listener, checked each second",
            f"1/{memory.REQUEST_MEMORY_SHARE} of free memory, at least {MIN_REQUEST_MEMORY}",
        ),
        ("Body size exempt from that memory", size(UNCHARGED_BYTES)),
        ("Queued requests per model", f"{OPTIONS.default_max_queue_size:,}", "`--default-max-queue-size`"),
        ("Large messages queued for workers", f"{pool.MAX_WAITING_JOBS:,}"),
        ("Worker time per message", seconds(pool.MAX_JOB_S)),
        (
            "Worker processor time per message",
            f"{seconds(pool.BASE_CPU_S)}, and {seconds(pool.CPU_S_PER_BYTE * 2**20)} per MiB",
        ),
        ("Message that counts as large for workers", f"{fair_queue.LARGE_JOB_BYTES >> 20} MiB"),
        ("Worker memory", f"1/{memory.WORKER_MEMORY_SHARE} of free memory; each {WORKER_MEMORY}"),
        ("Event loop stall threshold", f"{loop_lag.MAX_BLOCKED_S * 1000:g} ms"),
        ("Shared memory regions", f"{shared_memory.MAX_REGIONS:,}"),
        ("Concurrent BLS calls of an instance", f"{outgoing_bls.MAX_RUNNING}"),
        ("Outputs of BLS calls that the server keeps for a process", size(tensor_exchange.MAX_KEPT_BYTES)),
        (
            "Responses kept for `previous_response_id`",
            f"{OPTIONS.responses_store:,}; {size(response_store.MAX_BYTES)}, {response_store.LIFETIME_S / 3600:g} h",
            "`--responses-store`",
        ),
        (
            "Batches; of a tenant, which have not ended; files",
            f"{batch_store.MAX_BATCHES:,}; {batch_store.MAX_ACTIVE:,}; {batch_store.MAX_FILES:,}",
        ),
        (
            "Size of the files of batches; of a tenant's",
            f"{size(OPTIONS.batch_max_bytes)}; 1/2 of what others leave",
            "`--batch-max-bytes`",
        ),
        ("Concurrent readings of the event log", f"{management.MAX_READING}"),
        ("Traces queued for writing", f"{observer.MAX_QUEUED_TRACES:,}, {size(observer.MAX_QUEUED_BYTES)}"),
        ("Key file reload delay", f"{2 * api_keys.WATCH_S:g} s"),
        ("Drain timeout at shutdown", seconds(OPTIONS.exit_timeout_secs), "`--exit-timeout-secs`"),
    ),
    "Per model": (
        ("Configuration", size(limits.MAX_CONFIG_BYTES)),
        ("Entries per list; in all lists", f"{limits.MAX_LIST_ENTRIES:,}; {limits.MAX_ENTRIES:,}"),
        ("Images of waiting requests", size(generative_model.MAX_WAITING_IMAGE_BYTES)),
        ("Instances of a version", f"{limits.MAX_INSTANCES:,}"),
        ("Direct sequence slots", f"{limits.MAX_DIRECT_SLOTS:,}"),
        ("Ensemble steps", f"{limits.MAX_STEPS}"),
        ("Ensemble nesting; executions per request", f"{nesting.MAX_ENSEMBLE_DEPTH}; {nesting.MAX_ENSEMBLE_RUNS:,}"),
        ("Warm-up requests per sample; batch size", f"{limits.MAX_WARMUP_REQUESTS:,}; {limits.MAX_WARMUP_BATCH:,}"),
        ("Warm-up data of all instances", size(limits.MAX_WARMUP_BYTES)),
        ("Initial states", size(limits.MAX_GENERATED_BYTES)),
        ("Label file", size(model_folder.MAX_LABEL_BYTES)),
        ("Files and folders compared for changes", f"{watch.MAX_ENTRIES:,}"),
        ("Files of a load request", f"{override.MAX_FILES:,}; {size(override.MAX_FILES_BYTES)}"),
        ("Name or path in a configuration", f"{limits.MAX_STRING_CHARS:,} characters"),
        (
            "Path in an archive or of an uploaded file",
            f"{size(listing.MAX_PATH_BYTES)}, {listing.MAX_PATH_DEPTH} folders, names of {listing.MAX_NAME_BYTES}",
        ),
        (
            "Extended header in an archive; total",
            f"{size(archives.MAX_EXTENSION_BYTES)}; {size(archives.MAX_EXTENSIONS_BYTES)}",
        ),
        ("Link chain in an archive", f"{archive.MAX_LINK_CHAIN}"),
    ),
}


def page(text: str) -> str:
    """Return the page with the present bounds."""
    for heading, bounds in BOUNDS.items():
        rows = [f"| {bound} | {', '.join((number, *flag))} |" for bound, number, *flag in bounds]
        table = "\n".join((_TABLE, "| --- | --- |", *rows))
        before, title, after = text.partition(f"### {heading}\n")
        introduction, _, rest = after.partition(f"{_TABLE}\n")
        after_table = re.sub(r"\A(?:\|.*\n)*", "", rest)
        text = f"{before}{title}{introduction}{table}\n{after_table}"
    return text


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
