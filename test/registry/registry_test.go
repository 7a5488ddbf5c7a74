//go:build registry

// Package registry tests the image as its users get it: built by the command, pushed to a real registry on the loopback,
// pulled back by digest, and its programs run from what was pulled.
package registry

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// What the tests share: one build of the image for both platforms, in a registry that wants a login.
var shared struct {
	dir      string // everything is below it
	command  string // chandlerctl
	checkout string
	host     string // of the registry
	layout   string
	result   result
	printed  string // by the build, on stderr
}

// result is what the build prints.
type result struct {
	Digest, Reference, Name string
	Platforms               []struct {
		Platform, Digest string
		Compressed       int64 `json:"compressedBytes"`
		Layers           []struct{ Name, Digest string }
	}
}

const user, password = "ci", "right-secret"

// htpasswd is that login as the registry wants to know it, of the kind that `htpasswd -nbB` makes.
const htpasswd = "ci:$2y$05$UEGICrVT7tlwTz7hvivvYuifT8tOqCXd8W8rh6fwKVASf0MHYHkCC\n"

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	if shared.dir, err = os.MkdirTemp("", "registry-test-"); err != nil {
		return 0, err
	}
	defer func() {
		if removeErr := os.RemoveAll(shared.dir); err == nil {
			err = removeErr
		}
	}()
	if shared.checkout, err = filepath.Abs("../.."); err != nil {
		return 0, err
	}
	shared.command = filepath.Join(shared.dir, "chandlerctl")
	build := exec.Command("go", "build", "-trimpath", "-o", shared.command, "./cmd/chandlerctl")
	build.Dir, build.Env = shared.checkout, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return 0, fmt.Errorf("build chandlerctl: %w\n%s", err, out)
	}
	stop, err := startRegistry()
	if err != nil {
		return 0, err
	}
	defer stop()

	shared.layout = filepath.Join(shared.dir, "layout")
	stdout, stderr, err := chandlerctl(login(password), shared.checkout, "image", "build", "--output", "json",
		"--out", shared.layout, "--push", shared.host+"/cni/multus:v1")
	if err != nil {
		return 0, fmt.Errorf("build image: %w\n%s", err, stderr)
	}
	shared.printed = stderr
	if err := json.Unmarshal([]byte(stdout), &shared.result); err != nil {
		return 0, fmt.Errorf("parse %q: %w", stdout, err)
	}
	return m.Run(), nil
}

// startRegistry starts Debian's docker-registry, which is the distribution project's own.
func startRegistry() (stop func(), err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	shared.host = l.Addr().String()
	if err := l.Close(); err != nil { // the port is most likely still free when the registry asks for it
		return nil, err
	}
	config := fmt.Sprintf(`version: 0.1
log: {accesslog: {disabled: true}, level: error}
storage: {filesystem: {rootdirectory: %[1]s/registry}}
http: {addr: "%[2]s"}
auth: {htpasswd: {realm: test, path: %[1]s/htpasswd}}
`, shared.dir, shared.host)
	for name, text := range map[string]string{"registry.yml": config, "htpasswd": htpasswd} {
		if err := os.WriteFile(filepath.Join(shared.dir, name), []byte(text), 0o600); err != nil {
			return nil, err
		}
	}
	log := new(bytes.Buffer)
	cmd := exec.Command("docker-registry", "serve", filepath.Join(shared.dir, "registry.yml"))
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	stop = func() {
		cmd.Process.Kill()
		cmd.Wait()
	}
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		resp, err := http.Get("http://" + shared.host + "/v2/")
		if err == nil {
			resp.Body.Close()
			return stop, nil
		}
		if time.Now().After(deadline) {
			stop()
			return nil, fmt.Errorf("start registry: %w\n%s", err, log)
		}
	}
}

