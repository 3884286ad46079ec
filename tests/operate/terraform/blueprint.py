"""A copy of the blueprint, and what its AWS has."""

import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3

from tests.operate.terraform.aws import EksParts

REGION = "us-west-2"
# Service → name of a list, and what it returns, without what every account has or what is being deleted.
_INVENTORY: dict[str, tuple[str, Callable[[Any], list[str]]]] = {
    "vpcs": ("ec2", lambda aws: [vpc["VpcId"] for vpc in aws.describe_vpcs()["Vpcs"] if not vpc["IsDefault"]]),
    "addresses": ("ec2", lambda aws: [address["PublicIp"] for address in aws.describe_addresses()["Addresses"]]),
    "gateways": (
        "ec2",
        lambda aws: [
            natgateway["NatGatewayId"]
            for natgateway in aws.describe_nat_gateways()["NatGateways"]
            if natgateway["State"] != "deleted"
        ],
    ),
    "endpoints": (
        "ec2",
        lambda aws: [
            vpcendpoint["VpcEndpointId"]
            for vpcendpoint in aws.describe_vpc_endpoints()["VpcEndpoints"]
            if vpcendpoint["State"] != "deleted"
        ],
    ),
    "templates": (
        "ec2",
        lambda aws: [
            launchtemplate["LaunchTemplateName"]
            for launchtemplate in aws.describe_launch_templates()["LaunchTemplates"]
        ],
    ),
    "volumes": ("ec2", lambda aws: [volume["VolumeId"] for volume in aws.describe_volumes()["Volumes"]]),
    "clusters": ("eks", lambda aws: list(aws.list_clusters()["clusters"])),
    "roles": ("iam", lambda aws: [role["RoleName"] for role in aws.list_roles()["Roles"]]),
    "profiles": (
        "iam",
        lambda aws: [
            instanceprofile["InstanceProfileName"]
            for instanceprofile in aws.list_instance_profiles()["InstanceProfiles"]
        ],
    ),
    "buckets": ("s3", lambda aws: [bucket["Name"] for bucket in aws.list_buckets()["Buckets"]]),
    "secrets": ("secretsmanager", lambda aws: [secret["Name"] for secret in aws.list_secrets()["SecretList"]]),
    "queues": ("sqs", lambda aws: list(aws.list_queues().get("QueueUrls", []))),
    "rules": ("events", lambda aws: [rule["Name"] for rule in aws.list_rules()["Rules"]]),
    "logs": ("logs", lambda aws: [loggroup["logGroupName"] for loggroup in aws.describe_log_groups()["logGroups"]]),
    "keys": (
        "kms",
        lambda aws: [
            key["KeyId"]
            for key in aws.list_keys()["Keys"]
            if aws.describe_key(KeyId=key["KeyId"])["KeyMetadata"]["KeyState"] != "PendingDeletion"
        ],
    ),
}


@dataclass(frozen=True)
class Blueprint:
    """The folder of the copy, the environment of its programs, and the parts of EKS that are not moto's."""

    folder: Path
    environment: dict[str, str]
    parts: EksParts

    def run(self, *command: str, timeout_s: float = 400) -> subprocess.CompletedProcess[str]:
        """Run a program in the folder."""
        return subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
        )

    def interrupt(self, *command: str, when: Callable[[], bool], signal_: signal.Signals = signal.SIGINT) -> str:
        """Run a program, send it a signal when a condition holds, and return what it printed."""
        process = subprocess.Popen(
            command,
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        deadline = time.monotonic() + 200
        while not when():
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() < deadline
            time.sleep(0.3)
        # An answer that the interruption loses would leave a thing that Terraform does not know, as SIGKILL does.
        with self.parts.refusing() if signal_ == signal.SIGINT else nullcontext():
            time.sleep(0.5)  # the last answers arrive
            process.send_signal(signal_)
            output, _ = process.communicate(timeout=200)
        assert process.returncode != 0, output
        return str(output)

    def client(self, service: str) -> Any:
        """Return a client of the AWS."""
        return boto3.client(
            service,
            region_name=REGION,
            endpoint_url=self.environment["AWS_ENDPOINT_URL"],
            aws_access_key_id="key-of-a-test",
            aws_secret_access_key="secret-of-a-test",
        )

    def inventory(self) -> dict[str, list[str]]:
        """Return all that exists, by kind."""
        by_service = {kind: sorted(read(self.client(service))) for kind, (service, read) in _INVENTORY.items()}
        own = {kind: sorted(kept) for kind, kept in self.parts.kept.items()}
        return {kind: names for kind, names in {**by_service, **own}.items() if names}
