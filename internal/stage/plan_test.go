package stage

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"

	"github.com/chandler-cni/chandler/internal/hostdir"
	"github.com/chandler-cni/chandler/internal/plugin/plugintest"
)

// A plan says for each plugin what is there and what will be done, and changes nothing.
func TestPlan(t *testing.T) {
	ours := ref("p", "v1")
	other := bytes.Clone(ours.data)
	other[len(other)-1]++
	for name, test := range map[string]struct {
		put    func(t *testing.T, path string)
		found  Found
		text   string
		action Action
	}{
		"absent":      {func(*testing.T, string) {}, Found{State: Absent}, "absent", New},
		"equal":       {func(t *testing.T, path string) { write(t, path, string(ours.data), 0o755) }, Found{State: Equal}, "equal", Unchanged},
		"other bytes": {func(t *testing.T, path string) { write(t, path, string(other), 0o755) }, Found{State: Different, Detail: "other bytes"}, "different (other bytes)", Replaced},
		"other mode":  {func(t *testing.T, path string) { write(t, path, string(ours.data), 0o700) }, Found{State: Different, Detail: "mode 0700, not 0755"}, "different (mode 0700, not 0755)", Replaced},
		"empty":       {func(t *testing.T, path string) { write(t, path, "", 0o755) }, Found{State: Different, Detail: "0 bytes, not 270"}, "different (0 bytes, not 270)", Replaced},
		"directory":   {func(t *testing.T, path string) { put(t, path, hostdir.Folder) }, Found{State: Directory}, "directory", Failed},
		"fifo":        {func(t *testing.T, path string) { put(t, path, hostdir.Fifo) }, Found{State: Special, Detail: "fifo"}, "special (fifo)", Failed},
		"socket":      {func(t *testing.T, path string) { put(t, path, hostdir.Socket) }, Found{State: Special, Detail: "socket"}, "special (socket)", Failed},
		"link":        {func(t *testing.T, path string) { must(t, os.Symlink("x", path)) }, Found{State: Symlink, Target: "x"}, "symlink to x (not visible from here)", Replaced},
		"link, visible": {func(t *testing.T, path string) { must(t, os.Symlink("/proc/self/exe", path)) },
			Found{State: Symlink, Target: "/proc/self/exe", Visible: true}, "symlink to /proc/self/exe", Replaced},
		"link to ours": {func(t *testing.T, path string) {
			write(t, path+"2", string(ours.data), 0o755)
			must(t, os.Symlink("p2", path))
		}, Found{State: Symlink, Target: "p2", Visible: true}, "symlink to p2", Replaced},
		"link of control characters": {func(t *testing.T, path string) { must(t, os.Symlink("\x1b[31m\n", path)) },
			Found{State: Symlink, Target: "\x1b[31m\n"}, `symlink to \x1b[31m\n (not visible from here)`, Replaced},
	} {
		t.Run(name, func(t *testing.T) {
			bin := t.TempDir()
			test.put(t, filepath.Join(bin, "p"))
			if strings.Contains(test.found.Detail, "270") {
				test.found.Detail = strings.Replace(test.found.Detail, "270", strconv.Itoa(len(ours.data)), 1)
				test.text = strings.Replace(test.text, "270", strconv.Itoa(len(ours.data)), 1)
			}
			same := unchanged(t, bin, true)
			dir, err := hostdir.Open(bin)
			must(t, err)
			defer dir.Close()
			items, err := plan(t.Context(), packed(t, "v1", ours), dir, Separate)
			must(t, err)
			same()
			it := items[0]
			if it.Found != test.found || it.Action != test.action || it.Found.String() != test.text {
				t.Errorf("%s: found %+v %q, want %+v %q", it.Action, it.Found, it.Found, test.found, test.text)
			}
			var left *LeftError
			if (it.Action == Failed) != errors.As(it.Err, &left) {
				t.Errorf("error %v", it.Err)
			}
		})
	}
}

