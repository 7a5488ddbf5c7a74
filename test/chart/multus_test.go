package chart

import (
	"fmt"
	"io"
	"log"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

const manifestPath = "upstream/multus-daemonset-thick.yml"

func vendored(t testing.TB) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(chartsDir, "multus", manifestPath))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// differences lists the places where b is not a, as paths in which a list's item goes by its name.
func differences(path string, a, b any) []string {
	am, aIs := a.(map[string]any)
	bm, bIs := b.(map[string]any)
	if aIs && bIs {
		var all []string
		keys := slices.Collect(maps.Keys(am))
		for key := range bm {
			if _, both := am[key]; !both {
				keys = append(keys, key)
			}
		}
		slices.Sort(keys)
		for _, key := range keys {
			av, inA := am[key]
			bv, inB := bm[key]
			switch {
			case !inA:
				all = append(all, "+"+path+"."+key)
			case !inB:
				all = append(all, "-"+path+"."+key)
			default:
				all = append(all, differences(path+"."+key, av, bv)...)
			}
		}
		return all
	}
	al, aIs := a.([]any)
	bl, bIs := b.([]any)
	if aIs && bIs && len(names(a)) > 0 && names(a)[0] != "" && names(b)[0] != "" {
		byName := func(list []any) map[string]any {
			m := make(map[string]any)
			for _, item := range list {
				m[fmt.Sprintf("[%s]", at(item, "name"))] = item
			}
			return m
		}
		return differences(path, byName(al), byName(bl))
	}
	if !reflect.DeepEqual(a, b) {
		return []string{path}
	}
	return nil
}

// Everything of upstream's that nobody asked to change is as upstream has it.
func TestNothingElseOfUpstreamChanges(t *testing.T) {
	up, got := parse(t, vendored(t)), release{}.objects(t, "stageCniPlugins: true")
	if len(up) != len(got) {
		t.Fatalf("%d objects from upstream's %d", len(got), len(up))
	}
	var diffs []string
	for i := range up {
		up[i]["metadata"].(object)["labels"], got[i]["metadata"].(object)["labels"] = nil, nil
		diffs = append(diffs, differences(up[i]["kind"].(string), up[i], got[i])...)
	}
	pod := "DaemonSet.spec.template.spec"
	want := []string{
		"+CustomResourceDefinition.metadata.annotations",
		"ClusterRoleBinding.subjects.[multus].namespace",
		"ServiceAccount.metadata.namespace",
		"ConfigMap.data.daemon-config.json",
		"ConfigMap.metadata.namespace",
		"DaemonSet.metadata.namespace",
		"+DaemonSet.spec.template.metadata.annotations",
		"+" + pod + ".affinity",
		"+" + pod + ".automountServiceAccountToken",
		pod + ".containers.[kube-multus].image",
		pod + ".containers.[kube-multus].resources.limits.memory",
		pod + ".containers.[kube-multus].resources.requests.memory",
		pod + ".containers.[kube-multus].volumeMounts",
		"+" + pod + ".initContainers.[install-cni-plugins]",
		pod + ".initContainers.[install-multus-binary].image",
		"+" + pod + ".initContainers.[install-multus-binary].resources.limits",
		"+" + pod + ".volumes.[service-account-token]",
	}
	// A container may mount a volume twice, so that mounts do not go by name: compared below.
	diffs = slices.DeleteFunc(diffs, func(d string) bool { return strings.Contains(d, "volumeMounts") })
	want = slices.DeleteFunc(want, func(d string) bool { return strings.Contains(d, "volumeMounts") })
	if !slices.Equal(diffs, want) {
		t.Errorf("changed:\n%s\nwant:\n%s", strings.Join(diffs, "\n"), strings.Join(want, "\n"))
	}
	upMounts := at(up.pod(t), "containers", "kube-multus", "volumeMounts").([]any)
	gotMounts := at(got.pod(t), "containers", "kube-multus", "volumeMounts").([]any)
	if !reflect.DeepEqual(upMounts, gotMounts[:len(upMounts)]) || len(gotMounts) != len(upMounts)+1 {
		t.Errorf("the daemon's mounts are %v", gotMounts)
	}
	upConfig, config := up.config(t), got.config(t)
	if d := differences("", upConfig, config); !slices.Equal(d, []string{"+.binDir"}) || config["binDir"] != "/opt/cni/bin" {
		t.Errorf("the daemon's configuration changed at %v", d)
	}
}

