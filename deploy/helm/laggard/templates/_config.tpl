{{- /* The configuration files: what the chart needs, and over it what the values say. Keys: docs/configuration.md. */ -}}
{{- define "laggard.agentConfig" -}}
{{- $own := dict "listen_address" ":19400" }}
{{- if include "laggard.agentProfile" . }}
{{- $own = merge (dict "profile" "/etc/laggard/profile.yaml") $own }}
{{- end }}
{{- merge (deepCopy .Values.agent.config) $own | toYaml }}
{{- end }}

{{- /* The agent's own profile (periodic), which expects a GPU where all nodes have one; over it what the values say. */ -}}
{{- define "laggard.agentProfile" -}}
{{- if or .Values.nvidia .Values.agent.profile }}
{{- $thresholds := dict "limits" (dict "memlock_own_severity" "warning") }}
{{- if .Values.nvidia }}
{{- $thresholds = merge (dict "gpu_count" (dict "least" 1)) $thresholds }}
{{- end }}
{{- $own := dict "deadline_seconds" 10 "agent_seconds" 90 "thresholds" $thresholds }}
{{- merge (deepCopy .Values.agent.profile) $own | toYaml }}
{{- end }}
{{- end }}

{{- define "laggard.collectorConfig" -}}
{{- $names := list "*.svc" "*.svc.cluster.local" }}
{{- $own := dict "listen_address" ":19401" "target_names" (list "laggard-agents") "allowed_hosts" $names }}
{{- if .Values.tls.enabled }}
{{- $server := printf "laggard-agents.%s.svc" .Release.Namespace }}
{{- $own = merge (dict "target_names" (list "https://laggard-agents") "target_server_name" $server) $own }}
{{- end }}
{{- merge (deepCopy .Values.collector.config) $own | toYaml }}
{{- end }}

{{- define "laggard.evaluatorConfig" -}}
{{- $url := required "evaluators.prometheus: give the URL of the Prometheus whose jobs they judge" .Values.evaluators.prometheus }}
{{- $secret := required "evaluators.databaseSecret: name the Secret that has the URL of their PostgreSQL" .Values.evaluators.databaseSecret }}
{{- $names := list "*.svc" "*.svc.cluster.local" }}
{{- $own := dict "listen_address" ":19401" "evaluators" "main" "prometheus" $url "allowed_hosts" $names "incidents_database_file" "/etc/laggard-database/url" }}
{{- merge (deepCopy .Values.evaluators.config) $own | toYaml }}
{{- end }}

{{- define "laggard.controllerConfig" -}}
{{- $collector := "http://laggard-collector:19401" }}
{{- if .Values.tls.enabled }}
{{- $collector = printf "https://laggard-collector.%s.svc:19401" .Release.Namespace }}
{{- end }}
{{- $own := dict "collector" $collector "taint" .Values.controller.taint }}
{{- merge (deepCopy .Values.controller.config) $own | toYaml }}
{{- end }}

{{- /* What the daemons show, and of agents' clients ask: docs/tls.md. */ -}}
{{- define "laggard.webConfig" -}}
tls_server_config:
  cert_file: /etc/laggard-tls/tls.crt
  key_file: /etc/laggard-tls/tls.key
{{- end }}

{{- /* The kubelet's probes show no certificate and are told of health alone; who asks for more has one of the names. */ -}}
{{- define "laggard.agentWebConfig" -}}
{{- include "laggard.webConfig" . }}
  client_ca_file: /etc/laggard-tls/ca.crt
  client_auth_type: VerifyClientCertIfGiven
  client_allowed_sans:
    - laggard-collector.{{ .Release.Namespace }}.svc
    - laggard-prometheus.{{ .Release.Namespace }}.svc
    {{- range .Values.tls.agentClients }}
    - {{ . | quote }}
    {{- end }}
{{- end }}

{{- define "laggard.probeScheme" -}}
{{- if .Values.tls.enabled }}, scheme: HTTPS{{ end }}
{{- end }}
