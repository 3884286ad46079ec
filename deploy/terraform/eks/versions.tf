terraform {
  required_version = ">= 1.9"
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = "~> 5.100"
    }
  }
}

# AWS_ENDPOINT_URL leads the provider to another endpoint, such as that of a test.
provider "aws" {
  region = var.region
  default_tags {
    tags = {
      "conch:cluster" = var.name # cleanup.sh finds by it what is left
    }
  }
}