func TestStagingContainer(t *testing.T) {
	var want object
	if err := yaml.Unmarshal([]byte(`
name: install-cni-plugins
image: ghcr.io/chandler-cni/multus:`+appVersion(t)+`
command: [/usr/bin/chandler]
args: [stage, --init, --bundle=/cni-plugins, --bin-dir=/host/opt/cni/bin, --shown-as=/opt/cni/bin]
resources:
  requests: {cpu: 10m, memory: 15Mi}
  limits: {memory: 128Mi}
securityContext:
  allowPrivilegeEscalation: false
  capabilities: {drop: [ALL]}
  readOnlyRootFilesystem: true
  seLinuxOptions: {type: spc_t, level: s0}
terminationMessagePolicy: FallbackToLogsOnError
volumeMounts:
- {name: cnibin, mountPath: /host/opt/cni/bin}
`), &want); err != nil {
		t.Fatal(err)
	}
	pod := release{}.objects(t, "stageCniPlugins: true").pod(t)
	if got := at(pod, "initContainers", "install-cni-plugins"); !reflect.DeepEqual(got, want) {
		t.Errorf("the container is\n%v\nnot\n%v", got, want)
	}
	if got := names(pod["initContainers"]); !slices.Equal(got, []string{"install-multus-binary", "install-cni-plugins"}) {
		t.Errorf("init containers run in the order %v", got)
	}
	for _, off := range []string{"", "stageCniPlugins: false", "stageCniPlugins: null"} {
		if got := names(release{}.objects(t, off).pod(t)["initContainers"]); !slices.Equal(got, []string{"install-multus-binary"}) {
			t.Errorf("%q: init containers are %v", off, got)
		}
	}
}

// spellings are all that is understood, as YAML, and what they mean.
var spellings = func() map[string]bool {
	all := make(map[string]bool)
	for word, means := range map[string]bool{"true": true, "yes": true, "on": true, "1": true, "false": false, "no": false, "off": false, "0": false} {
		for _, spelled := range []string{word, strings.ToUpper(word), strings.ToUpper(word[:1]) + word[1:]} {
			all[spelled] = means
			all[`"`+spelled+`"`] = means
			all["'"+spelled+"'"] = means
		}
	}
	all["tRuE"], all["fAlSe"], all[`"oFf"`] = true, false, false
	return all
}()

// unreadable are values that are no spelling, and how the refusal quotes them.
var unreadable = map[string]string{
	"maybe": `got "maybe"`, `""`: `got ""`, "2": `got "2"`, "-1": `got "-1"`, `" true"`: `got " true"`, `"true\n"`: `got "true\n"`,
	`"y"`: `got "y"`, "enabled": `got "enabled"`, `"null"`: `got "null"`, "0.5": `got "0.5"`, `"<no value>"`: `got "<no value>"`,
}

func TestSpellings(t *testing.T) {
	for spelled, means := range spellings {
		pod := release{}.objects(t, "stageCniPlugins: "+spelled).pod(t)
		if got := at(pod, "initContainers", "install-cni-plugins") != nil; got != means {
			t.Errorf("%s was read as %t", spelled, got)
		}
	}
	for _, value := range []any{true, 1, int64(1), float64(1)} { // as --set and JSON bring them
		text, err := release{}.renderMap(t, map[string]any{"stageCniPlugins": value})
		if err != nil || !strings.Contains(text, "install-cni-plugins") {
			t.Errorf("%T %v: %v", value, value, err)
		}
	}
	for spelled, quoted := range unreadable {
		if got := (release{}).refused(t, "stageCniPlugins: "+spelled); !strings.Contains(got, "stageCniPlugins: expected a boolean, "+quoted) {
			t.Errorf("%s: %s", spelled, got)
		}
	}
	for _, name := range []string{"crds: {install: maybe}", "namespace: {create: maybe}", "foreignMultusCheck: maybe"} {
		if got := (release{}).refused(t, name); !strings.Contains(got, `expected a boolean, got "maybe"`) {
			t.Errorf("%s: %s", name, got)
		}
	}
}