func TestSameBytes(t *testing.T) {
	for _, n := range []int{0, 1, compareSize - 1, compareSize, compareSize + 1, 3*compareSize + 5} {
		a := bytes.Repeat([]byte("abcdefg"), n/7+1)[:n]
		check := func(b []byte, want bool) {
			t.Helper()
			got, err := sameBytes(iotest.HalfReader(bytes.NewReader(a)), iotest.OneByteReader(bytes.NewReader(b)))
			if err != nil || got != want {
				t.Errorf("%d and %d bytes: %t, %v", len(a), len(b), got, err)
			}
		}
		check(bytes.Clone(a), true)
		check(append(bytes.Clone(a), 'x'), false)
		if n > 0 {
			check(a[:n-1], false)
			for _, at := range []int{0, n / 2, n - 1} {
				b := bytes.Clone(a)
				b[at] ^= 0x80
				check(b, false)
			}
		}
	}
	broken := errors.New("broken")
	for _, first := range []bool{true, false} {
		good, bad := bytes.NewReader(make([]byte, 10)), iotest.ErrReader(broken)
		var read *readError
		var err error
		if first {
			_, err = sameBytes(bad, good)
		} else {
			_, err = sameBytes(good, bad)
		}
		if !errors.As(err, &read) || read.first != first || !errors.Is(err, broken) {
			t.Errorf("first %t: %v", first, err)
		}
	}
}

func TestEach(t *testing.T) {
	for _, n := range []int{0, 1, 2, 3, 100} {
		var did [100]atomic.Int32
		each(n, func(i int) { did[i].Add(1) })
		for i := range did {
			if want := int32(min(1, max(0, n-i))); did[i].Load() != want {
				t.Errorf("of %d, number %d was done %d times", n, i, did[i].Load())
			}
		}
	}
}

// A panic in a worker reaches the caller, where the command line reports it, and not before the other workers have ended.
func TestEachPanic(t *testing.T) {
	before := runtime.NumGoroutine()
	var ended atomic.Int32
	func() {
		defer func() {
			if p := recover(); p != "boom" {
				t.Errorf("recovered %v", p)
			}
		}()
		each(10, func(i int) {
			if i == 3 {
				panic("boom")
			}
			ended.Add(1)
		})
		t.Error("went on")
	}()
	if ended.Load() != 9 {
		t.Errorf("%d of the others ended, want 9", ended.Load())
	}
	eventually(t, "the goroutines end", func() bool { return runtime.NumGoroutine() <= before })
}

// A panic inside a run leaves the bin dir as an interrupted run does, and the lock free.
func TestRunPanics(t *testing.T) {
	bin := t.TempDir()
	b := packed(t, "v1", set("v1", "bridge", "vlan")...)
	func() {
		defer func() { recover() }()
		swapVar(t, &syncFile, func(*os.File) error { panic("boom") })
		Run(t.Context(), b, Options{BinDir: bin})
		t.Error("went on")
	}()
	if entries, err := os.ReadDir(bin); err != nil || len(entries) > 0 {
		t.Errorf("left: %v, %v", entries, err)
	}
	syncFile = (*os.File).Sync
	r := stage(t, b, Options{BinDir: bin})
	want(t, r, "bridge:new vlan:new")
	wantWarnings(t, r)
}

// Each distinct digest is read from the bundle once: the others of it are copies of the file that was checked.
func TestOneDigestIsReadOnce(t *testing.T) {
	script := plugintest.Script("")
	dir, bin := pack(t, "v1", extra("a", script), extra("b", script), extra("c", script)), t.TempDir()
	b := openAt(t, dir)
	// The bundle was checked and the first file of the digest written: from then on the others can be gone.
	swapVar(t, &syncFile, func(f *os.File) error {
		for _, n := range []string{"b", "c"} {
			os.Remove(filepath.Join(dir, "bin", n))
		}
		return f.Sync()
	})
	want(t, stage(t, b, Options{BinDir: bin}), "a:new b:new c:new")
	inPlace(t, bin, extra("a", script), extra("b", script), extra("c", script))
}
