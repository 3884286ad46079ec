"""Values in Conch's own names."""

from msgspec import structs

from conch.operate.deployment.values.deployment import DeploymentValues


def native(values: DeploymentValues) -> DeploymentValues:
    """Return values in which other charts' names (`ACCEPTED_NAMES`) have become Conch's."""
    split = values.model.tensorrt_llm.parallelism
    return structs.replace(
        values,
        image=structs.replace(
            values.image,
            name=values.triton.image.name or values.image.name,
            pull_secrets=values.triton.image.pull_secrets or values.image.pull_secrets,
        ),
        server=structs.replace(
            values.server, load_models=(values.model.name,) if values.model.name else values.server.load_models
        ),
        parallelism=structs.replace(
            values.parallelism,
            tensor=split.tensor or values.parallelism.tensor,
            pipeline=split.pipeline or values.parallelism.pipeline,
        ),
        accelerator=structs.replace(values.accelerator, products=values.gpu or values.accelerator.products),
        model_repository=structs.replace(
            values.model_repository, path=values.model_repository_path or values.model_repository.path
        ),
    )
