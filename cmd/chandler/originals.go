package main

import (
	"context"
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
file that was dropped, 'chandler restore' can then not take it back, and fails for that plugin.

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
	Originals []stage.Original `json:"originals"`
}

func runOriginals(ctx context.Context, streams cli.Streams, f originalsFlags) error {
	list := originalsList{BinDir: f.options.ShownAs, Purged: f.purge}
	if list.BinDir == "" {
		list.BinDir = f.options.BinDir
	}
	var warnings []string
	var err error
	if f.purge {
		list.Originals, warnings, err = stage.Purge(ctx, f.options)
	} else {
		list.Originals, err = stage.Originals(ctx, f.options)
	}
	for _, w := range warnings {
		fmt.Fprintln(streams.Err, "warning:", w)
	}
	if err != nil && len(list.Originals) == 0 {
		return err
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
	if lost := write(streams.Out, list); err == nil {
		err = lost
	}
	return err
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
	_, err := fmt.Fprintf(w, "%s %d originals in %s: %s\n", verb, len(l.Originals), stage.Printable(l.BinDir), size(l.Bytes))
	return err
}

func size(bytes int64) string {
	if bytes < 1e5 {
		return fmt.Sprintf("%d bytes", bytes)
	}
	return fmt.Sprintf("%.1f MB", float64(bytes)/1e6)
}
