package node

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// Build makes every program of the node that Debian does not have, in dir.Bin(), unless it has made them from the same pins
// with the same compiler before. source is the folder test/cluster of the checkout. The first build of Kubernetes takes
// minutes.
func Build(ctx context.Context, dir Dir, source string, progress io.Writer) error {
	key, err := buildKey(source)
	if err != nil {
		return err
	}
	stamp := dir.join("built")
	if had, err := os.ReadFile(stamp); err == nil && string(had) == key {
		return nil
	}
	lock, err := dir.lock()
	if err != nil {
		return fmt.Errorf("the node's programs have to be built anew: %w", err)
	}
	defer lock.Close()
	if err := os.RemoveAll(stamp); err != nil {
		return err
	}
	if err := os.MkdirAll(dir.Bin(), 0o755); err != nil {
		return err
	}
	bin, err := filepath.Abs(dir.Bin())
	if err != nil {
		return err
	}
	version, err := pinned(filepath.Join(source, "upstream", "kubernetes", "go.mod"), "k8s.io/kubernetes")
	if err != nil {
		return err
	}
	for _, step := range []struct{ module, flags, packages string }{
		{"upstream/kubernetes", "-s -w -X k8s.io/component-base/version.gitVersion=" + version, "tool"},
		{"upstream/helm", "-s -w", "tool"},
		{".", "-s -w", "./probe"},
	} {
		start := time.Now()
		cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", step.flags,
			"-o", bin+string(filepath.Separator), step.packages)
		cmd.Dir = filepath.Join(source, step.module)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("build %s: %w\n%s", step.module, err, out)
		}
		fmt.Fprintf(progress, "built %s (%.0f s)\n", step.module, time.Since(start).Seconds())
	}
	// etcd's command is named for the folder it lies in.
	if err := os.Rename(dir.Tool("server"), dir.Tool("etcd")); err != nil {
		return err
	}
	return os.WriteFile(stamp, []byte(key), 0o644)
}

// buildKey is a digest of what the programs are made of: the pins, the probe's source and the compiler.
func buildKey(source string) (string, error) {
	files := []string{"go.mod", "upstream/kubernetes/go.mod", "upstream/kubernetes/go.sum", "upstream/helm/go.mod", "upstream/helm/go.sum"}
	probe, err := filepath.Glob(filepath.Join(source, "probe", "*.go"))
	if err != nil {
		return "", err
	}
	slices.Sort(probe)
	for _, f := range probe {
		files = append(files, filepath.Join("probe", filepath.Base(f)))
	}
	hash := sha256.New()
	fmt.Fprintln(hash, runtime.Version(), runtime.GOARCH)
	for _, name := range files {
		data, err := os.ReadFile(filepath.Join(source, name))
		if err != nil {
			return "", err
		}
		fmt.Fprintln(hash, name, len(data))
		hash.Write(data)
	}
	return fmt.Sprintf("%x\n", hash.Sum(nil)), nil
}

// pinned is the version of a module that a go.mod requires.
func pinned(file, module string) (string, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(data)) {
		if words := strings.Fields(line); len(words) >= 2 && words[0] == module {
			return words[1], nil
		}
	}
	return "", fmt.Errorf("%s does not require %s", file, module)
}

// Missing are the programs of Debian packages that a node needs and this machine has not.
func Missing() error {
	var missing []string
	for _, program := range []string{"containerd", "ctr", "runc", "iptables", "ip", "nsenter"} {
		if _, err := exec.LookPath(program); errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
			missing = append(missing, program)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("not on this machine: %s; `make packages` installs them", strings.Join(missing, ", "))
	}
	return nil
}
