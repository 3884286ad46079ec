"""The ports of hosting platforms: Amazon SageMaker and Google's Vertex AI."""
