package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) { testscript.Main(m, map[string]func(){"chandler": main}) }

// Each script of testdata/script is the behaviour of the command line.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"code": cmdCode, "json": cmdJSON, "make": cmdMake, "same": cmdSame, "snap": cmdSnap,
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
