package plugin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/chandler-cni/chandler/internal/plugin/plugintest"
)

// write makes an executable file, closed for writing, and opens it.
func write(t *testing.T, content []byte, perm os.FileMode) *os.File {
	t.Helper()
	path := filepath.Join(t.TempDir(), "candidate")
	if err := os.WriteFile(path, content, perm); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func script(t *testing.T, body string) *os.File {
	t.Helper()
	return write(t, []byte("#!/bin/sh\n"+body+"\n"), 0o755)
}

func probe(t *testing.T, f *os.File) ([]string, error) {
	t.Helper()
	return Probe(t.Context(), f, f.Name(), "candidate")
}

// shorten makes the limits those of a test that means to reach them.
func shorten(t *testing.T, limit time.Duration) {
	t.Helper()
	oldTimeout, oldDelay := probeTimeout, waitDelay
	t.Cleanup(func() { probeTimeout, waitDelay = oldTimeout, oldDelay })
	probeTimeout, waitDelay = limit, 100*time.Millisecond
}

const answer = `echo '{"cniVersion":"1.0.0","supportedVersions":["0.4.0","1.0.0"]}'`

func TestProbeAnswers(t *testing.T) {
	f := script(t, answer)
	// The name is nothing to the probe: it runs what is open.
	if err := os.Remove(f.Name()); err != nil {
		t.Fatal(err)
	}
	got, err := probe(t, f)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"0.4.0", "1.0.0"}, got); diff != "" {
		t.Error(diff)
	}
}

// The plugin sees CNI_COMMAND=VERSION, its own name where there is a binary to see it, and nothing else of ours.
func TestProbeSurroundings(t *testing.T) {
	t.Setenv("SECRET", "yes")
	_, err := probe(t, script(t, `[ "$CNI_COMMAND" = VERSION ] || { echo command >&2; exit 1; }
[ -z "$SECRET" ] || { echo environment >&2; exit 1; }
[ "$(wc -c)" = 0 ] || { echo input >&2; exit 1; }
`+answer))
	if err != nil {
		t.Error(err)
	}
}

func TestProbeWrongAnswers(t *testing.T) {
	for _, test := range []struct{ name, body, want string }{
		{"nothing", `:`, `stdout is not JSON: ""`},
		{"text", `echo hello; echo more`, `stdout is not JSON: "hello"`},
		{"JSON of another kind", `echo '[]'`, `stdout is not JSON`},
		{"no versions", `echo '{"cniVersion":"1.0.0"}'`, `no supportedVersions`},
		{"two answers", answer + "\n" + answer, `stdout is not JSON`},
		{"silent failure", `exit 3`, `exit status 3`},
		{"failure with a word", `echo ' out of luck ' >&2; echo more >&2; exit 3`, `exit status 3: "out of luck"`},
		{"failure after an answer", answer + `; exit 3`, `exit status 3`},
		{"error of the protocol", "echo '{\n  \"code\": 4,\n  \"msg\": \"no netns\"\n}'; exit 1", `exit status 1: "no netns"`},
		{"killed", `kill -SEGV $$`, `segmentation fault`},
		{"control characters", `printf 'a\033[31mb' >&2; exit 1`, `"a\x1b[31mb"`},
		{"long word", `printf '%0300d' 0 >&2; exit 1`, strings.Repeat("0", 160) + `…"`},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := probe(t, script(t, test.body))
			var answer *AnswerError
			if !errors.As(err, &answer) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v; want an AnswerError with %q", err, test.want)
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("an error of more than one line: %q", err)
			}
		})
	}
}

func TestProbeEndlessOutput(t *testing.T) {
	shorten(t, 300*time.Millisecond)
	_, err := probe(t, script(t, `while :; do echo yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy; done`))
	var answer *AnswerError
	if !errors.As(err, &answer) || !strings.Contains(err.Error(), "no end after 300ms") {
		t.Error(err)
	}
}

func TestProbeLongOutput(t *testing.T) {
	_, err := probe(t, script(t, fmt.Sprintf(`head -c %d /dev/zero`, 4*maxAnswer)))
	var answer *AnswerError
	if !errors.As(err, &answer) {
		t.Error(err)
	}
}

// A plugin that hangs is ended at the limit, and so is what it started.
func TestProbeHangs(t *testing.T) {
	shorten(t, 300*time.Millisecond)
	pid := filepath.Join(t.TempDir(), "pid")
	start := time.Now()
	_, err := probe(t, script(t, `sleep 600 & echo $! >`+pid+`; wait`))
	var answer *AnswerError
	if !errors.As(err, &answer) || !strings.Contains(err.Error(), "no end after") {
		t.Error(err)
	}
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("took %s", took)
	}
	mustEnd(t, pid)
}