func TestDistributions(t *testing.T) {
	for name, want := range map[string]struct {
		binDir, confDir string
		staged          bool
		policy          []any
		add             []any
		seLinux         any
	}{
		"talos":          {"/opt/cni/bin", "/etc/cni/net.d", true, nil, nil, nil},
		"generic":        {"/opt/cni/bin", "/etc/cni/net.d", true, nil, nil, "spc_t"},
		"k3s":            {"/var/lib/rancher/k3s/data/cni", "/var/lib/rancher/k3s/agent/etc/cni/net.d", true, []any{"--policy=missing"}, nil, "spc_t"},
		"k3s-no-flannel": {"/opt/cni/bin", "/etc/cni/net.d", true, nil, nil, "spc_t"},
		"kubespray":      {"/opt/cni/bin", "/etc/cni/net.d", false, nil, []any{"DAC_OVERRIDE"}, "spc_t"},
	} {
		all := release{}.objects(t, "distribution: "+name)
		checkPaths(t, all, want.binDir, want.confDir)
		if got := at(all.pod(t), "initContainers", "install-cni-plugins") != nil; got != want.staged {
			t.Errorf("%s: staging is %t", name, got)
		}
		// Asked for, it is there with the distribution's rights; declined, it is not.
		all = release{}.objects(t, "distribution: "+name+"\nstageCniPlugins: on")
		security := at(all.pod(t), "initContainers", "install-cni-plugins", "securityContext")
		if got, _ := at(security, "capabilities", "add").([]any); !reflect.DeepEqual(got, want.add) {
			t.Errorf("%s: capabilities %v are added", name, got)
		}
		if got := at(security, "seLinuxOptions", "type"); got != want.seLinux {
			t.Errorf("%s: the SELinux type is %v", name, got)
		}
		if got := policyArgs(t, "distribution: "+name+"\nstageCniPlugins: on"); !reflect.DeepEqual(got, want.policy) {
			t.Errorf("%s: the policy is %v", name, got)
		}
		if got := policyArgs(t, "{stageCniPlugins: on, stagePolicy: replace, distribution: "+name+"}"); got != nil {
			t.Errorf("%s: what is given does not go before the distribution: %v", name, got)
		}
		all = release{}.objects(t, "distribution: "+name+"\nstageCniPlugins: 0")
		if at(all.pod(t), "initContainers", "install-cni-plugins") != nil {
			t.Errorf("%s: staged after a no", name)
		}
	}
	all := release{}.objects(t, "{distribution: kubespray, stageCniPlugins: 1, binDir: /a, confDir: /b, stageCapabilities: [], stageSELinuxType: ''}")
	checkPaths(t, all, "/a", "/b")
	security := at(all.pod(t), "initContainers", "install-cni-plugins", "securityContext").(object)
	if at(security, "capabilities", "add") != nil || security["seLinuxOptions"] != nil {
		t.Errorf("what is given does not go before the distribution: %v", security)
	}
	all = release{}.objects(t, "{stageCniPlugins: 1, stageCapabilities: [CAP_DAC_OVERRIDE, fowner], stageSELinuxType: my_t}")
	security = at(all.pod(t), "initContainers", "install-cni-plugins", "securityContext").(object)
	if got := at(security, "capabilities", "add"); !reflect.DeepEqual(got, []any{"DAC_OVERRIDE", "FOWNER"}) || at(security, "seLinuxOptions", "type") != "my_t" {
		t.Errorf("the security context is %v", security)
	}
	got := (release{}).refused(t, "distribution: slackware")
	if !strings.Contains(got, `"slackware" is not known; known are generic, k3s, k3s-no-flannel, kubespray, talos`) {
		t.Error(got)
	}
}

// Where names are links out of the directory, the daemon sees what they lead to under the same path, and nobody else does.
func TestLinkTargets(t *testing.T) {
	for values, want := range map[string]any{
		"distribution: k3s": "/var/lib/rancher/k3s/data",
		"{distribution: k3s, binDir: /srv/k3s/data/cni, confDir: /srv/k3s/agent/etc/cni/net.d}": "/srv/k3s/data",
		"{distribution: k3s, stageCniPlugins: false}":                                           "/var/lib/rancher/k3s/data",
		"{distribution: k3s, binDir: /cni}":                                                     nil,
		"distribution: k3s-no-flannel":                                                          nil,
		"distribution: generic":                                                                 nil,
		"distribution: talos":                                                                   nil,
		"":                                                                                      nil,
	} {
		pod := release{}.objects(t, values).pod(t)
		if got := at(pod, "volumes", "cni-link-targets", "hostPath", "path"); got != want {
			t.Errorf("%s: the volume is %v", values, got)
		}
		mount := at(pod, "containers", "kube-multus", "volumeMounts", "cni-link-targets")
		if got := at(mount, "mountPath"); got != want || want != nil && at(mount, "readOnly") != true {
			t.Errorf("%s: the daemon's mount is %v", values, mount)
		}
		for _, c := range pod["initContainers"].([]any) {
			if at(c, "volumeMounts", "cni-link-targets") != nil {
				t.Errorf("%s: %v mounts it", values, at(c, "name"))
			}
		}
	}
	for values, says := range map[string]string{
		"{distribution: k3s, binDir: /usr/src/cni}":  "binDir: its links lead to /usr/src, which mounted there would hide /usr/src/multus-cni/bin/multus-daemon",
		"{distribution: k3s, binDir: /host/run/cni}": "binDir: its links lead to /host/run, where container kube-multus has its volume host-run",
	} {
		if got := (release{}).refused(t, values); !strings.Contains(got, says) {
			t.Errorf("%s: %s", values, got)
		}
	}
}

