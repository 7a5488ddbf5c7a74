package source

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// goCommand runs the Go command in one directory and one environment.
type goCommand struct {
	dir     string
	environ []string

	version string // of the toolchain that go.mod in dir selects, such as go1.26.8
	root    string // of that toolchain
}

// GoError says that the Go command failed. Stderr is what it said: a compiler's findings, or a checksum mismatch.
type GoError struct {
	Command string // such as "go build"
	Stderr  string
	Err     error
}

func (e *GoError) Error() string {
	text := e.Command + ": " + e.Err.Error()
	if e.Stderr != "" {
		text += "\n" + e.Stderr
	}
	return text
}

func (e *GoError) Unwrap() error { return e.Err }

// kept are the settings of the Go command that say where things are and whom to trust. go.sum has the last word on what
// comes from there.
var kept = []string{
	"GOAUTH", "GOCACHE", "GOCACHEPROG", "GOINSECURE", "GOMODCACHE", "GONOPROXY", "GONOSUMDB", "GOPATH", "GOPRIVATE",
	"GOPROXY", "GOSUMDB", "GOTOOLCHAIN", "GOVCS",
}

// newGoCommand makes a Go command for m of which the caller's settings of flags, experiments, instruction sets and
// workspaces do not matter. It puts temporary files into tmp.
func (m Module) newGoCommand(ctx context.Context, tmp string) (*goCommand, error) {
	// The architecture is among them because "go env" names the instruction sets of that one only.
	fixed := []string{"GOFLAGS=-mod=readonly", "GOWORK=off", "GO111MODULE=on", "CGO_ENABLED=0", "GOOS=linux", "GOARCH=" + m.Arch}
	g := &goCommand{dir: m.Dir, environ: append(m.Environ[:len(m.Environ):len(m.Environ)], fixed...)}
	out, err := g.run(ctx, "env", "-json")
	if err != nil {
		return nil, err
	}
	settings := make(map[string]string)
	if err := json.Unmarshal(out, &settings); err != nil {
		return nil, fmt.Errorf("parse the answer of go env: %w", err)
	}
	g.version, g.root = settings["GOVERSION"], settings["GOROOT"]

	// Everything that the Go command calls its own is taken out, and only what is kept and what is fixed put back. The
	// file of "go env -w" has been read by now.
	g.environ = nil
	for _, setting := range m.Environ {
		name, _, _ := strings.Cut(setting, "=")
		if _, ok := settings[name]; !ok {
			g.environ = append(g.environ, setting)
		}
	}
	for _, name := range kept {
		g.environ = append(g.environ, name+"="+settings[name])
	}
	g.environ = append(g.environ, fixed...)
	g.environ = append(g.environ, "GOENV=off", "GOTMPDIR="+tmp)
	return g, nil
}

// patience is how long a Go command that was told to end may take for that. Tests have less.
var patience = 5 * time.Second

// run runs one Go command and returns its standard output. Errors are *GoError or the context's cause.
func (g *goCommand) run(ctx context.Context, args ...string) ([]byte, error) {
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir, cmd.Env = g.dir, g.environ
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	// A group of its own, so that compilers end with it. Interrupted, it waits for them, and has left nothing when it ends.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = patience
	err := cmd.Run()
	if ctx.Err() != nil {
		if cmd.Process != nil {
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // what would not be interrupted
		}
		return nil, context.Cause(ctx)
	}
	if err != nil {
		return nil, &GoError{"go " + args[0], withoutProgress(stderr.String()), err}
	}
	return stdout.Bytes(), nil
}

// withoutProgress drops what the Go command says while nothing is wrong.
func withoutProgress(stderr string) string {
	var lines []string
	for line := range strings.Lines(stderr) {
		if !strings.HasPrefix(line, "go: downloading ") {
			lines = append(lines, line)
		}
	}
	return strings.TrimSpace(strings.Join(lines, ""))
}
