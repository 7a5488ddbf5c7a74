package main

import (
	"encoding/json"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/chandler-cni/chandler/internal/bundle"
	"github.com/chandler-cni/chandler/internal/cli"
	"github.com/chandler-cni/chandler/internal/plugin"
)

func newBundleList(streams cli.Streams) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "list DIR",
		Short: "Print the names, roles, versions, sizes and digests of a bundle's plugins",
		Long: `List prints what the manifest says of each plugin, and which version its file says it is. It does not check the digests;
'chandlerctl bundle verify' does. Roles are main, ipam and meta for plugins of the reference set, extra for any other.

` + cli.ExitTable,
		Example: `  chandlerctl bundle list out/bundle`,
		Args:    cli.Args(cobra.ExactArgs(1)),
		RunE: func(_ *cobra.Command, args []string) error {
			return runBundleList(streams, args[0], output)
		},
	}
	cli.Output(cmd, &output)
	return cmd
}

// listed is a plugin of a bundle.
type listed struct {
	bundle.Plugin
	Version     string             `json:"version,omitempty"`
	VersionFrom plugin.VersionFrom `json:"versionFrom"`
}

func runBundleList(streams cli.Streams, dir, output string) error {
	b, err := bundle.Open(dir)
	if err != nil {
		return fmt.Errorf("list bundle %s: %w", dir, err)
	}
	defer b.Close()
	var list []listed
	for _, p := range b.Manifest.Plugins {
		l := listed{Plugin: p}
		f, err := b.OpenPlugin(p)
		if err != nil {
			return fmt.Errorf("list bundle %s: %w", dir, err)
		}
		d, err := plugin.Describe(f, p.Size)
		f.Close()
		if err != nil {
			return fmt.Errorf("list bundle %s: %w", dir, b.Damage(p, err))
		}
		l.Version, l.VersionFrom = d.Version, d.VersionFrom
		list = append(list, l)
	}
	if output == "json" {
		enc := json.NewEncoder(streams.Out)
		enc.SetIndent("", "  ")
		return enc.Encode(list)
	}
	tw := tabwriter.NewWriter(streams.Out, 0, 0, 2, ' ', 0)
	for _, l := range list {
		version := l.Version
		if version == "" {
			version = "-"
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\tsha256:%s\n", l.Name, l.Role, version, size(l.Size), l.SHA256)
	}
	return tw.Flush()
}