// login is the environment of someone whom `docker login` has given the password to.
func login(password string) []string {
	dir, err := os.MkdirTemp(shared.dir, "login-")
	if err != nil {
		panic(err)
	}
	auth := base64.StdEncoding.EncodeToString([]byte(user + ":" + password))
	config := fmt.Sprintf(`{"auths":{%q:{"auth":%q}}}`, shared.host, auth)
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(config), 0o600); err != nil {
		panic(err)
	}
	return []string{"DOCKER_CONFIG=" + dir}
}

// chandlerctl runs the command in a folder, with these settings more.
func chandlerctl(env []string, dir string, args ...string) (stdout, stderr string, err error) {
	var out, errOut bytes.Buffer
	cmd := exec.Command(shared.command, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err = cmd.Run()
	return out.String(), errOut.String(), err
}

// get asks the registry for what is at a path below the repository.
func get(t *testing.T, path string) ([]byte, http.Header) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+shared.host+"/v2/cni/multus/"+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.SetBasicAuth(user, password)
	req.Header.Set("Accept", "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("GET %s: %s, %v", path, resp.Status, err)
	}
	return body, resp.Header
}

// descriptor is how an index names a manifest, and a manifest a layer.
type descriptor struct {
	MediaType, Digest string
	Size              int64
	Platform          struct{ OS, Architecture string }
}

// pull extracts the image of a platform, taken by the digest of the index, into a new folder, as a runtime would.
func pull(t *testing.T, arch string) string {
	t.Helper()
	var index, manifest struct {
		MediaType         string
		Manifests, Layers []descriptor
	}
	body, header := get(t, "manifests/"+shared.result.Digest)
	if err := json.Unmarshal(body, &index); err != nil {
		t.Fatal(err)
	}
	if got := header.Get("Content-Type"); got != "application/vnd.oci.image.index.v1+json" {
		t.Errorf("the registry has a %s", got)
	}
	at := slices.IndexFunc(index.Manifests, func(d descriptor) bool { return d.Platform.Architecture == arch && d.Platform.OS == "linux" })
	if at < 0 {
		t.Fatalf("no %s in %s", arch, body)
	}
	body, _ = get(t, "manifests/"+index.Manifests[at].Digest)
	if err := json.Unmarshal(body, &manifest); err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	for _, l := range manifest.Layers {
		if l.MediaType != "application/vnd.oci.image.layer.v1.tar+gzip" {
			t.Errorf("a layer is a %s", l.MediaType)
		}
		blob, _ := get(t, "blobs/"+l.Digest)
		tar := exec.CommandContext(t.Context(), "tar", "-xzpf", "-", "--numeric-owner", "--same-owner", "-C", root)
		tar.Stdin = bytes.NewReader(blob)
		if out, err := tar.CombinedOutput(); err != nil {
			t.Fatalf("extract layer: %v\n%s", err, out)
		}
	}
	return root
}

