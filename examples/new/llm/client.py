"""Chat with the model: python client.py [URL [PROMPT]]"""

import json
import sys
import urllib.request
from collections.abc import Iterator

URL = sys.argv[1] if len(sys.argv) > 1 else "http://localhost:8000"


def answer(url: str, prompt: str, max_tokens: int = 64) -> Iterator[str]:
    """Yield the parts of the answer as they come."""
    messages = [{"role": "user", "content": prompt}]
    body = {"model": "my_model", "messages": messages, "max_tokens": max_tokens, "temperature": 0, "stream": True}
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as response:
        for line in response:
            data = line.removeprefix(b"data: ").strip()
            if data and data != b"[DONE]":
                yield json.loads(data)["choices"][0]["delta"].get("content") or ""


if __name__ == "__main__":
    for part in answer(URL, sys.argv[2] if len(sys.argv) > 2 else "What is Conch?"):
        print(part, end="", flush=True)
    print()
