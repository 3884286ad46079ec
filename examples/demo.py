"""The demo: serve the example repository, send it a JPEG, show what came back, ask its language model a question.

    python examples/demo.py            serve until Ctrl-C
    python examples/demo.py --once     end after the first answer; the exit status says whether all went well
    python examples/demo.py --load     keep sending pictures, some of them large: ask `conch why p99` meanwhile

Writes the picture with its boxes to demo-output/annotated.jpg.
"""

import argparse
import json
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import openai
import tritonclient.http as triton
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from rich.table import Table

EXAMPLES = Path(__file__).resolve().parent
sys.path.insert(0, str(EXAMPLES / "clients"))

from chat import ask  # noqa: E402 - found by the line above
from detect import annotate, detect  # noqa: E402

QUESTION = "What is Conch?"
PICTURE = EXAMPLES / "images" / "plate.jpg"
OUTPUT = Path("demo-output")
START_TIMEOUT_S = 60
PORTS = {"http": 8000, "grpc": 8001, "metrics": 8002}

SENDERS = 3
PERIOD_S = 0.3  # between the pictures of a sender
LARGE_EVERY = 40  # pictures
LARGE_WIDTH = 3900  # pixels; the limit of the preprocessing is 4,000

console = Console()


def free_ports() -> dict[str, int]:
    """Triton's ports where they are free, others where they are not."""
    chosen = {}
    for name, port in PORTS.items():
        for candidate in (port, 0):
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind(("127.0.0.1", candidate))
                except OSError:
                    continue
                chosen[name] = probe.getsockname()[1]
                break
    return chosen


@contextmanager
def server(ports: dict[str, int]) -> Iterator[subprocess.Popen[bytes]]:
    """`conch serve` on the example models, on loopback."""
    flags = [f"--model-repository={EXAMPLES / 'models'}", "--http-address=127.0.0.1", "--grpc-address=127.0.0.1"]
    flags += [f"--{name}-port={port}" for name, port in ports.items()]
    console.print(f"[bold]conch serve[/] {' '.join(flags)}")
    process = subprocess.Popen([sys.executable, "-m", "conch", "serve", *flags])
    try:
        yield process
    finally:
        process.terminate()
        process.wait(timeout=START_TIMEOUT_S)


def wait_until_ready(process: subprocess.Popen[bytes], url: str) -> None:
    """Return when every model is ready; raise RuntimeError if the server ends or takes too long."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with status {process.returncode}; its log above says why")
        try:
            with urllib.request.urlopen(f"{url}/v2/health/ready", timeout=1):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.05)
    raise RuntimeError(f"the server was not ready after {START_TIMEOUT_S} s; its log above says what it was doing")


def show_stages(metrics_url: str) -> None:
    """A table of what each stage of the pipeline took, from the server's own metrics."""
    with urllib.request.urlopen(metrics_url, timeout=5) as response:
        families = text_string_to_metric_families(response.read().decode())
    values = {
        (sample.labels.get("model"), family.name): sample.value
        for family in families
        for sample in family.samples
        if "reason" not in sample.labels
    }
    columns = {
        "requests": "nv_inference_request_success",
        "queue": "nv_inference_queue_duration_us",
        "input": "nv_inference_compute_input_duration_us",
        "infer": "nv_inference_compute_infer_duration_us",
        "output": "nv_inference_compute_output_duration_us",
        "total": "nv_inference_request_duration_us",
    }
    table = Table("stage", title="What each stage took, in µs")
    for heading in columns:
        table.add_column(heading, justify="right")
    for model in ("preprocess", "detector", "postprocess", "detect", "detect_bls"):
        table.add_row(model, *(f"{values.get((model, name), 0):,.0f}" for name in columns.values()))
    console.print(table)


