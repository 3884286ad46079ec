"""Send an image to the model: python client.py [URL [FILE]]"""

import base64
import json
import sys
import urllib.request
from pathlib import Path

URL = sys.argv[1] if len(sys.argv) > 1 else "http://localhost:8000"
# A red pixel, as a PNG file.
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"

image = base64.b64encode(Path(sys.argv[2]).read_bytes()).decode() if len(sys.argv) > 2 else PIXEL
with urllib.request.urlopen(f"{URL}/v2/models/my_model/generate", json.dumps({"image": image}).encode()) as response:
    result = json.load(response)
print(result["colour"], result["share"])
