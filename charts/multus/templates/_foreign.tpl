{{- /*
multus.foreign stops the install where another Multus is running already: two of them would write one 00-multus.conf, and
each would take the other's for the primary network. Only a render with a cluster behind it can see one.
A DaemonSet of this very name is left to Helm, which refuses it or, with --take-ownership, adopts it.
*/ -}}
{{- define "multus.foreign" -}}
{{- $root := .root -}}
{{- $s := .s -}}
{{- $upstream := .upstream -}}
{{- $name := $s.name | default $upstream.metadata.name -}}
{{- range (lookup "apps/v1" "DaemonSet" "" "").items -}}
{{- $annotations := .metadata.annotations | default dict -}}
{{- $ours := and (eq (get $annotations "meta.helm.sh/release-name") $root.Release.Name) (eq (get $annotations "meta.helm.sh/release-namespace") $root.Release.Namespace) -}}
{{- $same := and (eq .metadata.name $name) (eq .metadata.namespace $s.namespace) -}}
{{- if and (not $ours) (not $same) -}}
{{- $multus := false -}}
{{- $pod := .spec.template.spec -}}
{{- range concat ($pod.containers | default list) ($pod.initContainers | default list) -}}
{{- $image := regexReplaceAll "[:@].*$" (.image | default "" | toString | splitList "/" | last) "" -}}
{{- $words := join " " (concat (.command | default list) (.args | default list)) -}}
{{- if or (regexMatch "(^|-)multus(-cni|-thick|-thin)?$" $image) (regexMatch "multus-daemon|install_multus|thin_entrypoint" $words) -}}
{{- $multus = true -}}
{{- end -}}
{{- end -}}
{{- if $multus -}}
{{- $adopt := "" -}}
{{- if eq (toJson .spec.selector.matchLabels) (toJson $upstream.spec.selector.matchLabels) -}}
{{- $adopt = printf " To adopt it, set namespace.name=%s%s and install with --take-ownership." .metadata.namespace (eq .metadata.name $upstream.metadata.name | ternary "" (printf " and name=%s" .metadata.name)) -}}
{{- end -}}
{{- fail (printf "Multus is here already, as DaemonSet %s/%s, which is not of this release; two of them write one 00-multus.conf.%s To remove it first, follow \"Uninstalling\" in the guide: pods cannot be created in between. If it is something else, set foreignMultusCheck=false." .metadata.namespace .metadata.name $adopt) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
