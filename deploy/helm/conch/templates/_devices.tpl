{{- /* Devices of the pods, and the nodes that have them. */}}

{{- define "conch.deviceResource" -}}
{{- $accelerator := .Values.accelerator -}}
{{- if eq $accelerator.sharing "mig" -}}
nvidia.com/mig-{{ $accelerator.migProfile }}
{{- else -}}
{{ $accelerator.resource }}{{ has $accelerator.sharing (list "time-slicing" "mps") | ternary ".shared" "" }}
{{- end -}}
{{- end }}

{{- define "conch.deviceCount" -}}
{{- $accelerator := .Values.accelerator -}}
{{- $split := include "conch.parallelism" . | int -}}
{{- $products := include "conch.products" . | fromJsonArray -}}
{{- $needed := or (gt $split 1) (not (empty $products)) (ne $accelerator.sharing "none") | ternary $split 0 -}}
{{ eq $accelerator.sharing "all-devices" | ternary 0 (int $accelerator.count | default $needed) }}
{{- end }}

{{- define "conch.resources" -}}
{{- $resources := deepCopy .Values.resources -}}
{{- $count := include "conch.deviceCount" . | int -}}
{{- if $count -}}
{{- $devices := dict (include "conch.deviceResource" .) $count -}}
{{- $_ := set $resources "limits" (merge $devices ($resources.limits | default dict)) -}}
{{- end -}}
{{ toYaml $resources }}
{{- end }}

{{- define "conch.tolerations" -}}
{{- $tolerations := .Values.tolerations -}}
{{- if and .Values.accelerator.tolerate (include "conch.deviceCount" . | int) -}}
{{- $taint := dict "key" .Values.accelerator.resource "operator" "Exists" "effect" "NoSchedule" -}}
{{- $tolerations = append $tolerations $taint -}}
{{- end -}}
{{ toYaml $tolerations }}
{{- end }}

{{- define "conch.affinity" -}}
{{- $accelerator := .Values.accelerator -}}
{{- $affinity := deepCopy .Values.affinity -}}
{{- $expressions := list -}}
{{- with include "conch.products" . | fromJsonArray -}}
{{- $expressions = append $expressions (dict "key" $accelerator.productLabel "operator" "In" "values" .) -}}
{{- end -}}
{{- if has $accelerator.sharing (list "time-slicing" "mps") -}}
{{- $strategy := dict "key" "nvidia.com/gpu.sharing-strategy" "operator" "In" "values" (list $accelerator.sharing) -}}
{{- $expressions = append $expressions $strategy -}}
{{- end -}}
{{- with $expressions -}}
{{- $terms := dict "nodeSelectorTerms" (list (dict "matchExpressions" .)) -}}
{{- $_ := set $affinity "nodeAffinity" (dict "requiredDuringSchedulingIgnoredDuringExecution" $terms) -}}
{{- end -}}
{{ toYaml $affinity }}
{{- end }}
