"""`conch k8s`: Kubernetes objects of a deployment, without Helm."""
