{{- /* platform.package, of (dict "root" $ "name" NAME "variant" VARIANT "components" DICT), is a Package, or nothing if it is disabled. */ -}}
{{- define "platform.package" -}}
{{- $bundles := .root.Values.bundles | default dict -}}
{{- if not (has .name ($bundles.disabledPackages | default list)) -}}
{{- $spec := dict "variant" (.variant | default "default") -}}
{{- if .components -}}{{- $_ := set $spec "components" .components -}}{{- end -}}
{{- $package := dict
      "apiVersion" "cozystack.io/v1alpha1"
      "kind" "Package"
      "metadata" (dict "name" .name "annotations" (dict "helm.sh/resource-policy" "keep"))
      "spec" $spec }}
---
{{ toYaml $package }}
{{- end -}}
{{- end -}}

{{- /*
platform.common, of $, is the packages that are the same in every variant with a network of its own. Those whose values
differ by variant are not here, and each branch emits them itself: networking, linstor, multus, cozystack-scheduler.
*/ -}}
{{- define "platform.common" -}}
{{- range list "kubeovn-webhook" "kubeovn-plunger" "cozy-proxy" "metallb" "reloader" "linstor-scheduler" "snapshot-controller" -}}
{{- include "platform.package" (dict "root" $ "name" (printf "cozystack.%s" .)) -}}
{{- end -}}
{{- end -}}

{{- /* platform.multus, of (dict "root" $ "stage" BOOLEAN "distribution" NAME), is Multus' package. */ -}}
{{- define "platform.multus" -}}
{{- /* Without a name Multus takes the first file it finds, which at boot is kube-ovn's. */ -}}
{{- $values := dict
      "stageCniPlugins" .stage
      "distribution" .distribution
      "multusMasterCNI" "05-cilium.conflist" -}}
{{- include "platform.package" (dict "root" .root "name" "cozystack.multus" "components" (dict "multus" (dict "values" $values))) -}}
{{- end -}}

{{- /* platform.stage, of (list $ DEFAULT), is whether plugins are staged: what networking.stageCniPlugins says, else DEFAULT. */ -}}
{{- define "platform.stage" -}}
{{- $networking := (index . 0).Values.networking | default dict -}}
{{- if kindIs "invalid" $networking.stageCniPlugins -}}
{{- index . 1 -}}
{{- else -}}
{{- include "chandler.boolean" (list "networking.stageCniPlugins" $networking.stageCniPlugins "leave it unset, or null, to follow the variant") -}}
{{- end -}}
{{- end -}}