// checkPaths holds every place that names one of the two directories to it.
func checkPaths(t *testing.T, all objects, binDir, confDir string) {
	t.Helper()
	pod := all.pod(t)
	mount := func(list, container, volume string) any {
		return at(pod, list, container, "volumeMounts", volume, "mountPath")
	}
	got := map[string]any{
		"host path of cnibin":       at(pod, "volumes", "cnibin", "hostPath", "path"),
		"daemon's mount of cnibin":  mount("containers", "kube-multus", "cnibin"),
		"binDir":                    all.config(t)["binDir"],
		"installer's mount":         mount("initContainers", "install-multus-binary", "cnibin"),
		"installer's command":       fmt.Sprint(at(pod, "initContainers", "install-multus-binary", "command")),
		"host path of cni":          at(pod, "volumes", "cni", "hostPath", "path"),
		"daemon's mount of cni":     mount("containers", "kube-multus", "cni"),
		"cniConfigDir":              all.config(t)["cniConfigDir"],
		"multusAutoconfigDir":       all.config(t)["multusAutoconfigDir"],
		"number of cni mounts":      strings.Count(fmt.Sprint(at(pod, "containers", "kube-multus", "volumeMounts")), "name:cni]"),
		"a second place of the bin": !strings.Contains(binDir, "/opt/cni/bin") && strings.Contains(fmt.Sprint(pod), "/opt/cni/bin"),
	}
	want := map[string]any{
		"host path of cnibin":       binDir,
		"daemon's mount of cnibin":  binDir,
		"binDir":                    binDir,
		"installer's mount":         "/host" + binDir,
		"installer's command":       "[/usr/src/multus-cni/bin/install_multus -d /host" + binDir + " -t thick]",
		"host path of cni":          confDir,
		"daemon's mount of cni":     "/host" + confDir,
		"cniConfigDir":              "/host" + confDir,
		"multusAutoconfigDir":       "/host" + confDir,
		"number of cni mounts":      1,
		"a second place of the bin": false,
	}
	if at(pod, "initContainers", "install-cni-plugins") != nil {
		got["stager's mount"], want["stager's mount"] = mount("initContainers", "install-cni-plugins", "cnibin"), "/host"+binDir
		args := at(pod, "initContainers", "install-cni-plugins", "args").([]any)
		got["stager's command"] = fmt.Sprint(args[:min(5, len(args))])
		want["stager's command"] = "[stage --init --bundle=/cni-plugins --bin-dir=/host" + binDir + " --shown-as=" + binDir + "]"
	}
	for what := range want {
		if got[what] != want[what] {
			t.Errorf("%s is %v, not %v", what, got[what], want[what])
		}
	}
}

func TestUnusualPaths(t *testing.T) {
	for _, path := range []string{
		"/opt/cni/bin", "/a", "/var/snap/microk8s/current/opt/cni/bin", "/run/cni/bin", "/srv/My Plug-ins/c+n@i=1/~x_y", "/opt/...", "/opt/.hidden",
	} {
		checkPaths(t, release{}.objects(t, fmt.Sprintf("{stageCniPlugins: true, binDir: %q}", path)), path, "/etc/cni/net.d")
		checkPaths(t, release{}.objects(t, fmt.Sprintf("{stageCniPlugins: true, confDir: %q}", path)), "/opt/cni/bin", path)
		checkPaths(t, release{}.objects(t, fmt.Sprintf("{stageCniPlugins: true, binDir: %q, confDir: %q}", path+"/b", path+"/c")), path+"/b", path+"/c")
	}
	for _, path := range []string{
		"/", "", "opt/cni/bin", "./bin", "/opt/cni/bin/", "/opt//cni", "/opt/../etc", "/opt/cni/..", "/opt/./cni", "/opt/cni:bin", "/opt/$(HOME)",
		"/opt/{{ .Values }}", "/opt/a,b", "/opt/a\nb", "/opt/a\"b", "/opt/*", "/opt/é",
	} {
		for _, name := range []string{"binDir", "confDir"} {
			if got := (release{}).refused(t, fmt.Sprintf("%s: %q", name, path)); !strings.Contains(got, name+": expected ") {
				t.Errorf("%s %q: %s", name, path, got)
			}
		}
	}
	// Where the daemon has something else already, one of the two would hide the other.
	for values, says := range map[string]string{
		"binDir: /hostroot":        "has its volume hostroot at /hostroot",
		"binDir: /run/netns":       "has its volume host-run-netns at /run/netns",
		"binDir: /run":             "has its volume host-run",
		"binDir: /etc":             "has its volume multus-daemon-config",
		"confDir: /run":            "has its volume host-run at /host/run",
		"binDir: /usr":             "hide /usr/src/multus-cni/bin/multus-daemon",
		"binDir: /usr/src":         "hide /usr/src/multus-cni/bin/multus-daemon",
		"binDir: /var/lib/kubelet": "has its volume host-var-lib-kubelet",
	} {
		if got := (release{}).refused(t, values); !strings.Contains(got, says) {
			t.Errorf("%s: %s", values, got)
		}
	}
}

