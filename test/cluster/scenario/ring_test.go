// Package scenario shows on a real node what chandler is for: the image and the charts are those that are shipped, and each
// scenario asserts what a user would see. The scenarios share one node and stand in the order of their numbers; each brings
// the node to where it begins, so that one can be run alone.
package scenario

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chandler-cni/chandler/test/cluster/node"
)

// What the charts and the platform call things.
const (
	packages  = "/apis/cozystack.io/v1alpha1/packages"
	namespace = "cozy-multus"
	daemonset = "kube-multus-ds"
	// imageRepository is where the charts look for the image.
	imageRepository = "ghcr.io/chandler-cni/multus"
	binDir          = "/opt/cni/bin"
)

// ring is the one node, and what is installed on it.
var ring *cluster

type cluster struct {
	*node.Node
	charts      string // the folder of the charts
	image       string // the archive of chandler's image
	bundle      string // the bundle that is in it
	chandler    string // the program that is in it
	chandlerctl string
	work        string // a folder for files
}

func TestMain(m *testing.M) {
	node.Main()
	os.Exit(func() int {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		start := time.Now()
		var err error
		if ring, err = prepare(ctx); err != nil {
			fmt.Fprintln(os.Stderr, "FAIL: no node:", err)
			return 1
		}
		fmt.Printf("ok node ready (%.1f s)\n", time.Since(start).Seconds())
		code := m.Run()
		if err := ring.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, "FAIL:", err)
			return 1
		}
		return code
	}())
}

// prepare starts the node and gives it chandler's image.
func prepare(ctx context.Context) (*cluster, error) {
	c := new(cluster)
	var folder string
	for name, path := range map[string]*string{
		"CLUSTER": &folder, "IMAGE": &c.image, "BUNDLE": &c.bundle, "CHARTS": &c.charts, "CHANDLER": &c.chandler, "CHANDLERCTL": &c.chandlerctl,
	} {
		value := os.Getenv(name)
		if value == "" {
			return nil, fmt.Errorf("%s is not set; `make cluster` sets it", name)
		}
		var err error
		if *path, err = filepath.Abs(value); err != nil {
			return nil, err
		}
	}
	if err := node.Missing(); err != nil {
		return nil, err
	}
	dir := node.Dir(folder)
	if err := node.Build(ctx, dir, "..", os.Stderr); err != nil {
		return nil, err
	}
	n, err := node.Start(ctx, dir, os.Stderr)
	if err != nil {
		return nil, err
	}
	c.Node, c.work = n, filepath.Join(dir.State(), "work")
	if err := os.MkdirAll(c.work, 0o755); err != nil {
		return nil, err
	}
	if err := n.Import(ctx, c.image); err != nil {
		return nil, err
	}
	crds, err := filepath.Abs("testdata/platform-crds.yaml")
	if err != nil {
		return nil, err
	}
	if out, err := n.Command(ctx, dir.Tool("kubectl"), "create", "-f", crds).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("create the platform's definitions: %w: %s", err, out)
	}
	return c, nil
}

// scenario runs one and says so on a line of its own. When it fails it shows what the node has to say.
func scenario(t *testing.T, number int, what string, run func(t *testing.T)) {
	start := time.Now()
	defer func() {
		if t.Failed() {
			ring.explain(t)
			return
		}
		fmt.Printf("ok scenario %d: %s (%.1f s)\n", number, what, time.Since(start).Seconds())
	}()
	run(t)
}

