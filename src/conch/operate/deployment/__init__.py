"""Deployments: the Helm chart and `conch k8s`, and configurations of load balancers."""
