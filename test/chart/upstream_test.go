package chart

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/chandler-cni/chandler/internal/chart"
)

func reliedOn(t testing.TB) []chart.ReliedOn {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(chartsDir, "multus/files/relied-on.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	list, err := chart.ParseReliedOn(data)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// manifest prints objects as upstream's file would have them.
func manifest(t testing.TB, all objects) string {
	t.Helper()
	var b strings.Builder
	for _, o := range all {
		data, err := yaml.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "---\n%s", data)
	}
	return b.String()
}

// spoil changes the one thing that an entry of the list is about: it renames what must be there, or adds what must not be.
func spoil(t testing.TB, all objects, entry chart.ReliedOn) {
	t.Helper()
	kind, name, _ := strings.Cut(entry.Object, "/")
	o := all.find(kind, name)
	if o == nil {
		t.Fatalf("no %s", entry.Object)
	}
	switch {
	case len(entry.Path) == 0:
		o["metadata"].(object)["name"] = name + "-renamed"
	case entry.Absent:
		walk(t, o, entry.Path, func(in any, last any) any {
			in.(object)[last.(string)] = object{"enabled": true}
			return in
		})
	case entry.Only != nil:
		walk(t, o, entry.Path, func(in any, last any) any {
			in.(object)[last.(string)] = append(in.(object)[last.(string)].([]any), object{"name": "newcomer"})
			return in
		})
	default:
		walk(t, o, entry.Path, rename)
	}
}

// rename renames the last step of a path.
func rename(in any, last any) any {
	if fields, ok := last.(map[string]any); ok {
		list := in.([]any)
		i := slices.IndexFunc(list, func(item any) bool { return isItem(item, fields) })
		if want, scalar := fields["@item"]; scalar {
			list[i] = fmt.Sprint(want, "-renamed")
		} else {
			list[i].(object)["name"] = fmt.Sprint(fields["name"], "-renamed")
		}
		return list
	}
	if last == "@json" {
		return "not JSON"
	}
	o := in.(object)
	o[last.(string)+"Renamed"] = o[last.(string)]
	delete(o, last.(string))
	return o
}

func isItem(item any, fields map[string]any) bool {
	for key, want := range fields {
		if key == "@item" && item != want || key != "@item" && at(item, key) != want {
			return false
		}
	}
	return true
}

// walk goes along path and has change work on what holds its last step; text that is read as JSON on the way is written back.
func walk(t testing.TB, in any, path []any, change func(in, last any) any) any {
	t.Helper()
	if len(path) == 1 {
		return change(in, path[0])
	}
	switch step := path[0].(type) {
	case map[string]any:
		list := in.([]any)
		i := slices.IndexFunc(list, func(item any) bool { return isItem(item, step) })
		if i < 0 {
			t.Fatalf("nothing at %v", path)
		}
		list[i] = walk(t, list[i], path[1:], change)
		return list
	default:
		if step == "@json" {
			var o object
			if err := json.Unmarshal([]byte(in.(string)), &o); err != nil {
				t.Fatal(err)
			}
			return asJSON(t, walk(t, o, path[1:], change))
		}
		o := in.(object)
		o[step.(string)] = walk(t, o[step.(string)], path[1:], change)
		return o
	}
}

// Each thing on the list, once it is called something else, stops the render and the update, and both name it.
func TestReliedOnThingsRenamed(t *testing.T) {
	list := reliedOn(t)
	if len(list) < 25 {
		t.Fatalf("the list names %d things", len(list))
	}
	checkout := checkoutCopy(t)
	before := snapshot(t, checkout)
	for _, entry := range list {
		all := parse(t, vendored(t))
		spoil(t, all, entry)
		text := manifest(t, all)

		says := entry.What
		for _, r := range []release{{chart: load(t, "multus", map[string]string{manifestPath: text})}} {
			got := r.refused(t, "")
			if !strings.Contains(got, "upstream's manifest: "+says) || !strings.Contains(got, entry.For) {
				t.Errorf("%s: the render says %s", entry.What, got)
			}
		}

		file := filepath.Join(t.TempDir(), "manifest.yml")
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		u := chart.Update{Root: checkout, Version: "v4.9.9", File: file}
		_, err := u.Run(context.Background())
		var unfit *chart.UnfitError
		if !errors.As(err, &unfit) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: the update says %v", entry.What, err)
		}
	}
	if !reflect.DeepEqual(snapshot(t, checkout), before) {
		t.Error("a refused update changed the checkout")
	}
}

