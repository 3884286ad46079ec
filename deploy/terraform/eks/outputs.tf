output "cluster_name" {
  description = "For aws eks update-kubeconfig --name"
  value       = aws_eks_cluster.this.name
}

output "region" {
  value = var.region
}

output "namespace" {
  value = var.namespace
}

output "service_account" {
  description = "serviceAccount.name of the chart's values"
  value       = var.service_account
}

output "model_repository" {
  description = "The model repository for the chart's values, and for aws s3 sync"
  value       = "s3://${aws_s3_bucket.models.id}/model_repository"
}

output "grafana_secret_name" {
  description = "Secret of Secrets Manager with the password of Grafana's user admin"
  value       = aws_secretsmanager_secret.grafana.name
}

output "huggingface_secret_name" {
  description = "Secret of Secrets Manager with the token of the Hugging Face Hub, or empty"
  value       = one(aws_secretsmanager_secret.huggingface[*].name)
}

output "node_role_name" {
  description = "Role of the nodes that Karpenter starts"
  value       = aws_iam_role.node.name
}

output "karpenter_queue" {
  value = one(aws_sqs_queue.karpenter[*].name)
}
