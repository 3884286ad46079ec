data "aws_caller_identity" "current" {}

data "aws_partition" "current" {}

locals {
  policies = "arn:${data.aws_partition.current.partition}:iam::aws:policy"
}

data "aws_iam_policy_document" "assume" {
  for_each = toset(["eks", "ec2"])
  statement {
    actions = ["sts:AssumeRole"]
    principals {
      type        = "Service"
      identifiers = ["${each.key}.amazonaws.com"]
    }
  }
}

data "aws_iam_policy_document" "assume_by_pods" {
  statement {
    actions = ["sts:AssumeRole", "sts:TagSession"]
    principals {
      type        = "Service"
      identifiers = ["pods.eks.amazonaws.com"]
    }
  }
}

resource "aws_iam_role" "cluster" {
  name               = "${var.name}-cluster"
  assume_role_policy = data.aws_iam_policy_document.assume["eks"].json
}

resource "aws_iam_role_policy_attachment" "cluster" {
  role       = aws_iam_role.cluster.name
  policy_arn = "${local.policies}/AmazonEKSClusterPolicy"
}

# EKS would create it without a retention, and leave it behind.
resource "aws_cloudwatch_log_group" "cluster" {
  name              = "/aws/eks/${var.name}/cluster"
  retention_in_days = 30
}

resource "aws_kms_key" "secrets" {
  description             = "Secrets of the cluster ${var.name}"
  enable_key_rotation     = true
  deletion_window_in_days = 7
}

resource "aws_eks_cluster" "this" {
  name                      = var.name
  version                   = var.kubernetes_version
  role_arn                  = aws_iam_role.cluster.arn
  enabled_cluster_log_types = ["audit", "authenticator"]

  vpc_config {
    subnet_ids              = aws_subnet.private[*].id
    endpoint_private_access = true
    endpoint_public_access  = true
    public_access_cidrs     = var.public_access_cidrs
  }

  access_config {
    authentication_mode                         = "API"
    bootstrap_cluster_creator_admin_permissions = true
  }

  encryption_config {
    resources = ["secrets"]
    provider { key_arn = aws_kms_key.secrets.arn }
  }

  depends_on = [aws_iam_role_policy_attachment.cluster, aws_cloudwatch_log_group.cluster]
}

locals {
  addons = toset(concat(
    ["vpc-cni", "kube-proxy", "coredns", "eks-pod-identity-agent", "aws-ebs-csi-driver"],
    var.cloudwatch ? ["amazon-cloudwatch-observability"] : [],
  ))
  # Pods of add-ons that call AWS: service account and policy.
  addon_identities = merge(
    { aws-ebs-csi-driver = { account = "ebs-csi-controller-sa", policy = "service-role/AmazonEBSCSIDriverPolicy" } },
    var.cloudwatch ? { amazon-cloudwatch-observability = { account = "cloudwatch-agent", policy = "CloudWatchAgentServerPolicy" } } : {},
  )
}

resource "aws_iam_role" "addon" {
  for_each           = local.addon_identities
  name               = "${var.name}-${each.key}"
  assume_role_policy = data.aws_iam_policy_document.assume_by_pods.json
}

resource "aws_iam_role_policy_attachment" "addon" {
  for_each   = local.addon_identities
  role       = aws_iam_role.addon[each.key].name
  policy_arn = "${local.policies}/${each.value.policy}"
}

resource "aws_eks_addon" "this" {
  for_each     = local.addons
  cluster_name = aws_eks_cluster.this.name
  addon_name   = each.key

  # Container Insights takes the metrics of NVIDIA GPUs by itself, those of Neuron devices if it is asked to.
  configuration_values = each.key != "amazon-cloudwatch-observability" ? null : jsonencode({
    neuronMonitor = { enabled = var.neuron_monitor }
  })

  dynamic "pod_identity_association" {
    for_each = contains(keys(local.addon_identities), each.key) ? [local.addon_identities[each.key]] : []
    content {
      role_arn        = aws_iam_role.addon[each.key].arn
      service_account = pod_identity_association.value.account
    }
  }

  # CoreDNS and the controllers need nodes to run on.
  depends_on = [aws_eks_node_group.core]
}
