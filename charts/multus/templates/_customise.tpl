{{- /*
multus.objects, of (dict "root" $ "out" DICT), sets "objects" in DICT to upstream's documents with every customisation
merged in. Objects are changed where they are; nothing is printed.
*/ -}}
{{- define "multus.objects" -}}
{{- $root := .root -}}
{{- $s := dict -}}
{{- include "multus.settings" (dict "root" $root "out" $s) -}}
{{- $upstream := dict -}}
{{- include "multus.upstream" (dict "root" $root "out" $upstream) -}}
{{- if $s.foreignCheck -}}
{{- include "multus.foreign" (dict "root" $root "s" $s "upstream" (get $upstream.byName "DaemonSet/kube-multus-ds")) -}}
{{- end -}}
{{- include "multus.config" (dict "config" (get $upstream.byName "ConfigMap/multus-daemon-config") "s" $s) -}}
{{- include "multus.daemonset" (dict "daemonset" (get $upstream.byName "DaemonSet/kube-multus-ds") "s" $s) -}}
{{- include "multus.names" (dict "upstream" $upstream "s" $s) -}}
{{- $objects := list -}}
{{- if $s.createNamespace -}}
{{- /* hostPath and spc_t need the privileged level. Kept, because NetworkAttachmentDefinitions may live in it too. */ -}}
{{- $level := "privileged" -}}
{{- $objects = append $objects (dict "apiVersion" "v1" "kind" "Namespace" "metadata" (dict
      "name" $s.namespace
      "labels" (dict "pod-security.kubernetes.io/enforce" $level "pod-security.kubernetes.io/audit" $level "pod-security.kubernetes.io/warn" $level)
      "annotations" (dict "helm.sh/resource-policy" "keep"))) -}}
{{- end -}}
{{- range $object := $upstream.objects -}}
{{- $crd := eq $object.kind "CustomResourceDefinition" -}}
{{- if or $s.crds (not $crd) -}}
{{- if $crd -}}
{{- /* Deleting it would delete every NetworkAttachmentDefinition of the cluster. */ -}}
{{- $_ := set $object.metadata "annotations" (merge (dict "helm.sh/resource-policy" "keep") ($object.metadata.annotations | default dict)) -}}
{{- end -}}
{{- $objects = append $objects $object -}}
{{- end -}}
{{- end -}}
{{- $own := dict
      "app.kubernetes.io/name" "multus"
      "app.kubernetes.io/instance" $root.Release.Name
      "app.kubernetes.io/version" $root.Chart.AppVersion
      "app.kubernetes.io/managed-by" $root.Release.Service
      "helm.sh/chart" (printf "%s-%s" $root.Chart.Name ($root.Chart.Version | replace "+" "_")) -}}
{{- range $object := $objects -}}
{{- include "multus.extend" (list $object.metadata "labels" $own "labels") -}}
{{- include "multus.extend" (list $object.metadata "labels" $s.labels "labels") -}}
{{- include "multus.extend" (list $object.metadata "annotations" $s.annotations "annotations") -}}
{{- end -}}
{{- $_ := set .out "objects" $objects -}}
{{- $_ := set .out "settings" $s -}}
{{- end -}}

{{- /* multus.extend, of (list METADATA KEY MORE NAME), adds to labels or annotations and never changes one that is there. */ -}}
{{- define "multus.extend" -}}
{{- $metadata := index . 0 -}}
{{- $key := index . 1 -}}
{{- $name := index . 3 -}}
{{- $there := get $metadata $key | default dict -}}
{{- range $label, $value := index . 2 -}}
{{- if and (hasKey $there $label) (ne (get $there $label) $value) -}}
{{- fail (printf "%s.%s: is set to %q already and cannot be changed" $name $label (get $there $label)) -}}
{{- end -}}
{{- $_ := set $there $label $value -}}
{{- end -}}
{{- if $there -}}{{- $_ := set $metadata $key $there -}}{{- end -}}
{{- end -}}

