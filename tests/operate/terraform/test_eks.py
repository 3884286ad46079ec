"""The blueprint for EKS: terraform's own checks, what it plans, and that nothing is left after its removal."""

import json
import os
import signal
from typing import Any

import pytest

from tests.operate.terraform.blueprint import Blueprint

_VARIABLES = (
    '-var=public_access_cidrs=["203.0.113.7/32"]',
    "-var=huggingface_token=token-of-a-test",
    "-var=cloudwatch=true",
)
# moto has no subscribers of budgets; the plan is looked at instead.
_NO_BUDGET = "-var=budget_usd=0"
# Its queue and the rules about old versions take a minute of pauses in the provider.
_QUICK = (*_VARIABLES, _NO_BUDGET, "-var=karpenter=false")
_APPLY = ("terraform", "apply", "-input=false", "-no-color", "-auto-approve", "-parallelism=20")
_CLEANUP = ("./cleanup.sh", "--yes", "--without-cluster")

full = pytest.mark.skipif(
    not os.environ.get("CONCH_TEST_TERRAFORM"),
    reason="takes five minutes, nearly all of them pauses of the provider; make test-terraform runs it",
)


@pytest.fixture(scope="module")
def quick(blueprint: Blueprint) -> Blueprint:
    (blueprint.folder / "retention.tf").rename(blueprint.folder / "retention.tf.later")
    return blueprint


def test_it_is_valid_and_formatted(blueprint: Blueprint) -> None:
    for command in (("terraform", "validate", "-no-color"), ("terraform", "fmt", "-check", "-diff")):
        done = blueprint.run(*command)
        assert done.returncode == 0, done.stdout + done.stderr


def test_wrong_variables_are_named_with_what_would_be_right(blueprint: Blueprint) -> None:
    wrong = ("zones=1", "name=A", "public_access_cidrs=[]", 'gpu_nodes={"initial":3,"maximum":2}', "vpc_cidr=x")
    done = blueprint.run("terraform", "plan", "-input=false", "-no-color", *(f"-var={pair}" for pair in wrong))
    assert done.returncode == 1
    text = " ".join(done.stderr.replace("│", " ").split())
    for message in (
        "zones must be 2 to 4",
        "name must be 2 to 31 lower-case letters",
        "public_access_cidrs must name at least one address range",
        "maximum must be at least 1 and at least initial",
        "vpc_cidr must be a range",
        "budget_email must be an address, such as ops@example.com",
    ):
        assert message in text


@pytest.fixture(scope="module")
def planned(blueprint: Blueprint) -> dict[str, dict[str, Any]]:
    """The values of all planned resources by their addresses."""
    plan = ("terraform", "plan", "-input=false", "-no-color", "-out=plan", "-var=budget_email=ops@example.com")
    done = blueprint.run(*plan, *_VARIABLES)
    assert done.returncode == 0, done.stderr
    document = json.loads(blueprint.run("terraform", "show", "-json", "plan").stdout)
    return {
        resource["address"]: resource.get("values", {})
        for resource in document["planned_values"]["root_module"]["resources"]
    }


def test_gpu_nodes_are_for_pods_with_gpus(planned: dict[str, dict[str, Any]]) -> None:
    nodes = planned["aws_eks_node_group.gpu"]
    assert nodes["taint"] == [{"effect": "NO_SCHEDULE", "key": "nvidia.com/gpu", "value": "true"}]
    assert nodes["ami_type"] == "AL2023_x86_64_NVIDIA"
    assert nodes["instance_types"] == ["g5.24xlarge"]
    assert nodes["scaling_config"][0]["min_size"] == 0


def test_nothing_is_open_that_need_not_be(planned: dict[str, dict[str, Any]]) -> None:
    assert planned["aws_eks_cluster.this"]["vpc_config"][0]["public_access_cidrs"] == ["203.0.113.7/32"]
    block = planned["aws_s3_bucket_public_access_block.models"]
    rules = ("block_public_acls", "block_public_policy", "ignore_public_acls", "restrict_public_buckets")
    assert all(block[rule] is True for rule in rules)
    assert all(
        planned[f'aws_launch_template.node["{kind}"]']["metadata_options"][0]["http_tokens"] == "required"
        for kind in ("core", "gpu")
    )


