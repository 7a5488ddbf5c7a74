//go:build root

package root

import (
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/chandler-cni/chandler/internal/bundle"
	"github.com/chandler-cni/chandler/internal/plugin"
	"github.com/chandler-cni/chandler/internal/plugin/plugintest"
	"github.com/chandler-cni/chandler/test/rig"
)

// Guarantee 8, and what restoring promises, over whatever may happen in whatever order: staging of several bundles under several policies and
// layouts, foreign writes of every kind, kills, lost ledgers, restoring. After restoring, every name that nobody else has
// touched is what stood there before it was last replaced, and nothing of anybody's is lost before a fourth is replaced.
//
// SEQUENCES says how many; SEED which, to run one again.
func TestSequences(t *testing.T) {
	count, seed := 200, uint64(time.Now().UnixNano())
	if s := os.Getenv("SEQUENCES"); s != "" {
		count, _ = strconv.Atoi(s)
	}
	if s := os.Getenv("SEED"); s != "" {
		seed, _ = strconv.ParseUint(s, 10, 64)
		count = 1
	}
	dir := tmpfs(t, "size=512m")
	bundles := sequenceBundles(t, dir)
	var next, steps, restores atomic.Int64
	var group sync.WaitGroup
	for range runtime.NumCPU() {
		group.Go(func() {
			for {
				i := next.Add(1) - 1
				if i >= int64(count) || t.Failed() {
					return
				}
				s := newSequence(t, filepath.Join(dir, fmt.Sprint(i)), bundles, seed+uint64(i))
				s.run()
				steps.Add(int64(len(s.log)))
				restores.Add(int64(s.restored))
				if s.failure != "" {
					t.Errorf("SEED=%d: %s\n%s", s.seed, s.failure, strings.Join(s.log, "\n"))
				} else if err := os.RemoveAll(s.bin); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	fmt.Printf("root ring: %d sequences from SEED=%d: %d steps, %d names put back or removed\n", count, seed, steps.Load(), restores.Load())
	if restores.Load() == 0 {
		t.Error("no name was ever restored: the test proves nothing")
	}
}

var sequenceNames = []string{"bridge", "macvlan", "ptp", "vlan"}

// sequenceBundle is a bundle, and the digests of what is in it.
type sequenceBundle struct {
	path    string
	digests map[string]string // of a name
}

// sequenceBundles makes bundles of several versions, one a rebuild, one without a name that the others have, one of a single file.
func sequenceBundles(t *testing.T, dir string) []sequenceBundle {
	t.Helper()
	var all []sequenceBundle
	for i, b := range []struct {
		version, note string
		names         []string
	}{
		{"v1.8.0", "", sequenceNames}, {"v1.9.0", "", sequenceNames}, {"v1.9.0", "rebuilt", sequenceNames}, {"v1.9.1", "", sequenceNames[:3]},
		{"v1.9.1", "shared", sequenceNames},
	} {
		made := sequenceBundle{filepath.Join(dir, fmt.Sprintf("bundle-%d", i)), make(map[string]string)}
		rig.Must(t, rig.Compose(made.path, b.version, func(w *bundle.Writer) error {
			for i, name := range b.names {
				note := b.note + name
				if b.note == "shared" {
					note = b.note
				}
				var p bundle.Plugin
				var err error
				if b.note == "shared" && i > 0 {
					p, err = w.Link(name, bundle.Main, b.names[0])
				} else {
					p, err = w.Add(name, bundle.Main, strings.NewReader(versioned(b.version, note)))
				}
				if err != nil {
					return err
				}
				made.digests[name] = p.SHA256
			}
			return nil
		}))
		all = append(all, made)
	}
	return all
}

// versioned is a plugin that answers, and says of which version it is.
func versioned(version, note string) string {
	return string(plugintest.Built(runtime.GOARCH, "go1.23", note, "path\t"+plugin.ReferenceModule+"/plugins/main/bridge",
		"mod\t"+plugin.ReferenceModule+"\t"+version+"\th1:x"))
}

// sequence is one of them under way, and the model that it is held to.
type sequence struct {
	t        *testing.T
	seed     uint64
	random   *rand.Rand
	bin      string
	bundles  []sequenceBundle
	log      []string
	failure  string
	serial   int
	restored int

	// The model: for each name the files of others that staging has taken and restoring has not given back, oldest first, and how many were
	// taken in all; and which inode staging has put there.
	held  map[string][]string
	taken map[string]int
	ours  map[string]uint64
}

func newSequence(t *testing.T, bin string, bundles []sequenceBundle, seed uint64) *sequence {
	rig.Mkdir(t, bin)
	return &sequence{t: t, seed: seed, random: rand.New(rand.NewPCG(seed, 1)), bin: bin, bundles: bundles,
		held: make(map[string][]string), taken: make(map[string]int), ours: make(map[string]uint64)}
}

func (s *sequence) fail(format string, args ...any) {
	if s.failure == "" {
		s.failure = fmt.Sprintf(format, args...)
	}
}

func (s *sequence) run() {
	for range 6 + s.random.IntN(20) {
		switch n := s.random.IntN(20); {
		case n < 8:
			s.foreign()
		case n < 15:
			s.stage()
		case n < 19:
			s.restore()
		default:
			s.loseLedger()
		}
		if s.failure != "" {
			return
		}
	}
	// Whatever has happened, one restoring that is let be gives everything back.
	s.restore()
	if s.failure == "" {
		s.settle()
	}
}

// settle runs until a restoring was not killed.
func (s *sequence) settle() {
	for {
		killed := s.chandler("restore", nil)
		if !killed || s.failure != "" {
			return
		}
	}
}

// standing is what stands under a name: nothing, one of ours, or somebody's.
type standing struct {
	look string // empty if nothing stands there
	ino  uint64
	ours bool
}

// look says what stands under a name. Ours is what staging made and nobody has written to since, whatever its mode is by now.
func (s *sequence) look(name string) standing {
	path := filepath.Join(s.bin, name)
	var st unix.Stat_t
	if unix.Lstat(path, &st) != nil {
		return standing{}
	}
	l := standing{look: s.describe(path), ino: st.Ino}
	l.ours = s.ours[name] == st.Ino && s.staged(name, path)
	return l
}

// staged says whether a file has bytes that some bundle has under the name.
func (s *sequence) staged(name, path string) bool {
	digest, err := rig.Digest(path)
	return err == nil && slices.ContainsFunc(s.bundles, func(b sequenceBundle) bool { return b.digests[name] == digest })
}

// describe is what must not change of what is somebody's.
func (s *sequence) describe(path string) string {
	id := rig.Identify(s.t, path)
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		s.fail("%v", err)
	}
	return fmt.Sprintf("%+v gid %d", id, st.Gid)
}

func (s *sequence) all() map[string]standing {
	now := make(map[string]standing)
	for _, name := range sequenceNames {
		now[name] = s.look(name)
	}
	return now
}

func (s *sequence) loseLedger() {
	path := filepath.Join(s.bin, ".chandler/ledger.json")
	if s.random.IntN(2) == 0 {
		os.Remove(path)
		s.log = append(s.log, "ledger lost")
	} else if rig.Exists(path) {
		os.WriteFile(path, []byte(`{"formatVersion":1,"plu`), 0o600)
		s.log = append(s.log, "ledger damaged")
	}
}

// foreign is somebody else's doing.
func (s *sequence) foreign() {
	name := sequenceNames[s.random.IntN(len(sequenceNames))]
	path := filepath.Join(s.bin, name)
	now := s.look(name)
	s.serial++
	content := fmt.Sprintf("#!/bin/sh\n# of sequence %d, number %d\n", s.seed, s.serial)
	if s.random.IntN(2) == 0 {
		content = versioned([]string{"v1.6.2", "v1.9.0", "v1.10.0"}[s.random.IntN(3)], content)
	}
	var st unix.Stat_t
	isFile := unix.Lstat(path, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG
	isDir := now.look != "" && st.Mode&unix.S_IFMT == unix.S_IFDIR
	kind := s.random.IntN(9)
	var err error
	what := ""
	switch {
	case isDir:
		what, err = "rmdir", os.Remove(path)
	case kind <= 2:
		what, err = "rename", s.place(path, content)
	case kind == 3 && isFile && (st.Nlink == 1 || now.ours):
		// In place, through every link: of ours all are ours.
		what, err = "cp -f", os.WriteFile(path, []byte(content), 0o755)
	case kind == 4 && isFile && (st.Nlink == 1 || now.ours):
		what, err = "chmod", os.Chmod(path, []fs.FileMode{0o700, 0o555, 0o644}[s.random.IntN(3)])
	case kind == 5 && now.look != "":
		what, err = "rm", os.Remove(path)
	case kind == 6:
		os.Remove(path)
		what, err = "ln -s", os.Symlink(fmt.Sprintf("/nowhere/%d", s.serial), path)
	case kind == 7:
		// One of ours, linked by somebody, would be neither theirs nor ours.
		from := sequenceNames[s.random.IntN(len(sequenceNames))]
		other := filepath.Join(s.bin, from)
		if i, err := os.Lstat(other); from == name || err != nil || i.IsDir() || s.look(from).ours {
			return
		}
		os.Remove(path)
		what, err = "ln "+from, os.Link(other, path)
	case kind == 8 && now.look == "":
		if s.random.IntN(2) == 0 {
			what, err = "mkdir", os.Mkdir(path, 0o755)
		} else {
			what, err = "mkfifo", unix.Mkfifo(path, 0o644)
		}
	default:
		return
	}
	s.log = append(s.log, what+" "+name)
	if err != nil {
		s.fail("%s %s: %v", what, name, err)
	}
}

// place puts a file under a name as a careful installer does.
func (s *sequence) place(path, content string) error {
	tmp := filepath.Join(s.bin, ".theirs")
	if err := os.WriteFile(tmp, []byte(content), 0o600); err != nil {
		return err
	}
	modes := []uint32{0o755, 0o755, 0o700, 0o4755, 0o000}
	at := time.Unix(1e9+s.random.Int64N(1e8), s.random.Int64N(1e9))
	owner := s.random.IntN(2) * 1000
	for _, err := range []error{
		os.Chown(tmp, owner, owner), syscall.Chmod(tmp, modes[s.random.IntN(len(modes))]),
		unix.Setxattr(tmp, "user.ring", []byte(fmt.Sprint(s.serial)), 0), os.Chtimes(tmp, at, at), os.Rename(tmp, path),
	} {
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *sequence) stage() {
	b := s.bundles[s.random.IntN(len(s.bundles))]
	args := []string{"--bundle", b.path,
		"--policy", []string{"replace", "replace", "newer", "missing", "never"}[s.random.IntN(5)],
		"--unknown", []string{"replace", "keep"}[s.random.IntN(2)],
		"--layout", []string{"separate", "linked"}[s.random.IntN(2)]}
	if s.random.IntN(4) == 0 {
		args = append(args, "--policy-for", sequenceNames[s.random.IntN(4)]+"=never")
	}
	s.chandler("stage", args)
}

func (s *sequence) restore() {
	var args []string
	if names := s.known(); len(names) > 0 && s.random.IntN(3) == 0 {
		args = []string{"--only", names[s.random.IntN(len(names))]}
	}
	s.chandler("restore", args)
}

// known is what staging knows of, as its folder has it.
func (s *sequence) known() []string {
	var names []string
	marked := s.marked()
	for _, name := range sequenceNames {
		kept, _ := filepath.Glob(filepath.Join(s.bin, ".chandler/originals", name, "[0-9]*-*"))
		if marked[name] || len(kept) > 0 {
			names = append(names, name)
		}
	}
	return names
}

// marked says which names staging knows that it has put something under.
func (s *sequence) marked() map[string]bool {
	known := make(map[string]bool)
	for _, name := range sequenceNames {
		marks, _ := filepath.Glob(filepath.Join(s.bin, ".chandler/staged", name+"@*"))
		known[name] = len(marks) > 0
	}
	return known
}

// chandler runs one command, perhaps until it is killed, and holds what it did to the model. A staging has at times another beside it,
// which does not wait for the lock.
func (s *sequence) chandler(verb string, args []string) (killed bool) {
	before, known := s.all(), s.marked()
	var said strings.Builder
	var codes []int
	s.log = append(s.log, fmt.Sprintf("%s %s", verb, strings.Join(args, " ")))
	commands := []*exec.Cmd{s.command(verb, args...)}
	if verb == "stage" && s.random.IntN(4) == 0 {
		commands = append(commands, s.command(verb, append([]string{"--lock-wait", "0s"}, args...)...))
		s.log[len(s.log)-1] += ", twice at once"
	}
	ends := make([]func() bool, len(commands))
	for i, cmd := range commands {
		if ends[i] = s.start(cmd); ends[i] == nil {
			return false
		}
	}
	for i, cmd := range commands {
		if ends[i]() {
			killed = true
		} else {
			codes = append(codes, cmd.ProcessState.ExitCode())
		}
		said.WriteString(cmd.Stdout.(*strings.Builder).String())
	}
	after := s.all()
	for _, name := range sequenceNames {
		s.judge(verb, name, before[name], after[name], known[name], killed, args)
	}
	s.nothingLost(killed, after, args)
	for _, code := range codes {
		if code != 0 {
			s.fail("exit %d\n%s", code, said.String())
		}
	}
	if killed {
		s.log[len(s.log)-1] += " killed"
	}
	if s.failure != "" {
		s.log = append(s.log, said.String())
	}
	return killed
}

func (s *sequence) command(verb string, args ...string) *exec.Cmd {
	cmd := exec.Command(rig.Chandler, append([]string{verb, "--bin-dir", s.bin, "--termination-log="}, args...)...)
	said := new(strings.Builder)
	cmd.Stdout, cmd.Stderr = said, said
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd
}

// start starts a command that is perhaps killed, and returns what waits for its end and says whether it was.
func (s *sequence) start(cmd *exec.Cmd) (end func() (killed bool)) {
	rig.Runs.Add(1)
	if err := cmd.Start(); err != nil {
		s.fail("%v", err)
		return nil
	}
	if s.random.IntN(3) == 0 {
		after := time.Duration(s.random.Int64N(int64(30 * time.Millisecond)))
		time.AfterFunc(after, func() { cmd.Process.Kill() })
	}
	return func() bool {
		cmd.Wait()
		if cmd.ProcessState.Exited() {
			return false
		}
		rig.Kills.Add(1)
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // what it was probing
		return true
	}
}

// judge holds what became of one name to the model, and moves the model on.
func (s *sequence) judge(verb, name string, before, after standing, marked, killed bool, args []string) {
	held := s.held[name]
	newest := ""
	if len(held) > 0 && (marked || before.look != "") { // what was restored already and removed does not come back
		newest = held[len(held)-1]
	}
	if verb == "stage" {
		if after.look == before.look {
			return
		}
		// Only staging has touched it since: what it put there is whole and ours.
		if path := filepath.Join(s.bin, name); !s.staged(name, path) || !strings.Contains(after.look, fmt.Sprintf("Mode:%d ", unix.S_IFREG|0o755)) {
			s.fail("%s is %s after staging, was %s", name, after.look, before.look)
			return
		}
		s.ours[name] = after.ino
		if before.look != "" && !before.ours {
			s.held[name] = append(held, before.look)
			s.taken[name]++
		}
		return
	}
	chosen := len(args) == 0 || args[1] == name
	switch {
	case !chosen || before.look != "" && !before.ours:
		if after.look != before.look {
			s.fail("%s is %s after restoring, and was somebody's: %s", name, after.look, before.look)
		}
	case after.look == newest && newest != "":
		s.held[name] = held[:len(held)-1]
		s.restored++
	case killed && after.look == before.look:
	case newest == "" && after.look == "":
		if before.look != "" {
			s.restored++
		}
	default:
		s.fail("%s is %q after restoring, want %q; was %q", name, after.look, newest, before.look)
	}
}

// nothingLost holds that what staging has taken is among the originals, the newest three of a name at least.
func (s *sequence) nothingLost(killed bool, now map[string]standing, args []string) {
	for name, held := range s.held {
		there := make(map[string]bool)
		paths, _ := filepath.Glob(filepath.Join(s.bin, ".chandler/originals", name, "*"))
		for _, path := range paths {
			there[s.describe(path)] = true
			base := filepath.Base(path)
			// A restoring of another name leaves what says that a killed one has put this one back.
			_, on, _ := strings.Cut(base, "-") // of back- or done-
			witness := len(args) == 2 && args[0] == "--only" && args[1] != name && strings.HasPrefix(on, fmt.Sprintf("%d-", now[name].ino))
			if !killed && !witness && (!rig.OriginalName.MatchString(base) || strings.HasSuffix(base, "-unread")) {
				s.fail("%s is left", path)
			}
		}
		var kept []string
		for i, look := range held {
			if there[look] {
				kept = append(kept, look)
			} else if now[name].look == look { // somebody has linked it there
			} else if s.taken[name] < 4 || i >= len(held)-3 {
				s.fail("%s: lost %s\nkept %v", name, look, paths)
			}
		}
		s.held[name] = kept
	}
	if !killed {
		if left, _ := filepath.Glob(filepath.Join(s.bin, ".chandler/tmp/*")); len(left) > 0 {
			s.fail("left %v", left)
		}
	}
}