{{- /* multus.names puts every object, and every reference from one to another, under the names that were asked for. */ -}}
{{- define "multus.names" -}}
{{- $s := .s -}}
{{- $byName := .upstream.byName -}}
{{- range .upstream.objects -}}
{{- if hasKey .metadata "namespace" -}}{{- $_ := set .metadata "namespace" $s.namespace -}}{{- end -}}
{{- range .subjects -}}
{{- if and (eq .kind "ServiceAccount") (eq .name "multus") -}}
{{- $_ := set . "namespace" $s.namespace -}}
{{- if $s.name -}}{{- $_ := set . "name" $s.name -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if $s.name -}}
{{- range list "ClusterRole/multus" "ClusterRoleBinding/multus" "ServiceAccount/multus" "DaemonSet/kube-multus-ds" -}}
{{- $_ := set (get $byName .).metadata "name" $s.name -}}
{{- end -}}
{{- $_ := set (get $byName "ClusterRoleBinding/multus").roleRef "name" $s.name -}}
{{- $pod := (get $byName "DaemonSet/kube-multus-ds").spec.template.spec -}}
{{- $_ := set $pod "serviceAccountName" $s.name -}}
{{- $config := printf "%s-daemon-config" $s.name -}}
{{- $_ := set (get $byName "ConfigMap/multus-daemon-config").metadata "name" $config -}}
{{- range $pod.volumes -}}
{{- if eq .name "multus-daemon-config" -}}{{- $_ := set .configMap "name" $config -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* multus.config merges into the daemon's configuration, and leaves its text's checksum in the settings. */ -}}
{{- define "multus.config" -}}
{{- $s := .s -}}
{{- $data := .config.data -}}
{{- $config := mergeOverwrite (get $data "daemon-config.json" | fromJson) (deepCopy $s.daemonConfig) -}}
{{- $certificate := $config.perNodeCertificate -}}
{{- if and $certificate (not (and (kindIs "map" $certificate) (eq "false" (include "multus.flag" (list "daemonConfig.perNodeCertificate.enabled" $certificate.enabled false ""))))) -}}
{{- fail "daemonConfig.perNodeCertificate: its certificates are signed by cert-approver, which the image does not carry; leave it out, or use upstream's image and manifest" -}}
{{- end -}}
{{- $_ := set $config "binDir" $s.binDir -}}
{{- $_ := set $config "cniConfigDir" (printf "/host%s" $s.confDir) -}}
{{- $_ := set $config "multusAutoconfigDir" (printf "/host%s" $s.confDir) -}}
{{- if $s.masterCNI -}}
{{- if ne (toString $config.multusConfigFile) "auto" -}}
{{- fail (printf "multusMasterCNI: has no effect with daemonConfig.multusConfigFile %q; only \"auto\" reads it" (toString $config.multusConfigFile)) -}}
{{- end -}}
{{- $_ := set $config "multusMasterCNI" $s.masterCNI -}}
{{- end -}}
{{- $text := printf "%s\n" (toPrettyJson $config) -}}
{{- $_ := set $data "daemon-config.json" $text -}}
{{- $_ := set $s "configSum" (sha256sum $text) -}}
{{- end -}}

{{- define "multus.daemonset" -}}
{{- $s := .s -}}
{{- $spec := .daemonset.spec -}}
{{- $template := $spec.template -}}
{{- $pod := $template.spec -}}

{{- range $name, $_ := $s.podLabels -}}
{{- if hasKey $spec.selector.matchLabels $name -}}
{{- fail (printf "podLabels.%s: is part of the selector, which can never be changed" $name) -}}
{{- end -}}
{{- end -}}
{{- include "multus.extend" (list $template.metadata "labels" $s.podLabels "podLabels") -}}
{{- /* The daemon reads its configuration once, at its start: without this a new one would wait for somebody to restart it. */ -}}
{{- include "multus.extend" (list $template.metadata "annotations" (dict "checksum/daemon-config" $s.configSum) "podAnnotations") -}}
{{- include "multus.extend" (list $template.metadata "annotations" $s.podAnnotations "podAnnotations") -}}

{{- if $s.updateStrategy -}}{{- $_ := set $spec "updateStrategy" $s.updateStrategy -}}{{- end -}}
{{- if not (kindIs "invalid" $s.tolerations) -}}{{- $_ := set $pod "tolerations" $s.tolerations -}}{{- end -}}
{{- if $s.nodeSelector -}}{{- $_ := set $pod "nodeSelector" (merge (deepCopy $s.nodeSelector) ($pod.nodeSelector | default dict)) -}}{{- end -}}
{{- if $s.priorityClassName -}}{{- $_ := set $pod "priorityClassName" $s.priorityClassName -}}{{- end -}}
{{- if $s.pullSecrets -}}{{- $_ := set $pod "imagePullSecrets" $s.pullSecrets -}}{{- end -}}
{{- if kindIs "invalid" $s.affinity -}}
{{- $_ := set $pod "affinity" (dict "nodeAffinity" (dict "requiredDuringSchedulingIgnoredDuringExecution" (dict "nodeSelectorTerms" (list (dict "matchExpressions" (list
      (dict "key" "kubernetes.io/os" "operator" "In" "values" (list "linux"))
      (dict "key" "kubernetes.io/arch" "operator" "In" "values" $s.architectures))))))) -}}
{{- else if $s.affinity -}}
{{- $_ := set $pod "affinity" $s.affinity -}}
{{- end -}}