def test_the_budget_warns_twice(planned: dict[str, dict[str, Any]]) -> None:
    budget = planned["aws_budgets_budget.this[0]"]
    assert budget["limit_amount"] == "1000"
    assert sorted(notification["threshold"] for notification in budget["notification"]) == [80, 100]
    assert budget["cost_filter"][0]["values"] == ["user:conch:cluster$conch"]


def test_an_interrupted_apply_is_cleaned_up_without_a_trace(quick: Blueprint) -> None:
    before = quick.inventory()
    output = quick.interrupt(*_APPLY, *_QUICK, when=lambda: bool(quick.client("eks").list_clusters()["clusters"]))
    assert "Interrupt received" in output
    assert quick.inventory() != before
    quick.client("s3").put_object(
        Bucket=quick.inventory()["buckets"][0], Key="model_repository/m/1/model.onnx", Body=b"x"
    )
    done = quick.run(*_CLEANUP, *_QUICK)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    assert "Nothing is left of 'conch' in us-west-2." in done.stdout
    assert quick.inventory() == before


def test_what_terraform_does_not_know_is_named(quick: Blueprint) -> None:
    # As of an interruption by SIGKILL, or made by the cluster.
    ec2 = quick.client("ec2")
    tags = [{"Key": "kubernetes.io/cluster/conch", "Value": "owned"}]
    volume = ec2.create_volume(
        AvailabilityZone="us-west-2a", Size=1, TagSpecifications=[{"ResourceType": "volume", "Tags": tags}]
    )["VolumeId"]
    try:
        done = quick.run(*_CLEANUP, *_QUICK)
        assert done.returncode == 1
        assert "these are left; delete them by hand" in done.stderr
        assert volume in done.stderr
    finally:
        ec2.delete_volume(VolumeId=volume)


def test_cleanup_asks_for_the_name_of_the_cluster(quick: Blueprint) -> None:
    done = quick.run(
        "bash", "-c", "echo other | ./cleanup.sh --without-cluster -var='public_access_cidrs=[\"10.0.0.0/8\"]'"
    )
    assert done.returncode == 2
    assert "not confirmed; nothing was deleted" in done.stderr


@full
def test_all_of_it_is_created_unchanged_by_a_second_apply_and_removed(quick: Blueprint) -> None:
    (quick.folder / "retention.tf.later").rename(quick.folder / "retention.tf")
    before = quick.inventory()
    everything = (*_VARIABLES, _NO_BUDGET)
    done = quick.run(*_APPLY, *everything)
    assert done.returncode == 0, done.stderr
    assert quick.inventory()["queues"]
    assert sorted(quick.parts.kept["addons"]) == [
        "amazon-cloudwatch-observability",
        "aws-ebs-csi-driver",
        "coredns",
        "eks-pod-identity-agent",
        "kube-proxy",
        "vpc-cni",
    ]
    accounts = {kept["serviceAccount"] for kept in quick.parts.kept["pod-identity-associations"].values()}
    assert accounts == {"conch", "karpenter", "ebs-csi-controller-sa", "cloudwatch-agent"}
    again = quick.run("terraform", "plan", "-input=false", "-no-color", "-detailed-exitcode", *everything)
    assert again.returncode in (0, 2), again.stderr
    output = quick.run(*_CLEANUP, *everything, timeout_s=600)
    assert output.returncode == 0, output.stdout[-3000:] + output.stderr
    assert quick.inventory() == before


@full
def test_a_killed_apply_is_continued_or_named(quick: Blueprint) -> None:
    before = quick.inventory()
    iam = quick.client("iam")
    quick.interrupt(*_APPLY, *_QUICK, when=lambda: bool(iam.list_roles()["Roles"]), signal_=signal.SIGKILL)
    (quick.folder / ".terraform.tfstate.lock.info").unlink(missing_ok=True)
    done = quick.run(*_CLEANUP, *_QUICK)
    left = {kind: names for kind, names in quick.inventory().items() if names != before.get(kind)}
    if done.returncode == 0:
        assert left == {}
    else:
        assert "these are left" in done.stderr
        assert left
