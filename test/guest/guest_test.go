package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// modules are those of the machine's kernel that the plugins need; what these need in turn is found.
var modules = []string{"crc32c_generic", "veth", "bridge", "macvlan", "ipvlan", "8021q", "vrf"}

// start is how long the machine may take. It is emulated, and a build machine is busy.
const start = 5 * time.Minute

// TestGuest attaches networks of every kind in a machine with a kernel that has all of them, and compares what both kernels
// can do with this one.
func TestGuest(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Fatal("the machine is an amd64")
	}
	guest := filepath.Join(t.TempDir(), "guest")
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", guest, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v: %s", err, out)
	}
	here := here(t, guest)
	there := boot(t, guest)
	for _, a := range attachments {
		t.Run(a.name, func(t *testing.T) {
			o, ok := there[a.name]
			if !ok || o.Error != "" {
				t.Fatalf("in the machine: %+v", o)
			}
			if !a.anywhere {
				return
			}
			if own := here[a.name]; own.Error != "" || own.Result != o.Result {
				t.Errorf("on this kernel %+v\nin the machine %+v", own, o)
			}
		})
	}
}

// here attaches what this kernel can in namespaces that end with the program.
func here(t *testing.T, guest string) map[string]outcome {
	t.Helper()
	bin := t.TempDir()
	if out, err := exec.Command(input(t, "CHANDLER"), "stage", "--strict", "--bundle="+input(t, "BUNDLE"), "--bin-dir="+bin, "--termination-log=").CombinedOutput(); err != nil {
		t.Fatalf("stage: %v: %s", err, out)
	}
	cmd := exec.Command("sh", "-c", `mount -t tmpfs run /run && exec "$0" "$1"`, guest, bin)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Unshareflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWNET,
		Pdeathsig:    syscall.SIGKILL,
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("on this kernel: %v: %s", err, out)
	}
	return outcomes(t, string(out))
}

// boot starts the machine and waits until it has turned itself off.
func boot(t *testing.T, guest string) map[string]outcome {
	t.Helper()
	kernel, tree := kernel(t)
	memory := filepath.Join(t.TempDir(), "initramfs")
	if err := os.WriteFile(memory, initramfs(t, guest, tree), 0o644); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), start)
	defer cancel()
	began := time.Now()
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-accel", "tcg", "-m", "768", "-serial", "stdio", "-kernel", kernel, "-initrd", memory, "-append", "console=ttyS0 quiet panic=-1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("the machine: %v: %s", err, out)
	}
	fmt.Printf("ok guest ran %d networks (%.1f s)\n", len(attachments), time.Since(began).Seconds())
	if !strings.Contains(string(out), mark+"staged: ") {
		t.Fatalf("nothing was staged: %s", out)
	}
	return outcomes(t, string(out))
}

func outcomes(t *testing.T, output string) map[string]outcome {
	t.Helper()
	all := map[string]outcome{}
	for line := range strings.Lines(output) {
		_, text, ok := strings.Cut(strings.TrimSpace(line), mark)
		if !ok {
			continue
		}
		if reason, failed := strings.CutPrefix(text, "failed: "); failed {
			t.Fatalf("the machine: %s", reason)
		}
		if !strings.HasPrefix(text, "{") {
			continue
		}
		var o outcome
		if err := json.Unmarshal([]byte(text), &o); err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		all[o.Name] = o
	}
	if len(all) == 0 {
		t.Fatalf("no outcome in %s", output)
	}
	return all
}

func input(t *testing.T, name string) string {
	t.Helper()
	value := os.Getenv(name)
	if value == "" {
		t.Fatalf("%s is not set; `make guest` sets it", name)
	}
	return value
}

// kernel has Debian's kernel in the folder GUEST and returns it with the folder of its modules. The package is fetched when
// it is not there; it is not installed.
func kernel(t *testing.T) (image, modules string) {
	t.Helper()
	folder := input(t, "GUEST")
	find := func() bool {
		images, _ := filepath.Glob(filepath.Join(folder, "kernel/boot/vmlinuz-*"))
		trees, _ := filepath.Glob(filepath.Join(folder, "kernel/lib/modules/*/kernel"))
		if len(images) == 1 && len(trees) == 1 {
			image, modules = images[0], trees[0]
		}
		return image != ""
	}
	if find() {
		return image, modules
	}
	if err := os.RemoveAll(folder); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	// Only one at a time is in the archive; the package without a version in its name depends on it.
	script := `name=$(apt-cache depends linux-image-amd64 | sed -n 's/ *Depends: \(linux-image-[0-9].*\)/\1/p' | head -n 1)
		test -n "$name"
		apt-get download -qq "$name"
		dpkg-deb -x "$name"_*.deb unpacked
		rm -- *.deb
		mv unpacked kernel`
	cmd := exec.Command("sh", "-euc", script)
	cmd.Dir = folder
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("fetch the kernel: %v: %s", err, out)
	}
	if !find() {
		t.Fatal("the package has no kernel")
	}
	return image, modules
}