// inRoot runs a program of the image in it, with nothing else around.
func inRoot(t *testing.T, root string, env []string, args ...string) (string, int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "chroot", append([]string{root}, args...)...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH")}, env...)
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		t.Fatalf("%v: %v", args, err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

func TestPulledImageRuns(t *testing.T) {
	root := pull(t, "amd64")

	t.Run("multus", func(t *testing.T) {
		out, code := inRoot(t, root, nil, "/usr/src/multus-cni/bin/multus-daemon", "--version")
		if !strings.Contains(out, "version:v4.3.0(patched), commit:h1:") || code != 4 { // 4 is upstream's choice
			t.Errorf("multus-daemon: exit %d, %s", code, out)
		}
		out, code = inRoot(t, root, nil, "/usr/src/multus-cni/bin/multus-shim", "--version")
		if !strings.Contains(out, "version:v4.3.0(patched)") || code != 0 {
			t.Errorf("multus-shim: exit %d, %s", code, out)
		}
		out, code = inRoot(t, root, []string{"CNI_COMMAND=VERSION"}, "/usr/src/multus-cni/bin/passthru")
		if !strings.Contains(out, "supportedVersions") || code != 0 {
			t.Errorf("passthru: exit %d, %s", code, out)
		}
	})

	t.Run("multus-daemon finds the root user", func(t *testing.T) {
		// Without /etc/passwd it crashes; with it, it goes on to what is missing here, a cluster.
		config := `{"chrootDir":"/","cniVersion":"0.3.1","logLevel":"verbose","logToStderr":true,"cniConfigDir":"/etc/cni/net.d",` +
			`"multusAutoconfigDir":"/etc/cni/net.d","multusConfigFile":"/none","socketDir":"/run/multus/"}`
		if err := os.WriteFile(filepath.Join(root, "tmp/config.json"), []byte(config), 0o644); err != nil {
			t.Fatal(err)
		}
		out, code := inRoot(t, root, nil, "/usr/src/multus-cni/bin/multus-daemon", "-config", "/tmp/config.json")
		if code == 0 || strings.Contains(out, "nil pointer") || strings.Contains(out, "with root") || !strings.Contains(out, "failed to create the server") {
			t.Errorf("exit %d, %s", code, out)
		}
	})

	t.Run("install_multus", func(t *testing.T) {
		dir := filepath.Join(root, "host/opt/cni/bin")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if out, code := inRoot(t, root, nil, "/usr/src/multus-cni/bin/install_multus", "-d", "/host/opt/cni/bin", "-t", "thick"); code != 0 {
			t.Fatalf("exit %d, %s", code, out)
		}
		for _, name := range []string{"multus-shim", "passthru"} {
			if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode() != 0o755 {
				t.Errorf("%s: %v, %v", name, info, err)
			}
		}
	})

	t.Run("chandler", func(t *testing.T) {
		dir := filepath.Join(root, "opt/cni/bin")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		out, code := inRoot(t, root, nil, "/usr/bin/chandler", "stage", "--strict", "--bundle", "/cni-plugins", "--bin-dir", "/opt/cni/bin")
		if code != 0 || !strings.Contains(out, "staged 14 plugins") {
			t.Fatalf("exit %d, %s", code, out)
		}
		plugins, err := filepath.Glob(filepath.Join(dir, "[^.]*")) // chandler's own folder is hidden
		if err != nil || len(plugins) != 14 {
			t.Errorf("staged %v, %v", plugins, err)
		}
		for _, p := range plugins {
			if out, code := inRoot(t, root, []string{"CNI_COMMAND=VERSION"}, "/opt/cni/bin/"+filepath.Base(p)); code != 0 || !strings.Contains(out, "1.1.0") {
				t.Errorf("%s: exit %d, %s", filepath.Base(p), code, out)
			}
		}
	})
}

func TestPulledImageOfTheOtherMachine(t *testing.T) {
	root := pull(t, "arm64")
	for _, pattern := range []string{"usr/bin/*", "usr/src/multus-cni/bin/*", "cni-plugins/bin/*"} {
		programs, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil || len(programs) == 0 {
			t.Fatalf("%s: %v, %v", pattern, programs, err)
		}
		for _, p := range programs {
			head := make([]byte, 20)
			f, err := os.Open(p)
			if err != nil {
				t.Fatal(err)
			}
			_, err = io.ReadFull(f, head)
			f.Close()
			if err != nil || string(head[:4]) != "\x7fELF" || head[18] != 0xb7 { // EM_AARCH64
				t.Errorf("%s begins with %x, %v", p, head, err)
			}
		}
	}
}

func TestPulledFiles(t *testing.T) {
	root := pull(t, "amd64")
	files := 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(path, root)
		switch mode := info.Mode(); {
		case name == "" || mode&fs.ModeSymlink != 0:
		case name == "/tmp":
			if mode != fs.ModeDir|fs.ModeSticky|0o777 {
				t.Errorf("/tmp is %v", mode)
			}
		case mode&(fs.ModeSetuid|fs.ModeSetgid|0o022) != 0:
			t.Errorf("%s is %v", name, mode)
		case mode.IsRegular():
			files++
		}
		return nil
	})
	if err != nil || files < 50 {
		t.Errorf("%d files, %v", files, err)
	}
	if to, err := os.Readlink(filepath.Join(root, "var/run")); err != nil || to != "/run" {
		t.Errorf("/var/run -> %s, %v", to, err)
	}
	bridge, err := os.Stat(filepath.Join(root, "cni-plugins/bin/bridge"))
	if err != nil {
		t.Fatal(err)
	}
	vlan, err := os.Stat(filepath.Join(root, "cni-plugins/bin/vlan"))
	if err != nil || !os.SameFile(bridge, vlan) {
		t.Errorf("bridge and vlan are two files, %v", err)
	}
	for _, name := range []string{
		"usr/share/sbom/image.cdx.json",
		"usr/share/licenses/github.com/chandler-cni/chandler/LICENSE",
		"usr/share/licenses/gopkg.in/k8snetworkplumbingwg/multus-cni.v4@v4.3.0/LICENSE",
		"usr/share/licenses/github.com/containernetworking/plugins@v1.9.1/LICENSE",
		"usr/share/licenses/multus-patches/0001-del-without-saved-delegates.patch",
	} {
		if info, err := os.Stat(filepath.Join(root, name)); err != nil || info.Size() == 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
	sbom, err := os.ReadFile(filepath.Join(root, "usr/share/sbom/image.cdx.json"))
	for _, want := range []string{"pkg:golang/k8s.io/client-go@v", "pkg:golang/github.com/vishvananda/netlink@v", "pkg:golang/github.com/spf13/cobra@v", `"pedigree"`, "pkg:golang/stdlib@1."} {
		if err != nil || !strings.Contains(string(sbom), want) {
			t.Errorf("the SBOM does not hold %s, %v", want, err)
		}
	}
}

// What docs/image.md says is in the image is there.
func TestImagePage(t *testing.T) {
	root := pull(t, "amd64")
	page, err := os.ReadFile("../../docs/image.md")
	if err != nil {
		t.Fatal(err)
	}
	table, _, _ := strings.Cut(string(page), "\n## What upstream's image has")
	paths := regexp.MustCompile("`(/[^` <]+)").FindAllStringSubmatch(table, -1)
	if len(paths) < 12 {
		t.Errorf("the page names %d paths", len(paths))
	}
	for _, p := range paths {
		if strings.Contains(p[1], "…") {
			continue
		}
		if _, err := os.Lstat(filepath.Join(root, p[1])); err != nil {
			t.Error(err)
		}
	}
}

func TestSize(t *testing.T) {
	const most = 35_000_000
	if len(shared.result.Platforms) != 2 {
		t.Fatalf("%+v", shared.result)
	}
	for _, p := range shared.result.Platforms {
		t.Logf("%s: %d bytes compressed", p.Platform, p.Compressed)
		if p.Compressed > most {
			t.Errorf("%s: %d bytes compressed are more than %d", p.Platform, p.Compressed, most)
		}
		if !strings.Contains(shared.printed, p.Platform+": ") {
			t.Errorf("no table of %s was printed:\n%s", p.Platform, shared.printed)
		}
	}
}

// A second build of the same checkout, in another folder and with another place for temporary files, has the same digest.
func TestTwoBuildsHaveOneDigest(t *testing.T) {
	checkout := filepath.Join(t.TempDir(), "elsewhere")
	if err := os.Mkdir(checkout, 0o755); err != nil {
		t.Fatal(err)
	}
	cp := exec.Command("sh", "-c", `tar -C "$1" --exclude=./out -cf - . | tar -C "$2" -xf -`, "sh", shared.checkout, checkout)
	if out, err := cp.CombinedOutput(); err != nil {
		t.Fatalf("copy checkout: %v\n%s", err, out)
	}
	out := filepath.Join(t.TempDir(), "image.tar")
	stdout, stderr, err := chandlerctl([]string{"TMPDIR=" + t.TempDir()}, checkout, "image", "build", "--out", out, "--platform", "linux/arm64,linux/amd64")
	if err != nil {
		t.Fatalf("%v\n%s", err, stderr)
	}
	if got := strings.TrimSpace(stdout); got != shared.result.Digest {
		t.Errorf("built again: %s, not %s\n%s\nfirst:\n%s", got, shared.result.Digest, stderr, shared.printed)
	}
}

// The way into an air-gapped cluster: skopeo reads the layout and brings it to another registry, digests and all.
func TestSkopeoTakesTheLayout(t *testing.T) {
	target := shared.host + "/mirror/multus:v1"
	tag := shared.result.Name[strings.LastIndexByte(shared.result.Name, ':')+1:]
	cmd := exec.Command("skopeo", "copy", "--all", "--preserve-digests", "--dest-tls-verify=false", "--dest-creds", user+":"+password,
		"oci:"+shared.layout+":"+tag, "docker://"+target)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	out, err := exec.Command("skopeo", "inspect", "--raw", "--tls-verify=false", "--creds", user+":"+password,
		"docker://"+strings.TrimSuffix(target, ":v1")+"@"+shared.result.Digest).Output()
	if err != nil || !bytes.Contains(out, []byte("application/vnd.oci.image.index.v1+json")) {
		t.Errorf("%s, %v", out, err)
	}
}

// The way into one node: containerd imports the layout's archive for its own machine, under its name, and unpacks it.
func TestContainerdTakesTheArchive(t *testing.T) {
	dir := t.TempDir()
	archive := filepath.Join(dir, "multus.tar")
	if out, err := exec.Command("tar", "-C", shared.layout, "-cf", archive, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	socket, log := filepath.Join(dir, "s"), new(bytes.Buffer)
	config := fmt.Sprintf("version = 2\nroot = %q\nstate = %q\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n[grpc]\naddress = %q\n",
		filepath.Join(dir, "root"), filepath.Join(dir, "state"), socket)
	if err := os.WriteFile(filepath.Join(dir, "config.toml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	containerd := exec.Command("containerd", "-c", filepath.Join(dir, "config.toml"))
	containerd.Stdout, containerd.Stderr = log, log
	if err := containerd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		containerd.Process.Signal(os.Interrupt)
		containerd.Wait()
	}()
	ctr := func(args ...string) (string, error) {
		out, err := exec.Command("ctr", append([]string{"--address", socket, "--namespace", "k8s.io"}, args...)...).CombinedOutput()
		return string(out), err
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		if _, err := ctr("version"); err == nil {
			break
		} else if time.Now().After(deadline) {
			t.Fatalf("containerd does not answer: %v", err)
		}
	}
	if out, err := ctr("images", "import", archive); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	out, err := ctr("images", "check")
	if err != nil || !strings.Contains(out, shared.result.Name) || !strings.Contains(out, shared.result.Digest) || !strings.Contains(out, "complete") ||
		!strings.Contains(out, "true") {
		t.Errorf("%v\n%s", err, out)
	}
}

// A login that the registry does not accept ends with what to do about it, and without the password.
func TestWrongLogin(t *testing.T) {
	if shared.result.Reference != shared.host+"/cni/multus@"+shared.result.Digest {
		t.Errorf("pushed as %s", shared.result.Reference)
	}
	stdout, stderr, err := chandlerctl(login("wrong-secret"), shared.checkout, "image", "build", "--platform", "linux/amd64",
		"--push", shared.host+"/cni/multus:v2")
	if err == nil || stdout != "" || !strings.Contains(stderr, shared.host+" does not accept the login") || !strings.Contains(stderr, "'docker login "+shared.host+"'") {
		t.Errorf("%v, %s, %s", err, stdout, stderr)
	}
	for _, secret := range []string{"wrong-secret", base64.StdEncoding.EncodeToString([]byte("ci:wrong-secret"))} {
		if strings.Contains(stderr, secret) {
			t.Errorf("stderr holds %s:\n%s", secret, stderr)
		}
	}
}