def demonstrate(ports: dict[str, int]) -> int:
    """Send the picture and show the answer. Returns the number of defects found."""
    image = PICTURE.read_bytes()
    with triton.InferenceServerClient(f"127.0.0.1:{ports['http']}") as client:
        started = time.perf_counter()
        (defects,) = detect(client, [image])
        elapsed = time.perf_counter() - started
        (scripted,) = detect(client, [image], model="detect_bls")
    console.print(f"\n[bold]{PICTURE.name}[/] went in; after {elapsed * 1000:.0f} ms this came out:")
    console.print_json(json.dumps(defects))
    if scripted != defects:
        raise RuntimeError(f"the pipeline as a program, detect_bls, found something else: {scripted}")
    console.print("The same pipeline as a program, [bold]detect_bls[/], found the same.")
    OUTPUT.mkdir(exist_ok=True)
    annotated = OUTPUT / "annotated.jpg"
    annotated.write_bytes(annotate(image, defects))
    console.print(f"The boxes drawn into the picture: [bold]{annotated}[/]\n")
    show_stages(f"http://127.0.0.1:{ports['metrics']}/metrics")
    return len(defects)


def converse(url: str) -> str:
    """Ask the language model and print its answer as it comes. Returns the answer."""
    console.print(f"\nAsked over the OpenAI API, [bold]{QUESTION}[/]")
    started = time.perf_counter()
    first, answer = 0.0, ""
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none") as client:
        for piece in ask(client, QUESTION):
            first = first or time.perf_counter() - started
            answer += piece
            console.print(piece, end="", markup=False, highlight=False)
    elapsed = time.perf_counter() - started
    console.print(f"\n[dim]the first piece came after {first * 1000:.0f} ms, the last after {elapsed * 1000:.0f} ms[/]")
    return answer


def enlarged(image: bytes, width: int) -> bytes:
    """The picture as a JPEG of another width."""
    import cv2
    import numpy as np

    picture = cv2.imdecode(np.frombuffer(image, dtype=np.uint8), cv2.IMREAD_COLOR)
    assert picture is not None
    height = round(picture.shape[0] * width / picture.shape[1])
    return bytes(cv2.imencode(".jpg", cv2.resize(picture, (width, height)))[1])


def send_load(url: str, stopped: threading.Event) -> None:
    """Send pictures from several threads until the event is set, a large one now and then."""
    image = PICTURE.read_bytes()
    large = enlarged(image, LARGE_WIDTH)

    def send(sender: int) -> None:
        count = 0
        with triton.InferenceServerClient(url) as client:
            while not stopped.wait(PERIOD_S):
                count += 1
                try:
                    detect(client, [large if sender == 0 and count % LARGE_EVERY == 0 else image])
                except (triton.InferenceServerException, OSError):
                    return  # the server stops

    for sender in range(SENDERS):
        threading.Thread(target=send, args=(sender,), daemon=True).start()
    console.print(f"\n{SENDERS} clients send a picture every {PERIOD_S} s, and a large one now and then.")
    console.print(f"In another terminal: [bold]conch why p99 --url {url}[/]")


def main() -> int:
    """Run the demo; 0 if the server came up and found defects where there are some."""
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--once", action="store_true", help="stop the server after the first answer")
    arguments.add_argument("--load", action="store_true", help="keep sending pictures until Ctrl-C")
    options = arguments.parse_args()
    ports = free_ports()
    stopped = threading.Event()
    with server(ports) as process:
        try:
            wait_until_ready(process, f"http://127.0.0.1:{ports['http']}")
            defects = demonstrate(ports)
            answer = converse(f"http://127.0.0.1:{ports['http']}")
        except (RuntimeError, OSError, triton.InferenceServerException, openai.APIError) as error:
            console.print(f"[red]demo failed:[/] {error}")
            return 1
        if not defects:
            console.print("[red]demo failed:[/] no defect was found in a picture that has some")
            return 1
        if not answer:
            console.print("[red]demo failed:[/] the language model had nothing to say")
            return 1
        if not options.once:
            console.print(
                f"\nServing HTTP on [bold]127.0.0.1:{ports['http']}[/], gRPC on [bold]127.0.0.1:{ports['grpc']}[/], "
                f"metrics on [bold]http://127.0.0.1:{ports['metrics']}/metrics[/]. Ctrl-C stops the server."
            )
            if options.load:
                send_load(f"127.0.0.1:{ports['http']}", stopped)
            try:
                process.wait()
            except KeyboardInterrupt:
                console.print("stopping")
            stopped.set()
    return 0


if __name__ == "__main__":
    sys.exit(main())
