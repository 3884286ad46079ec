{{- /* Values that are valid for the chart, but of which the API server refuses the objects, or KEDA's webhook. */}}

{{- define "conch.refusals" -}}
{{- $problems := list -}}
{{- with .Values.workload -}}
{{- if and (eq .kind "Deployment") (eq .updateStrategy "RollingUpdate") (has (toString .maxUnavailable) (list "0" "0%")) (has (toString .maxSurge) (list "0" "0%")) -}}
{{- $problems = append $problems "workload.maxUnavailable and workload.maxSurge are 0, so no pod can be replaced; set one of them to 1" -}}
{{- end -}}
{{- end -}}
{{- $problems = concat $problems (include "conch.resourceRefusals" . | fromJsonArray) -}}
{{- $names := list "server" -}}
{{- if .Values.modelRepository.pull }}{{ $names = append $names "models" }}{{ end -}}
{{- $problems = concat $problems (include "conch.repeated" (list . "extraContainers" "name" $names .Values.extraContainers) | fromJsonArray) -}}
{{- range .Values.extraContainers }}{{ $names = append $names (toString .name) }}{{ end -}}
{{- $problems = concat $problems (include "conch.repeated" (list . "extraInitContainers" "name" $names .Values.extraInitContainers) | fromJsonArray) -}}
{{- $problems = concat $problems (include "conch.volumeRefusals" . | fromJsonArray) -}}
{{- $problems = concat $problems (include "conch.nameRefusals" . | fromJsonArray) -}}
{{- if ne .Values.autoscaling.type "none" -}}
{{- $problems = concat $problems (include "conch.scalingRefusals" . | fromJsonArray) -}}
{{- end -}}
{{ toJson $problems }}
{{- end }}

{{- /* The number of a valid quantity. */}}
{{- define "conch.amount" -}}
{{- $text := toString . -}}
{{- $number := regexFind "^[0-9]+(\\.[0-9]*)?([eE][+-]?[0-9]+)?" $text -}}
{{- $factors := dict "" 1.0 "n" 1e-9 "u" 1e-6 "m" 1e-3 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "E" 1e18 -}}
{{- $factors = merge $factors (dict "Ki" 1024.0 "Mi" 1048576.0 "Gi" 1073741824.0 "Ti" 1099511627776.0 "Pi" 1125899906842624.0 "Ei" 1152921504606846976.0) -}}
{{ mulf (float64 $number) (get $factors (trimPrefix $number $text)) }}
{{- end }}