// initramfs is the machine's whole file system: the program, chandler, the bundle and the modules.
func initramfs(t *testing.T, guest, tree string) []byte {
	t.Helper()
	var out bytes.Buffer
	a := &cpio{w: &out, inodes: map[[32]byte]int{}}
	for _, dir := range []string{"modules", "bundle", "opt", "opt/cni"} {
		a.dir(dir)
	}
	read := func(name string) []byte {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	a.file("init", 0o755, read(guest))
	a.file("chandler", 0o755, read(input(t, "CHANDLER")))
	order := ordered(t, tree)
	names := make([]string, len(order))
	for i, m := range order {
		names[i] = filepath.Base(m)
		a.file("modules/"+names[i], 0o644, read(m))
	}
	a.file("modules/order", 0o644, []byte(strings.Join(names, "\n")))
	bundle := input(t, "BUNDLE")
	err := filepath.WalkDir(bundle, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == bundle {
			return err
		}
		name, err := filepath.Rel(filepath.Dir(bundle), path)
		if err != nil {
			return err
		}
		name = filepath.Join("bundle", strings.TrimPrefix(name, filepath.Base(bundle)))
		if d.IsDir() {
			a.dir(name)
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		a.file(name, int(info.Mode().Perm()), read(path))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	a.end()
	return out.Bytes()
}

// ordered are the files of the modules and of what they need, each after what it needs.
func ordered(t *testing.T, tree string) []string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(tree, func(path string, d fs.DirEntry, err error) error {
		if name, ok := strings.CutSuffix(filepath.Base(path), ".ko"); ok {
			files[strings.ReplaceAll(name, "-", "_")] = path
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	var order []string
	done := map[string]bool{}
	var add func(string)
	add = func(name string) {
		file, ok := files[name]
		if done[name] {
			return
		}
		if !ok {
			t.Fatalf("the kernel has no module %s", name)
		}
		done[name] = true
		for _, d := range depends(t, file) {
			add(strings.ReplaceAll(d, "-", "_"))
		}
		order = append(order, file)
	}
	for _, m := range modules {
		add(m)
	}
	return order
}

// depends reads what a module says it needs.
func depends(t *testing.T, file string) []string {
	t.Helper()
	f, err := elf.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	section := f.Section(".modinfo")
	if section == nil {
		t.Fatalf("%s: %v", file, errors.New("no section .modinfo"))
	}
	data, err := section.Data()
	if err != nil {
		t.Fatal(err)
	}
	for field := range strings.SplitSeq(string(data), "\x00") {
		if list, ok := strings.CutPrefix(field, "depends="); ok && list != "" {
			return strings.Split(list, ",")
		}
	}
	return nil
}

// cpio writes an archive as the kernel reads it. Files of equal bytes are one file of several names: fourteen plugins are one
// executable.
type cpio struct {
	w      io.Writer
	last   int
	inodes map[[32]byte]int
}

func (a *cpio) entry(name string, mode, inode, links int, data []byte) {
	header := fmt.Sprintf("070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X",
		inode, mode, 0, 0, links, 0, len(data), 0, 0, 0, 0, len(name)+1, 0)
	a.pad(header + name + "\x00")
	a.pad(string(data))
}

func (a *cpio) pad(text string) {
	_, _ = io.WriteString(a.w, text+strings.Repeat("\x00", (4-len(text)%4)%4)) // a buffer takes everything
}

func (a *cpio) dir(name string) {
	a.last++
	a.entry(name, 0o040755, a.last, 2, nil)
}

func (a *cpio) file(name string, mode int, data []byte) {
	key := sha256.Sum256(append([]byte{byte(mode >> 6)}, data...))
	// The kernel links what has an inode that it has seen, if the link count says that there are several.
	if inode, ok := a.inodes[key]; ok {
		a.entry(name, 0o100000|mode, inode, 2, nil)
		return
	}
	a.last++
	a.inodes[key] = a.last
	a.entry(name, 0o100000|mode, a.last, 2, data)
}

func (a *cpio) end() { a.entry("TRAILER!!!", 0, 0, 1, nil) }
