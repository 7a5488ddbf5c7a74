package chart

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/fake"
	"sigs.k8s.io/yaml"
)

// cluster is an API server that has DaemonSets and nothing else.
type cluster struct{ client dynamic.Interface }

var daemonsets = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "daemonsets"}

func newCluster(t testing.TB, objects ...string) *cluster {
	t.Helper()
	var all []runtime.Object
	for _, text := range objects {
		o := new(unstructured.Unstructured)
		if err := yaml.Unmarshal([]byte(text), &o.Object); err != nil {
			t.Fatal(err)
		}
		o.SetAPIVersion("apps/v1")
		o.SetKind("DaemonSet")
		all = append(all, o)
	}
	return &cluster{fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
		map[schema.GroupVersionResource]string{daemonsets: "DaemonSetList"}, all...)}
}

func (c *cluster) GetClientFor(apiVersion, kind string) (dynamic.NamespaceableResourceInterface, bool, error) {
	return c.client.Resource(daemonsets), true, nil
}

func TestForeignMultus(t *testing.T) {
	const (
		upstreams = `{metadata: {name: kube-multus-ds, namespace: kube-system}, spec: {selector: {matchLabels: {name: multus}}, template: {spec: {containers: [{name: kube-multus, image: "ghcr.io/k8snetworkplumbingwg/multus-cni:snapshot-thick"}]}}}}`
		thin      = `{metadata: {name: rke2-multus, namespace: kube-system}, spec: {selector: {matchLabels: {app: rke2-multus}}, template: {spec: {containers: [{name: x, image: "rancher/hardened-multus-cni:v4"}]}}}}`
		byCommand = `{metadata: {name: net, namespace: a}, spec: {selector: {matchLabels: {app: net}}, template: {spec: {containers: [{name: x, image: "registry:5000/cni@sha256:00", command: [/bin/sh], args: [-c, exec /x/multus-daemon]}]}}}}`
		byInit    = `{metadata: {name: net, namespace: a}, spec: {selector: {matchLabels: {app: net}}, template: {spec: {containers: [{name: x, image: x}], initContainers: [{name: y, image: y, command: [/usr/src/multus-cni/bin/install_multus]}]}}}}`
		innocent  = `{metadata: {name: multus-dynamic-networks-controller, namespace: a}, spec: {selector: {matchLabels: {app: multus-dynamic-networks-controller}}, template: {spec: {containers: [{name: x, image: "ghcr.io/k/multus-dynamic-networks-controller:v1"}]}}}}`
		bare      = `{metadata: {name: bare, namespace: a}, spec: {selector: {}, template: {spec: {}}}}`
	)
	ours := strings.Replace(upstreams, "namespace: kube-system}", `namespace: elsewhere, annotations: {meta.helm.sh/release-name: net, meta.helm.sh/release-namespace: cni}}`, 1)
	other := strings.Replace(upstreams, "namespace: kube-system}", `namespace: elsewhere, annotations: {meta.helm.sh/release-name: other, meta.helm.sh/release-namespace: cni}}`, 1)

	for name, c := range map[string]struct {
		there  string
		values string
		says   []string // none: it is installed
	}{
		"none":                  {bare, "", nil},
		"upstream's":            {upstreams, "", []string{"DaemonSet kube-system/kube-multus-ds", "namespace.name=kube-system and install with --take-ownership", "Uninstalling", "foreignMultusCheck=false"}},
		"another selector":      {thin, "", []string{"DaemonSet kube-system/rke2-multus", "To remove it first"}},
		"by its command":        {byCommand, "", []string{"DaemonSet a/net"}},
		"by its init container": {byInit, "", []string{"DaemonSet a/net"}},
		"another release's":     {other, "", []string{"DaemonSet elsewhere/kube-multus-ds"}},
		"this release's":        {ours, "name: renamed", nil},
		"the same name":         {upstreams, "namespace: {name: kube-system}", nil},
		"another name":          {upstreams, "{name: mine, namespace: {name: kube-system}}", []string{"DaemonSet kube-system/kube-multus-ds"}},
		"told to":               {upstreams, "foreignMultusCheck: 'No'", nil},
	} {
		r := release{cluster: newCluster(t, innocent, c.there)}
		text, err := r.render(t, c.values)
		if len(c.says) == 0 {
			if err != nil || !strings.Contains(text, "kind: DaemonSet") {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		for _, says := range c.says {
			if err == nil || !strings.Contains(err.Error(), says) {
				t.Errorf("%s: want %q in %v", name, says, err)
			}
		}
		if name == "another selector" && strings.Contains(err.Error(), "take-ownership") {
			t.Errorf("%s: a selector can never be changed, and adopting is offered: %v", name, err)
		}
	}
}
