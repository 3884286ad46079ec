variable "name" {
  description = "Name of the cluster, and prefix of all other names"
  type        = string
  default     = "conch"
  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,30}$", var.name))
    error_message = "name must be 2 to 31 lower-case letters, digits and -, and begin with a letter."
  }
}

variable "region" {
  description = "Region of AWS, with quota for the GPU instances"
  type        = string
  default     = "us-west-2"
}

variable "kubernetes_version" {
  description = "Version of Kubernetes that EKS supports"
  type        = string
  default     = "1.33"
}

variable "vpc_cidr" {
  description = "Address range of the VPC; a /16 leaves a /20 for each of its subnets"
  type        = string
  default     = "10.42.0.0/16"
  validation {
    condition     = can(cidrsubnet(var.vpc_cidr, 4, 15))
    error_message = "vpc_cidr must be a range of at least /24, such as 10.42.0.0/16."
  }
}

variable "zones" {
  description = "Number of availability zones"
  type        = number
  default     = 2
  validation {
    condition     = var.zones >= 2 && var.zones <= 4
    error_message = "zones must be 2 to 4: EKS needs two, and the address range has room for four."
  }
}

variable "public_access_cidrs" {
  description = "Addresses that reach the API server of the cluster, such as [\"203.0.113.7/32\"]"
  type        = list(string)
  validation {
    condition     = length(var.public_access_cidrs) > 0 && alltrue([for each in var.public_access_cidrs : can(cidrhost(each, 0))])
    error_message = "public_access_cidrs must name at least one address range, such as [\"203.0.113.7/32\"]."
  }
}

variable "nat_per_zone" {
  description = "One NAT gateway per zone instead of one for all: survives the loss of a zone, costs more"
  type        = bool
  default     = false
}

variable "core_instance_type" {
  description = "Instances of the nodes for Prometheus, Karpenter and other parts of the cluster"
  type        = string
  default     = "m5.xlarge"
}

variable "core_nodes" {
  description = "Number of core nodes"
  type        = number
  default     = 2
}

variable "gpu_instance_types" {
  description = "Instances of the GPU node group; g5.24xlarge has 4 NVIDIA A10G"
  type        = list(string)
  default     = ["g5.24xlarge"]
}

variable "gpu_nodes" {
  description = "GPU nodes of the node group: those running at the start, and the most. Karpenter adds others"
  type        = object({ initial = number, maximum = number })
  default     = { initial = 1, maximum = 2 }
  validation {
    condition     = var.gpu_nodes.initial >= 0 && var.gpu_nodes.maximum >= max(1, var.gpu_nodes.initial)
    error_message = "gpu_nodes: maximum must be at least 1 and at least initial."
  }
}

variable "gpu_disk_gib" {
  description = "Disk of a GPU node: images, weights and caches"
  type        = number
  default     = 200
}

variable "karpenter" {
  description = "Roles and queue for Karpenter, which starts nodes as pods need them"
  type        = bool
  default     = true
}

variable "namespace" {
  description = "Namespace of Conch"
  type        = string
  default     = "conch"
}

variable "service_account" {
  description = "Service account of Conch's pods, which may read the model repository"
  type        = string
  default     = "conch"
}

variable "huggingface_token" {
  description = "Token of the Hugging Face Hub for gated models; set TF_VAR_huggingface_token. Empty: no secret"
  type        = string
  default     = ""
  sensitive   = true
}

variable "cloudwatch" {
  description = "CloudWatch Container Insights, with metrics of NVIDIA GPUs"
  type        = bool
  default     = false
}

variable "neuron_monitor" {
  description = "Metrics of AWS Neuron devices in CloudWatch (needs cloudwatch)"
  type        = bool
  default     = false
}

variable "budget_usd" {
  description = "Monthly budget with an alarm at 80 and 100 %; 0: none"
  type        = number
  default     = 1000
}

variable "budget_email" {
  description = "Who is notified of the budget; needed where budget_usd is not 0"
  type        = string
  default     = ""
  validation {
    condition     = var.budget_usd == 0 || can(regex("^[^@ ]+@[^@ ]+$", var.budget_email))
    error_message = "budget_email must be an address, such as ops@example.com; budget_usd = 0 disables the alarm."
  }
}

variable "destroy_models" {
  description = "Whether terraform destroy deletes the models in the bucket, too"
  type        = bool
  default     = false
}
