resource "aws_iam_role" "node" {
  name               = "${var.name}-node"
  assume_role_policy = data.aws_iam_policy_document.assume["ec2"].json
}

resource "aws_iam_role_policy_attachment" "node" {
  for_each   = toset(["AmazonEKSWorkerNodePolicy", "AmazonEKS_CNI_Policy", "AmazonEC2ContainerRegistryPullOnly", "AmazonSSMManagedInstanceCore"])
  role       = aws_iam_role.node.name
  policy_arn = "${local.policies}/${each.key}"
}

# Only the node itself reaches its credentials: pods have one hop more.
resource "aws_launch_template" "node" {
  for_each = { core = 50, gpu = var.gpu_disk_gib }
  name     = "${var.name}-${each.key}"

  metadata_options {
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
  }

  block_device_mappings {
    device_name = "/dev/xvda"
    ebs {
      volume_size           = each.value
      volume_type           = "gp3"
      encrypted             = true
      delete_on_termination = true
    }
  }

  tag_specifications {
    resource_type = "instance"
    tags          = { Name = "${var.name}-${each.key}", "conch:cluster" = var.name }
  }
  tag_specifications {
    resource_type = "volume"
    tags          = { Name = "${var.name}-${each.key}", "conch:cluster" = var.name }
  }
}

resource "aws_eks_node_group" "core" {
  cluster_name    = aws_eks_cluster.this.name
  node_group_name = "core"
  node_role_arn   = aws_iam_role.node.arn
  subnet_ids      = aws_subnet.private[*].id
  ami_type        = "AL2023_x86_64_STANDARD"
  instance_types  = [var.core_instance_type]
  labels          = { "conch.ai/nodes" = "core" }

  scaling_config {
    min_size     = var.core_nodes
    desired_size = var.core_nodes
    max_size     = var.core_nodes + 1
  }

  update_config { max_unavailable = 1 }

  launch_template {
    id      = aws_launch_template.node["core"].id
    version = aws_launch_template.node["core"].latest_version
  }

  depends_on = [aws_iam_role_policy_attachment.node, aws_route.private]
}

resource "aws_eks_node_group" "gpu" {
  cluster_name    = aws_eks_cluster.this.name
  node_group_name = "gpu"
  node_role_arn   = aws_iam_role.node.arn
  subnet_ids      = aws_subnet.private[*].id
  ami_type        = "AL2023_x86_64_NVIDIA"
  instance_types  = var.gpu_instance_types
  labels          = { "conch.ai/nodes" = "gpu" }

  scaling_config {
    min_size     = 0
    desired_size = var.gpu_nodes.initial
    max_size     = var.gpu_nodes.maximum
  }

  update_config { max_unavailable = 1 }

  # Other pods would keep an expensive node from being removed.
  taint {
    key    = "nvidia.com/gpu"
    value  = "true"
    effect = "NO_SCHEDULE"
  }

  launch_template {
    id      = aws_launch_template.node["gpu"].id
    version = aws_launch_template.node["gpu"].latest_version
  }

  depends_on = [aws_iam_role_policy_attachment.node, aws_route.private]

  # The number of nodes is the operator's, or an autoscaler's, after the start.
  lifecycle { ignore_changes = [scaling_config[0].desired_size] }
}
