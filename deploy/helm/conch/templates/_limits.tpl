{{- /* Limits as annotations of the workload, in the form that --limits-kubernetes reads. */}}
{{- define "conch.limitAnnotations" -}}
{{- $annotations := dict -}}
{{- with .Values.limits -}}
{{- if not (kindIs "invalid" .maxQps) }}{{ $_ := set $annotations "max_qps" (int .maxQps | toString) }}{{ end -}}
{{- if not (kindIs "invalid" .maxTokensPerSecond) -}}
{{- $_ := set $annotations "conch.ai/max-tokens-per-second" (int .maxTokensPerSecond | toString) -}}
{{- end -}}
{{- with .entries }}{{ $_ := set $annotations "conch.ai/limits" (dict "limits" . | toRawJson) }}{{ end -}}
{{- if and $annotations .enforced }}{{ $_ := set $annotations "conch.ai/limits-enforced" "true" }}{{ end -}}
{{- if and $annotations .shared }}{{ $_ := set $annotations "conch.ai/limits-shared" "true" }}{{ end -}}
{{- end -}}
{{- toYaml $annotations -}}
{{- end }}

{{- /* Not empty if the server follows the annotations, for which it asks the API server. */}}
{{- define "conch.readsLimits" -}}
{{ or .Values.server.limitsKubernetes (include "conch.limitAnnotations" . | fromYaml) | empty | ternary "" "true" }}
{{- end }}