{{- range $pod.volumes -}}
{{- if eq .name "cni" -}}{{- $_ := set .hostPath "path" $s.confDir -}}{{- end -}}
{{- if eq .name "cnibin" -}}{{- $_ := set .hostPath "path" $s.binDir -}}{{- end -}}
{{- end -}}

{{- range $container := $pod.containers -}}
{{- include "multus.container" (dict "container" . "s" $s "memory" $s.memory.daemon) -}}
{{- range .volumeMounts -}}
{{- if eq .name "cni" -}}
{{- $_ := set . "mountPath" (printf "/host%s" $s.confDir) -}}
{{- else if eq .name "cnibin" -}}
{{- /* Multus looks a delegate up in its own file system and runs it in the host's: the path has to be one in both. */ -}}
{{- $_ := set . "mountPath" $s.binDir -}}
{{- else -}}
{{- if or (hasPrefix (printf "%s/" $s.binDir) (printf "%s/" (clean .mountPath))) (eq (printf "/host%s" $s.confDir) (clean .mountPath)) -}}
{{- fail (printf "binDir and confDir: container %s has its volume %s at %s, which is there or in there" $container.name .name (clean .mountPath)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if hasPrefix (printf "%s/" $s.binDir) (first .command) -}}
{{- fail (printf "binDir: mounted at %s it would hide %s, which container %s runs" $s.binDir (first .command) .name) -}}
{{- end -}}
{{- if $s.linkTargets -}}
{{- /* The daemon follows a link to see whether there is a plugin behind it, in its own file system; only then does it run it in the
host's. */ -}}
{{- range .volumeMounts -}}
{{- if eq $s.linkTargets (clean .mountPath) -}}
{{- fail (printf "binDir: its links lead to %s, where container %s has its volume %s" $s.linkTargets $container.name .name) -}}
{{- end -}}
{{- end -}}
{{- if hasPrefix (printf "%s/" $s.linkTargets) (first .command) -}}
{{- fail (printf "binDir: its links lead to %s, which mounted there would hide %s, which container %s runs" $s.linkTargets (first .command) .name) -}}
{{- end -}}
{{- $_ := set . "volumeMounts" (append .volumeMounts (dict "name" "cni-link-targets" "mountPath" $s.linkTargets "readOnly" true)) -}}
{{- end -}}
{{- /* The API server's token for the daemon alone; with automounting it would reach every container of the pod. */ -}}
{{- $_ := set . "volumeMounts" (append .volumeMounts (dict "name" "service-account-token" "mountPath" "/var/run/secrets/kubernetes.io/serviceaccount" "readOnly" true)) -}}
{{- end -}}
{{- $_ := set $pod "automountServiceAccountToken" false -}}
{{- $_ := set $pod "volumes" (append $pod.volumes (dict "name" "service-account-token" "projected" (dict "sources" (list
      (dict "serviceAccountToken" (dict "path" "token" "expirationSeconds" 3607))
      (dict "configMap" (dict "name" "kube-root-ca.crt" "items" (list (dict "key" "ca.crt" "path" "ca.crt"))))
      (dict "downwardAPI" (dict "items" (list (dict "path" "namespace" "fieldRef" (dict "apiVersion" "v1" "fieldPath" "metadata.namespace"))))))))) -}}

{{- if $s.linkTargets -}}
{{- $_ := set $pod "volumes" (append $pod.volumes (dict "name" "cni-link-targets" "hostPath" (dict "path" $s.linkTargets))) -}}
{{- end -}}

{{- $init := list -}}
{{- range $container := $pod.initContainers -}}
{{- include "multus.container" (dict "container" . "s" $s "memory" $s.memory.installMultusBinary) -}}
{{- range .volumeMounts -}}
{{- if eq .name "cnibin" -}}{{- $_ := set . "mountPath" (printf "/host%s" $s.binDir) -}}{{- end -}}
{{- end -}}
{{- $command := list -}}
{{- $last := "" -}}
{{- range .command -}}
{{- $command = append $command (eq $last "-d" | ternary (printf "/host%s" $s.binDir) .) -}}
{{- $last = . -}}
{{- end -}}
{{- $_ := set . "command" $command -}}
{{- $init = append $init . -}}
{{- if $s.stage -}}{{- $init = append $init (include "multus.stage" $s | fromJson) -}}{{- end -}}
{{- if $s.restore -}}{{- $init = append $init (include "multus.restore" $s | fromJson) -}}{{- end -}}
{{- end -}}
{{- $_ := set $pod "initContainers" $init -}}
{{- end -}}

{{- /* multus.container gives one of upstream's containers the image and its memory; its share of the processor stays upstream's. */ -}}
{{- define "multus.container" -}}
{{- $_ := set .container "image" .s.image -}}
{{- if .s.pullPolicy -}}{{- $_ := set .container "imagePullPolicy" .s.pullPolicy -}}{{- end -}}
{{- $resources := .container.resources -}}
{{- range $kind, $amount := .memory -}}
{{- $_ := set $resources $kind (merge (dict "memory" $amount) (get $resources $kind | default dict)) -}}
{{- end -}}
{{- if not (hasKey .memory "requests") -}}
{{- $_ := unset ($resources.requests | default dict) "memory" -}}
{{- end -}}
{{- end -}}

{{- /*
multus.stage is the container that stages the plugins, as JSON. --init comes first: it makes every outcome exit 0, also one
that an older image has no word for, because an init container that fails would leave the node's CNI with no daemon behind
it. What is the program's own default is not said, so that an upgrade of the chart alone replaces no pod.
*/ -}}
{{- define "multus.stage" -}}
{{- $args := list "stage" "--init" "--bundle=/cni-plugins" (printf "--bin-dir=/host%s" .binDir) (printf "--shown-as=%s" .binDir) -}}
{{- if ne .policy "replace" -}}{{- $args = append $args (printf "--policy=%s" .policy) -}}{{- end -}}
{{- $policy := .policy -}}
{{- range $plugin, $own := .policies -}}
{{- if ne $own $policy -}}{{- $args = append $args (printf "--policy-for=%s=%s" $plugin $own) -}}{{- end -}}
{{- end -}}
{{- if ne .unknown "replace" -}}{{- $args = append $args (printf "--unknown=%s" .unknown) -}}{{- end -}}
{{- include "multus.chandler" (dict "s" . "name" "install-cni-plugins" "args" $args) -}}
{{- end -}}

{{- /* multus.restore is the container that takes back what staging did, as JSON. It needs what staging needs, and no bundle. */ -}}
{{- define "multus.restore" -}}
{{- $args := list "restore" "--init" (printf "--bin-dir=/host%s" .binDir) (printf "--shown-as=%s" .binDir) -}}
{{- include "multus.chandler" (dict "s" . "name" "restore-cni-plugins" "args" $args) -}}
{{- end -}}

{{- /*
multus.chandler, of (dict "s" SETTINGS "name" NAME "args" LIST), is an init container that runs chandler on binDir, as JSON. The
directory is mounted at /host and its own path, as install-multus-binary has it, so that the two show one path.
*/ -}}
{{- define "multus.chandler" -}}
{{- $s := .s -}}
{{- $security := dict
      "allowPrivilegeEscalation" false
      "capabilities" (dict "drop" (list "ALL"))
      "readOnlyRootFilesystem" true -}}
{{- if $s.capabilities -}}{{- $_ := set $security.capabilities "add" $s.capabilities -}}{{- end -}}
{{- if $s.seLinuxType -}}{{- $_ := set $security "seLinuxOptions" (dict "type" $s.seLinuxType "level" "s0") -}}{{- end -}}
{{- $container := dict
      "name" .name
      "command" (list "/usr/bin/chandler")
      "args" .args
      "resources" (dict "requests" (dict "cpu" "10m"))
      "securityContext" $security
      "terminationMessagePolicy" "FallbackToLogsOnError"
      "volumeMounts" (list (dict "name" "cnibin" "mountPath" (printf "/host%s" $s.binDir))) -}}
{{- include "multus.container" (dict "container" $container "s" $s "memory" $s.memory.installCniPlugins) -}}
{{- toJson $container -}}
{{- end -}}
