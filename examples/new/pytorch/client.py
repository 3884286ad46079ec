"""Send a request to the model: python client.py [URL]"""

import json
import sys
import urllib.request

URL = sys.argv[1] if len(sys.argv) > 1 else "http://localhost:8000"

body = json.dumps({"x": [[5.1, 3.5, 1.4, 0.2], [6.7, 3.1, 4.7, 1.5]]}).encode()
with urllib.request.urlopen(f"{URL}/v2/models/my_model/generate", body) as response:
    print(json.load(response)["output"])
