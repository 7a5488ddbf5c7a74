package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/chandler-cni/chandler/internal/bundle"
	"github.com/chandler-cni/chandler/internal/cli"
	"github.com/chandler-cni/chandler/internal/stage"
)

func newVerify(streams cli.Streams) *cobra.Command {
	var (
		options     stage.Options
		dir, output string
	)
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Say whether the bin dir is what the bundle says",
		Long: `Say for each plugin whether the file in the bin dir has the bundle's digest, mode 0755 and this user as its owner, and
whether it runs. Every byte is read; nothing is changed.

` + exitTable,
		Example: `  chandler verify --bundle ./bundle --bin-dir /opt/cni/bin`,
		Args:    cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runVerify(cmd.Context(), streams, dir, options, output)
		},
	}
	addTarget(cmd, &dir, &options, &output)
	return cmd
}

func runVerify(ctx context.Context, streams cli.Streams, dir string, o stage.Options, output string) error {
	if err := checkTarget(dir, o.BinDir); err != nil {
		return err
	}
	b, err := bundle.Open(dir)
	if err != nil {
		return fmt.Errorf("open bundle %s: %w", dir, err)
	}
	defer b.Close()
	v, err := stage.Verify(ctx, b, o)
	if err != nil {
		return err
	}
	if output == "json" {
		err = writeJSON(streams.Out, v)
	} else {
		err = writeVerdict(streams.Out, v)
	}
	if err == nil && !v.OK() {
		err = failed()
	}
	return err
}

func writeVerdict(w io.Writer, v *stage.Verdict) error {
	tw := newTable(w)
	right := 0
	for _, c := range v.Plugins {
		word := "wrong"
		if c.OK {
			word = "ok"
			right++
		}
		tableRow(tw, c.Name, word, c.Cause)
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "verified %d plugins %s (bundle %s) in %s: %d ok, %d wrong\n",
		len(v.Plugins), v.Version, v.Bundle, stage.Printable(v.BinDir), right, len(v.Plugins)-right)
	return err
}
