# What Karpenter needs of AWS: a role for its pods, and a queue with the interruptions of its nodes.
# https://karpenter.sh/docs/reference/cloudformation/ has the reasons for each permission.

locals {
  karpenter = var.karpenter ? 1 : 0
  interruptions = {
    health      = { source = "aws.health", type = "AWS Health Event" }
    spot        = { source = "aws.ec2", type = "EC2 Spot Instance Interruption Warning" }
    rebalance   = { source = "aws.ec2", type = "EC2 Instance Rebalance Recommendation" }
    instance    = { source = "aws.ec2", type = "EC2 Instance State-change Notification" }
    reservation = { source = "aws.ec2", type = "EC2 Capacity Reservation Instance Interruption Warning" }
  }
}

data "aws_iam_policy_document" "karpenter" {
  count = local.karpenter

  statement {
    sid = "Look"
    actions = [
      "ec2:DescribeCapacityReservations", "ec2:DescribeImages", "ec2:DescribeInstances", "ec2:DescribeInstanceStatus",
      "ec2:DescribeInstanceTypeOfferings", "ec2:DescribeInstanceTypes", "ec2:DescribeLaunchTemplates",
      "ec2:DescribeSecurityGroups", "ec2:DescribeSpotPriceHistory", "ec2:DescribeSubnets",
      "pricing:GetProducts", "ssm:GetParameter", "iam:GetInstanceProfile", "iam:ListInstanceProfiles",
    ]
    resources = ["*"]
  }

  statement {
    sid       = "StartFromSharedParts"
    actions   = ["ec2:RunInstances", "ec2:CreateFleet"]
    resources = [for kind in ["image", "snapshot", "security-group", "subnet", "capacity-reservation"] : "arn:${data.aws_partition.current.partition}:ec2:${var.region}:*:${kind}/*"]
  }

  # New things have the tag of this cluster from their creation on, and only things that have it are changed or ended.
  statement {
    sid     = "Start"
    actions = ["ec2:RunInstances", "ec2:CreateFleet", "ec2:CreateLaunchTemplate"]
    resources = [for kind in ["fleet", "instance", "volume", "network-interface", "launch-template", "spot-instances-request"] :
    "arn:${data.aws_partition.current.partition}:ec2:${var.region}:*:${kind}/*"]
    condition {
      test     = "StringEquals"
      variable = "aws:RequestTag/kubernetes.io/cluster/${var.name}"
      values   = ["owned"]
    }
  }

  statement {
    sid       = "StartFromOwnTemplates"
    actions   = ["ec2:RunInstances", "ec2:CreateFleet"]
    resources = ["arn:${data.aws_partition.current.partition}:ec2:${var.region}:*:launch-template/*"]
    condition {
      test     = "StringEquals"
      variable = "aws:ResourceTag/kubernetes.io/cluster/${var.name}"
      values   = ["owned"]
    }
  }

  statement {
    sid       = "TagAtCreation"
    actions   = ["ec2:CreateTags"]
    resources = ["arn:${data.aws_partition.current.partition}:ec2:${var.region}:*:*/*"]
    condition {
      test     = "StringEquals"
      variable = "ec2:CreateAction"
      values   = ["RunInstances", "CreateFleet", "CreateLaunchTemplate"]
    }
  }

  statement {
    sid       = "End"
    actions   = ["ec2:TerminateInstances", "ec2:DeleteLaunchTemplate", "ec2:CreateTags"]
    resources = [for kind in ["instance", "launch-template"] : "arn:${data.aws_partition.current.partition}:ec2:${var.region}:*:${kind}/*"]
    condition {
      test     = "StringEquals"
      variable = "aws:ResourceTag/kubernetes.io/cluster/${var.name}"
      values   = ["owned"]
    }
  }

  statement {
    sid       = "Interruptions"
    actions   = ["sqs:DeleteMessage", "sqs:GetQueueUrl", "sqs:ReceiveMessage"]
    resources = [aws_sqs_queue.karpenter[0].arn]
  }

  statement {
    sid       = "NodeRole"
    actions   = ["iam:PassRole"]
    resources = [aws_iam_role.node.arn]
    condition {
      test     = "StringEquals"
      variable = "iam:PassedToService"
      values   = ["ec2.amazonaws.com"]
    }
  }

  statement {
    sid       = "Endpoint"
    actions   = ["eks:DescribeCluster"]
    resources = [aws_eks_cluster.this.arn]
  }
}

resource "aws_iam_role" "karpenter" {
  count              = local.karpenter
  name               = "${var.name}-karpenter"
  assume_role_policy = data.aws_iam_policy_document.assume_by_pods.json
}

resource "aws_iam_role_policy" "karpenter" {
  count  = local.karpenter
  name   = "karpenter"
  role   = aws_iam_role.karpenter[0].id
  policy = data.aws_iam_policy_document.karpenter[0].json
}

resource "aws_eks_pod_identity_association" "karpenter" {
  count           = local.karpenter
  cluster_name    = aws_eks_cluster.this.name
  namespace       = "kube-system"
  service_account = "karpenter"
  role_arn        = aws_iam_role.karpenter[0].arn
}

# Made here, so that terraform destroy removes it: Karpenter would make a separate one for the role.
resource "aws_iam_instance_profile" "node" {
  count = local.karpenter
  name  = "${var.name}-node"
  role  = aws_iam_role.node.name
}

resource "aws_sqs_queue" "karpenter" {
  count                     = local.karpenter
  name                      = "${var.name}-karpenter"
  message_retention_seconds = 300
  sqs_managed_sse_enabled   = true
}

data "aws_iam_policy_document" "karpenter_queue" {
  count = local.karpenter
  statement {
    actions   = ["sqs:SendMessage"]
    resources = [aws_sqs_queue.karpenter[0].arn]
    principals {
      type        = "Service"
      identifiers = ["events.amazonaws.com"]
    }
  }
  statement {
    effect    = "Deny"
    actions   = ["sqs:*"]
    resources = [aws_sqs_queue.karpenter[0].arn]
    principals {
      type        = "*"
      identifiers = ["*"]
    }
    condition {
      test     = "Bool"
      variable = "aws:SecureTransport"
      values   = ["false"]
    }
  }
}

resource "aws_sqs_queue_policy" "karpenter" {
  count     = local.karpenter
  queue_url = aws_sqs_queue.karpenter[0].url
  policy    = data.aws_iam_policy_document.karpenter_queue[0].json
}

resource "aws_cloudwatch_event_rule" "karpenter" {
  for_each      = var.karpenter ? local.interruptions : {}
  name          = "${var.name}-karpenter-${each.key}"
  event_pattern = jsonencode({ source = [each.value.source], "detail-type" = [each.value.type] })
}

resource "aws_cloudwatch_event_target" "karpenter" {
  for_each = aws_cloudwatch_event_rule.karpenter
  rule     = each.value.name
  arn      = aws_sqs_queue.karpenter[0].arn
}
