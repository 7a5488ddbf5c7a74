package main

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
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/chandler-cni/chandler/internal/bundle"
	"github.com/chandler-cni/chandler/internal/hostdir"
	"github.com/chandler-cni/chandler/internal/plugin"
	"github.com/chandler-cni/chandler/internal/plugin/plugintest"
	"github.com/chandler-cni/chandler/internal/stage"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"chandler": main,
		// chandler with a fault in the middle of its work.
		"chandler-panics": func() {
			stageRun = func(context.Context, *bundle.Bundle, stage.Options) *stage.Report { panic("boom\nand more") }
			restoreRun = func(context.Context, stage.RestoreOptions) *stage.Report { panic("boom\nand more") }
			main()
		},
		// holdlock DIR FILE holds the lock of DIR until it is ended, and makes FILE once it has it.
		"holdlock": func() {
			d, err := hostdir.Open(os.Args[1])
			if err == nil {
				err = d.TryLock()
			}
			if err == nil {
				err = os.WriteFile(os.Args[2], nil, 0o644)
			}
			if err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			time.Sleep(time.Minute)
		},
	})
}

// Each script of testdata/script is the behaviour of the command line. One that fails asserts that the bin dir is as it was.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"bundle": cmdBundle, "code": cmdCode, "json": cmdJSON, "make": cmdMake, "same": cmdSame, "snap": cmdSnap,
			"staged": cmdStaged, "waitfor": cmdWaitFor, "lastline": cmdLastLine, "size": cmdSize, "signal": cmdSignal,
			"plugin": cmdPlugin,
		},
		Condition: func(cond string) (bool, error) {
			switch cond {
			case "root":
				return os.Geteuid() == 0, nil
			case "container": // the default termination log is there
				_, err := os.Lstat(defaultTermination)
				return err == nil, nil
			}
			return false, fmt.Errorf("unknown condition %q", cond)
		},
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
	})
}

func want(ts *testscript.TestScript, usage string, ok bool) {
	if !ok {
		ts.Fatalf("usage: %s", usage)
	}
}

// content is a plugin's file: of the reference set and right, unless the kind says otherwise.
func content(ts *testscript.TestScript, name, version, kind string) (bundle.Role, []byte) {
	switch kind {
	case "":
		return bundle.Main, plugintest.Answering(runtime.GOARCH, plugintest.Answer, 0, name+" "+version)
	case "built":
		return bundle.Main, built(version, name)
	case "mute":
		return bundle.Main, plugintest.Answering(runtime.GOARCH, "", 0, name+" "+version)
	case "script":
		return bundle.Extra, plugintest.Script("# " + version)
	case "exits":
		return bundle.Extra, plugintest.Script("exit 7")
	case "nointerpreter":
		return bundle.Extra, []byte("#!/no/such/interpreter\n")
	case "slow":
		return bundle.Extra, plugintest.Script("echo $$ >" + ts.MkAbs("started") + "\nsleep 60 & wait")
	}
	ts.Fatalf("unknown kind of plugin %q", kind)
	return "", nil
}

// built is a plugin's file that says of itself which version of the reference plugins it is.
func built(version, note string) []byte {
	return builtFrom(plugin.ReferenceModule, version, note)
}

func builtFrom(module, version, note string) []byte {
	return plugintest.Built(runtime.GOARCH, "go1.23", note, "path\t"+module+"/plugins/main/bridge", "mod\t"+module+"\t"+version+"\th1:x")
}

// plugin FILE VERSION [MODULE] makes somebody else's build of that version, of the reference plugins or of another module.
func cmdPlugin(ts *testscript.TestScript, neg bool, args []string) {
	want(ts, "plugin FILE VERSION [MODULE]", !neg && (len(args) == 2 || len(args) == 3))
	module := append(args, plugin.ReferenceModule)[2]
	ts.Check(os.MkdirAll(filepath.Dir(ts.MkAbs(args[0])), 0o755))
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), builtFrom(module, args[1], "theirs"), 0o755))
}

// bundle DIR VERSION NAME[:KIND] ... packs a bundle.
func cmdBundle(ts *testscript.TestScript, neg bool, args []string) {
	want(ts, "bundle DIR VERSION NAME[:KIND] ...", !neg && len(args) > 1)
	w, err := bundle.Create(ts.MkAbs(args[0]), args[1], runtime.GOARCH, bundle.Source{Kind: "dir"})
	ts.Check(err)
	defer w.Close()
	for _, arg := range args[2:] {
		name, kind, _ := strings.Cut(arg, ":")
		role, data := content(ts, name, args[1], kind)
		_, err := w.Add(name, role, bytes.NewReader(data))
		ts.Check(err)
	}
	_, err = w.Commit()
	ts.Check(err)
}

