{{- /*
multus.settings, of (dict "root" $ "out" DICT), judges every value once and fills DICT with what the other templates use, so
that none of them meets a value that is absent, null or badly spelled.
*/ -}}
{{- define "multus.settings" -}}
{{- $root := .root -}}
{{- $v := $root.Values -}}
{{- $s := .out -}}
{{- $image := $v.image | default dict -}}
{{- $namespace := $v.namespace | default dict -}}
{{- $memory := $v.memory | default dict -}}
{{- $crds := $v.crds | default dict -}}

{{- /* The distribution first: it is what the others follow where they are unset. */ -}}
{{- $known := $root.Files.Get "files/distributions.yaml" | fromYaml -}}
{{- $distribution := dict "binDir" "/opt/cni/bin" "confDir" "/etc/cni/net.d" "capabilities" list "seLinuxType" "spc_t" "staging" false "policy" "replace" -}}
{{- if $v.distribution -}}
{{- if not (hasKey $known (toString $v.distribution)) -}}
{{- fail (printf "distribution: %q is not known; known are %s. For another one leave it unset and give binDir, confDir and stageCniPlugins" (toString $v.distribution) (keys $known | sortAlpha | join ", ")) -}}
{{- end -}}
{{- $distribution = get $known (toString $v.distribution) -}}
{{- end -}}

{{- $_ := set $s "binDir" (include "multus.path" (list "binDir" (kindIs "invalid" $v.binDir | ternary $distribution.binDir $v.binDir))) -}}
{{- $_ := set $s "confDir" (include "multus.path" (list "confDir" (kindIs "invalid" $v.confDir | ternary $distribution.confDir $v.confDir))) -}}
{{- $_ := set $s "stage" (eq "true" (include "multus.flag" (list "stageCniPlugins" $v.stageCniPlugins $distribution.staging "leave it unset, or null, to follow distribution"))) -}}
{{- $targets := clean (printf "%s/%s" $s.binDir ($distribution.linkTargets | default ".")) -}}
{{- $_ := set $s "linkTargets" (or (eq $targets $s.binDir) (eq $targets "/") | ternary "" $targets) -}}
{{- /* Judged also where nothing is staged: a mistake in them would wait for the day that staging is turned on. */ -}}
{{- $_ := set $s "policy" (include "chandler.policy" (list "stagePolicy" (kindIs "invalid" $v.stagePolicy | ternary $distribution.policy $v.stagePolicy) "leave it unset, or null, to follow distribution")) -}}
{{- $_ := set $s "policies" (include "chandler.policies" (list "stagePolicyFor" $v.stagePolicyFor) | fromJson) -}}
{{- $_ := set $s "unknown" (include "chandler.unknown" (list "stageUnknown" (kindIs "invalid" $v.stageUnknown | ternary "replace" $v.stageUnknown))) -}}
{{- $by := kindIs "invalid" $v.stageCniPlugins | ternary (printf "distribution=%s" (toString $v.distribution)) "its own value" -}}
{{- $_ := set $s "restore" (eq "true" (include "chandler.restore" (list "" $v.restoreCniPlugins $s.stage $by))) -}}
{{- $_ := set $s "seLinuxType" (include "multus.word" (list "stageSELinuxType" (kindIs "invalid" $v.stageSELinuxType | ternary $distribution.seLinuxType $v.stageSELinuxType) "^([a-z][a-z0-9_]*)?$" "an SELinux type such as spc_t, or empty for none")) -}}
{{- $capabilities := list -}}
{{- range (kindIs "invalid" $v.stageCapabilities | ternary $distribution.capabilities $v.stageCapabilities) -}}
{{- $capabilities = append $capabilities (include "multus.word" (list "stageCapabilities" (trimPrefix "CAP_" (toString . | upper)) "^[A-Z][A-Z0-9_]*$" "names of capabilities such as DAC_OVERRIDE")) -}}
{{- end -}}
{{- $_ := set $s "capabilities" $capabilities -}}

{{- /* An empty name is upstream's names, so that what upstream's manifest installed can be adopted. */ -}}
{{- $_ := set $s "name" (include "multus.word" (list "name" ($v.name | default "") "^([a-z0-9]([a-z0-9-]{0,50}[a-z0-9])?)?$" "lower case letters, digits and -, at most 52")) -}}
{{- $_ := set $s "namespace" (include "multus.word" (list "namespace.name" ($namespace.name | default $root.Release.Namespace) "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$" "the name of a namespace")) -}}
{{- $_ := set $s "createNamespace" (eq "true" (include "multus.flag" (list "namespace.create" $namespace.create false ""))) -}}
{{- $_ := set $s "crds" (eq "true" (include "multus.flag" (list "crds.install" $crds.install true ""))) -}}
{{- $_ := set $s "foreignCheck" (eq "true" (include "multus.flag" (list "foreignMultusCheck" $v.foreignMultusCheck true ""))) -}}

{{- $repository := include "multus.word" (list "image.repository" ($image.repository | default "") "^[a-zA-Z0-9][a-zA-Z0-9.-]*(:[0-9]+)?(/[a-zA-Z0-9._-]+)*$" "a repository without tag and digest, such as ghcr.io/chandler-cni/multus") -}}
{{- $tag := include "multus.word" (list "image.tag" ($image.tag | default $root.Chart.AppVersion) "^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$" "a tag") -}}
{{- $digest := include "multus.word" (list "image.digest" ($image.digest | default "") "^(sha256:[0-9a-f]{64})?$" "sha256: and 64 hexadecimal digits") -}}
{{- $_ := set $s "image" (printf "%s:%s%s" $repository $tag ($digest | empty | ternary "" (printf "@%s" $digest))) -}}
{{- $_ := set $s "pullPolicy" (include "multus.word" (list "image.pullPolicy" ($image.pullPolicy | default "") "^(Always|IfNotPresent|Never)?$" "Always, IfNotPresent or Never")) -}}
{{- $_ := set $s "architectures" ($image.architectures | default (list "amd64" "arm64")) -}}
{{- $secrets := list -}}
{{- range $v.imagePullSecrets -}}
{{- $secrets = append $secrets (kindIs "map" . | ternary . (dict "name" .)) -}}
{{- end -}}
{{- $_ := set $s "pullSecrets" $secrets -}}