func TestImage(t *testing.T) {
	digest := "sha256:" + strings.Repeat("0a", 32)
	for values, want := range map[string]string{
		"":                                  "ghcr.io/chandler-cni/multus:" + appVersion(t),
		"image: {tag: x}":                   "ghcr.io/chandler-cni/multus:x",
		"image: {digest: '" + digest + "'}": "ghcr.io/chandler-cni/multus:" + appVersion(t) + "@" + digest,
		"image: {repository: 'localhost:5000/multus', tag: '1.10'}": "localhost:5000/multus:1.10",
	} {
		pod := release{}.objects(t, "stageCniPlugins: true\n"+values).pod(t)
		for _, list := range []string{"containers", "initContainers"} {
			for _, c := range pod[list].([]any) {
				if at(c, "image") != want || at(c, "imagePullPolicy") != nil {
					t.Errorf("%q: %s has image %v, pulled %v", values, at(c, "name"), at(c, "image"), at(c, "imagePullPolicy"))
				}
			}
		}
	}
	pod := release{}.objects(t, "{stageCniPlugins: true, image: {pullPolicy: Never}, imagePullSecrets: [one, {name: two}]}").pod(t)
	if got := names(pod["imagePullSecrets"]); !slices.Equal(got, []string{"one", "two"}) {
		t.Errorf("pull secrets are %v", got)
	}
	for _, list := range []string{"containers", "initContainers"} {
		for _, c := range pod[list].([]any) {
			if at(c, "imagePullPolicy") != "Never" {
				t.Errorf("%s is pulled %v", at(c, "name"), at(c, "imagePullPolicy"))
			}
		}
	}
	for values, says := range map[string]string{
		"image: null":                               "image.repository: expected",
		"image: {repository: null}":                 "image.repository: expected",
		"image: {repository: 'a/b:tag'}":            "image.repository: expected a repository without tag",
		"image: {repository: 'a/b@" + digest + "'}": "image.repository: expected",
		"image: {tag: 1.1}":                         "/image/tag",
		"image: {tag: 'a b'}":                       "image.tag: expected a tag",
		"image: {digest: sha256:short}":             "image.digest: expected",
		"image: {pullPolicy: always}":               "image.pullPolicy: expected Always",
		"image: {repo: x}":                          "additional properties 'repo' not allowed",
	} {
		if got := (release{}).refused(t, values); !strings.Contains(got, says) && !strings.Contains(got, strings.ReplaceAll(says, "/", ".")) {
			t.Errorf("%s: %s", values, got)
		}
	}
}

func TestMemory(t *testing.T) {
	for values, want := range map[string]string{
		"":                                  "kube-multus 100Mi/1Gi install-multus-binary 15Mi/128Mi install-cni-plugins 15Mi/128Mi",
		"memory: {daemon: {request: null}}": "kube-multus <nil>/1Gi install-multus-binary 15Mi/128Mi install-cni-plugins 15Mi/128Mi",
		"memory: {daemon: {limit: 2Gi}, installMultusBinary: {limit: 64Mi, request: 64Mi}, installCniPlugins: {limit: 268435456, request: '1.5Mi'}}": "kube-multus 100Mi/2Gi install-multus-binary 64Mi/64Mi install-cni-plugins 1.5Mi/268435456",
	} {
		pod := release{}.objects(t, "stageCniPlugins: true\n"+values).pod(t)
		var got []string
		for _, c := range append(slices.Clone(pod["containers"].([]any)), pod["initContainers"].([]any)...) {
			got = append(got, fmt.Sprintf("%v %v/%v", at(c, "name"), at(c, "resources", "requests", "memory"), at(c, "resources", "limits", "memory")))
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%q: memory is %v", values, got)
		}
		if at(pod, "containers", "kube-multus", "resources", "limits", "cpu") != "100m" {
			t.Error("the daemon's share of the processor is not upstream's")
		}
	}
	for values, says := range map[string]string{
		"memory: null":                               "memory.daemon.limit: expected an amount of memory",
		"memory: {daemon: null}":                     "memory.daemon.limit",
		"memory: {daemon: {limit: null}}":            "memory.daemon.limit",
		"memory: {daemon: {limit: ''}}":              "memory.daemon.limit",
		"memory: {daemon: {limit: 0}}":               "memory.daemon.limit",
		"memory: {daemon: {limit: 0Mi}}":             "memory.daemon.limit",
		"memory: {daemon: {limit: 1000m}}":           "memory.daemon.limit",
		"memory: {daemon: {limit: 1gb}}":             "memory.daemon.limit",
		"memory: {installCniPlugins: {request: -1}}": "memory.installCniPlugins.request",
	} {
		if got := (release{}).refused(t, values); !strings.Contains(got, says) {
			t.Errorf("%s: %s", values, got)
		}
	}
}

