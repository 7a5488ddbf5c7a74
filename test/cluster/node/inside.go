package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Name is the node's name, in Kubernetes and in its UTS namespace.
const Name = "node"

const (
	// Address is the node's own; a node cannot have a loopback address. Nothing listens on it.
	Address = "192.168.231.1"
	// PodNetwork is what pods get their default interface's addresses from.
	PodNetwork = "10.244.0.0/16"
	services   = "10.96.0.0/16"
	// apiService is the first address of services, where pods find the API server.
	apiService = "10.96.0.1"
	apiPort    = "6443"
	// PrimaryCNI is the file of the default network. It has the name that the platform's chart tells Multus to look for.
	PrimaryCNI = "05-cilium.conflist"
	// PauseImage is what every sandbox runs, and what test pods run.
	PauseImage = "chandler.test/probe:1"
	runtimeURL = "unix:///run/containerd/containerd.sock"
)

// saidReady is the last line of progress.
const saidReady = "node ready"

// insideMain makes the node, in its namespaces, says so, and stays until something that must run has ended.
func insideMain(dir Dir) int {
	progress := os.NewFile(lifeline+1, "progress")
	unix.CloseOnExec(lifeline + 1)
	// A terminal's interrupt is the holder's to answer.
	signal.Ignore(os.Interrupt)
	in := &inside{dir: dir, said: func(s string) { _, _ = fmt.Fprintln(progress, s) }, ended: make(chan error, 16)}
	if err := in.run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	in.said(saidReady)
	progress.Close()
	fmt.Fprintln(os.Stderr, <-in.ended)
	return 1
}

// inside is the node as its own process sees it.
type inside struct {
	dir   Dir
	said  func(string)
	ended chan error
}

func (in *inside) run(ctx context.Context) error {
	for _, step := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"mounts", in.mounts},
		{"kernel settings masked", in.maskSettings},
		{"network", in.network},
		{"cgroups", func(context.Context) error { return makeCgroups() }},
		{"certificates", func(context.Context) error { return makeCredentials(in.dir) }},
		{"etcd and containerd", in.storeAndRuntime},
		{"API server", in.apiServer},
		{"kubelet, scheduler, controllers", in.workers},
		{"images", in.images},
		{"registered", in.waitReady},
	} {
		if err := step.do(ctx); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
		in.said(step.name)
	}
	return nil
}

// kept are the folders of the node that lie in the state folder on the machine's own file system: overlayfs does not nest,
// and the plugins' directory should be an ordinary one.
var kept = []string{"/opt/cni/bin", "/etc/cni/net.d", "/var/lib/cni", "/var/lib/kubelet", "/var/lib/containerd", "/var/log"}

// mounts gives the node places to write. Nothing is made on the machine, not even a mount point: what is not there is made
// in a tmpfs above.
func (in *inside) mounts(context.Context) error {
	for _, dir := range []string{"/run", "/opt", "/var/lib"} {
		if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755"); err != nil {
			return fmt.Errorf("mount a tmpfs at %s: %w", dir, err)
		}
	}
	etc := "/run/etc"
	for _, dir := range []string{etc + "/upper", etc + "/work", "/run/lock", "/run/netns", "/var/lib/etcd"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if err := unix.Mount("overlay", "/etc", "overlay", 0, "lowerdir=/etc,upperdir="+etc+"/upper,workdir="+etc+"/work"); err != nil {
		return fmt.Errorf("mount an overlay at /etc: %w", err)
	}
	for _, dir := range kept {
		source := in.dir.Host(dir)
		for _, d := range []string{source, dir} {
			if err := os.MkdirAll(d, 0o755); err != nil {
				return err
			}
		}
		if err := unix.Mount(source, dir, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount %s: %w", dir, err)
		}
	}
	for name, text := range map[string]string{
		"/etc/hosts":       "127.0.0.1 localhost " + Name + "\n",
		"/etc/resolv.conf": "",
	} {
		// The file may be a link that leads somewhere else.
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			return err
		}
	}
	if err := unix.Sethostname([]byte(Name)); err != nil {
		return err
	}
	// Pods ask for mounts that pass between them and the node; the namespace's own peers are all inside.
	return unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, "")
}

