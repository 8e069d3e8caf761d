{{- /* Names are made from the release, so that two releases never meet, not even in kube-system. */ -}}

{{- define "deepseekjob.fullname" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- /* For objects outside the release's namespace. */ -}}
{{- define "deepseekjob.clusterName" -}}
{{- printf "%s.%s" .Release.Namespace (include "deepseekjob.fullname" .) -}}
{{- end -}}

{{- define "deepseekjob.hubService" -}}
{{- printf "%s-hub" (include "deepseekjob.fullname" .) -}}
{{- end -}}

{{- define "deepseekjob.caSecret" -}}
{{- printf "%s-hub-ca" (include "deepseekjob.fullname" .) -}}
{{- end -}}

{{- define "deepseekjob.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "deepseekjob.labels" -}}
{{ include "deepseekjob.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- /* What the operator is told of the receivers: everything but their Secrets, which are mounted. */ -}}
{{- define "deepseekjob.receivers" -}}
{{- $told := list -}}
{{- $names := dict -}}
{{- range (.Values.alerts).receivers -}}
{{- if hasKey $names .name -}}
{{- fail (printf "alerts.receivers has two that are called %s; give each a name of its own" .name) -}}
{{- end -}}
{{- $_ := set $names .name true -}}
{{- $told = append $told (dict "name" .name "type" .type "language" (.language | default "en")) -}}
{{- end -}}
{{- $told | toJson -}}
{{- end -}}
