"""Dockerfiles, compose files, Terraform, tunnels and secrets in them."""

from pathlib import Path

import pytest

from tests.unit.check.repository import ids, write

WRONG = [
    ("image-latest", "Dockerfile", "FROM nvcr.io/nvidia/tritonserver\nCOPY models /models\n"),
    ("image-latest", "compose.yaml", "services:\n  a:\n    image: example.org/a:latest\n"),
    ("image-scratch", "Dockerfile", "FROM scratch\nCOPY models/ /models/\n"),
    ("image-scratch-command", "Dockerfile", "FROM scratch\nCOPY models/ /models/\nRUN ls /models\n"),
    ("secret-text", "Dockerfile", "FROM a:1\nENV HF_TOKEN=hf_abc A=b\n"),
    ("secret-text", "Dockerfile", "FROM a:1\nENV API_KEY swordfish\n"),
    ("secret-text", "compose.yaml", "services:\n  a:\n    image: a:1\n    environment: [DB_PASSWORD=swordfish]\n"),
    ("secret-text", "run.sh", f"export X=hf_{'aBcDeF1234' * 4}\n"),
    ("secret-text", "main.tf", 'variable "hf_token" {\n  default = "swordfish-1"\n}\n'),
    ("config-elsewhere", "Dockerfile", "FROM a:1\nCOPY config.pbtxt /opt/tritonserver/conf/\n"),
    ("tunnel-public", "run.sh", "autossh -M 0 -N -L *:9400:gpu:9400 root@host\n"),
    ("tunnel-public", "tunnel.service", "[Service]\nExecStart=/usr/bin/ssh -N -g -L 9400:gpu:9400 root@host\n"),
    ("tunnel-public", "README.md", "```bash\nssh -fN \\\n  -R 0.0.0.0:9400:gpu:9400 host\n```\n"),
    (
        "compose-gpu",
        "compose.yaml",
        "services:\n  a:\n    image: a:1\n    deploy: {resources: {limits: {devices: [{capabilities: [gpu]}]}}}\n",
    ),
    ("compose-invalid", "compose.yaml", "services:\n  a:\n    image: a:1\n    volumes: ['models:/models']\n"),
    (
        "compose-invalid",
        "compose.yaml",
        "services:\n  a:\n    image: a:1\n    deploy: {resources: {reservations: {devices: [{driver: nvidia}]}}}\n",
    ),
    ("terraform-disabled", "main.tf", 'module "a" {\n  enable_x = false\n  x_helm_config = {\n    a = 1\n  }\n}\n'),
    (
        "terraform-open-port",
        "main.tf",
        'resource "aws_security_group" "a" {\n  ingress {\n    from_port = 22\n    cidr_blocks = ["::/0"]\n  }\n}\n',
    ),
    ("shm-variable", "main.tf", 'values = [<<-EOT\n  environment:\n    - name: "shm-size"\n  EOT\n]\n'),
]


@pytest.mark.parametrize(("rule", "name", "text"), WRONG, ids=[f"{row[0]}-{row[1]}" for row in WRONG])
def test_a_mistake(rule: str, name: str, text: str, tmp_path: Path) -> None:
    write(tmp_path / name, text.encode())
    assert set(ids(tmp_path)) == {rule}


SOUND = [
    ("Dockerfile", "ARG BASE=a\nFROM python:3.12 AS build\nRUN make\nFROM scratch\nCOPY --from=build /out/app /app\n"),
    ("Dockerfile", "FROM ${BASE}\nARG HF_TOKEN\nENV HF_TOKEN=$HF_TOKEN PASSWORD_FILE=/run/secrets/a\n"),
    ("Dockerfile", "FROM a@sha256:0123\nRUN <<EOF\nFROM nothing\nEOF\nCOPY config.pbtxt /models/m/config.pbtxt\n"),
    ("Dockerfile", '# FROM a\nFROM a:1 AS b\nFROM b\nCMD ["conch", "serve", "--model-repository=/models"]\n'),
    ("compose.yaml", "services:\n  a:\n    image: a:1\n    volumes: ['./m:/m', '${D}:/d', v:/v]\nvolumes: {v: }\n"),
    ("compose.yaml", "services:\n  a:\n    build: .\n    image: a\n    environment: {API_KEY: '${KEY}', TOKEN: }\n"),
    ("run.sh", "ssh -N -L 127.0.0.1:9400:gpu:9400 host\nssh -N -L 9400:gpu:9400 host # 0.0.0.0:1\n"),
    ("run.sh", "# ssh -L 0.0.0.0:1:a:2 host\nssh -g host ls\nexport HF_TOKEN=hf_xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\n"),
    ("main.tf", 'module "a" {\n  enable_x = true\n  x_helm_config = {\n  }\n  token = var.token # "a"\n}\n'),
    (
        "main.tf",
        'resource "a" "b" {\n  egress {\n    from_port = 0\n    to_port = 0\n    cidr_blocks = ["0.0.0.0/0"]\n  }\n}\n',
    ),
    ("main.tf", 'secretName = "hf-token"\nkey = "HF_TOKEN"\nsecret = aws_secret.a.name\n'),
    ("values.yaml", "image:\n  repository: a/b\n  tag: v1\nshmSize: 2Gi\n"),
    ("services.yaml", "services: [a, b]\nkind: 5\n"),
]


@pytest.mark.parametrize(("name", "text"), SOUND)
def test_sound_files(name: str, text: str, tmp_path: Path) -> None:
    write(tmp_path / name, text.encode())
    assert ids(tmp_path) == []
