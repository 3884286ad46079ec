"""What the HTTP port answers: Triton's protocol, and below `/v1/` the OpenAI API."""

from conch.frontends.http_message import HttpRequest
from conch.frontends.http_reply import HttpReply
from conch.frontends.openai_http import DETOKENIZE, PREFIX, TOKENIZE, OpenAiHttp
from conch.frontends.v2_http import V2Http


class HttpRouter:
    """Handler of the HTTP port."""

    def __init__(self, v2: V2Http, openai: OpenAiHttp) -> None:
        self._v2 = v2
        self._openai = openai
        self.body_limit = v2.body_limit

    def __call__(self, request: HttpRequest, reply: HttpReply) -> None:
        """Answer one request."""
        if request.path.startswith(PREFIX) or request.path in (TOKENIZE, DETOKENIZE):
            self._openai(request, reply)
        else:
            self._v2(request, reply)
