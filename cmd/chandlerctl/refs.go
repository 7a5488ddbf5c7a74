package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/chandler-cni/chandler/internal/cli"
	"github.com/chandler-cni/chandler/internal/refs"
)

func newRefs(streams cli.Streams) *cobra.Command {
	cmd := cli.Group(&cobra.Command{
		Use:   "refs",
		Short: "List, check and rewrite the image references of a packages tree",
		Long: `A packages tree is ROOT/<group>/<package>/. References live in its values.yaml files of that depth, in images/*.tag
beside them, and in the files that ROOT/refs.yaml declares. docs/image-references.md is the contract.`,
	})
	cmd.AddCommand(newRefsList(streams), newRefsCheck(streams), newRefsRewrite(streams))
	return cmd
}

// refsOptions are what the refs commands share.
type refsOptions struct {
	root       string
	config     string
	firstParty []string
	output     string
}

// add gives cmd the flags that all refs commands have.
func (o *refsOptions) add(cmd *cobra.Command, firstParty string) {
	cmd.Flags().StringVar(&o.config, "config", "", "the file that describes the tree (default ROOT/"+refs.ConfigName+")")
	cmd.Flags().StringArrayVar(&o.firstParty, "first-party", nil, firstParty)
}

// open opens the tree. The prefixes of the command line are added to the file's.
func (o *refsOptions) open() (*refs.Tree, error) {
	for _, p := range o.firstParty {
		if err := refs.CheckPrefix(p); err != nil {
			return nil, cli.UsageError("--first-party: %w", err)
		}
	}
	config, err := refs.ReadConfig(o.root, o.config)
	if err != nil {
		return nil, err
	}
	config.FirstParty = append(config.FirstParty, o.firstParty...)
	return refs.Open(o.root, config)
}

// usage makes a tree that names nobody's own images wrong usage.
func (o *refsOptions) usage(err error) error {
	if errors.Is(err, refs.ErrNoFirstParty) {
		return cli.UsageError("%w: list the owners' prefixes under firstParty: in %s, or give --first-party", err, refs.ConfigName)
	}
	return err
}

func newRefsList(streams cli.Streams) *cobra.Command {
	var opts refsOptions
	cmd := &cobra.Command{
		Use:   "list ROOT",
		Short: "List every image reference of a packages tree",
		Long: `List prints file and line, shape, registry, repository, tag and digest of every image reference below ROOT, in the
order of files and lines. What is not there is a dash. Of an incomplete reference, a tag and digest with no repository
beside it, the registry is a question mark. A file that cannot be parsed fails the command after all others are listed.

` + cli.ExitTable,
		Example: `  chandlerctl refs list packages
  chandlerctl refs list packages --first-party ghcr.io/acme --output json`,
		Args: cli.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			opts.root = args[0]
			return runRefsList(cmd.Context(), streams, opts)
		},
	}
	opts.add(cmd, "list only images of this registry or owner, such as ghcr.io/acme; may be repeated")
	cli.Output(cmd, &opts.output)
	return cmd
}

func runRefsList(ctx context.Context, streams cli.Streams, opts refsOptions) error {
	tree, err := opts.open()
	if err != nil {
		return fmt.Errorf("list references: %w", err)
	}
	defer tree.Close()
	list, unread := tree.List(ctx)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if len(opts.firstParty) > 0 {
		list = refs.Owned(list, opts.firstParty)
	}
	if opts.output == "json" {
		err = writeJSON(streams.Out, list)
	} else {
		err = writeRefs(streams.Out, list)
	}
	if err == nil && unread != nil {
		err = fmt.Errorf("list references: %w", unread)
	}
	return err
}

func writeRefs(w io.Writer, list []refs.Reference) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, r := range list {
		registry := r.Registry
		if r.Incomplete {
			registry = "?"
		}
		cells := []string{fmt.Sprintf("%s:%d", r.File, r.Line), string(r.Shape), registry, r.Repository, r.Tag, r.Digest}
		for i, c := range cells {
			if c = strings.Join(strings.Fields(c), ""); c == "" {
				c = "-"
			}
			cells[i] = c
		}
		fmt.Fprintln(tw, strings.Join(cells, "\t"))
	}
	return tw.Flush()
}

func newRefsCheck(streams cli.Streams) *cobra.Command {
	var opts refsOptions
	cmd := &cobra.Command{
		Use:   "check ROOT",
		Short: "Hold the image references of a packages tree to its rules",
		Long: `Check says where a first-party reference misses its tag or digest, where one image has two digests, where a digest is
malformed, which declared files are missing or hold no reference, which files cannot be parsed, and where something that
looks like a digest stands outside the places of references, in gzip files too. Each finding is a line on stdout; notes
fail nothing.

` + cli.ExitTable,
		Example: `  chandlerctl refs check packages`,
		Args:    cli.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			opts.root = args[0]
			return runRefsCheck(cmd.Context(), streams, opts)
		},
	}
	opts.add(cmd, "a registry or owner whose images are first-party, besides those of the configuration; may be repeated")
	cli.Output(cmd, &opts.output)
	return cmd
}

