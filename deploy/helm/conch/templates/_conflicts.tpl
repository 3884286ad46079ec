{{- /* Values that are valid one by one, but not together. The message names them, and what would be right. */}}

{{- define "conch.refuseConflicts" -}}
{{- $problems := include "conch.nullProblems" . | fromJsonArray -}}
{{- with $problems }}{{ fail (printf "values: %s (for a newer chart, helm upgrade needs --reset-then-reuse-values instead of --reuse-values)" (first .)) }}{{ end -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]{0,51}[a-z0-9])?$" .Release.Name) -}}
{{- $problems = append $problems (printf "'%s' is not a valid release name; use at most 53 lower-case letters, digits and -, beginning with a letter, e.g. gpt2" .Release.Name) -}}
{{- end -}}
{{- $cluster := .Capabilities.KubeVersion -}}
{{- if semverCompare (printf "<%s-0" .Values.kubernetesVersion) $cluster.Version -}}
{{- $problems = append $problems (printf "kubernetesVersion %s is newer than the cluster; set it to %s.%s" .Values.kubernetesVersion $cluster.Major $cluster.Minor) -}}
{{- end -}}
{{- range .Values.environment -}}
{{- if regexMatch "^(?i)shm[-_]size$" .name -}}
{{- $problems = append $problems (printf "environment: %s does not change the size of /dev/shm; set sharedMemory.size" .name) -}}
{{- end -}}
{{- if regexMatch "^CONCH_(OPENAI_)?API_KEY$" .name -}}
{{- $problems = append $problems (printf "environment: %s contains a secret; put the keys in a Secret, and set secrets.apiKeys" .name) -}}
{{- end -}}
{{- end -}}
{{- $flags := list -}}
{{- range .Values.server.extraArgs -}}
{{- $flags = append $flags (splitList "=" . | first) -}}
{{- end -}}
{{- $given := dict "server.extraArgs" $flags "podLabels" (keys .Values.podLabels | sortAlpha) "podSpec" (keys .Values.podSpec | sortAlpha) "service.spec" (keys .Values.service.spec | sortAlpha) -}}
{{- $reserved := .Files.Get "files/chart-keys.yaml" | fromYaml -}}
{{- range $place := list "server.extraArgs" "podLabels" "podSpec" "service.spec" -}}
{{- range $name := get $given $place -}}
{{- with get (get $reserved $place) $name -}}
{{- $problems = append $problems (printf "%s: %s is set by the chart; use %s" $place $name .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $problems = concat $problems (include "conch.resourceProblems" . | fromJsonArray) -}}
{{- $problems = concat $problems (include "conch.repositoryProblems" . | fromJsonArray) -}}
{{- $problems = concat $problems (include "conch.acceleratorProblems" . | fromJsonArray) -}}
{{- if eq (int .Values.service.httpPort) (int .Values.service.grpcPort) -}}
{{- $problems = append $problems (printf "service.grpcPort %d equals service.httpPort; use another port" (int .Values.service.grpcPort)) -}}
{{- end -}}
{{- range $name := list "httpPort" "grpcPort" -}}
{{- if eq (int $.Values.service.metricsPort) (get $.Values.service $name | int) -}}
{{- $problems = append $problems (printf "service.metricsPort %d equals service.%s; use another port" (int $.Values.service.metricsPort) $name) -}}
{{- end -}}
{{- end -}}
{{- range $name := list "mutual" "http" "metrics" -}}
{{- if and (get $.Values.secrets.tls $name) (not $.Values.secrets.tls.secretName) -}}
{{- $problems = append $problems (printf "secrets.tls.%s needs secrets.tls.secretName: without a certificate, clients connect without TLS" $name) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.secrets.tls.mutual (not .Values.secrets.tls.grpc) -}}
{{- $problems = append $problems "secrets.tls.mutual needs secrets.tls.grpc: clients of HTTP show no certificate, since the probes of the kubelet have none" -}}
{{- end -}}
{{- $problems = concat $problems (include "conch.scalingProblems" . | fromJsonArray) -}}
{{- $problems = concat $problems (include "conch.budgetProblems" . | fromJsonArray) -}}
{{- if not $problems }}{{ $problems = include "conch.refusals" . | fromJsonArray }}{{ end -}}
{{- with $problems }}{{ fail (printf "values: %s" (first .)) }}{{ end -}}
{{- end }}

{{- /* Helm removes a key whose value is null, also one without which the templates fail. */}}
{{- define "conch.nullProblems" -}}
{{- $problems := list -}}
{{- range $place := .Files.Get "files/value-keys.yaml" | fromYamlArray -}}
{{- $value := $.Values -}}
{{- range splitList "." $place -}}
{{- $value = index ($value | default dict) . -}}
{{- end -}}
{{- if kindIs "invalid" $value -}}
{{- $problems = append $problems (printf "%s: null is not valid; leave the key out for the default" $place) -}}
{{- end -}}
{{- end -}}
{{ toJson $problems }}
{{- end }}

{{- define "conch.resourceProblems" -}}
{{- $problems := list -}}
{{- range $place := keys .Values.resources | sortAlpha -}}
{{- $amounts := get $.Values.resources $place -}}
{{- if not (has $place (list "claims" "limits" "requests")) -}}
{{- $problems = append $problems (printf "resources: unknown key '%s'; Known: claims, limits, requests" $place) -}}
{{- else if and (ne $place "claims") (not (kindIs "invalid" $amounts)) -}}
{{- if kindIs "map" $amounts -}}
{{- range $name := keys $amounts | sortAlpha -}}
{{- $amount := get $amounts $name -}}
{{- if not (or (kindIs "invalid" $amount) (regexMatch "^[0-9]+(\\.[0-9]*)?([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]+)?$" (toString $amount))) -}}
{{- $problems = append $problems (printf "resources.%s.%s: %v is not a valid quantity, such as 500m, 2 or 4Gi" $place $name $amount) -}}
{{- end -}}
{{- end -}}
{{- else -}}
{{- $problems = append $problems (printf "resources.%s is not a mapping of resources to quantities, such as {memory: 4Gi}" $place) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{ toJson $problems }}
{{- end }}

{{- define "conch.repositoryProblems" -}}
{{- $problems := list -}}
{{- $repository := .Values.modelRepository -}}
{{- $path := include "conch.repositoryPath" . -}}
{{- $sources := list $repository.claimName $repository.image $repository.pull $repository.volume | compact -}}
{{- if gt (len $sources) 1 -}}
{{- $problems = append $problems "modelRepository: claimName, image, pull and volume exclude each other; set one of them" -}}
{{- end -}}
{{- if and $sources (contains "://" $path) -}}
{{- $problems = append $problems (printf "modelRepository.path: %s is not a folder; set none of claimName, image, pull and volume" $path) -}}
{{- end -}}
{{- if and $repository.image (not (include "conch.since" (list . "1.31"))) -}}
{{- $problems = append $problems "modelRepository.image: image volumes need kubernetesVersion 1.31 or later; use modelRepository.pull" -}}
{{- end -}}
{{- if and (include "conch.loadModels" . | fromJsonArray) (eq .Values.server.modelControlMode "poll") -}}
{{- $problems = append $problems "server.modelControlMode: poll excludes server.loadModels; use none or explicit" -}}
{{- end -}}
{{ toJson $problems }}
{{- end }}

{{- define "conch.acceleratorProblems" -}}
{{- $problems := list -}}
{{- $accelerator := .Values.accelerator -}}
{{- if ne (eq $accelerator.sharing "mig") (not (empty $accelerator.migProfile)) -}}
{{- $problems = append $problems "accelerator: sharing mig and migProfile go together; set both or none" -}}
{{- end -}}
{{- $shared := has $accelerator.sharing (list "time-slicing" "mps") -}}
{{- if and (or $shared (include "conch.products" . | fromJsonArray)) (hasKey .Values.affinity "nodeAffinity") -}}
{{- $problems = append $problems "affinity.nodeAffinity: accelerator.products and accelerator.sharing set it; remove it, or them" -}}
{{- end -}}
{{ toJson $problems }}
{{- end }}

{{- define "conch.scalingProblems" -}}
{{- $problems := list -}}
{{- with .Values.monitoring -}}
{{- if gt (int .scrapeTimeoutSeconds) (int .intervalSeconds) -}}
{{- $problems = append $problems (printf "monitoring.scrapeTimeoutSeconds %d exceeds monitoring.intervalSeconds %d" (int .scrapeTimeoutSeconds) (int .intervalSeconds)) -}}
{{- end -}}
{{- end -}}
{{- $scaling := .Values.autoscaling -}}
{{- $least := int $scaling.minReplicas -}}
{{- $most := int $scaling.maxReplicas -}}
{{- if and (ne $scaling.type "none") (gt $least $most) -}}
{{- $problems = append $problems (printf "autoscaling.minReplicas %d exceeds autoscaling.maxReplicas %d" $least $most) -}}
{{- end -}}
{{- if eq $scaling.type "hpa" -}}
{{- if eq $least 0 -}}
{{- $problems = append $problems "autoscaling.minReplicas 0 needs autoscaling.type keda: a HorizontalPodAutoscaler keeps at least 1" -}}
{{- end -}}
{{- if not (or $scaling.metrics $scaling.resources $scaling.customMetrics) -}}
{{- $problems = append $problems "autoscaling.metrics, resources and customMetrics are empty; the autoscaler needs one metric" -}}
{{- end -}}
{{- $counters := .Files.Get "files/counters.yaml" | fromYamlArray -}}
{{- range $scaling.customMetrics -}}
{{- range list .pods .object .external -}}
{{- $name := dig "metric" "name" "" (default dict .) -}}
{{- if has $name $counters -}}
{{- $problems = append $problems (printf "autoscaling.customMetrics has '%s', a counter: it only grows, so replicas would only be added; use a metric of autoscaling.metrics" $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if eq $scaling.type "keda" -}}
{{- with $scaling.keda -}}
{{- if and (eq $least 0) (not .triggers) -}}
{{- $problems = append $problems "autoscaling.minReplicas 0 needs a trigger in autoscaling.keda.triggers: metrics of pods cannot start the first one" -}}
{{- end -}}
{{- if not (or $scaling.metrics $scaling.resources .triggers .prediction.enabled) -}}
{{- $problems = append $problems "autoscaling.metrics, resources and keda.triggers are empty; the autoscaler needs one trigger" -}}
{{- end -}}
{{- if gt (int .fallback.replicas) $most -}}
{{- $problems = append $problems (printf "autoscaling.keda.fallback.replicas %d exceeds autoscaling.maxReplicas %d" (int .fallback.replicas) $most) -}}
{{- end -}}
{{- if and .authentication.mode (not .authentication.secretName) -}}
{{- $problems = append $problems "autoscaling.keda.authentication.secretName is empty; name the Secret of the mode" -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{ toJson $problems }}
{{- end }}

{{- define "conch.budgetProblems" -}}
{{- $problems := list -}}
{{- $scaling := .Values.autoscaling -}}
{{- $budget := .Values.disruptionBudget -}}
{{- if $budget.enabled -}}
{{- $kept := toString $budget.minAvailable -}}
{{- $missing := toString $budget.maxUnavailable -}}
{{- if eq (empty $kept) (empty $missing) -}}
{{- $problems = append $problems "disruptionBudget needs either minAvailable or maxUnavailable; set the other to ''" -}}
{{- end -}}
{{- if has $missing (list "0" "0%") -}}
{{- $problems = append $problems (printf "disruptionBudget.maxUnavailable %s keeps all pods, so no node can be drained; use at least 1" $missing) -}}
{{- end -}}
{{- $replicas := ternary (int .Values.replicaCount) (max (int $scaling.minReplicas) 1) (eq $scaling.type "none") | int -}}
{{- if and $kept $replicas -}}
{{- $pods := int (trimSuffix "%" $kept) -}}
{{- if hasSuffix "%" $kept -}}
{{- $pods = div (add (mul $pods $replicas) 99) 100 | int -}}
{{- end -}}
{{- if ge $pods $replicas -}}
{{- $problems = append $problems (printf "disruptionBudget.minAvailable %s keeps %d of %d replicas, so no node can be drained; use maxUnavailable 1" $kept $pods $replicas) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{ toJson $problems }}
{{- end }}

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
