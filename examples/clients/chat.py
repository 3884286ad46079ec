"""Asks the `chat` model over the OpenAI API and prints its answer as it comes.

    python examples/clients/chat.py "What is Conch?"

Needs openai.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import openai


def ask(client: openai.OpenAI, question: str, model: str = "chat") -> Iterator[str]:
    """Yield the answer piece by piece. Raises openai.APIError when the server refuses."""
    stream = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": question}], temperature=0, stream=True
    )
    for chunk in stream:
        yield chunk.choices[0].delta.content or ""


def main() -> None:
    """Ask what the command line says."""
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("question")
    arguments.add_argument("--url", default="http://127.0.0.1:8000/v1", help="the server's API (default: %(default)s)")
    arguments.add_argument("--model", default="chat", help="(default: %(default)s)")
    options = arguments.parse_args()
    for piece in ask(openai.OpenAI(base_url=options.url, api_key="none"), options.question, options.model):
        print(piece, end="", flush=True)
    print()


if __name__ == "__main__":
    main()
