#!/usr/bin/env bash
# Removes the cluster and all that belongs to it, and lists what is left. It can be run again after an interruption.
#   ./cleanup.sh [--yes] [--without-cluster] [TERRAFORM OPTIONS]
# --yes             do not ask
# --without-cluster do not remove load balancers, volumes and nodes through Kubernetes first (if it does not answer)
set -euo pipefail
cd "$(dirname "$0")"

yes="" through_kubernetes=1
options=()
for argument in "$@"; do
  case "$argument" in
    --yes) yes=1 ;;
    --without-cluster) through_kubernetes="" ;;
    *) options+=("$argument") ;;
  esac
done
for program in terraform aws; do
  command -v "$program" > /dev/null || { echo "cleanup.sh: $program is not installed" >&2; exit 2; }
done

# From the state, not from the outputs: an interrupted apply has none.
terraform init -input=false > /dev/null
# shellcheck disable=SC2016  # the expression is Terraform's
variables=$(echo '"${var.name} ${var.region}"' | terraform console "${options[@]}" | tail -n 1 | tr -d '"')
name=${variables% *}
region=${variables#* }
if [ -z "$yes" ]; then
  read -r -p "This deletes the cluster '$name' in $region with all models in its bucket. Type its name: " typed
  [ "$typed" = "$name" ] || { echo "cleanup.sh: not confirmed; nothing was deleted" >&2; exit 2; }
fi

# Whole, not through a pipe: grep would end Terraform's list early, and pipefail take that for a missing resource.
resources=$(terraform state list 2> /dev/null || true)

# Load balancers, volumes and Karpenter's nodes belong to Kubernetes: Terraform does not know them, and they keep the
# network from being deleted.
if [ -n "$through_kubernetes" ] && grep -q '^aws_eks_cluster.this$' <<< "$resources"; then
  command -v kubectl > /dev/null || { echo "cleanup.sh: kubectl is not installed" >&2; exit 2; }
  configuration=$(mktemp)
  trap 'rm -f "$configuration"' EXIT
  aws eks update-kubeconfig --region "$region" --name "$name" --kubeconfig "$configuration" > /dev/null
  kubectl() { command kubectl --kubeconfig "$configuration" "$@"; }
  if ! kubectl get namespaces --request-timeout=20s > /dev/null; then
    echo "cleanup.sh: the cluster does not answer; --without-cluster skips what only it can remove" >&2
    exit 1
  fi
  echo "Removing load balancers, volumes and nodes of Kubernetes"
  kubectl delete nodepools.karpenter.sh --all --ignore-not-found --wait --timeout=15m 2> /dev/null || true
  kubectl delete ingresses --all --all-namespaces --ignore-not-found --wait --timeout=5m
  kubectl get services --all-namespaces \
    --output jsonpath='{range .items[?(@.spec.type=="LoadBalancer")]}{.metadata.namespace} {.metadata.name}{"\n"}{end}' |
    while read -r namespace service; do
      kubectl delete service --namespace "$namespace" "$service" --wait --timeout=5m < /dev/null
    done
  kubectl delete statefulsets,deployments --all --namespace monitoring --ignore-not-found --wait --timeout=5m
  kubectl delete persistentvolumeclaims --all --all-namespaces --ignore-not-found --wait --timeout=5m
fi

# A bucket with models is deleted only if this is in its state.
if grep -q '^aws_s3_bucket.models$' <<< "$resources"; then
  terraform apply -input=false -auto-approve "${options[@]}" -var destroy_models=true -target=aws_s3_bucket.models
fi
# Network interfaces of ended nodes and load balancers disappear some minutes later.
for attempt in 1 2 3; do
  if terraform destroy -input=false -auto-approve "${options[@]}" -var destroy_models=true; then break; fi
  [ "$attempt" != 3 ] || { echo "cleanup.sh: terraform destroy failed three times; run this again later" >&2; exit 1; }
  echo "cleanup.sh: trying once more in ${CLEANUP_PAUSE_S:-120} seconds"
  sleep "${CLEANUP_PAUSE_S:-120}"
done

echo "Looking for what is left"
left=$(
  for tag in "Key=conch:cluster,Values=$name" "Key=kubernetes.io/cluster/$name" "Key=eks:cluster-name,Values=$name"; do
    aws resourcegroupstaggingapi get-resources --region "$region" --tag-filters "$tag" \
      --query 'ResourceTagMappingList[].ResourceARN' --output text | tr '\t' '\n'
  done | grep -v '^None$' | grep -v '^$' | sort -u || true
)
# What was deleted keeps its tags for a while: keys for a week, gateways and instances for an hour.
still=""
for arn in $left; do
  case "$arn" in
    *:kms:*) state=$(aws kms describe-key --region "$region" --key-id "$arn" --query KeyMetadata.KeyState --output text 2> /dev/null || true) ;;
    *:natgateway/*) state=$(aws ec2 describe-nat-gateways --region "$region" --nat-gateway-ids "${arn##*/}" --query 'NatGateways[0].State' --output text 2> /dev/null || true) ;;
    *:instance/*) state=$(aws ec2 describe-instances --region "$region" --instance-ids "${arn##*/}" --query 'Reservations[0].Instances[0].State.Name' --output text 2> /dev/null || true) ;;
    *) state=present ;;
  esac
  case "$state" in "" | None | deleted | terminated | shutting-down | PendingDeletion) ;; *) still+="  $arn"$'\n' ;; esac
done
if [ -n "$still" ]; then
  printf 'cleanup.sh: these are left; delete them by hand, or run this again in some minutes:\n%s' "$still" >&2
  exit 1
fi
echo "Nothing is left of '$name' in $region."
