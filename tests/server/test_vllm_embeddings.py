"""/v1/embeddings of a language model that vLLM runs as an encoder. vLLM is really run."""

import json
from contextlib import closing
from pathlib import Path

import numpy as np
import openai
import pytest
import tritonclient.http as triton

from tests.server.backends.engines.gguf_model import CONTEXT, HIDDEN
from tests.server.backends.engines.hf_model import write_hf
from tests.server.backends.engines.vllm_environment import SETTINGS, needs_vllm
from tests.support.server_process import ConchProcess

pytestmark = list(needs_vllm)

_LOAD_TIMEOUT_S = 300


def test_vllm_makes_embeddings(tmp_path: Path) -> None:
    version = tmp_path / "models" / "encoder" / "1"
    write_hf(version / "model")
    (version.parent / "config.pbtxt").write_text('backend: "vllm" max_batch_size: 4')
    arguments = {"model": "model", "runner": "pooling", "dtype": "float32", "enforce_eager": True}
    arguments |= {"gpu_memory_utilization": 0.05, "kv_cache_memory_bytes": 4 << 20}
    (version / "model.json").write_text(json.dumps(arguments))
    flags = ("--model-control-mode=explicit", f"--backend-config=vllm,env-path={SETTINGS['env-path']}")
    with ConchProcess(tmp_path / "models", *flags, log=tmp_path / "log") as server:
        with closing(triton.InferenceServerClient(server.http, network_timeout=_LOAD_TIMEOUT_S)) as control:
            control.load_model("encoder")
        with openai.OpenAI(base_url=f"http://{server.http}/v1", api_key="any", max_retries=0) as client:
            texts = ["the sun is hot", "the sun is hot", "a model", "one", "two", "three"]
            answer = client.embeddings.create(model="encoder", input=texts)
            vectors = np.array([entry.embedding for entry in answer.data])
            assert vectors.shape == (6, HIDDEN)
            assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-4)
            assert np.allclose(vectors[0], vectors[1], atol=1e-4)
            assert not np.allclose(vectors[0], vectors[2], atol=1e-2)
            assert answer.usage.prompt_tokens >= 15
            with pytest.raises(openai.BadRequestError, match=f"maximum context length is {CONTEXT} tokens"):
                client.embeddings.create(model="encoder", input="sun " * 2 * CONTEXT)
            assert len(client.embeddings.create(model="encoder", input="sun").data) == 1
