{{- /* The configuration files: what the chart needs, and over it what the values say. Keys: docs/configuration.md. */ -}}
{{- define "laggard.agentConfig" -}}
{{- merge (deepCopy .Values.agent.config) (dict "listen_address" ":19400") | toYaml }}
{{- end }}

{{- define "laggard.collectorConfig" -}}
{{- $service := printf "laggard-collector.%s.svc" .Release.Namespace }}
{{- $names := list $service (printf "%s.cluster.local" $service) }}
{{- $own := dict "listen_address" ":19401" "target_names" (list "laggard-agents") "allowed_hosts" $names }}
{{- merge (deepCopy .Values.collector.config) $own | toYaml }}
{{- end }}

{{- define "laggard.controllerConfig" -}}
{{- $collector := printf "http://laggard-collector.%s.svc:19401" .Release.Namespace }}
{{- $own := dict "collector" $collector "taint" .Values.controller.taint }}
{{- merge (deepCopy .Values.controller.config) $own | toYaml }}
{{- end }}
