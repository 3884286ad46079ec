"""Send a request to the model: python client.py [URL]"""

import json
import sys
import urllib.request

URL = sys.argv[1] if len(sys.argv) > 1 else "http://localhost:8000"


def infer(url: str, rows: list[list[float]]) -> list[list[float]]:
    """Return the outputs for rows of four numbers."""
    tensor = {"name": "x", "datatype": "FP32", "shape": [len(rows), 4], "data": rows}
    body = json.dumps({"inputs": [tensor]}).encode()
    with urllib.request.urlopen(f"{url}/v2/models/my_model/infer", body) as response:
        output = json.load(response)["outputs"][0]
    width = output["shape"][1]
    return [output["data"][start : start + width] for start in range(0, len(output["data"]), width)]


if __name__ == "__main__":
    print(infer(URL, [[1, 0, 0, 0], [0, 1, 0, 0]]))
