"""What was measured, in one line."""

from conch.measure.bench.report.certificate import CertifiedTarget


def target_line(target: CertifiedTarget) -> str:
    """Return model, address, protocol and server of a target."""
    model = f"{target.model} version {target.model_version}" if target.model_version else target.model
    server = f"{target.server_name} {target.server_version}".strip()
    return " · ".join(each for each in (model, target.url, target.protocol, server) if each)