func TestNamesAndNamespace(t *testing.T) {
	for _, c := range []struct{ values, ns, ds, sa, cm string }{
		{"", "cni", "kube-multus-ds", "multus", "multus-daemon-config"},
		{"namespace: {name: kube-system}", "kube-system", "kube-multus-ds", "multus", "multus-daemon-config"},
		{"{name: cozy, namespace: {name: cozy-multus}}", "cozy-multus", "cozy", "cozy", "cozy-daemon-config"},
	} {
		all := release{}.objects(t, c.values)
		for _, kind := range []string{"ServiceAccount", "ConfigMap", "DaemonSet"} {
			name := map[string]string{"ServiceAccount": c.sa, "ConfigMap": c.cm, "DaemonSet": c.ds}[kind]
			if o := all.find(kind, name); at(o, "metadata", "namespace") != c.ns {
				t.Errorf("%q: %s %s is in namespace %v", c.values, kind, name, at(o, "metadata", "namespace"))
			}
		}
		binding := all.find("ClusterRoleBinding", c.sa)
		want := []any{object{"kind": "ServiceAccount", "name": c.sa, "namespace": c.ns}}
		if !reflect.DeepEqual(binding["subjects"], want) || at(binding, "roleRef", "name") != c.sa || all.find("ClusterRole", c.sa) == nil {
			t.Errorf("%q: binding %v", c.values, binding)
		}
		pod := all.pod(t)
		if pod["serviceAccountName"] != c.sa || at(pod, "volumes", "multus-daemon-config", "configMap", "name") != c.cm {
			t.Errorf("%q: the pod refers to %v", c.values, pod["serviceAccountName"])
		}
		if got := at(all.daemonset(t), "spec", "selector", "matchLabels"); !reflect.DeepEqual(got, object{"name": "multus"}) {
			t.Errorf("%q: the selector is %v", c.values, got)
		}
		if all.find("Namespace", c.ns) != nil {
			t.Errorf("%q: a namespace", c.values)
		}
	}
	all := release{}.objects(t, "namespace: {name: here, create: yes}")
	ns := all.find("Namespace", "here")
	for _, mode := range []string{"enforce", "audit", "warn"} {
		if at(ns, "metadata", "labels", "pod-security.kubernetes.io/"+mode) != "privileged" {
			t.Errorf("the namespace is %v", ns)
		}
	}
	if at(ns, "metadata", "annotations", "helm.sh/resource-policy") != "keep" || all[0]["kind"] != "Namespace" {
		t.Errorf("the namespace is %v", ns)
	}
	for _, values := range []string{"name: Upper", "name: -x", "namespace: {name: a.b}", "name: " + strings.Repeat("x", 53)} {
		if got := (release{}).refused(t, values); !strings.Contains(got, "expected") {
			t.Errorf("%s: %s", values, got)
		}
	}
}

func TestLabelsAndAnnotations(t *testing.T) {
	all := release{}.objects(t, "{labels: {team: net, cost: 7, ok: true}, annotations: {a: b}, podLabels: {tier2: x}, podAnnotations: {c: d}, namespace: {create: true}}")
	for _, o := range all {
		labels := at(o, "metadata", "labels")
		if at(labels, "team") != "net" || at(labels, "cost") != "7" || at(labels, "ok") != "true" || at(o, "metadata", "annotations", "a") != "b" {
			t.Errorf("%v has metadata %v", o["kind"], o["metadata"])
		}
		if at(labels, "app.kubernetes.io/instance") != "net" || at(labels, "tier2") != nil {
			t.Errorf("%v has labels %v", o["kind"], labels)
		}
	}
	ds := all.daemonset(t)
	meta := at(ds, "spec", "template", "metadata")
	if at(meta, "labels", "tier2") != "x" || at(meta, "annotations", "c") != "d" || at(meta, "labels", "team") != nil {
		t.Errorf("the pods' metadata is %v", meta)
	}
	if got := at(ds, "spec", "selector", "matchLabels"); !reflect.DeepEqual(got, object{"name": "multus"}) {
		t.Errorf("the selector is %v", got)
	}
	if at(all.find("CustomResourceDefinition", "network-attachment-definitions.k8s.cni.cncf.io"), "metadata", "annotations", "helm.sh/resource-policy") != "keep" {
		t.Error("an annotation displaced the CRD's policy")
	}
	for values, says := range map[string]string{
		"podLabels: {name: mine}":                       "podLabels.name: is part of the selector",
		"labels: {name: mine}":                          `labels.name: is set to "multus" already`,
		"labels: {app.kubernetes.io/name: x}":           "is set to \"multus\" already",
		"annotations: {helm.sh/resource-policy: other}": "is set to \"keep\" already",
		"labels: {a: {b: c}}":                           "/labels/a",
	} {
		if got := (release{}).refused(t, values); !strings.Contains(got, says) && !strings.Contains(got, "labels.a") {
			t.Errorf("%s: %s", values, got)
		}
	}
}

