package chart

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// Every rendered object is one to Kubernetes' own types: no field that they do not have, no value of another type.
func TestKubernetesKnowsEveryField(t *testing.T) {
	kinds := map[string]func() any{
		"Namespace":                func() any { return new(corev1.Namespace) },
		"ServiceAccount":           func() any { return new(corev1.ServiceAccount) },
		"ConfigMap":                func() any { return new(corev1.ConfigMap) },
		"ClusterRole":              func() any { return new(rbacv1.ClusterRole) },
		"ClusterRoleBinding":       func() any { return new(rbacv1.ClusterRoleBinding) },
		"DaemonSet":                func() any { return new(appsv1.DaemonSet) },
		"CustomResourceDefinition": func() any { return new(apiextensionsv1.CustomResourceDefinition) },
	}
	for _, values := range []string{"", "stageCniPlugins: true", "restoreCniPlugins: true", everything, "distribution: talos", "distribution: k3s"} {
		for _, o := range (release{}).objects(t, values) {
			typed := kinds[o["kind"].(string)]
			if typed == nil {
				t.Fatalf("a %v", o["kind"])
			}
			into := typed()
			if err := yaml.UnmarshalStrict([]byte(asJSON(t, o)), into); err != nil {
				t.Errorf("%v: %v", o["kind"], err)
				continue
			}
			if ds, ok := into.(*appsv1.DaemonSet); ok {
				checkPod(t, ds)
			}
		}
	}
}

// checkPod asks what the API server would.
func checkPod(t *testing.T, ds *appsv1.DaemonSet) {
	t.Helper()
	for key, value := range ds.Spec.Selector.MatchLabels {
		if ds.Spec.Template.Labels[key] != value {
			t.Errorf("the selector wants %s=%s and the pods have %q", key, value, ds.Spec.Template.Labels[key])
		}
	}
	pod := ds.Spec.Template.Spec
	volumes := make(map[string]bool)
	for _, v := range pod.Volumes {
		if volumes[v.Name] {
			t.Errorf("two volumes %s", v.Name)
		}
		volumes[v.Name] = true
	}
	for _, c := range append(pod.InitContainers, pod.Containers...) {
		at := make(map[string]bool)
		for _, m := range c.VolumeMounts {
			if !volumes[m.Name] || at[m.MountPath] {
				t.Errorf("%s mounts %s at %s: no such volume, or the second there", c.Name, m.Name, m.MountPath)
			}
			at[m.MountPath] = true
		}
		request, limit := c.Resources.Requests.Memory(), c.Resources.Limits.Memory()
		if limit.IsZero() || request.Cmp(*limit) > 0 {
			t.Errorf("%s asks for %s of %s", c.Name, request, limit)
		}
	}
}
