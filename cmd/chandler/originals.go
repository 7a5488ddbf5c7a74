package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"time"

	"github.com/spf13/cobra"

	"github.com/chandler-cni/chandler/internal/cli"
	"github.com/chandler-cni/chandler/internal/hostdir"
	"github.com/chandler-cni/chandler/internal/stage"
)

type originalsFlags struct {
	options stage.RestoreOptions
	output  string
	purge   bool
}

func newOriginals(streams cli.Streams) *cobra.Command {
	var f originalsFlags
	cmd := &cobra.Command{
		Use:   "originals",
		Short: "List the files that staging replaced and has kept, or drop them",
		Long: `List the files that staging replaced and has kept: since when, how large, and whose build they are as far as they say. The
newest of a name, with the highest number, is what 'chandler restore' puts back.

--purge drops them for good: scanners flag old programs, and disks are small. What is staged stays. Where it stands in the place of a
file that was dropped, 'chandler restore' can then not take it back, and fails for that plugin. One that cannot be dropped is named
on stderr and stays; the others go.

` + exitTable,
		Example: `  chandler originals --bin-dir /opt/cni/bin
  chandler originals --bin-dir /opt/cni/bin --purge --only bridge`,
		Args: cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkKept(cmd, f.options); err != nil {
				return err
			}
			return runOriginals(cmd.Context(), streams, f)
		},
	}
	addKept(cmd, &f.options, &f.output)
	cmd.Flags().BoolVar(&f.purge, "purge", false, "drop them")
	return cmd
}

// originalsList is the result as JSON.
type originalsList struct {
	BinDir    string           `json:"binDir"`
	Purged    bool             `json:"purged"`
	Bytes     int64            `json:"bytes"`
	Originals []stage.Original `json:"originals"`        // listed, or dropped
	Failed    []originalFailed `json:"failed,omitempty"` // could not be, and are still there
	Warnings  []string         `json:"warnings,omitempty"`
	Hints     []string         `json:"hints,omitempty"`
}

type originalFailed struct {
	Name  string `json:"name"`
	Path  string `json:"path"` // below the bin dir
	Cause string `json:"cause"`
}

func runOriginals(ctx context.Context, streams cli.Streams, f originalsFlags) error {
	list := originalsList{BinDir: f.options.ShownAs, Purged: f.purge}
	if list.BinDir == "" {
		list.BinDir = f.options.BinDir
	}
	var err error
	if f.purge {
		list.Originals, list.Warnings, err = stage.Purge(ctx, f.options)
	} else {
		list.Originals, err = stage.Originals(ctx, f.options)
	}
	var single stage.OriginalErrors
	errors.As(err, &single)
	for _, one := range single {
		list.Failed = append(list.Failed, originalFailed{one.Name, one.Path, one.Cause()})
	}
	list.Hints = originalsHints(err, single, list.BinDir, f.options.BinDir)
	sayOriginals(streams.Err, list, err, ctx.Err() != nil)
	if err != nil && len(single)+len(list.Originals) == 0 {
		return failed() // there is no result
	}
	for _, o := range list.Originals {
		list.Bytes += o.Size
	}
	write := writeOriginals
	if f.output == "json" {
		if list.Originals == nil {
			list.Originals = []stage.Original{}
		}
		write = func(w io.Writer, l originalsList) error { return writeJSON(w, l) }
	}
	if lost := write(streams.Out, list); lost != nil {
		return lost
	}
	if err != nil {
		return failed()
	}
	return nil
}

// sayOriginals says what went wrong, what to know of and what to do, in the order of a report.
func sayOriginals(w io.Writer, l originalsList, err error, interrupted bool) {
	say := func(format string, args ...any) { fmt.Fprintln(w, stage.Printable(fmt.Sprintf(format, args...))) }
	verb := "list"
	if l.Purged {
		verb = "drop"
	}
	for _, f := range l.Failed {
		say("failed to %s: %s: %s: %s", verb, f.Name, path.Join(l.BinDir, f.Path), f.Cause)
	}
	switch {
	case err == nil:
	case !interrupted && len(l.Failed) == 0:
		say("chandler: %s", err)
	case !interrupted:
	case !l.Purged:
		say("chandler: interrupted")
	case len(l.Originals) == 0:
		say("chandler: interrupted; nothing was dropped")
	default:
		say("chandler: interrupted; what is not listed was not dropped")
	}
	for _, warning := range l.Warnings {
		say("warning: %s", warning)
	}
	for _, hint := range l.Hints {
		say("hint: %s", hint)
	}
}

func writeOriginals(w io.Writer, l originalsList) error {
	tw := newTable(w)
	for _, o := range l.Originals {
		what := o.Build
		if o.Kind == hostdir.Symlink {
			what = "symlink to " + o.Target
		}
		tableRow(tw, o.Name, fmt.Sprint(o.Number), o.Kept.Format(time.RFC3339), size(o.Size),
			path.Join(l.BinDir, o.Path), what)
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	verb := "kept"
	if l.Purged {
		verb = "dropped"
	}
	line := fmt.Sprintf("%s %d originals in %s: %s", verb, len(l.Originals), stage.Printable(l.BinDir), size(l.Bytes))
	if n := len(l.Failed); n > 0 {
		line += fmt.Sprintf(", %d failed", n)
	}
	_, err := fmt.Fprintln(w, line)
	return err
}

func size(bytes int64) string {
	if bytes < 1e5 {
		return fmt.Sprintf("%d bytes", bytes)
	}
	return fmt.Sprintf("%.1f MB", float64(bytes)/1e6)
}