func TestScheduling(t *testing.T) {
	pod := release{}.objects(t, "").pod(t)
	want := `{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{"matchExpressions":[` +
		`{"key":"kubernetes.io/os","operator":"In","values":["linux"]},{"key":"kubernetes.io/arch","operator":"In","values":["amd64","arm64"]}]}]}}}`
	if got := asJSON(t, pod["affinity"]); got != want {
		t.Errorf("the affinity is %s", got)
	}
	if got := asJSON(t, pod["tolerations"]); got != `[{"effect":"NoSchedule","operator":"Exists"},{"effect":"NoExecute","operator":"Exists"}]` {
		t.Errorf("the tolerations are %s", got)
	}
	if pod["nodeSelector"] != nil || pod["priorityClassName"] != nil {
		t.Errorf("the pod is %v", pod)
	}
	all := release{}.objects(t, `
tolerations: [{key: a, operator: Exists}]
nodeSelector: {disk: ssd}
affinity: {podAffinity: {}}
priorityClassName: system-node-critical
updateStrategy: {type: RollingUpdate, rollingUpdate: {maxUnavailable: 10%}}
image: {architectures: [arm64]}
`)
	pod = all.pod(t)
	if got := asJSON(t, pod["tolerations"]); got != `[{"key":"a","operator":"Exists"}]` {
		t.Errorf("the tolerations are %s", got)
	}
	if asJSON(t, pod["nodeSelector"]) != `{"disk":"ssd"}` || asJSON(t, pod["affinity"]) != `{"podAffinity":{}}` || pod["priorityClassName"] != "system-node-critical" {
		t.Errorf("the pod is %v", pod)
	}
	if got := asJSON(t, at(all.daemonset(t), "spec", "updateStrategy")); got != `{"rollingUpdate":{"maxUnavailable":"10%"},"type":"RollingUpdate"}` {
		t.Errorf("the update strategy is %s", got)
	}
	pod = release{}.objects(t, "{tolerations: [], affinity: {}}").pod(t)
	if asJSON(t, pod["tolerations"]) != "[]" || pod["affinity"] != nil {
		t.Errorf("none is %v and %v", pod["tolerations"], pod["affinity"])
	}
	if got := asJSON(t, at(release{}.objects(t, "image: {architectures: [arm64]}").pod(t), "affinity")); !strings.Contains(got, `"values":["arm64"]`) {
		t.Errorf("the affinity is %s", got)
	}
}

// No container but the daemon's can act as the service account.
func TestServiceAccountToken(t *testing.T) {
	pod := release{}.objects(t, "stageCniPlugins: true").pod(t)
	if pod["automountServiceAccountToken"] != false {
		t.Errorf("automounting is %v", pod["automountServiceAccountToken"])
	}
	volume := at(pod, "volumes", "service-account-token", "projected", "sources")
	if got, want := asJSON(t, volume), `[{"serviceAccountToken":{"expirationSeconds":3607,"path":"token"}},`+
		`{"configMap":{"items":[{"key":"ca.crt","path":"ca.crt"}],"name":"kube-root-ca.crt"}},`+
		`{"downwardAPI":{"items":[{"fieldRef":{"apiVersion":"v1","fieldPath":"metadata.namespace"},"path":"namespace"}]}}]`; got != want {
		t.Errorf("the volume is %s", got)
	}
	for _, list := range []string{"containers", "initContainers"} {
		for _, c := range pod[list].([]any) {
			mount := at(c, "volumeMounts", "service-account-token")
			if daemon := at(c, "name") == "kube-multus"; daemon != (mount != nil) {
				t.Errorf("%v mounts %v", at(c, "name"), mount)
			} else if daemon && asJSON(t, mount) != `{"mountPath":"/var/run/secrets/kubernetes.io/serviceaccount","name":"service-account-token","readOnly":true}` {
				t.Errorf("the mount is %v", mount)
			}
		}
	}
}

