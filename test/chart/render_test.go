package chart

import (
	"maps"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/loader/archive"
	chartv2 "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	"sigs.k8s.io/yaml"
)

// object is one rendered document.
type object = map[string]any

const chartsDir = "../../charts"

// loaded are the checkout's charts by name; a render changes none.
var loaded sync.Map

// load reads a chart from the checkout, with files of it replaced.
func load(t testing.TB, name string, replaced map[string]string) *chartv2.Chart {
	t.Helper()
	shared, ok := loaded.Load(name)
	if !ok {
		shared, _ = loaded.LoadOrStore(name, loadDir(t, filepath.Join(chartsDir, name)))
	}
	c := shared.(*chartv2.Chart)
	if len(replaced) == 0 {
		return c
	}
	var files []*archive.BufferedFile
	left := maps.Clone(replaced)
	for _, f := range c.Raw {
		data := f.Data
		if text, ok := left[f.Name]; ok {
			data = []byte(text)
			delete(left, f.Name)
		}
		files = append(files, &archive.BufferedFile{Name: f.Name, ModTime: f.ModTime, Data: data})
	}
	for name := range left {
		t.Fatalf("the chart has no file %s", name)
	}
	c, err := loader.LoadFiles(files)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func loadDir(t testing.TB, dir string) *chartv2.Chart {
	t.Helper()
	c, err := loader.LoadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// appVersion is the version of Multus that the chart is made from.
func appVersion(t testing.TB) string { return load(t, "multus", nil).Metadata.AppVersion }

// release is what a render is for. The zero value is release "net" in namespace "cni", with no cluster to look into.
type release struct {
	chart   *chartv2.Chart // else charts/multus
	cluster engine.ClientProvider
}

// render renders the chart with values as a user's file would spell them, through the schema, as helm install does.
func (r release) render(t testing.TB, values string) (string, error) {
	t.Helper()
	vals, err := common.ReadValues([]byte(values))
	if err != nil {
		t.Fatalf("values: %v\n%s", err, values)
	}
	return r.renderMap(t, vals)
}

func (r release) renderMap(t testing.TB, vals map[string]any) (string, error) {
	t.Helper()
	c := r.chart
	if c == nil {
		c = load(t, "multus", nil)
	}
	top, err := util.ToRenderValues(c, vals, common.ReleaseOptions{Name: "net", Namespace: "cni", Revision: 1, IsInstall: true}, nil)
	if err != nil {
		return "", err
	}
	var files map[string]string
	if r.cluster != nil {
		files, err = engine.RenderWithClientProvider(c, top, r.cluster)
	} else {
		files, err = engine.Render(c, top)
	}
	if err != nil {
		return "", err
	}
	var out strings.Builder
	for _, name := range []string{"multus", "platform"} {
		for _, file := range []string{"multus.yaml", "packages.yaml"} {
			out.WriteString(files[name+"/templates/"+file])
		}
	}
	if strings.Contains(out.String(), "<no value>") {
		t.Errorf("an absent value was printed:\n%s", out.String())
	}
	return out.String(), nil
}

// objects renders and reads what came out. A render that fails fails the test.
func (r release) objects(t testing.TB, values string) objects {
	t.Helper()
	text, err := r.render(t, values)
	if err != nil {
		t.Fatalf("render: %v\nvalues:\n%s", err, values)
	}
	return parse(t, text)
}

// refused renders, expects it to fail, and returns why.
func (r release) refused(t testing.TB, values string) string {
	t.Helper()
	text, err := r.render(t, values)
	if err == nil {
		t.Fatalf("rendered %d bytes, and should not have:\n%s", len(text), values)
	}
	return err.Error()
}

// objects are rendered documents in their order.
type objects []object

var separator = regexp.MustCompile(`(?m)^---[ \t]*$`)

func parse(t testing.TB, text string) objects {
	t.Helper()
	var all objects
	for _, doc := range separator.Split(text, -1) {
		var o object
		if err := yaml.UnmarshalStrict([]byte(doc), &o); err != nil {
			t.Fatalf("rendered YAML: %v\n%s", err, doc)
		}
		if len(o) > 0 {
			all = append(all, o)
		}
	}
	return all
}

// find returns the one object KIND/NAME, or nil.
func (all objects) find(kind, name string) object {
	for _, o := range all {
		if o["kind"] == kind && at(o, "metadata", "name") == name {
			return o
		}
	}
	return nil
}

// daemonset returns the one DaemonSet there must be.
func (all objects) daemonset(t testing.TB) object {
	t.Helper()
	var found object
	for _, o := range all {
		if o["kind"] == "DaemonSet" {
			if found != nil {
				t.Fatal("two DaemonSets")
			}
			found = o
		}
	}
	if found == nil {
		t.Fatal("no DaemonSet")
	}
	return found
}

func (all objects) pod(t testing.TB) object {
	return at(all.daemonset(t), "spec", "template", "spec").(object)
}

// config returns the daemon's configuration.
func (all objects) config(t testing.TB) object {
	t.Helper()
	for _, o := range all {
		if o["kind"] == "ConfigMap" {
			var config object
			if err := yaml.Unmarshal([]byte(at(o, "data", "daemon-config.json").(string)), &config); err != nil {
				t.Fatal(err)
			}
			return config
		}
	}
	t.Fatal("no ConfigMap")
	return nil
}

// at walks down maps by key and lists by an item's name; nil where that leads nowhere.
func at(v any, path ...string) any {
	for _, step := range path {
		switch in := v.(type) {
		case map[string]any:
			v = in[step]
		case []any:
			v = named(in, step)
		default:
			return nil
		}
	}
	return v
}

func named(list []any, name string) any {
	for _, item := range list {
		if m, ok := item.(map[string]any); ok && m["name"] == name {
			return m
		}
	}
	return nil
}

// names are the names of a list's items.
func names(list any) []string {
	var all []string
	items, _ := list.([]any)
	for _, item := range items {
		name, _ := at(item, "name").(string)
		all = append(all, name)
	}
	return all
}
