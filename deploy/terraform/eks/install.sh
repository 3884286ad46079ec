#!/usr/bin/env bash
# Creates the cluster and installs what Conch needs in it: Karpenter, Prometheus and Grafana, KEDA. docs/eks.md explains it.
#   ./install.sh -var 'public_access_cidrs=["203.0.113.7/32"]' -var budget_email=ops@example.com
# Arguments go to terraform apply. It can be run again after an interruption.
set -euo pipefail
cd "$(dirname "$0")"

KARPENTER_VERSION=1.6.3
PROMETHEUS_STACK_VERSION=77.6.2
KEDA_VERSION=2.17.2

for program in terraform aws kubectl helm; do
  command -v "$program" > /dev/null || { echo "install.sh: $program is not installed" >&2; exit 2; }
done

terraform init -input=false
terraform apply -input=false "$@"

output() { terraform output -raw "$1"; }
name=$(output cluster_name)
region=$(output region)
namespace=$(output namespace)
aws eks update-kubeconfig --region "$region" --name "$name"

queue=$(terraform output -json karpenter_queue)
if [ "$queue" != null ]; then
  echo "Installing Karpenter, which starts nodes as pods need them"
  helm upgrade --install karpenter oci://public.ecr.aws/karpenter/karpenter --version "$KARPENTER_VERSION" \
    --namespace kube-system --wait \
    --set "settings.clusterName=$name" --set "settings.interruptionQueue=$(output karpenter_queue)" \
    --set-json 'nodeSelector={"conch.ai/nodes":"core"}'
  sed -e "s/CLUSTER_NAME/$name/g" -e "s/NODE_ROLE/$(output node_role_name)/g" karpenter.yaml | kubectl apply -f -
fi

echo "Installing the NVIDIA device plugin"
helm upgrade --install nvidia-device-plugin nvidia-device-plugin \
  --repo https://nvidia.github.io/k8s-device-plugin --namespace kube-system --wait

echo "Installing Prometheus and Grafana"
secret=$(output grafana_secret_name)
password=$(aws secretsmanager get-secret-value --region "$region" --secret-id "$secret" \
  --query SecretString --output text 2> /dev/null || true)
if [ -z "$password" ]; then
  password=$(aws secretsmanager get-random-password --region "$region" --exclude-punctuation \
    --query RandomPassword --output text)
  aws secretsmanager put-secret-value --region "$region" --secret-id "$secret" \
    --secret-string "$password" > /dev/null
fi
# By a file, as arguments of programs can be read by others.
values=$(mktemp)
trap 'rm -f "$values"' EXIT
chmod 600 "$values"
printf 'grafana:\n  adminPassword: "%s"\n' "$password" > "$values"
helm upgrade --install kube-prometheus-stack kube-prometheus-stack \
  --repo https://prometheus-community.github.io/helm-charts --version "$PROMETHEUS_STACK_VERSION" \
  --namespace monitoring --create-namespace --wait --values monitoring_values.yaml --values "$values"

echo "Installing KEDA"
helm upgrade --install keda keda --repo https://kedacore.github.io/charts --version "$KEDA_VERSION" \
  --namespace keda --create-namespace --wait

kubectl create namespace "$namespace" --dry-run=client --output yaml | kubectl apply -f -
hub=$(terraform output -json huggingface_secret_name)
if [ "$hub" != null ]; then
  token=$(aws secretsmanager get-secret-value --region "$region" --secret-id "$(output huggingface_secret_name)" \
    --query SecretString --output text)
  printf '%s' "$token" | kubectl create secret generic huggingface-token --namespace "$namespace" \
    --from-file=HF_TOKEN=/dev/stdin --dry-run=client --output yaml | kubectl apply -f -
fi

cat << END

The cluster is ready. Copy models into it and install the chart:

  aws s3 sync model_repository $(output model_repository)
  helm upgrade --install conch oci://ghcr.io/conch-server/charts/conch --namespace $namespace \\
    --set modelRepositoryPath=$(output model_repository) --set serviceAccount.name=$(output service_account)

Remove everything with ./cleanup.sh.
END
