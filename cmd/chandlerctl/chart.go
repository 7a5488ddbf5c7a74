package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/chandler-cni/chandler/internal/chart"
	"github.com/chandler-cni/chandler/internal/cli"
	"github.com/chandler-cni/chandler/internal/distribution"
)

func newChart(streams cli.Streams) *cobra.Command {
	cmd := cli.Group(&cobra.Command{
		Use:   "chart",
		Short: "Keep the charts of a checkout true to what they are made from",
	})
	cmd.AddCommand(newChartUpdate(streams), newChartDocs(streams))
	return cmd
}

func newChartUpdate(streams cli.Streams) *cobra.Command {
	u := chart.Update{Environ: os.Environ()}
	cmd := &cobra.Command{
		Use:   "update multus VERSION",
		Short: "Take a version of upstream's manifest into the Multus chart",
		Long: "Takes upstream's manifest at VERSION, such as v4.3.0, from Multus' Go module, and writes it byte for byte into\n" +
			"charts/multus/upstream; moves the chart's appVersion and upstream/multus/go.mod along. The chart's customisation is\n" +
			"never in that file and stays as it is. A manifest that lacks what the customisation relies on, or has a container\n" +
			"that the chart does not know, is refused with its name before anything is written.\n\n" + cli.ExitTable,
		Args:      cli.Args(cobra.ExactArgs(2)),
		ValidArgs: []string{"multus"},
		RunE: func(cmd *cobra.Command, args []string) error {
			if args[0] != "multus" {
				return cli.UsageError("unknown chart %q: only multus is made from an upstream manifest", args[0])
			}
			if err := chart.CheckVersion(args[1]); err != nil {
				return cli.UsageError("%w", err)
			}
			if u.File != "" && u.URL != "" {
				return cli.UsageError("--file and --url exclude each other")
			}
			u.Version = args[1]
			changes, err := u.Run(cmd.Context())
			for _, c := range changes {
				switch {
				case c.Done == "changed" && c.Was != "":
					fmt.Fprintf(streams.Out, "%s: %s, now %s\n", c.Path, c.Was, c.Now)
				case c.Done == "absent":
					fmt.Fprintf(streams.Out, "%s: not in this checkout, nothing to move\n", c.Path)
				default:
					fmt.Fprintf(streams.Out, "%s: %s\n", c.Path, c.Done)
				}
			}
			return err
		},
	}
	cmd.Flags().StringVar(&u.Root, "checkout", ".", "the checkout whose chart it is")
	cmd.Flags().StringVar(&u.File, "file", "", "take the manifest from this file, not from the module")
	cmd.Flags().StringVar(&u.URL, "url", "", "take the manifest from this address, not from the module")
	cmd.Flags().BoolVar(&u.DryRun, "dry-run", false, "say what would change and change nothing")
	return cmd
}

// generated is a file of the checkout that is made from others of it.
type generated struct {
	path string
	make func(checkout string) ([]byte, error)
}

var generatedDocs = []generated{
	{"charts/multus/README.md", func(root string) ([]byte, error) { return chart.Readme(filepath.Join(root, "charts/multus")) }},
	{"charts/platform/README.md", func(root string) ([]byte, error) { return chart.Readme(filepath.Join(root, "charts/platform")) }},
	{"docs/distributions.md", func(string) ([]byte, error) { return distribution.Markdown() }},
}

func newChartDocs(streams cli.Streams) *cobra.Command {
	var root string
	var check bool
	cmd := &cobra.Command{
		Use:   "docs",
		Short: "Write the charts' READMEs and docs/distributions.md anew from their data",
		Args:  cli.Args(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error {
			var stale []error
			for _, g := range generatedDocs {
				want, err := g.make(root)
				if err != nil {
					return fmt.Errorf("make %s: %w", g.path, err)
				}
				path := filepath.Join(root, g.path)
				if got, err := os.ReadFile(path); err == nil && bytes.Equal(got, want) {
					continue
				}
				if check {
					stale = append(stale, fmt.Errorf("%s is not what its data says", g.path))
					continue
				}
				if err := os.WriteFile(path, want, 0o644); err != nil {
					return fmt.Errorf("write %s: %w", g.path, err)
				}
				fmt.Fprintln(streams.Out, g.path)
			}
			return errors.Join(stale...)
		},
	}
	cmd.Flags().StringVar(&root, "checkout", ".", "the checkout whose files they are")
	cmd.Flags().BoolVar(&check, "check", false, "write nothing; exit 1 if one is not what its data says")
	return cmd
}