{{- $sizes := dict -}}
{{- range $container := list "daemon" "installMultusBinary" "installCniPlugins" -}}
{{- $given := get $memory $container | default dict -}}
{{- $size := dict "limits" (include "multus.quantity" (list (printf "memory.%s.limit" $container) $given.limit)) -}}
{{- if not (kindIs "invalid" $given.request) -}}
{{- $_ := set $size "requests" (include "multus.quantity" (list (printf "memory.%s.request" $container) $given.request)) -}}
{{- end -}}
{{- $_ := set $sizes $container $size -}}
{{- end -}}
{{- $_ := set $s "memory" $sizes -}}

{{- $master := include "multus.word" (list "multusMasterCNI" ($v.multusMasterCNI | default "") "^([A-Za-z0-9_][A-Za-z0-9._-]*\\.(conf|conflist|json))?$" "the name of a file in confDir such as 05-cilium.conflist") -}}
{{- if hasPrefix "00-multus" $master -}}
{{- fail (printf "multusMasterCNI: %q is what Multus itself writes; name the primary CNI's file" $master) -}}
{{- end -}}
{{- $_ := set $s "masterCNI" $master -}}
{{- $_ := set $s "daemonConfig" ($v.daemonConfig | default dict) -}}
{{- range $key, $value := dict "binDir" "binDir" "cniConfigDir" "confDir" "multusAutoconfigDir" "confDir" "multusMasterCNI" "multusMasterCNI" -}}
{{- if hasKey $s.daemonConfig $key -}}
{{- fail (printf "daemonConfig.%s: set %s instead; it has to reach other places too" $key $value) -}}
{{- end -}}
{{- end -}}

{{- $_ := set $s "tolerations" $v.tolerations -}}
{{- $_ := set $s "nodeSelector" ($v.nodeSelector | default dict) -}}
{{- $_ := set $s "affinity" $v.affinity -}}
{{- $_ := set $s "updateStrategy" ($v.updateStrategy | default dict) -}}
{{- $_ := set $s "priorityClassName" ($v.priorityClassName | default "") -}}
{{- range $key := list "labels" "annotations" "podLabels" "podAnnotations" -}}
{{- $strings := dict -}}
{{- range $name, $value := get $v $key | default dict -}}
{{- if or (kindIs "map" $value) (kindIs "slice" $value) (kindIs "invalid" $value) -}}
{{- fail (printf "%s.%s: expected a string, got %s" $key $name (toJson $value)) -}}
{{- end -}}
{{- $_ := set $strings $name (toString $value) -}}
{{- end -}}
{{- $_ := set $s $key $strings -}}
{{- end -}}
{{- end -}}

{{- /* multus.flag, of (list NAME VALUE DEFAULT HINT), is chandler.boolean with a default for what is absent or null. */ -}}
{{- define "multus.flag" -}}
{{- $value := index . 1 -}}
{{- if kindIs "invalid" $value -}}
{{- index . 2 -}}
{{- else -}}
{{- include "chandler.boolean" (list (index . 0) $value (index . 3)) -}}
{{- end -}}
{{- end -}}

{{- /* multus.word, of (list NAME VALUE PATTERN WANTED), is VALUE as a string if it matches. */ -}}
{{- define "multus.word" -}}
{{- $value := index . 1 -}}
{{- if or (not (kindIs "string" $value)) (not (regexMatch (index . 2) (toString $value))) -}}
{{- fail (printf "%s: expected %s, got %s" (index . 0) (index . 3) (toJson $value)) -}}
{{- end -}}
{{- $value -}}
{{- end -}}

{{- /*
multus.path, of (list NAME VALUE), is VALUE if it can be the same place for the kubelet, the container runtime and Multus,
none of which agree on anything but a clean absolute path. "$(" is expanded in a container's arguments and nowhere else.
*/ -}}
{{- define "multus.path" -}}
{{- $path := include "multus.word" (list (index . 0) (index . 1) "^/[A-Za-z0-9/._@+=~ -]+$" "an absolute path below / of letters, digits, spaces and ._@+=~-") -}}
{{- if ne $path (clean $path) -}}
{{- fail (printf "%s: expected a path with no . or .. in it, no double and no trailing slash, got %q" (index . 0) $path) -}}
{{- end -}}
{{- $path -}}
{{- end -}}

{{- /* multus.quantity, of (list NAME VALUE), is an amount of memory, never nothing and never zero. */ -}}
{{- define "multus.quantity" -}}
{{- $value := index . 1 -}}
{{- $text := kindIs "float64" $value | ternary (int64 $value | toString) (toString $value) -}}
{{- if not (regexMatch "^[0-9]*[1-9][0-9]*(\\.[0-9]+)?([kMGTPE]|[KMGTPE]i)?$" $text) -}}
{{- fail (printf "%s: expected an amount of memory such as 128Mi, got %s" (index . 0) (toJson $value)) -}}
{{- end -}}
{{- $text -}}
{{- end -}}
