module "triton_server_vllm" {
  source  = "aws-ia/eks-data-addons/aws"
  version = "~> 1.32.0" # ensure to update this to the latest/desired version

  enable_nvidia_triton_server = false

  nvidia_triton_server_helm_config = {
    version = "1.0.0"
    values = [
      <<-EOT
      replicaCount: 1
      image:
        repository: nvcr.io/nvidia/tritonserver
        tag: "24.06-vllm-python-py3"
      environment:
        - name: "shm-size"
          value: "5g"
        - name: "NCCL_IGNORE_DISABLED_P2P"
          value: "1"
      secretEnvironment:
        - name: "HUGGING_FACE_TOKEN"
          secretName: ${kubernetes_secret_v1.huggingface_token.metadata[0].name}
          key: "HF_TOKEN"
      resources:
        limits:
          nvidia.com/gpu: 4
      EOT
    ]
  }
}