// A manifest that is no manifest is refused by both as well.
func TestNoManifest(t *testing.T) {
	checkout := checkoutCopy(t)
	for _, text := range []string{"", "---\n", "just: a map\n", "- a list\n", "a: [\n", "kind: X\nmetadata: {}\n"} {
		r := release{chart: load(t, "multus", map[string]string{manifestPath: text})}
		if got := r.refused(t, ""); !strings.Contains(got, "upstream's manifest: ") {
			t.Errorf("%q: the render says %s", text, got)
		}
		file := filepath.Join(t.TempDir(), "manifest.yml")
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := (&chart.Update{Root: checkout, Version: "v4.9.9", File: file}).Run(context.Background()); err == nil {
			t.Errorf("%q: the update took it", text)
		}
	}
}

// checkoutCopy is a copy of what an update touches.
func checkoutCopy(t testing.TB) string {
	t.Helper()
	root := t.TempDir()
	if err := os.CopyFS(filepath.Join(root, "charts/multus"), os.DirFS(filepath.Join(chartsDir, "multus"))); err != nil {
		t.Fatal(err)
	}
	return root
}

func snapshot(t testing.TB, root string) map[string]string {
	t.Helper()
	all := make(map[string]string)
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		all[path] = string(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// Vendoring the version that the chart says it has changes nothing: the file is upstream's, byte for byte.
func TestVendoredManifestIsUpstreams(t *testing.T) {
	u := chart.Update{Root: "../..", Version: appVersion(t), DryRun: true, Environ: os.Environ()}
	changes, err := u.Run(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range changes {
		if c.Done == "changed" {
			t.Errorf("%+v", c)
		}
	}
}

// everything is a values file that uses every customisation.
const everything = `
distribution: kubespray
stageCniPlugins: "On"
stagePolicy: newer
stagePolicyFor: {bridge: never}
stageUnknown: keep
binDir: /srv/cni bin
confDir: /srv/cni conf
stageCapabilities: [DAC_OVERRIDE, FOWNER]
stageSELinuxType: my_t
multusMasterCNI: 05-cilium.conflist
daemonConfig: {logLevel: debug}
name: cozy-multus
namespace: {name: cozy, create: true}
image: {repository: localhost:5000/m, tag: t, digest: "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef", pullPolicy: Always}
imagePullSecrets: [secret]
memory: {daemon: {request: 200Mi, limit: 2Gi}, installMultusBinary: {limit: 64Mi}, installCniPlugins: {limit: 32Mi}}
tolerations: [{operator: Exists}]
nodeSelector: {a: b}
affinity: {podAffinity: {}}
priorityClassName: system-node-critical
updateStrategy: {type: OnDelete}
labels: {l: "1"}
annotations: {a: "1"}
podLabels: {pl: "1"}
podAnnotations: {pa: "1"}
`

// customisation is what everything asks for, read out of a render, with what is upstream's own left out.
func customisation(t testing.TB, all objects) string {
	t.Helper()
	checked, _ := t.(*testing.T)
	checkPaths(checked, all, "/srv/cni bin", "/srv/cni conf")
	ds, pod := all.daemonset(t), all.pod(t)
	var parts []any
	add := func(v any) {
		if v == nil {
			t.Errorf("part %d of the customisation is missing", len(parts))
		}
		parts = append(parts, v)
	}
	for _, o := range all {
		add(at(o, "metadata", "labels", "l"))
		add(at(o, "metadata", "annotations", "a"))
		if ns := at(o, "metadata", "namespace"); ns != nil && ns != "cozy" {
			t.Errorf("%v is in namespace %v", o["kind"], ns)
		}
	}
	add(all.find("Namespace", "cozy"))
	add(all.find("ClusterRoleBinding", "cozy-multus")["subjects"])
	add(all.find("ClusterRoleBinding", "cozy-multus")["roleRef"])
	add(all.find("ServiceAccount", "cozy-multus"))
	add(all.find("ClusterRole", "cozy-multus")["metadata"])
	add(all.find("ConfigMap", "cozy-multus-daemon-config")["metadata"])
	for _, key := range []string{"binDir", "cniConfigDir", "multusAutoconfigDir", "multusMasterCNI", "logLevel"} {
		add(all.config(t)[key])
	}
	add(ds["metadata"])
	add(at(ds, "spec", "updateStrategy"))
	add(at(ds, "spec", "selector"))
	add(at(ds, "spec", "template", "metadata", "labels"))
	add(at(ds, "spec", "template", "metadata", "annotations", "pa"))
	for _, key := range []string{"serviceAccountName", "automountServiceAccountToken", "imagePullSecrets", "tolerations", "nodeSelector", "affinity", "priorityClassName"} {
		add(pod[key])
	}
	for _, key := range []string{"cni", "cnibin", "multus-daemon-config", "service-account-token"} {
		add(at(pod, "volumes", key))
	}
	for _, c := range append(slices.Clone(pod["containers"].([]any)), pod["initContainers"].([]any)...) {
		for _, key := range []string{"name", "image", "imagePullPolicy"} {
			add(at(c, key))
		}
		add(at(c, "resources", "limits", "memory"))
		add(at(c, "resources", "requests", "memory"))
		add(at(c, "volumeMounts", "cnibin"))
	}
	add(at(pod, "containers", "kube-multus", "volumeMounts", "cni"))
	add(at(pod, "containers", "kube-multus", "volumeMounts", "service-account-token"))
	add(at(pod, "initContainers", "install-multus-binary", "command"))
	add(at(pod, "initContainers", "install-cni-plugins"))
	return asJSON(t, parts)
}

// altered is a manifest of another version: everything that can be said otherwise is, nothing that is relied on is gone.
func altered(t testing.TB) string {
	t.Helper()
	all := parse(t, vendored(t))
	ds := all.daemonset(t)
	pod := all.pod(t)
	pod["terminationGracePeriodSeconds"] = 42
	pod["dnsPolicy"] = "ClusterFirstWithHostNet"
	pod["volumes"] = append([]any{object{"name": "new", "emptyDir": object{}}}, pod["volumes"].([]any)...)
	daemon := at(pod, "containers", "kube-multus").(object)
	daemon["image"] = "example.org/elsewhere:later"
	daemon["volumeMounts"] = append([]any{object{"name": "new", "mountPath": "/new"}}, daemon["volumeMounts"].([]any)...)
	daemon["env"] = append(daemon["env"].([]any), object{"name": "NEW", "value": "1"})
	daemon["resources"] = object{"requests": object{"memory": "1Ki", "cpu": "1m"}}
	install := at(pod, "initContainers", "install-multus-binary").(object)
	install["command"] = []any{"/usr/src/multus-cni/bin/install_multus", "-t", "thick", "-d", "/other/place", "--new"}
	at(install, "volumeMounts", "cnibin").(object)["mountPath"] = "/other/place"
	at(pod, "volumes", "cni", "hostPath").(object)["path"] = "/other/conf"
	at(ds, "metadata", "labels").(object)["new"] = "label"
	all.find("ConfigMap", "multus-daemon-config")["data"].(object)["daemon-config.json"] =
		`{"cniConfigDir":"/other","multusAutoconfigDir":"/other","multusConfigFile":"auto","newKey":{"a":[1]},"logLevel":"error"}`
	all = append(all, object{"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": object{"name": "new", "namespace": "kube-system"},
		"subjects": []any{object{"kind": "ServiceAccount", "name": "multus", "namespace": "kube-system"}}, "roleRef": object{"kind": "Role", "name": "new", "apiGroup": "rbac.authorization.k8s.io"}})
	return "# A comment.\n" + manifest(t, all)
}

// chart update takes other manifests, and every customisation is still there afterwards.
func TestUpdateKeepsCustomisation(t *testing.T) {
	now := release{}.objects(t, everything)
	want := customisation(t, now)
	text := altered(t)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/multus-daemonset-thick.yml" {
			http.NotFound(w, r)
			return
		}
		fmt.Fprint(w, text)
	}))
	defer server.Close()

	for name, u := range map[string]chart.Update{
		"module v4.2.4": {Version: "v4.2.4", Environ: os.Environ()},
		"served":        {Version: "v4.9.9", URL: server.URL + "/multus-daemonset-thick.yml"},
	} {
		t.Run(name, func(t *testing.T) {
			u.Root = checkoutCopy(t)
			changes, err := u.Run(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			var done []string
			for _, c := range changes {
				done = append(done, c.Path+" "+c.Done)
			}
			if want := []string{"charts/multus/" + manifestPath + " changed", "charts/multus/Chart.yaml changed", "upstream/multus/go.mod absent"}; !slices.Equal(done, want) {
				t.Errorf("done: %v", done)
			}
			got, err := os.ReadFile(filepath.Join(u.Root, "charts/multus", manifestPath))
			if err != nil {
				t.Fatal(err)
			}
			if u.URL != "" && string(got) != text {
				t.Error("the served manifest was not taken byte for byte")
			}
			c := loadDir(t, filepath.Join(u.Root, "charts/multus"))
			if c.Metadata.AppVersion != u.Version || c.Metadata.Description != load(t, "multus", nil).Metadata.Description {
				t.Errorf("the chart's metadata is %+v", c.Metadata)
			}
			all := release{chart: c}.objects(t, everything)
			if u.URL != "" {
				pod := all.pod(t)
				if at(pod, "containers", "kube-multus", "volumeMounts", "new") == nil || asJSON(t, pod["terminationGracePeriodSeconds"]) != "42" ||
					asJSON(t, all.config(t)["newKey"]) != `{"a":[1]}` || at(all.find("RoleBinding", "new"), "metadata", "namespace") != "cozy" ||
					asJSON(t, all.find("RoleBinding", "new")["subjects"]) != `[{"kind":"ServiceAccount","name":"cozy-multus","namespace":"cozy"}]` ||
					at(pod, "initContainers", "install-multus-binary", "command").([]any)[5] != "--new" {
					t.Error("what is new in the manifest did not arrive, or not under the release's names")
				}
				// Drop what is the manifest's own, so that the rest can be compared.
				all = slices.DeleteFunc(all, func(o object) bool { return o["kind"] == "RoleBinding" })
				delete(at(all.daemonset(t), "metadata", "labels").(object), "new")
				at(pod, "initContainers", "install-multus-binary").(object)["command"] = at(now.pod(t), "initContainers", "install-multus-binary", "command")
			}
			version := strings.NewReplacer(`"app.kubernetes.io/version":"`+u.Version+`"`, `"app.kubernetes.io/version":"`+appVersion(t)+`"`)
			if got := version.Replace(customisation(t, all)); got != want {
				t.Errorf("the customisation is\n%s\nnot\n%s", got, want)
			}
		})
	}

	u := chart.Update{Root: checkoutCopy(t), Version: "v4.9.9", URL: server.URL + "/nowhere"}
	if _, err := u.Run(context.Background()); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("an absent manifest: %v", err)
	}
}