// maskSettings puts plain files over the kernel settings that the kubelet sets and that no namespace separates.
func (in *inside) maskSettings(context.Context) error {
	for _, name := range []string{
		"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops",
		"kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes",
	} {
		setting := filepath.Join("/proc/sys", name)
		value, err := os.ReadFile(setting)
		if err != nil {
			return err
		}
		mask := filepath.Join("/run/settings", name)
		if err := os.MkdirAll(filepath.Dir(mask), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(mask, value, 0o644); err != nil {
			return err
		}
		if err := unix.Mount(mask, setting, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mask %s: %w", setting, err)
		}
	}
	return nil
}

// network brings up loopback and a bridge that carries the node's Address, leads pods' calls of the API server to
// loopback, and lays down the default network. That one uses none of the plugins under test but ptp and host-local.
func (in *inside) network(context.Context) error {
	for _, command := range []string{
		"ip link set lo up",
		"ip link add node0 type bridge",
		"ip address add " + Address + "/24 dev node0",
		"ip link set node0 up",
		"ip route add default dev node0",
		"iptables -w -t nat -A OUTPUT -d " + apiService + " -p tcp --dport 443 -j DNAT --to-destination 127.0.0.1:" + apiPort,
	} {
		words := strings.Fields(command)
		if out, err := in.command(words[0], words[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", command, err, out)
		}
	}
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0); err != nil {
		return err
	}
	for _, name := range []string{"loopback", "ptp", "host-local"} {
		data, err := os.ReadFile(in.dir.Tool(name))
		if err != nil {
			return err
		}
		if err := os.WriteFile("/opt/cni/bin/"+name, data, 0o755); err != nil {
			return err
		}
	}
	config, err := json.MarshalIndent(map[string]any{
		"cniVersion": "1.0.0",
		"name":       "pods",
		"plugins": []any{map[string]any{
			"type": "ptp",
			"ipam": map[string]any{"type": "host-local", "subnet": PodNetwork, "routes": []any{map[string]any{"dst": "0.0.0.0/0"}}},
		}},
	}, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile("/etc/cni/net.d/"+PrimaryCNI, config, 0o644)
}

// command is a program of the node's that is run and waited for.
func (in *inside) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	cmd.Env = in.dir.environment()
	if path, err := exec.LookPath(in.dir.Tool(name)); err == nil {
		cmd.Path, cmd.Err = path, nil
	}
	return cmd
}

// daemon starts a program that must run as long as the node does. What it prints is in its log.
func (in *inside) daemon(name string, args ...string) error {
	log, err := os.Create(in.dir.log(name))
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := in.command(name, args...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() {
		err := cmd.Wait()
		in.ended <- fmt.Errorf("%s ended: %v\n%s", name, err, tail(in.dir.log(name), 20))
	}()
	return nil
}

// wait tries until it succeeds, something that must run has ended, or the time is up.
func (in *inside) wait(what string, limit time.Duration, try func() error) error {
	deadline := time.Now().Add(limit)
	for {
		err := try()
		if err == nil {
			return nil
		}
		select {
		case err := <-in.ended:
			return err
		case <-time.After(50 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s: not within %v: %w", what, limit, err)
		}
	}
}

func (in *inside) storeAndRuntime(context.Context) error {
	// What etcd keeps need not survive anything: the folder is memory, and nothing is synced.
	if err := in.daemon("etcd", "--name=node", "--data-dir=/var/lib/etcd", "--unsafe-no-fsync", "--log-level=warn",
		"--listen-client-urls=http://127.0.0.1:2379", "--advertise-client-urls=http://127.0.0.1:2379",
		"--listen-peer-urls=http://127.0.0.1:2380", "--initial-advertise-peer-urls=http://127.0.0.1:2380",
		"--initial-cluster=node=http://127.0.0.1:2380"); err != nil {
		return err
	}
	config := in.dir.join("state", "containerd.toml")
	if err := os.WriteFile(config, []byte(containerdConfig), 0o644); err != nil {
		return err
	}
	return in.daemon("containerd", "--config="+config)
}

// containerdConfig departs from Debian's defaults where a build machine needs it: without restrict_oom_score_adj runc is
// refused a score below its own, and there are no AppArmor, huge pages or systemd to talk to.
const containerdConfig = `version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.devmapper"]

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "` + PauseImage + `"
  restrict_oom_score_adj = true
  disable_apparmor = true
  disable_hugetlb_controller = true
  tolerate_missing_hugetlb_controller = true
  stream_server_address = "127.0.0.1"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/opt/cni/bin"
    conf_dir = "/etc/cni/net.d"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
`

func (in *inside) apiServer(context.Context) error {
	secrets := func(name string) string { return in.dir.join("state", "secrets", name) }
	if err := in.daemon("kube-apiserver",
		"--etcd-servers=http://127.0.0.1:2379",
		"--bind-address=127.0.0.1", "--secure-port="+apiPort, "--advertise-address="+Address,
		"--tls-cert-file="+secrets("apiserver.crt"), "--tls-private-key-file="+secrets("apiserver.key"),
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-signing-key-file="+secrets("accounts.key"), "--service-account-key-file="+secrets("accounts.key"),
		"--service-cluster-ip-range="+services,
		"--token-auth-file="+secrets("tokens.csv"), "--authorization-mode=Node,RBAC",
		"--endpoint-reconciler-type=none", "--kubelet-preferred-address-types=Hostname",
		"--allow-privileged=true", "--profiling=false",
	); err != nil {
		return err
	}
	api, err := newAPI(in.dir, 0)
	if err != nil {
		return err
	}
	return in.wait("the API server", 2*time.Minute, func() error { return api.Healthy() })
}

func (in *inside) workers(context.Context) error {
	secrets := func(name string) string { return in.dir.join("state", "secrets", name) }
	if err := in.daemon("kube-controller-manager",
		"--kubeconfig="+in.dir.Kubeconfig(), "--bind-address=127.0.0.1", "--leader-elect=false", "--profiling=false",
		"--service-account-private-key-file="+secrets("accounts.key"), "--root-ca-file="+secrets("ca.crt"),
		"--kube-api-qps=200", "--kube-api-burst=400",
	); err != nil {
		return err
	}
	if err := in.daemon("kube-scheduler",
		"--kubeconfig="+in.dir.Kubeconfig(), "--bind-address=127.0.0.1", "--leader-elect=false", "--profiling=false",
		"--kube-api-qps=200", "--kube-api-burst=400",
	); err != nil {
		return err
	}
	config, err := json.MarshalIndent(kubeletConfig(), "", "  ")
	if err != nil {
		return err
	}
	file := in.dir.join("state", "kubelet.json")
	if err := os.WriteFile(file, config, 0o644); err != nil {
		return err
	}
	// The kubelet looks for the runtime once, at its start.
	if err := in.wait("containerd", time.Minute, func() error {
		out, err := in.command("ctr", "version").CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}); err != nil {
		return err
	}
	return in.daemon("kubelet", "--config="+file, "--kubeconfig="+in.dir.join("state", "kubelet.kubeconfig"),
		"--hostname-override="+Name, "--node-ip="+Address, "--root-dir=/var/lib/kubelet", "--cert-dir=/var/lib/kubelet/pki")
}

func kubeletConfig() map[string]any {
	return map[string]any{
		"apiVersion": "kubelet.config.k8s.io/v1beta1",
		"kind":       "KubeletConfiguration",
		"address":    "127.0.0.1",
		// It listens on the node's loopback, where there is nobody but the node itself.
		"authentication":           map[string]any{"anonymous": map[string]any{"enabled": true}, "webhook": map[string]any{"enabled": false}},
		"authorization":            map[string]any{"mode": "AlwaysAllow"},
		"healthzBindAddress":       "127.0.0.1",
		"containerRuntimeEndpoint": runtimeURL,
		"cgroupDriver":             "cgroupfs",
		"cgroupRoot":               "/" + cgroupParent,
		"failCgroupV1":             false,
		"failSwapOn":               false,
		"makeIPTablesUtilChains":   false,
		"resolvConf":               "",
		"clusterDNS":               []string{"10.96.0.10"}, // nobody is there; without one every pod is warned about
		"volumePluginDir":          "/var/lib/kubelet/volumeplugins",
		"kubeAPIQPS":               200,
		"kubeAPIBurst":             400,
		"eventRecordQPS":           0,
		// The machine's disk and memory are not the node's to judge.
		"evictionHard": map[string]any{
			"memory.available": "0%", "nodefs.available": "0%", "nodefs.inodesFree": "0%",
			"imagefs.available": "0%", "imagefs.inodesFree": "0%",
		},
		"imageGCHighThresholdPercent": 100,
		"imageGCLowThresholdPercent":  99,
		"maxPods":                     250,
	}
}

// images gives the runtime the image that sandboxes and test pods run. It is built for the processor it runs on.
func (in *inside) images(context.Context) error {
	archive, err := probeImage(in.dir.Tool("probe"), runtime.GOARCH)
	if err != nil {
		return err
	}
	file := in.dir.join("state", "probe.tar")
	if err := os.WriteFile(file, archive, 0o644); err != nil {
		return err
	}
	if out, err := in.command("ctr", "-n", "k8s.io", "images", "import", file).CombinedOutput(); err != nil {
		return fmt.Errorf("import: %w: %s", err, out)
	}
	return nil
}

func (in *inside) waitReady(context.Context) error {
	api, err := newAPI(in.dir, 0)
	if err != nil {
		return err
	}
	return in.wait("the node is Ready", 2*time.Minute, func() error {
		// Pods are refused for as long as the account they run as has not been made.
		if _, err := api.Get("/api/v1/namespaces/default/serviceaccounts/default"); err != nil {
			return err
		}
		node, err := api.Get("/api/v1/nodes/" + Name)
		if err != nil {
			return err
		}
		for _, c := range List(node, "status", "conditions") {
			if Text(c, "type") == "Ready" {
				if Text(c, "status") == "True" && len(List(node, "spec", "taints")) == 0 {
					return nil
				}
				return errors.New(Text(c, "message"))
			}
		}
		return errors.New("it has no condition yet")
	})
}
