// Package cli is what the two programs' command lines share: their streams, their exit codes and their version.
package cli

import (
	"errors"
	"fmt"
	"io"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// Exit codes are interface: scripts and manifests rely on them. The table is part of every help text.
const (
	OK     = 0 // done
	Failed = 1 // not done, or what was asked about is not so
	Usage  = 2 // wrong usage: nothing was attempted
)

// Streams are where a command reads and writes. Out holds only a command's result; everything else goes to Err.
type Streams struct {
	In  io.Reader
	Out io.Writer
	Err io.Writer
}

// ExitError carries an exit code to main. Err may be nil when all there is to say has been said.
type ExitError struct {
	Code int
	Err  error
}

func (e *ExitError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("exit %d", e.Code)
	}
	return e.Err.Error()
}

func (e *ExitError) Unwrap() error { return e.Err }

// UsageError marks err as the caller's mistake.
func UsageError(format string, args ...any) error {
	return &ExitError{Code: Usage, Err: fmt.Errorf(format, args...)}
}

// Code is the exit code that err stands for.
func Code(err error) int {
	var exit *ExitError
	switch {
	case err == nil:
		return OK
	case errors.As(err, &exit):
		return exit.Code
	}
	return Failed
}

// Version describes this program from the build information the Go linker left in it.
func Version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	version, revision, modified := info.Main.Version, "", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			revision = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			modified = ", modified"
		}
	}
	if version == "" {
		version = "(devel)"
	}
	if revision != "" && version == "(devel)" {
		version += " " + revision + modified
	}
	return fmt.Sprintf("%s (%s)", version, info.GoVersion)
}

// ExitTable is the part of every help text that says what the exit codes mean.
const ExitTable = `Exit codes:
  0  done
  1  not done, or what was asked about is not so
  2  wrong usage`

// Prepare sets up root and what will be added to it: streams, and exit code 2 for every kind of wrong usage.
func Prepare(root *cobra.Command, streams Streams) {
	root.SetIn(streams.In)
	root.SetOut(streams.Out)
	root.SetErr(streams.Err)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &ExitError{Code: Usage, Err: err} })
}

// Args makes a wrong number of arguments wrong usage.
func Args(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return &ExitError{Code: Usage, Err: fmt.Errorf("%w\nsee '%s --help'", err, cmd.CommandPath())}
		}
		return nil
	}
}

// Group makes cmd one that only holds others: by itself it shows its help, and an unknown one is wrong usage.
func Group(cmd *cobra.Command) *cobra.Command {
	cmd.Args = Args(func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return fmt.Errorf("unknown command %q for %q", args[0], cmd.CommandPath())
		}
		return nil
	})
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	return cmd
}