// staged DIR VERSION NAME ... holds that each plugin stands in DIR, whole and executable.
func cmdStaged(ts *testscript.TestScript, neg bool, args []string) {
	want(ts, "staged DIR VERSION NAME[:KIND] ...", len(args) > 2)
	for _, arg := range args[2:] {
		name, kind, _ := strings.Cut(arg, ":")
		_, data := content(ts, name, args[1], kind)
		path := filepath.Join(ts.MkAbs(args[0]), name)
		got, err := os.ReadFile(path)
		info, statErr := os.Lstat(path)
		ok := err == nil && statErr == nil && info.Mode() == 0o755 && bytes.Equal(got, data)
		if ok == neg {
			ts.Fatalf("%s is staged: %t (%v)", name, ok, err)
		}
	}
}

// code N PROGRAM ARG ... runs a program that must exit with N.
func cmdCode(ts *testscript.TestScript, neg bool, args []string) {
	want(ts, "code N PROGRAM ARG ...", !neg && len(args) > 1)
	wanted, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	got := 0
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		got = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if got != wanted {
		ts.Fatalf("exit code %d, want %d", got, wanted)
	}
}

// json FILE KEY VALUE holds that the JSON document in FILE has VALUE at KEY: names and numbers with dots between, where an
// element of a list goes by its name too. With KEY . it is only parsed.
func cmdJSON(ts *testscript.TestScript, neg bool, args []string) {
	want(ts, "json FILE KEY [VALUE]", !neg && (len(args) == 3 || len(args) == 2 && args[1] == "."))
	var v any
	text := ts.ReadFile(args[0])
	dec := json.NewDecoder(strings.NewReader(text))
	if err := dec.Decode(&v); err != nil || dec.More() {
		ts.Fatalf("not one JSON document: %v\n%s", err, text)
	}
	if args[1] == "." {
		return
	}
	for key := range strings.SplitSeq(args[1], ".") {
		switch at := v.(type) {
		case map[string]any:
			v = at[key]
		case []any:
			v = nil
			for i, e := range at {
				if m, ok := e.(map[string]any); ok && m["name"] == key || strconv.Itoa(i) == key {
					v = e
				}
			}
		default:
			v = nil
		}
	}
	if got := fmt.Sprint(v); got != args[2] {
		ts.Fatalf("%s is %q, want %q\n%s", args[1], got, args[2], text)
	}
}

// make KIND PATH makes a fifo, a socket or a big file.
func cmdMake(ts *testscript.TestScript, neg bool, args []string) {
	want(ts, "make fifo|socket PATH", !neg && len(args) == 2)
	path := ts.MkAbs(args[1])
	switch args[0] {
	case "fifo":
		ts.Check(syscall.Mkfifo(path, 0o644))
	case "socket":
		fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
		ts.Check(err)
		defer syscall.Close(fd)
		ts.Check(syscall.Bind(fd, &syscall.SockaddrUnix{Name: path}))
	default:
		ts.Fatalf("cannot make a %s", args[0])
	}
}

func tree(ts *testscript.TestScript, dir string) string {
	var b strings.Builder
	ts.Check(filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		st := info.Sys().(*syscall.Stat_t)
		fmt.Fprintf(&b, "%s ino %d mode %s owner %d", path[len(dir):], st.Ino, info.Mode(), st.Uid)
		if !d.IsDir() { // a directory's times change also by what is made and removed again
			fmt.Fprintf(&b, " size %d mtime %s", info.Size(), info.ModTime())
		}
		if info.Mode().IsRegular() {
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			fmt.Fprintf(&b, " %q", data)
		}
		b.WriteByte('\n')
		return nil
	}))
	return b.String()
}

// snap DIR remembers a directory; same DIR holds that it is still that.
func cmdSnap(ts *testscript.TestScript, neg bool, args []string) {
	want(ts, "snap DIR", !neg && len(args) == 1)
	ts.Setenv("SNAP_"+args[0], tree(ts, ts.MkAbs(args[0])))
}

func cmdSame(ts *testscript.TestScript, neg bool, args []string) {
	want(ts, "same DIR", len(args) == 1)
	before, after := ts.Getenv("SNAP_"+args[0]), tree(ts, ts.MkAbs(args[0]))
	if (before == after) == neg {
		ts.Fatalf("%s is\n%s\nwas\n%s", args[0], after, before)
	}
}

// waitfor FILE waits until it is there.
func cmdWaitFor(ts *testscript.TestScript, neg bool, args []string) {
	want(ts, "waitfor FILE", !neg && len(args) == 1)
	until(ts, args[0], func() bool {
		_, err := os.Lstat(ts.MkAbs(args[0]))
		return err == nil
	})
}

// signal NAME [PATH] sends a signal to the program that was started last in the background, once it has PATH open.
func cmdSignal(ts *testscript.TestScript, neg bool, args []string) {
	signals := map[string]os.Signal{"TERM": syscall.SIGTERM, "INT": syscall.SIGINT}
	cmds := ts.BackgroundCmds()
	want(ts, "signal TERM|INT [PATH]", !neg && len(args) > 0 && len(args) < 3 && signals[args[0]] != nil && len(cmds) > 0)
	process := cmds[len(cmds)-1].Process
	if len(args) == 2 {
		until(ts, "open "+args[1], func() bool {
			fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", process.Pid))
			return slices.ContainsFunc(fds, func(fd string) bool {
				target, err := os.Readlink(fd)
				return err == nil && target == ts.MkAbs(args[1])
			})
		})
	}
	ts.Check(process.Signal(signals[args[0]]))
}

