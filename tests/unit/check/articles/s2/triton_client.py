"""The pattern behind "Request 3: 0.00 ms": the clock stops when the request was handed over."""

import time

import tritonclient.grpc as grpcclient


def send(client: grpcclient.InferenceServerClient, model: str, prompts: list[grpcclient.InferInput]) -> None:
    for number, prompt in enumerate(prompts):
        start = time.time()
        client.async_stream_infer(model_name=model, inputs=[prompt], request_id=str(number))
        end = time.time()
        print(f"Model {model} - Request {number}: {(end - start) * 1000:.2f} ms")