func TestCRD(t *testing.T) {
	const name = "network-attachment-definitions.k8s.cni.cncf.io"
	for values, there := range map[string]bool{"": true, "crds: null": true, "crds: {install: null}": true, "crds: {install: on}": true, "crds: {install: 'No'}": false, "crds: {install: 0}": false} {
		crd := release{}.objects(t, values).find("CustomResourceDefinition", name)
		if (crd != nil) != there {
			t.Errorf("%q: the CRD is %v", values, crd)
		}
		if there && at(crd, "metadata", "annotations", "helm.sh/resource-policy") != "keep" {
			t.Errorf("%q: uninstalling deletes it", values)
		}
	}
}

func TestDaemonConfig(t *testing.T) {
	config := release{}.objects(t, "{multusMasterCNI: 05-cilium.conflist, daemonConfig: {logLevel: debug, metricsPort: 9091, perNodeCertificate: {enabled: off}}}").config(t)
	if config["multusMasterCNI"] != "05-cilium.conflist" || config["logLevel"] != "debug" || config["metricsPort"] != float64(9091) || config["chrootDir"] != "/hostroot" {
		t.Errorf("the configuration is %v", config)
	}
	if _, there := (release{}).objects(t, "").config(t)["multusMasterCNI"]; there {
		t.Error("multusMasterCNI is set without being asked for")
	}
	for values, says := range map[string]string{
		"daemonConfig: {perNodeCertificate: {enabled: true}}":                 "cert-approver, which the image does not carry",
		"daemonConfig: {perNodeCertificate: {enabled: maybe}}":                "daemonConfig.perNodeCertificate.enabled: expected a boolean",
		"daemonConfig: {perNodeCertificate: yes}":                             "cert-approver",
		"daemonConfig: {binDir: /x}":                                          "daemonConfig.binDir: set binDir instead",
		"daemonConfig: {cniConfigDir: /x}":                                    "daemonConfig.cniConfigDir: set confDir instead",
		"daemonConfig: {multusAutoconfigDir: /x}":                             "set confDir instead",
		"daemonConfig: {multusMasterCNI: x.conf}":                             "set multusMasterCNI instead",
		"multusMasterCNI: /etc/cni/net.d/x.conf":                              "multusMasterCNI: expected the name of a file",
		"multusMasterCNI: cilium":                                             "multusMasterCNI: expected",
		"multusMasterCNI: ../x.conf":                                          "multusMasterCNI: expected",
		"multusMasterCNI: 00-multus.conf":                                     "is what Multus itself writes",
		"{multusMasterCNI: x.conf, daemonConfig: {multusConfigFile: /tmp/x}}": "has no effect",
	} {
		if got := (release{}).refused(t, values); !strings.Contains(got, says) {
			t.Errorf("%s: %s", values, got)
		}
	}
	sum := func(values string) any {
		return at(release{}.objects(t, values).daemonset(t), "spec", "template", "metadata", "annotations", "checksum/daemon-config")
	}
	if sum("") == sum("multusMasterCNI: a.conf") || sum("") != sum("labels: {a: b}") {
		t.Error("a new configuration does not restart the daemon, or something else does")
	}
}

// Whatever is null, absent or of another type than expected, the answer is a render or a sentence, never a failure of the template.
func TestOddValues(t *testing.T) {
	log.SetOutput(io.Discard) // Helm's own remarks on every one of them
	defer log.SetOutput(os.Stderr)
	defaults := load(t, "multus", nil).Values
	check := func(values map[string]any) {
		t.Helper()
		_, err := release{}.renderMap(t, values)
		if err == nil {
			return
		}
		for _, bad := range []string{"nil pointer", "wrong type", "can't evaluate", "error calling", "invalid value"} {
			if strings.Contains(err.Error(), bad) {
				t.Errorf("%v: %v", values, err)
			}
		}
	}
	odd := []any{nil, "", "x", 0, 1.5, true, []any{}, []any{nil}, []any{"x"}, []any{1}, map[string]any{}, map[string]any{"x": nil}, map[string]any{"x": "y"}}
	for key, value := range defaults {
		for _, o := range odd {
			check(map[string]any{key: o, "stageCniPlugins": true})
		}
		under, _ := value.(map[string]any)
		for sub := range under {
			for _, o := range odd {
				check(map[string]any{key: map[string]any{sub: o}})
			}
		}
	}
	if got := (release{}).refused(t, "stageCNIPlugins: true"); !strings.Contains(got, "additional properties 'stageCNIPlugins' not allowed") {
		t.Error(got)
	}
	release{}.objects(t, "{global: {a: b}, _cluster: {c: d}}") // what platforms add to every chart's values
}

func TestRenderIsStable(t *testing.T) {
	first, err := release{}.render(t, "{distribution: k3s, labels: {b: c, a: b}, daemonConfig: {z: 1, a: 2}}")
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		if again, _ := (release{}).render(t, "{distribution: k3s, labels: {b: c, a: b}, daemonConfig: {z: 1, a: 2}}"); again != first {
			t.Fatal("two renders differ")
		}
	}
}
