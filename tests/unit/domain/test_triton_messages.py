"""The messages come without the gRPC library, and are the same as tritonclient's own."""

import subprocess
import sys

import pytest


def run(script: str) -> str:
    return subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout


@pytest.mark.slow
def test_the_server_does_not_import_a_grpc_library() -> None:
    assert run("import sys, conch.server.server; print('grpc' in sys.modules, 'tritonclient.grpc' in sys.modules)") == (
        "False False\n"
    )


def test_a_later_import_of_tritonclient_gets_the_same_classes() -> None:
    assert run(
        "import conch.domain.triton_messages as ours, tritonclient.grpc as theirs\n"
        "from tritonclient.grpc import model_config_pb2, service_pb2_grpc\n"
        "print(theirs.service_pb2 is ours.service_pb2, model_config_pb2 is ours.model_config_pb2)\n"
        "print(theirs.InferInput.__name__, service_pb2_grpc.GRPCInferenceServiceStub.__name__)"
    ) == ("True True\nInferInput GRPCInferenceServiceStub\n")


def test_an_earlier_import_of_tritonclient_has_the_same_classes() -> None:
    assert run(
        "import tritonclient.grpc as t, conch.domain.triton_messages as o; print(t.service_pb2 is o.service_pb2)"
    ) == ("True\n")
