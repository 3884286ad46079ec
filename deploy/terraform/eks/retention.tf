# What is kept how long.

resource "aws_s3_bucket_lifecycle_configuration" "models" {
  bucket = aws_s3_bucket_versioning.models.id
  rule {
    id     = "old-versions"
    status = "Enabled"
    filter {}
    noncurrent_version_expiration { noncurrent_days = 30 }
    abort_incomplete_multipart_upload { days_after_initiation = 1 }
  }
}