// What a plugin leaves behind ends with the probe and does not hold it up, although it holds the output open.
func TestProbeLeavesNothing(t *testing.T) {
	pid := filepath.Join(t.TempDir(), "pid")
	// Held up, the probe would call the answer a bad one.
	if _, err := probe(t, script(t, `sleep 600 & echo $! >`+pid+`; `+answer)); err != nil {
		t.Error(err)
	}
	mustEnd(t, pid)
}

// What escapes the group cannot be ended, but it cannot hold the probe up either.
func TestProbeEscaped(t *testing.T) {
	shorten(t, ProbeTimeout)
	pid := filepath.Join(t.TempDir(), "pid")
	start := time.Now()
	_, err := probe(t, script(t, `setsid sh -c 'echo $$ >`+pid+`; exec sleep 600' & while ! [ -s `+pid+` ]; do :; done; `+answer))
	t.Cleanup(func() { _ = syscall.Kill(readPid(t, pid), syscall.SIGKILL) })
	var answer *AnswerError
	if !errors.As(err, &answer) {
		t.Error(err)
	}
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("took %s", took)
	}
}

func TestProbeCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	f := script(t, `sleep 600`)
	time.AfterFunc(100*time.Millisecond, cancel)
	if _, err := Probe(ctx, f, f.Name(), "x"); err != context.Canceled {
		t.Errorf("cancelled while it ran: %v", err)
	}
	if _, err := Probe(ctx, f, f.Name(), "x"); err != context.Canceled {
		t.Errorf("cancelled before: %v", err)
	}
}

func TestProbeNoInterpreter(t *testing.T) {
	for name, content := range map[string][]byte{
		"script":         []byte("#!/no/such/shell\n"),
		"script of DOS":  []byte("#!/bin/sh\r\nexit 0\r\n"),
		"dynamic binary": plugintest.ELF(runtime.GOARCH, "/no/such/ld.so"),
	} {
		if _, err := probe(t, write(t, content, 0o755)); !errors.Is(err, ErrNoInterpreter) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestProbeCannotExecute(t *testing.T) {
	other := "arm64"
	if runtime.GOARCH == other {
		other = "amd64"
	}
	for _, test := range []struct {
		name    string
		content []byte
		perm    os.FileMode
		want    syscall.Errno
	}{
		{"no execute bit", []byte("#!/bin/sh\n"), 0o644, syscall.EACCES},
		{"another machine", plugintest.ELF(other, ""), 0o755, syscall.ENOEXEC},
		{"text", []byte("hello\n"), 0o755, syscall.ENOEXEC},
	} {
		_, err := probe(t, write(t, test.content, test.perm))
		var exec *ExecError
		if !errors.As(err, &exec) || !errors.Is(err, test.want) {
			t.Errorf("%s: %v; want an ExecError of %v", test.name, err, test.want)
		}
	}
}

func TestMustAnswer(t *testing.T) {
	answer, exec := &AnswerError{"x"}, &ExecError{syscall.ENOEXEC}
	for _, test := range []struct {
		reference     bool
		err           error
		failed, warns error
	}{
		{true, nil, nil, nil},
		{true, answer, answer, nil},
		{true, ErrNoInterpreter, ErrNoInterpreter, nil},
		{true, exec, exec, nil},
		{false, nil, nil, nil},
		{false, answer, nil, answer},
		{false, ErrNoInterpreter, nil, ErrNoInterpreter},
		{false, exec, exec, nil},
		{false, context.Canceled, context.Canceled, nil},
	} {
		failure, warning := MustAnswer(test.reference, test.err)
		if failure != test.failed || warning != test.warns {
			t.Errorf("MustAnswer(%v, %v) = %v, %v", test.reference, test.err, failure, warning)
		}
	}
}

func FuzzParseVersions(f *testing.F) {
	f.Add([]byte(`{"cniVersion":"1.0.0","supportedVersions":["0.4.0","1.0.0"]}`))
	f.Add([]byte(`{"code":4,"msg":"x"}`))
	f.Add([]byte("\xff\n"))
	f.Fuzz(func(t *testing.T, out []byte) {
		versions, err := parseVersions(out)
		if (err == nil) != (len(versions) > 0) {
			t.Errorf("%q, %v", versions, err)
		}
		for _, said := range []string{fmt.Sprint(err), describeExit(errors.New("exit"), out, nil), describeExit(errors.New("exit"), nil, out)} {
			for _, r := range said {
				if r < ' ' || r == 0x7f {
					t.Fatalf("%q is not one line of plain text", said)
				}
			}
		}
	})
}

func readPid(t *testing.T, file string) int {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

// mustEnd fails if the process whose number file holds goes on. A zombie that nobody reaps has ended.
func mustEnd(t *testing.T, file string) {
	t.Helper()
	pid := readPid(t, file)
	for range 200 {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil || strings.Contains(string(stat), ") Z ") {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("process %d goes on", pid)
	_ = syscall.Kill(pid, syscall.SIGKILL)
}
