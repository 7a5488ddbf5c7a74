package main

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/chandler-cni/chandler/internal/pins"
	"github.com/chandler-cni/chandler/internal/plugin/plugintest"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"chandlerctl": main})
}

// goPlaces is where this machine's Go command keeps things and takes them from: scripts have a home of their own.
var goPlaces = sync.OnceValues(func() (map[string]string, error) {
	out, err := exec.Command("go", "env", "-json", "GOCACHE", "GOMODCACHE", "GOPROXY", "GOSUMDB", "GONOSUMDB", "GONOPROXY", "GOPRIVATE",
		"GOINSECURE", "GOAUTH", "GOTOOLCHAIN").Output()
	if err != nil {
		return nil, err
	}
	var places map[string]string
	return places, json.Unmarshal(out, &places)
})

// The command line's behaviour. Besides testscript's own commands, scripts have:
//
//	exits CODE PROGRAM ARG...      run a program, which must end with that exit code
//	holds DIR NAME...              the directory holds exactly these names, hidden ones too
//	elf FILE ARCH [INTERPRETER]    make the smallest executable file of an architecture
//	flip FILE                      change the file's last byte
//
// UPSTREAM is this checkout's folder of pins, and MACHINE this machine's architecture.
func TestScripts(t *testing.T) {
	upstream, err := filepath.Abs("../../" + pins.Folder)
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(env *testscript.Env) error {
			places, err := goPlaces()
			for name, value := range places {
				env.Setenv(name, value)
			}
			env.Setenv("UPSTREAM", upstream)
			env.Setenv("MACHINE", runtime.GOARCH)
			return err
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"exits": exits, "holds": holds, "elf": makeELF, "flip": flip,
		},
	})
}

func need(ts *testscript.TestScript, neg, ok bool, usage string) {
	if neg || !ok {
		ts.Fatalf("usage: %s", usage)
	}
}

func exits(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, len(args) >= 2, "exits CODE PROGRAM ARG...")
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	code := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		var exit *exec.ExitError
		if !errors.As(err, &exit) {
			ts.Fatalf("%v", err)
		}
		code = exit.ExitCode()
	}
	if code != want {
		ts.Fatalf("exit code %d, want %d\nstdout: %sstderr: %s", code, want, ts.ReadFile("stdout"), ts.ReadFile("stderr"))
	}
}

func holds(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, len(args) >= 1, "holds DIR NAME...")
	entries, err := os.ReadDir(ts.MkAbs(args[0]))
	ts.Check(err)
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	if want := slices.Sorted(slices.Values(args[1:])); !slices.Equal(got, want) {
		ts.Fatalf("%s holds %q, want %q", args[0], got, want)
	}
}

func makeELF(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, len(args) == 2 || len(args) == 3, "elf FILE ARCH [INTERPRETER]")
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), plugintest.ELF(args[1], append(args[2:], "")[0]), 0o755))
}

func flip(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, len(args) == 1, "flip FILE")
	path := ts.MkAbs(args[0])
	content, err := os.ReadFile(path)
	ts.Check(err)
	content[len(content)-1] ^= 1
	ts.Check(os.WriteFile(path, content, 0o755))
}
