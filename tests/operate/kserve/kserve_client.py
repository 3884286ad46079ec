"""Call a server with the clients of the `kserve` package. Run by its environment's interpreter.

Arguments: URL of HTTP, address of gRPC, names of model, input and output, shape of the input, such as 2,4. Fails with
AssertionError; prints the outputs as JSON.
"""

import asyncio
import json
import sys

import grpc
import httpx
import numpy as np
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest, RESTConfig


def request(model, name, rows, binary=False):
    given = InferInput(name, list(rows.shape), "FP32")
    given.set_data_from_numpy(rows, binary_data=binary)
    return InferRequest(model_name=model, infer_inputs=[given], request_id="one")


async def over_rest(url, model, name, output, rows):
    client = InferenceRESTClient(RESTConfig(protocol="v2", timeout=30))
    assert await client.is_server_live(url)
    assert await client.is_server_ready(url)
    assert await client.is_model_ready(url, model)
    assert not await client.is_model_ready(url, "other")
    headers = {}
    plain = await client.infer(url, request(model, name, rows), model_name=model, response_headers=headers)
    assert headers["content-type"] == "application/json", headers
    assert (plain.model_name, plain.id) == (model, "one"), plain
    binary = await client.infer(url, request(model, name, rows, binary=True), model_name=model)
    values = named(plain, output)
    assert np.array_equal(values, named(binary, output)), "JSON and binary tensors differ"
    body = {"inputs": [{"name": name, "shape": list(rows.shape), "datatype": "FP32", "data": rows.ravel().tolist()}]}
    assert np.array_equal(values, named(await client.infer(url, body, model_name=model), output))
    wrong = {"inputs": [{"name": name, "shape": [1, 1], "datatype": "FP32", "data": [1, 2, 3]}]}
    for model_name, data in (("other", body), (model, wrong), (model, {"inputs": "no"})):
        error = await http_error(client.infer(url, data, model_name=model_name))
        assert 400 <= error.response.status_code < 500, error
        assert error.response.json()["error"] in str(error), "the client finds no message"
    first = InferenceRESTClient(RESTConfig(protocol="v1", timeout=30))
    error = await http_error(first.infer(url, {"instances": rows.tolist()}, model_name=model))
    assert error.response.status_code == 404, error
    await client.close()
    await first.close()
    return values


async def over_grpc(address, model, name, output, rows):
    async with InferenceGRPCClient(address, timeout=30) as client:
        assert await client.is_server_live()
        assert await client.is_server_ready()
        assert await client.is_model_ready(model)
        assert not await client.is_model_ready("other")
        for binary in (False, True):
            answer = await client.infer(request(model, name, rows, binary), headers=(("x-tenant", "a"),))
            values = named(answer, output)
        error = await grpc_error(client.infer(request("other", name, rows)))
        assert error.code() == grpc.StatusCode.NOT_FOUND, error
        return values


async def http_error(call):
    try:
        answer = await call
    except httpx.HTTPStatusError as error:
        return error
    raise AssertionError(f"no error, but {answer}")


async def grpc_error(call):
    try:
        answer = await call
    except grpc.RpcError as error:
        return error
    raise AssertionError(f"no error, but {answer}")


def named(answer, output):
    (tensor_of_name,) = (tensor for tensor in answer.outputs if tensor.name == output)
    return tensor_of_name.as_numpy()


if __name__ == "__main__":
    url, address, model, name, output, shape = sys.argv[1:]
    rows = np.linspace(0, 5, np.prod([int(word) for word in shape.split(",")]), dtype=np.float32)
    rows = rows.reshape([int(word) for word in shape.split(",")])
    rest = asyncio.run(over_rest(url, model, name, output, rows))
    grpc_values = asyncio.run(over_grpc(address, model, name, output, rows))
    assert np.allclose(rest, grpc_values), "HTTP and gRPC differ"
    print(json.dumps({"rows": rows.tolist(), "values": np.asarray(rest).tolist()}))
