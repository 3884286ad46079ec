# The model repository, and who may read it.

resource "aws_s3_bucket" "models" {
  bucket        = "${var.name}-models-${data.aws_caller_identity.current.account_id}-${var.region}"
  force_destroy = var.destroy_models
}

resource "aws_s3_bucket_public_access_block" "models" {
  bucket                  = aws_s3_bucket.models.id
  block_public_acls       = true
  block_public_policy     = true
  ignore_public_acls      = true
  restrict_public_buckets = true
}

resource "aws_s3_bucket_server_side_encryption_configuration" "models" {
  bucket = aws_s3_bucket.models.id
  rule {
    apply_server_side_encryption_by_default { sse_algorithm = "AES256" }
  }
}

# A version of a model that was overwritten by mistake can be restored for 30 days.
resource "aws_s3_bucket_versioning" "models" {
  bucket = aws_s3_bucket.models.id
  versioning_configuration { status = "Enabled" }
}

data "aws_iam_policy_document" "models" {
  statement {
    actions   = ["s3:ListBucket"]
    resources = [aws_s3_bucket.models.arn]
  }
  statement {
    actions   = ["s3:GetObject"]
    resources = ["${aws_s3_bucket.models.arn}/*"]
  }
  dynamic "statement" {
    for_each = aws_secretsmanager_secret.huggingface
    content {
      actions   = ["secretsmanager:GetSecretValue"]
      resources = [statement.value.arn]
    }
  }
}

resource "aws_iam_role" "conch" {
  name               = "${var.name}-pods"
  assume_role_policy = data.aws_iam_policy_document.assume_by_pods.json
}

resource "aws_iam_role_policy" "conch" {
  name   = "models"
  role   = aws_iam_role.conch.id
  policy = data.aws_iam_policy_document.models.json
}

resource "aws_eks_pod_identity_association" "conch" {
  cluster_name    = aws_eks_cluster.this.name
  namespace       = var.namespace
  service_account = var.service_account
  role_arn        = aws_iam_role.conch.arn
}

# Without a recovery window, so that the name is free again after terraform destroy.
resource "aws_secretsmanager_secret" "huggingface" {
  count                   = nonsensitive(var.huggingface_token != "") ? 1 : 0
  name                    = "${var.name}/huggingface-token"
  recovery_window_in_days = 0
}

resource "aws_secretsmanager_secret_version" "huggingface" {
  count         = length(aws_secretsmanager_secret.huggingface)
  secret_id     = aws_secretsmanager_secret.huggingface[0].id
  secret_string = var.huggingface_token
}

# install.sh writes Grafana's password into it.
resource "aws_secretsmanager_secret" "grafana" {
  name                    = "${var.name}/grafana-admin"
  recovery_window_in_days = 0
}
