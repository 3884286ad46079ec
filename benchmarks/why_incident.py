"""One image of 12,000 × 8,000 pixels among small ones in the example pipeline, and what `conch why` says of it.

    python -m benchmarks.why_incident [--width 12000] [--html why.html]

The limits of the pipeline for images are removed first; with them, the image is refused at once.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import cv2
import numpy as np
import tritonclient.http as triton

from benchmarks.harness.machine import CHECKOUT
from conch.base.http.client import answers_ok
from conch.base.process.local_server import serve_command, started_ports

_MODELS = CHECKOUT / "examples" / "models"
_PIPELINE = ("preprocess", "detector", "postprocess", "detect")
_CLIENTS = 12
_REQUESTS = 25  # of a client
_PERIOD_S = 1.0


def main() -> None:
    """Serve, send, and print what the command says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--width", type=int, default=12_000)
    parser.add_argument("--html", type=Path, help="also write the page")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for model in _PIPELINE:
            shutil.copytree(_MODELS / model, folder / "models" / model)
        config = folder / "models" / "preprocess" / "config.pbtxt"
        # One instance, as in the report.
        config.write_text(config.read_text().replace('"4000"', '"20000"').replace("count: 2", "count: 1"))
        reader = folder / "models" / "preprocess" / "1" / "image_file.py"
        reader.write_text(reader.read_text().replace('simplefilter("error"', 'simplefilter("ignore"'))
        log = folder / "log"
        with log.open("wb") as output:
            server = subprocess.Popen(
                serve_command(f"--model-repository={folder / 'models'}"), stdout=output, stderr=subprocess.STDOUT
            )
        try:
            while not (ports := started_ports(log)) or not answers_ok(_ready(ports["http"]), 5):
                if server.poll() is not None:
                    raise RuntimeError(log.read_text(errors="replace"))
                time.sleep(0.1)
            _send(f"127.0.0.1:{ports['http']}", given.width)
            url = f"127.0.0.1:{ports['http']}"
            for arguments in (["p99"], ["large-one"], ["p50"]):
                print(f"$ conch why {' '.join(arguments)}", flush=True)
                subprocess.run([sys.executable, "-m", "conch", "why", *arguments, "--url", url], check=True)
            if given.html:
                page = ["--html", str(given.html)]
                subprocess.run([sys.executable, "-m", "conch", "why", "p99", "--url", url, *page], check=True)
        finally:
            server.terminate()
            server.wait()


def _ready(port: int) -> str:
    return f"http://127.0.0.1:{port}/v2/health/ready"


def _send(url: str, width: int) -> None:
    """Send small images from several clients, and one large image in the middle."""
    small = (_MODELS.parent / "images" / "plate.jpg").read_bytes()
    picture = cv2.imdecode(np.frombuffer(small, np.uint8), cv2.IMREAD_COLOR)
    assert picture is not None
    large = cv2.imencode(".jpg", cv2.resize(picture, (width, width * 2 // 3)))[1].tobytes()

    def client(number: int) -> None:
        with triton.InferenceServerClient(url, network_timeout=60) as connection:
            time.sleep(number * _PERIOD_S / _CLIENTS)
            for count in range(_REQUESTS):
                if number == 0 and count == _REQUESTS // 2:
                    threading.Thread(target=_ask, args=(url, large, "large-one")).start()
                begun = time.monotonic()
                _infer(connection, small, f"small-{number}-{count}")
                time.sleep(max(_PERIOD_S - (time.monotonic() - begun), 0))

    threads = [threading.Thread(target=client, args=(number,)) for number in range(_CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _ask(url: str, image: bytes, id_: str) -> None:
    with triton.InferenceServerClient(url, network_timeout=60) as connection:
        _infer(connection, image, id_)


def _infer(connection: triton.InferenceServerClient, image: bytes, id_: str) -> None:
    raw = triton.InferInput("RAW_IMAGE", [1, 1], "BYTES")
    raw.set_data_from_numpy(np.array([[image]], dtype=np.object_))
    connection.infer("detect", [raw], request_id=id_)


if __name__ == "__main__":
    main()