func until(ts *testscript.TestScript, what string, ok func() bool) {
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if ok() {
			return
		}
	}
	ts.Fatalf("never: %s", what)
}

// lastline FILE OTHER holds that both end with the same line.
func cmdLastLine(ts *testscript.TestScript, neg bool, args []string) {
	want(ts, "lastline FILE OTHER", !neg && len(args) == 2)
	last := func(file string) string {
		text := strings.TrimSuffix(ts.ReadFile(file), "\n")
		return text[strings.LastIndexByte(text, '\n')+1:]
	}
	if a, b := last(args[0]), last(args[1]); a != b || a == "" {
		ts.Fatalf("%q and %q", a, b)
	}
}

// size FILE N holds that the file has at most N bytes and that it can be read back as a report.
func cmdSize(ts *testscript.TestScript, neg bool, args []string) {
	want(ts, "size FILE N", !neg && len(args) == 2)
	n, err := strconv.Atoi(args[1])
	ts.Check(err)
	text := ts.ReadFile(args[0])
	if len(text) > n {
		ts.Fatalf("%d bytes, want no more than %d", len(text), n)
	}
	if _, err := stage.ParseText(text); err != nil {
		ts.Fatalf("%v\n%s", err, text)
	}
}

func TestInitMode(t *testing.T) {
	for args, want := range map[string]bool{
		"stage": false, "stage --init": true, "--init stage": true, "stage --init=true": true, "stage --init=1": true, "stage --init=T": true,
		"stage --init=false": false, "stage --init=0": false, "stage --init=maybe": true, "stage --init --init=false": false,
		"stage --init=false --init": true, "stage --initial": false, "stage -init": false, "--no-such-flag --init": true,
	} {
		if got := initMode(strings.Fields(args)); got != want {
			t.Errorf("%s: %t", args, got)
		}
	}
}

func TestTerminationPath(t *testing.T) {
	for args, want := range map[string]string{
		"stage": defaultTermination, "stage --termination-log a": "a", "stage --termination-log=a": "a", "stage --termination-log=": "",
		"stage --termination-log": defaultTermination, "--termination-log=a --termination-log b": "b",
		"--termination-log b --termination-log=": "",
	} {
		if got := terminationPath(strings.Fields(args)); got != want {
			t.Errorf("%s: %q, want %q", args, got, want)
		}
	}
}

// What is said of a plugin that was kept is one text: on stdout, on stderr and in the termination log, as it is read back from there.
func TestKeptIsSaidAlike(t *testing.T) {
	pack := func(version string, names ...string) *bundle.Bundle {
		out := filepath.Join(t.TempDir(), "bundle")
		w, err := bundle.Create(out, version, runtime.GOARCH, bundle.Source{Kind: "dir"})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		for _, name := range names {
			if _, err := w.Add(name, bundle.Main, bytes.NewReader(built(version, name))); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := w.Commit(); err != nil {
			t.Fatal(err)
		}
		b, err := bundle.Open(out)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { b.Close() })
		return b
	}
	bin := t.TempDir()
	fork := builtFrom("github.com/myorg/plugins", "v1.9.5", "")
	for name, data := range map[string][]byte{"bridge": built("v1.9.1", "theirs"), "macvlan": built("v1.10.0", ""), "ptp": []byte("#!/bin/sh\n"), "vlan": fork} {
		if err := os.WriteFile(filepath.Join(bin, name), data, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	want := map[string]string{
		"bridge": "v1.9.1 (same version, different build)", "macvlan": "v1.10.0 is newer than the bundle's v1.9.1", "ptp": "unknown version, script",
		"vlan": "version not comparable: v1.9.5 of github.com/myorg/plugins (go1.23)", "tuning": "policy never, nothing stands there",
	}
	r := stage.Run(t.Context(), pack("v1.9.1", "bridge", "macvlan", "ptp", "tuning", "vlan"),
		stage.Options{BinDir: bin, Policy: stage.Newer, Unknown: stage.KeepUnknown, PolicyFor: map[string]stage.Policy{"tuning": stage.Never}})
	s, err := stage.ParseText(r.Text())
	if err != nil || len(s.Kept) != len(want) {
		t.Fatalf("%v\n%s", err, r.Text())
	}
	var out strings.Builder
	if err := writeReport(&out, r, "text"); err != nil {
		t.Fatal(err)
	}
	for _, said := range s.Kept {
		if said.Cause != want[said.Name] || !regexp.MustCompile(`(?m)^`+said.Name+` +kept +`+regexp.QuoteMeta(want[said.Name])+`$`).MatchString(out.String()) {
			t.Errorf("%+v, want %q, in\n%s", said, want[said.Name], out.String())
		}
	}
}
