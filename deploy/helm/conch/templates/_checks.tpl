{{- /* Values that contradict each other: src/conch/deployment/values/checks.py has the same checks and messages. */}}

{{- define "conch.check" -}}
{{- $problems := list -}}
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
{{- $given := dict "server.extraArgs" $flags "podSpec" (keys .Values.podSpec | sortAlpha) "service.spec" (keys .Values.service.spec | sortAlpha) -}}
{{- $reserved := .Files.Get "files/chart-keys.yaml" | fromYaml -}}
{{- range $place := list "server.extraArgs" "podSpec" "service.spec" -}}
{{- range $name := get $given $place -}}
{{- with get (get $reserved $place) $name -}}
{{- $problems = append $problems (printf "%s: %s is set by the chart; use %s" $place $name .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $problems = concat $problems (include "conch.repositoryProblems" . | fromJsonArray) -}}
{{- $problems = concat $problems (include "conch.acceleratorProblems" . | fromJsonArray) -}}
{{- with $problems }}{{ fail (printf "values: %s" (first .)) }}{{ end -}}
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
