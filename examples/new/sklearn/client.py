"""Send a request to the model: python client.py [URL]"""

import json
import sys
import urllib.request

URL = sys.argv[1] if len(sys.argv) > 1 else "http://localhost:8000"

body = json.dumps({"features": [[5.1, 3.5, 1.4, 0.2], [6.7, 3.1, 5.6, 2.4]]}).encode()
with urllib.request.urlopen(f"{URL}/v2/models/my_model/generate", body) as response:
    print(json.load(response)["label"])