// explain prints what somebody would look at next.
func (c *cluster) explain(t *testing.T) {
	for _, args := range [][]string{
		{"get", "pods", "-A", "-o", "wide"},
		{"get", "events", "-A", "--sort-by=.lastTimestamp"},
		{"-n", namespace, "describe", "pods"},
		{"-n", namespace, "logs", "-l", "name=multus", "--all-containers", "--tail=40", "--prefix"},
	} {
		out, err := c.kubectl(args...)
		t.Logf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

func (c *cluster) tool(name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	var stdout, stderr bytes.Buffer
	cmd := c.Command(ctx, name, args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("%s %s: %w: %s", filepath.Base(name), strings.Join(args, " "), err, stderr.String())
	}
	return stdout.String(), nil
}

func (c *cluster) kubectl(args ...string) (string, error) {
	return c.tool(c.Dir.Tool("kubectl"), args...)
}

func (c *cluster) helm(args ...string) (string, error) { return c.tool(c.Dir.Tool("helm"), args...) }

// platform installs or upgrades the platform's chart and returns the values that it has for Multus, as the API server has
// them: what the platform's operator would hand to Multus' chart.
func (c *cluster) platform(t *testing.T, sets ...string) []byte {
	t.Helper()
	args := []string{"upgrade", "--install", "platform", filepath.Join(c.charts, "platform"), "--namespace=cozy-system", "--create-namespace"}
	for _, s := range sets {
		args = append(args, "--set", s)
	}
	if _, err := c.helm(args...); err != nil {
		t.Fatal(err)
	}
	object, err := c.API.Get(packages + "/cozystack.multus")
	if err != nil {
		t.Fatal(err)
	}
	values := node.At(object, "spec", "components", "multus", "values")
	if values == nil {
		t.Fatalf("the Package has no values for Multus: %v", object)
	}
	data, err := json.Marshal(values)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// multus installs or upgrades Multus' chart with the values, and waits until every pod of the DaemonSet is one of this
// revision, is ready, and has told the container runtime about itself.
func (c *cluster) multus(t *testing.T, values []byte, more ...string) {
	t.Helper()
	file := filepath.Join(c.work, "values.json")
	if err := os.WriteFile(file, values, 0o644); err != nil {
		t.Fatal(err)
	}
	args := append([]string{"upgrade", "--install", "multus", filepath.Join(c.charts, "multus"),
		"--namespace=" + namespace, "--create-namespace", "--values=" + file}, more...)
	if _, err := c.helm(args...); err != nil {
		t.Fatal(err)
	}
	c.rolledOut(t)
}

// staging brings Multus to be installed with staging on or off, by the platform's switch.
func (c *cluster) staging(t *testing.T, on bool, more ...string) {
	t.Helper()
	values := c.platform(t, fmt.Sprintf("networking.stageCniPlugins=%t", on))
	c.multus(t, values, more...)
}

func (c *cluster) rolledOut(t *testing.T) {
	t.Helper()
	eventually(t, 2*time.Minute, func() error {
		d, err := c.API.Get("/apis/apps/v1/namespaces/" + namespace + "/daemonsets/" + daemonset)
		if err != nil {
			return err
		}
		status := func(name string) float64 { n, _ := node.At(d, "status", name).(float64); return n }
		if g, _ := node.At(d, "metadata", "generation").(float64); status("observedGeneration") != g ||
			status("updatedNumberScheduled") != 1 || status("numberReady") != 1 || status("desiredNumberScheduled") != 1 {
			return fmt.Errorf("the DaemonSet is not there yet: %v", d["status"])
		}
		// Before the runtime has read this file, pods with annotations start without their interfaces, silently. It watches the folder,
		// and does not say when it has.
		info, err := os.Stat(c.Dir.Host("/etc/cni/net.d/00-multus.conf"))
		if err == nil && time.Since(info.ModTime()) < time.Second {
			err = errors.New("the runtime may not have read Multus' configuration yet")
		}
		return err
	})
}

// restart replaces the pod of Multus, and so stages anew, and returns the new one.
func (c *cluster) restart(t *testing.T) node.Object {
	t.Helper()
	return c.succeeded(t, c.endMultus(t))
}

// endMultus deletes the pod of Multus and returns what it was.
func (c *cluster) endMultus(t *testing.T) node.Object {
	t.Helper()
	pod := c.multusPod(t)
	if err := c.API.Delete("/api/v1/namespaces/" + namespace + "/pods/" + node.Text(pod, "metadata", "name")); err != nil {
		t.Fatal(err)
	}
	return pod
}

// succeeded waits until another pod has taken the place of a pod of Multus, and returns it.
func (c *cluster) succeeded(t *testing.T, old node.Object) node.Object {
	t.Helper()
	eventually(t, time.Minute, func() error {
		if node.Text(c.multusPod(t), "metadata", "uid") == node.Text(old, "metadata", "uid") {
			return errors.New("the old pod of Multus is still there")
		}
		_, err := c.API.Get("/api/v1/namespaces/" + namespace + "/pods/" + node.Text(old, "metadata", "name"))
		if !node.NotFound(err) {
			return fmt.Errorf("the old pod of Multus has not ended (%v)", err)
		}
		for _, condition := range node.List(c.multusPod(t), "status", "conditions") {
			if node.Text(condition, "type") == "Ready" && node.Text(condition, "status") == "True" {
				return nil
			}
		}
		return errors.New("the new pod of Multus is not Ready")
	})
	c.rolledOut(t)
	return c.multusPod(t)
}

// multusPod is the one pod of Multus that is not on its way out.
func (c *cluster) multusPod(t *testing.T) node.Object {
	t.Helper()
	var found node.Object
	eventually(t, time.Minute, func() error {
		pods, err := c.API.Get("/api/v1/namespaces/" + namespace + "/pods?labelSelector=name%3Dmultus")
		if err != nil {
			return err
		}
		found = nil
		for _, p := range node.List(pods, "items") {
			if node.Text(p, "metadata", "deletionTimestamp") == "" {
				if found != nil {
					return errors.New("two pods of Multus")
				}
				found = p.(node.Object)
			}
		}
		if found == nil {
			return errors.New("no pod of Multus")
		}
		return nil
	})
	return found
}

// terminationMessage is what the staging container of a pod of Multus left.
func terminationMessage(pod node.Object) string { return lastWords(pod, "install-cni-plugins") }

// lastWords is the termination message of an init container, or nothing if the pod has none of that name.
func lastWords(pod node.Object, container string) string {
	for _, s := range node.List(pod, "status", "initContainerStatuses") {
		if node.Text(s, "name") == container {
			return strings.TrimSuffix(node.Text(s, "state", "terminated", "message"), "\n")
		}
	}
	return ""
}

// eventually fails the test if try does not succeed in time.
func eventually(t *testing.T, limit time.Duration, try func() error) {
	t.Helper()
	deadline := time.Now().Add(limit)
	for {
		err := try()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %v", limit, err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// place is a namespace of the API with pods and networks in it.
type place struct {
	*cluster
	name string
}

// in is the place of that name, made if it is not there.
func (c *cluster) in(t *testing.T, name string) place {
	t.Helper()
	_, err := c.API.Create("/api/v1/namespaces", node.Object{"metadata": node.Object{"name": name}})
	var status *node.StatusError
	if err != nil && !(errors.As(err, &status) && status.Code == 409) {
		t.Fatal(err)
	}
	eventually(t, 30*time.Second, func() error {
		_, err := c.API.Get("/api/v1/namespaces/" + name + "/serviceaccounts/default")
		return err
	})
	return place{c, name}
}

func (p place) pods() string { return "/api/v1/namespaces/" + p.name + "/pods" }

func (p place) networks() string {
	return "/apis/k8s.cni.cncf.io/v1/namespaces/" + p.name + "/network-attachment-definitions"
}

// network makes a NetworkAttachmentDefinition, or makes it anew.
func (p place) network(t *testing.T, name string, config node.Object) {
	t.Helper()
	text, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.API.Delete(p.networks() + "/" + name); err != nil && !node.NotFound(err) {
		t.Fatal(err)
	}
	if _, err := p.API.Create(p.networks(), node.Object{
		"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
		"metadata": node.Object{"name": name}, "spec": node.Object{"config": string(text)},
	}); err != nil {
		t.Fatal(err)
	}
}

// start makes a pod that serves on port 7000. networks is the value of the annotation that Multus reads; empty is none.
func (p place) start(t *testing.T, name, networks string) {
	t.Helper()
	if err := p.create(name, networks); err != nil {
		t.Fatal(err)
	}
}

func (p place) create(name, networks string) error {
	metadata := node.Object{"name": name, "labels": node.Object{"app": name}}
	if networks != "" {
		metadata["annotations"] = node.Object{"k8s.v1.cni.cncf.io/networks": networks}
	}
	_, err := p.API.Create(p.pods(), node.Object{
		"apiVersion": "v1", "kind": "Pod", "metadata": metadata,
		"spec": node.Object{
			"terminationGracePeriodSeconds": 1,
			"automountServiceAccountToken":  false,
			"containers": []any{node.Object{
				"name": "probe", "image": node.PauseImage, "args": []any{"serve", "7000"},
			}},
		},
	})
	return err
}

// running waits until the pod is, and returns it.
func (p place) running(t *testing.T, name string) node.Object {
	t.Helper()
	var pod node.Object
	eventually(t, 90*time.Second, func() error {
		var err error
		if pod, err = p.API.Get(p.pods() + "/" + name); err != nil {
			return err
		}
		if phase := node.Text(pod, "status", "phase"); phase != "Running" {
			return fmt.Errorf("pod %s is %s: %s", name, phase, strings.Join(p.events(name), "; "))
		}
		return nil
	})
	return pod
}

// remove deletes pods and waits until they are gone.
func (p place) remove(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		if err := p.API.Delete(p.pods() + "/" + name); err != nil && !node.NotFound(err) {
			t.Fatal(err)
		}
	}
	for _, name := range names {
		eventually(t, time.Minute, func() error {
			_, err := p.API.Get(p.pods() + "/" + name)
			if node.NotFound(err) {
				return nil
			}
			return fmt.Errorf("pod %s is still there (%v)", name, err)
		})
	}
}

// events are the messages of a pod's events.
func (p place) events(pod string) []string {
	list, err := p.API.Get("/api/v1/namespaces/" + p.name + "/events?fieldSelector=involvedObject.name%3D" + pod)
	if err != nil {
		return []string{err.Error()}
	}
	var all []string
	for _, e := range node.List(list, "items") {
		all = append(all, node.Text(e, "reason")+": "+node.Text(e, "message"))
	}
	return all
}

// exec runs the probe in a pod.
func (p place) exec(pod string, args ...string) (string, error) {
	out, err := p.kubectl(append([]string{"-n", p.name, "exec", pod, "--", "/probe"}, args...)...)
	return strings.TrimSpace(out), err
}

// inside runs one of the machine's programs in the network namespace of a pod, where the pod's image has none.
func (p place) inside(t *testing.T, pod node.Object, args ...string) string {
	t.Helper()
	pid := p.processOf(t, pod)
	out, err := exec.Command("nsenter", append([]string{"-t", pid, "-n", "--"}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s in pod %s: %v: %s", strings.Join(args, " "), node.Text(pod, "metadata", "name"), err, out)
	}
	return string(out)
}

// processOf is the machine's number of a process of the pod.
func (p place) processOf(t *testing.T, pod node.Object) string {
	t.Helper()
	cgroups, err := filepath.Glob("/proc/[0-9]*/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	uid := node.Text(pod, "metadata", "uid")
	for _, file := range cgroups {
		if data, err := os.ReadFile(file); err == nil && strings.Contains(string(data), "pod"+uid) {
			return filepath.Base(filepath.Dir(file))
		}
	}
	t.Fatalf("no process of pod %s", node.Text(pod, "metadata", "name"))
	return ""
}

// addresses are those of an interface of a pod, in CIDR notation.
func (p place) addresses(t *testing.T, pod node.Object, device string) []string {
	t.Helper()
	var links []struct {
		Info []struct {
			Family string
			Local  string
			Prefix int `json:"prefixlen"`
		} `json:"addr_info"`
	}
	if err := json.Unmarshal([]byte(p.inside(t, pod, "ip", "-j", "address", "show", "dev", device)), &links); err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, l := range links {
		for _, a := range l.Info {
			if a.Family == "inet" {
				all = append(all, fmt.Sprintf("%s/%d", a.Local, a.Prefix))
			}
		}
	}
	return all
}

// attachment is one entry of the annotation in which Multus says what a pod got.
type attachment struct {
	Name      string
	Interface string
	IPs       []string
	MAC       string
	Default   bool
}

func attachments(t *testing.T, pod node.Object) []attachment {
	t.Helper()
	var all []attachment
	text := node.Text(pod, "metadata", "annotations", "k8s.v1.cni.cncf.io/network-status")
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		t.Fatalf("network-status %q: %v", text, err)
	}
	return all
}

// leases are the addresses that host-local holds for a network.
func (c *cluster) leases(t *testing.T, network string) []string {
	t.Helper()
	entries, err := os.ReadDir(c.Dir.Host("/var/lib/cni/networks/" + network))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	var all []string
	for _, e := range entries {
		if strings.Count(e.Name(), ".") == 3 {
			all = append(all, e.Name())
		}
	}
	return all
}