{{- define "conch.resourceRefusals" -}}
{{- $problems := list -}}
{{- $resources := include "conch.resources" . | fromYaml -}}
{{- $requests := $resources.requests | default dict -}}
{{- $limits := $resources.limits | default dict -}}
{{- range $name := keys $requests | sortAlpha -}}
{{- $request := get $requests $name -}}
{{- $asked := include "conch.amount" $request | float64 -}}
{{- $most := hasKey $limits $name | ternary (include "conch.amount" (get $limits $name | default "0")) "-1" | float64 -}}
{{- if and (hasKey $limits $name) (gt $asked (mulf $most 1.000000001)) -}}
{{- $problems = append $problems (printf "resources.requests.%s %v exceeds resources.limits.%s %v" $name $request $name (get $limits $name)) -}}
{{- else if and (contains "/" $name) (or (not (hasKey $limits $name)) (lt $asked (mulf $most 0.999999999))) -}}
{{- $problems = append $problems (printf "resources.requests.%s %v needs the same amount in resources.limits, as it is a device" $name $request) -}}
{{- end -}}
{{- end -}}
{{- $claims := list -}}
{{- range .Values.podSpec.resourceClaims }}{{ $claims = append $claims (toString .name) }}{{ end -}}
{{- range $resources.claims -}}
{{- if not (has (toString .name) $claims) -}}
{{- $problems = append $problems (printf "resources.claims: '%v' is not in podSpec.resourceClaims; add it there" .name) -}}
{{- end -}}
{{- end -}}
{{- if ne .Values.autoscaling.type "none" -}}
{{- range .Values.autoscaling.resources -}}
{{- $name := .name | default "cpu" -}}
{{- if not (or (hasKey $requests $name) (hasKey $limits $name)) -}}
{{- $problems = append $problems (printf "autoscaling.resources: %s needs resources.requests.%s" $name $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{ toJson $problems }}
{{- end }}

{{- /* Repeated names of lists that server-side apply, and so Helm 4, merges by name. */}}
{{- define "conch.nameRefusals" -}}
{{- $problems := list -}}
{{- $names := list -}}
{{- range include "conch.environment" . | fromYamlArray }}{{ $names = append $names .name }}{{ end -}}
{{- $secret := len .Values.secretEnvironment -}}
{{- $own := slice $names 0 (sub (sub (len $names) (len .Values.environment)) $secret | int) -}}
{{- $problems = concat $problems (include "conch.repeated" (list . "environment" "name" $own .Values.environment) | fromJsonArray) -}}
{{- $others := slice $names 0 (sub (len $names) $secret | int) -}}
{{- $problems = concat $problems (include "conch.repeated" (list . "secretEnvironment" "name" $others .Values.secretEnvironment) | fromJsonArray) -}}
{{- $secrets := include "conch.pullSecrets" . | fromJsonArray -}}
{{- $problems = concat $problems (include "conch.repeated" (list . "image.pullSecrets" "name" (list) $secrets) | fromJsonArray) -}}
{{- $keys := list -}}
{{- range .Values.topologySpread.topologyKeys }}{{ $keys = append $keys (dict "topologyKey" .) }}{{ end -}}
{{- $problems = concat $problems (include "conch.repeated" (list . "topologySpread.topologyKeys" "topologyKey" (list) $keys) | fromJsonArray) -}}
{{- $triggers := list -}}
{{- range .Values.autoscaling.keda.triggers -}}
{{- if .name }}{{ $triggers = append $triggers . }}{{ end -}}
{{- end -}}
{{- $problems = concat $problems (include "conch.repeated" (list . "autoscaling.keda.triggers" "name" (list) $triggers) | fromJsonArray) -}}
{{ toJson $problems }}
{{- end }}

{{- /* Names that must differ from those that are taken, and among themselves. Arguments: root, place, key, taken, given. */}}
{{- define "conch.repeated" -}}
{{- $problems := list -}}
{{- $place := index . 1 -}}
{{- $key := index . 2 -}}
{{- $taken := index . 3 -}}
{{- $names := list -}}
{{- range index . 4 -}}
{{- $name := get . $key | toString -}}
{{- if empty $name -}}
{{- $problems = append $problems (printf "%s: an entry has no %s" $place $key) -}}
{{- else if has $name $taken -}}
{{- $problems = append $problems (printf "%s: %s '%s' is used by the pod already; use another one" $place $key $name) -}}
{{- else if has $name $names -}}
{{- $problems = append $problems (printf "%s: %s '%s' is given twice" $place $key $name) -}}
{{- end -}}
{{- $names = append $names $name -}}
{{- end -}}
{{ toJson $problems }}
{{- end }}

{{- define "conch.volumeRefusals" -}}
{{- $problems := list -}}
{{- $extra := list -}}
{{- range .Values.extraVolumes }}{{ $extra = append $extra (get . "name" | toString) }}{{ end -}}
{{- $own := list "cache" -}}
{{- $volumes := include "conch.volumes" . | fromYamlArray -}}
{{- range slice $volumes 0 (sub (len $volumes) (len $extra) | int) }}{{ $own = append $own .name }}{{ end -}}
{{- $problems = concat $problems (include "conch.repeated" (list . "extraVolumes" "name" $own .Values.extraVolumes) | fromJsonArray) -}}
{{- $paths := list -}}
{{- $mounts := include "conch.volumeMounts" . | fromYamlArray -}}
{{- range slice $mounts 0 (sub (len $mounts) (len .Values.extraVolumeMounts) | int) }}{{ $paths = append $paths .mountPath }}{{ end -}}
{{- $problems = concat $problems (include "conch.repeated" (list . "extraVolumeMounts" "mountPath" $paths .Values.extraVolumeMounts) | fromJsonArray) -}}
{{- range .Values.extraVolumeMounts -}}
{{- if not (has (get . "name" | toString) (concat $own $extra)) -}}
{{- $problems = append $problems (printf "extraVolumeMounts: '%v' is not a volume of the pod; add it to extraVolumes" (get . "name")) -}}
{{- end -}}
{{- end -}}
{{ toJson $problems }}
{{- end }}

{{- define "conch.scalingRefusals" -}}
{{- $problems := list -}}
{{- range $direction := list "scaleDown" "scaleUp" -}}
{{- $rules := get $.Values.autoscaling.behavior $direction | default dict -}}
{{- $place := printf "autoscaling.behavior.%s" $direction -}}
{{- $problems = concat $problems (include "conch.bounded" (list $ $place $rules "stabilizationWindowSeconds" 0 3600) | fromJsonArray) -}}
{{- range $rules.policies -}}
{{- $problems = concat $problems (include "conch.bounded" (list $ (printf "%s.policies" $place) . "periodSeconds" 1 1800) | fromJsonArray) -}}
{{- $problems = concat $problems (include "conch.bounded" (list $ (printf "%s.policies" $place) . "value" 1 2147483647) | fromJsonArray) -}}
{{- end -}}
{{- end -}}
{{- if eq .Values.autoscaling.type "keda" -}}
{{- range $index, $trigger := .Values.autoscaling.keda.triggers -}}
{{- $place := printf "autoscaling.keda.triggers[%d]" $index -}}
{{- if or (empty $trigger.type) (not (kindIs "map" $trigger.metadata)) -}}
{{- $problems = append $problems (printf "%s needs type and metadata, such as {type: cron, metadata: {timezone: UTC}}" $place) -}}
{{- else -}}
{{- range $name := keys $trigger.metadata | sortAlpha -}}
{{- if not (kindIs "string" (get $trigger.metadata $name)) -}}
{{- $problems = append $problems (printf "%s.metadata.%s is not a text; quote it" $place $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{ toJson $problems }}
{{- end }}

{{- /* An integer of a range. Arguments: root, place, rules, key, least, most. */}}
{{- define "conch.bounded" -}}
{{- $problems := list -}}
{{- $value := get (index . 2) (index . 3) -}}
{{- if and (hasKey (index . 2) (index . 3)) (not (kindIs "invalid" $value)) -}}
{{- $number := regexMatch "^[0-9]{1,10}$" (toString $value) | ternary (int64 $value) -1 | int64 -}}
{{- if or (lt $number (int64 (index . 4))) (gt $number (int64 (index . 5))) -}}
{{- $problems = append $problems (printf "%s.%s: %v is not an integer from %d to %d" (index . 1) (index . 3) $value (index . 4) (index . 5)) -}}
{{- end -}}
{{- end -}}
{{ toJson $problems }}
{{- end }}