func runRefsCheck(ctx context.Context, streams cli.Streams, opts refsOptions) error {
	tree, err := opts.open()
	if err != nil {
		return fmt.Errorf("check references: %w", err)
	}
	defer tree.Close()
	verdict, err := tree.Check(ctx)
	if err != nil {
		return fmt.Errorf("check references: %w", opts.usage(err))
	}
	if opts.output == "json" {
		err = writeJSON(streams.Out, verdict)
	} else {
		err = writeFindings(streams.Out, verdict)
	}
	if err == nil && verdict.Errors() > 0 {
		err = errSaid
	}
	return err
}

func writeFindings(w io.Writer, v *refs.Verdict) error {
	for _, f := range v.Findings {
		if _, err := fmt.Fprintln(w, f); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(w, "checked %s, %d first-party, in %s: %s, %s\n", plural(v.References, "reference"), v.FirstParty,
		plural(v.Files, "file"), plural(v.Errors(), "error"), plural(v.Notes(), "note"))
	return err
}

type refsRewriteOptions struct {
	refsOptions
	tag    string
	dryRun bool
}

func newRefsRewrite(streams cli.Streams) *cobra.Command {
	var opts refsRewriteOptions
	cmd := &cobra.Command{
		Use:   "rewrite ROOT --tag FROM=TO",
		Short: "Move first-party references from one tag to another, in place",
		Long: `Rewrite replaces the tag FROM of every first-party reference by TO, and not a byte beside it. Other tags, and other
owners' images, are left. Then the whole tree is searched: where FROM is still the tag of a first-party image, or of one
whose repository is unknown, the command fails and names file and line. Vendored charts/, Markdown and lock files are not
searched. All files are changed or none.

` + cli.ExitTable,
		Example: `  chandlerctl refs rewrite packages --tag v1.4.0-rc.2=v1.4.0 --dry-run
  chandlerctl refs rewrite packages --tag v1.4.0-rc.2=v1.4.0`,
		Args: cli.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			opts.root = args[0]
			return runRefsRewrite(cmd.Context(), streams, opts)
		},
	}
	opts.add(cmd, "a registry or owner whose images are first-party, besides those of the configuration; may be repeated")
	cmd.Flags().StringVar(&opts.tag, "tag", "", "the tag to replace and the one to put in its place, as FROM=TO")
	cmd.Flags().BoolVar(&opts.dryRun, "dry-run", false, "print a unified diff of what would be done; change nothing")
	return cmd
}

func runRefsRewrite(ctx context.Context, streams cli.Streams, opts refsRewriteOptions) error {
	from, to, ok := strings.Cut(opts.tag, "=")
	if !ok {
		return cli.UsageError("--tag %q: want FROM=TO", opts.tag)
	}
	if err := errors.Join(refs.CheckTag(from), refs.CheckTag(to)); err != nil {
		return cli.UsageError("--tag %q: %w", opts.tag, err)
	}
	if from == to {
		return cli.UsageError("--tag %q: the tags are the same", opts.tag)
	}
	tree, err := opts.open()
	if err != nil {
		return fmt.Errorf("rewrite references: %w", err)
	}
	defer tree.Close()
	change, err := tree.Plan(ctx, from, to)
	var survivors *refs.SurvivorsError
	if errors.As(err, &survivors) {
		err = fmt.Errorf("rewrite references: nothing was changed, since these would be left behind:\n%w", err)
	} else if err != nil {
		return fmt.Errorf("rewrite references: %w", opts.usage(err))
	}
	if opts.dryRun {
		diff, diffErr := change.Diff()
		if diffErr == nil {
			_, diffErr = io.WriteString(streams.Out, diff)
		}
		return errors.Join(diffErr, err)
	}
	if err != nil {
		return err
	}
	if err := tree.Write(ctx, change); err != nil {
		return fmt.Errorf("rewrite references: %w", err)
	}
	return writeChange(streams.Out, change)
}

func writeChange(w io.Writer, c *refs.Change) error {
	for _, r := range c.References {
		if _, err := fmt.Fprintf(w, "%s:%d: %s:%s is now %s\n", r.File, r.Line, r.Name(), c.From, c.To); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(w, "rewrote %s in %s\n", plural(len(c.References), "reference"), plural(len(c.Files), "file"))
	return err
}

// plural is n things.
func plural(n int, thing string) string {
	if n == 1 {
		return fmt.Sprintf("%d %s", n, thing)
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

func writeJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}
