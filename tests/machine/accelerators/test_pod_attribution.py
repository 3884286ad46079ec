"""Attribution of devices to pods: forms of device ids, and a real gRPC server in the kubelet's place."""

import os
import threading
from pathlib import Path

import pytest

from conch.machine.accelerators.collectors import CollectorError, DeviceIdentity
from conch.machine.accelerators.families import PodContainer
from conch.machine.accelerators.kubelet import PodResources
from conch.machine.accelerators.pod_attribution import Allocation, assign, unmatched
from tests.machine.accelerators.kubelet import Kubelet

POD = PodContainer("ml", "triton-0", "server")
OTHER = PodContainer("ml", "triton-1", "server")

GPU = DeviceIdentity("nvidia", "0", "GPU-8f6d", "A100", "00000000:07:00.0", aliases=("nvidia0", "gpu0"))
MIG = DeviceIdentity("nvidia", "1/0", "MIG-52d3", "A100 MIG 1g.5gb", parent_uuid="GPU-9a", aliases=("nvidia1/gi7",))
AMD = DeviceIdentity("amd", "0", "abff74a1", "MI300X", "0000:05:00.0")
INTEL = DeviceIdentity("intel", "0", "0000-29", "Max 1100", "0000:29:00.0", aliases=("card1",))
ASCEND = DeviceIdentity("ascend", "3", "14036E64", "910B", aliases=("Ascend910-3", "Ascend310P-3"))
CAMBRICON = DeviceIdentity("cambricon", "0", "8131", "MLU370", aliases=("MLU-8131",))
CORES = [
    DeviceIdentity(
        "neuron",
        f"0/{core}",
        f"nc{core}",
        "trainium",
        aliases=(f"aws.amazon.com/neuroncore/{core}", "aws.amazon.com/neurondevice/0"),
    )
    for core in range(2)
]
DEVICES = [GPU, MIG, AMD, INTEL, ASCEND, CAMBRICON, *CORES]


@pytest.mark.parametrize(
    ("resource", "device_id", "uuids"),
    [
        ("nvidia.com/gpu", "GPU-8f6d", ["GPU-8f6d"]),
        ("nvidia.com/gpu", "GPU-8f6d::3", ["GPU-8f6d"]),
        ("nvidia.com/gpu.shared", "GPU-8f6d::0", ["GPU-8f6d"]),
        ("nvidia.com/gpu", "nvidia0", ["GPU-8f6d"]),
        ("nvidia.com/gpu", "nvidia0/vgpu1", ["GPU-8f6d"]),
        ("nvidia.com/gpu", "gpu0::2", ["GPU-8f6d"]),
        ("nvidia.com/mig-1g.5gb", "MIG-52d3", ["MIG-52d3"]),
        ("nvidia.com/mig-1g.5gb", "MIG-52d3::1", ["MIG-52d3"]),
        ("nvidia.com/gpu", "nvidia1/gi7", ["MIG-52d3"]),
        ("amd.com/gpu", "0000:05:00.0", ["abff74a1"]),
        ("gpu.intel.com/i915", "card1-0", ["0000-29"]),
        ("huawei.com/Ascend910", "Ascend910-3", ["14036E64"]),
        ("huawei.com/Ascend310P-2c", "Ascend310P-2c-100-3", ["14036E64"]),
        ("cambricon.com/mlu", "MLU-8131", ["8131"]),
        ("cambricon.com/mlu", "MLU-8131--fake--2", ["8131"]),
        ("aws.amazon.com/neuroncore", "1", ["nc1"]),
        ("aws.amazon.com/neurondevice", "0", ["nc0", "nc1"]),
        ("example.com/nic", "0", []),
        ("nvidia.com/gpu", "GPU-8f", []),
    ],
)
def test_forms_of_device_ids(resource: str, device_id: str, uuids: list[str]) -> None:
    containers = assign(DEVICES, [Allocation(resource, device_id, POD)])
    assert containers == dict.fromkeys(uuids, (POD,))
    assert unmatched(DEVICES, [(resource, device_id)]) == ([] if uuids else [(resource, device_id)])


def test_a_shared_device_has_several_containers() -> None:
    shares = [Allocation("nvidia.com/gpu", f"GPU-8f6d::{n}", pod) for n, pod in enumerate((POD, OTHER, POD))]
    assert assign(DEVICES, shares) == {"GPU-8f6d": (POD, OTHER)}


def test_the_kubelet_lists_pods_and_devices(kubelet: Kubelet) -> None:
    kubelet.pods = 2
    with kubelet.serve():
        client = PodResources(kubelet.path, timeout_s=60)
        assert client.allocations() == [
            Allocation("nvidia.com/gpu", f"GPU-{n}", PodContainer("ml", f"triton-{n}", "server")) for n in (0, 1)
        ]
        assert client.allocatable() == [("nvidia.com/gpu", "GPU-0"), ("nvidia.com/gpu", "GPU-1")]


def test_a_node_with_many_pods(kubelet: Kubelet) -> None:
    kubelet.pods = 2000
    with kubelet.serve():
        assert len(PodResources(kubelet.path, timeout_s=60).allocations()) == 2000


def test_the_kubelet_restarts(kubelet: Kubelet) -> None:
    client = PodResources(kubelet.path, timeout_s=60)
    with kubelet.serve():
        client.allocations()
    with pytest.raises(CollectorError, match=r"kubelet.sock"):
        client.allocations()
    with kubelet.serve():
        assert client.allocations()


def test_no_kubelet(tmp_path: Path) -> None:
    with pytest.raises(CollectorError, match="does not exist: mount /var/lib/kubelet/pod-resources"):
        PodResources(tmp_path / "kubelet.sock").allocations()
    (tmp_path / "file").touch()
    with pytest.raises(CollectorError, match=r"cannot connect to the kubelet at .*: ECONNREFUSED"):
        PodResources(tmp_path / "file").allocations()


def test_permission_denied(kubelet: Kubelet) -> None:
    with kubelet.serve():
        kubelet.path.chmod(0o600)
        user = os.geteuid()
        kubelet.path.parent.chmod(0o700)
        try:
            if user == 0:
                os.seteuid(65534)
            else:
                kubelet.path.chmod(0)
            with pytest.raises(CollectorError, match=r"permission to connect to .* denied: run as root"):
                PodResources(kubelet.path).allocations()
        finally:
            os.seteuid(user)


def test_a_slow_kubelet(kubelet: Kubelet) -> None:
    answer = threading.Event()
    kubelet.before = lambda: answer.wait(60) and None
    with kubelet.serve():
        try:
            with pytest.raises(CollectorError, match=r"kubelet.sock did not answer within 0.3 s"):
                PodResources(kubelet.path, timeout_s=0.3).allocations()
        finally:
            answer.set()


def test_a_kubelet_that_fails(kubelet: Kubelet) -> None:
    def fail() -> None:
        raise ValueError("no device manager")

    kubelet.before = fail
    with kubelet.serve(), pytest.raises(CollectorError, match=r"refused with UNKNOWN: .*no device manager"):
        PodResources(kubelet.path, timeout_s=60).allocations()
