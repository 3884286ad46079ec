"""The typed values of a deployment. They are the values of the Helm chart, and the input of `conch k8s render`."""
