package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/chandler-cni/chandler/internal/bundle"
	"github.com/chandler-cni/chandler/internal/cli"
	"github.com/chandler-cni/chandler/internal/plugin"
	"github.com/chandler-cni/chandler/internal/stage"
)

const (
	defaultBundle = "/cni-plugins"
	defaultBinDir = "/host/opt/cni/bin"
	lockWait      = 30 * time.Second
)

// errSaid is the cause of an exit code when everything has been said already.
var errSaid = errors.New("said")

func isSaid(err error) bool { return errors.Is(err, errSaid) }

func failed() error { return &cli.ExitError{Code: cli.Failed, Err: errSaid} }

type stageFlags struct {
	options     stage.Options
	bundle      string
	policyFor   map[string]string
	termination string
	output      string
	strict      bool
}

var policies = []string{string(stage.Replace), string(stage.Newer), string(stage.Missing), string(stage.Never)}

func newStage(streams cli.Streams) *cobra.Command {
	var f stageFlags
	cmd := &cobra.Command{
		Use:   "stage",
		Short: "Bring the bin dir to what the bundle says",
		Long: `Bring the bin dir to what the bundle says: each plugin whole, checked against the bundle's digests, run once from where
it lies, and put in its place in one step. What is right already is not written again. What is replaced is kept below
the bin dir, in .chandler/originals, and 'chandler restore' puts it back. Directories and special files are left alone and reported.

A policy says what may be replaced:
  replace  any file and any link (the default)
  newer    only what is of an older version than the bundle's: never a newer one, never another build of the same version.
           What has no version that can be compared (unknown, another module's, no semantic one) is replaced or kept as --unknown
           says; a file that cannot be read stays
  missing  nothing: only names under which nothing stands are staged. A link is something, also one whose target cannot be
           seen from here; a file that an earlier staging put there is not
  never    nothing, and the name is left alone also where nothing stands

stdout holds the result; failures are on stderr and in the termination log, in the same words.

` + exitTable,
		Example: `  chandler stage --bundle ./bundle --bin-dir /opt/cni/bin
  chandler stage --bundle ./bundle --bin-dir /opt/cni/bin --dry-run
  chandler stage --bundle ./bundle --bin-dir /opt/cni/bin --policy newer --policy-for bridge=never,macvlan=replace
  chandler stage --init --shown-as /opt/cni/bin        # in an init container, the host's directory at /host/opt/cni/bin`,
		Args: cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			f.options.RequireMount, _ = cmd.Flags().GetBool(initFlag)
			return runStage(cmd.Context(), streams, f)
		},
	}
	flags := cmd.Flags()
	addTarget(cmd, &f.bundle, &f.options, &f.output)
	flags.StringVar(&f.termination, terminationFlag, defaultTermination, "file for the last words that kubectl describe shows; empty for none")
	flags.BoolVar(&f.strict, "strict", false, "exit 1 if any plugin is not in place")
	flags.BoolVar(&f.options.Create, "create", false, "make the bin dir (0755) if it is missing")
	flags.BoolVar(&f.options.DryRun, "dry-run", false, "say what is there and what would be done; change nothing")
	flags.BoolVar(&f.options.NoKeep, "no-keep", false, "do not keep what is replaced: it cannot be restored, and an older original that is kept comes back in its place")
	cli.Choice(cmd, (*string)(&f.options.Layout), "layout", string(stage.Separate),
		"how the names of one executable lie in the bin dir: separate (a file each), linked (hard links to one, for small disks where nobody else writes)",
		string(stage.Separate), string(stage.Linked))
	cli.Choice(cmd, (*string)(&f.options.Policy), "policy", string(stage.Replace), "what may be replaced: replace, newer, missing or never", policies...)
	flags.StringToStringVar(&f.policyFor, "policy-for", nil, "the policy of single plugins, `NAME=POLICY,...`; may be repeated, and the last of a name counts")
	flags.Lookup("policy-for").DefValue = "" // that there is none need not be said
	cli.Choice(cmd, (*string)(&f.options.Unknown), "unknown", string(stage.ReplaceUnknown),
		"what the policy newer makes of a version that is not known or cannot be compared: replace or keep", string(stage.ReplaceUnknown), string(stage.KeepUnknown))
	flags.DurationVar(&f.options.LockWait, "lock-wait", lockWait, "how long to wait for another staging of the same bin dir")
	return cmd
}

// addTarget adds the flags that stage and verify share.
func addTarget(cmd *cobra.Command, bundle *string, o *stage.Options, output *string) {
	flags := cmd.Flags()
	flags.StringVar(bundle, "bundle", defaultBundle, "the bundle's directory")
	addBinDir(cmd, &o.BinDir, &o.ShownAs)
	flags.BoolVar(&o.NoProbe, "no-probe", false, "do not run the plugins to see whether they can")
	cli.Output(cmd, output)
}

func addBinDir(cmd *cobra.Command, binDir, shownAs *string) {
	cmd.Flags().StringVar(binDir, "bin-dir", defaultBinDir, "the directory that Multus searches, as this process sees it")
	cmd.Flags().StringVar(shownAs, "shown-as", "", "the bin dir's path on the host, for messages (default: --bin-dir)")
}

// checkTarget checks what addTarget added. An empty path is most often a variable that was not set; it must not pass for a
// bundle that is not there.
func checkTarget(bundle, binDir string) error {
	switch {
	case bundle == "":
		return cli.UsageError("--bundle: want a directory")
	case binDir == "":
		return cli.UsageError("--bin-dir: want a directory")
	}
	return nil
}

func runStage(ctx context.Context, streams cli.Streams, f stageFlags) error {
	if err := checkTarget(f.bundle, f.options.BinDir); err != nil {
		return err
	}
	if f.options.LockWait < 0 {
		return cli.UsageError("--lock-wait %s: want no less than 0", f.options.LockWait)
	}
	var err error
	if f.options.PolicyFor, err = parsePolicies(f.policyFor); err != nil {
		return err
	}
	report := stageBundle(ctx, f)
	if f.options.Unknown == stage.KeepUnknown && !f.options.Asks(stage.Newer) {
		report.Warnings = append(report.Warnings, "--unknown keep keeps nothing where no policy is newer")
	}
	report.Hints = hints(stage.Staging, report, f.options)
	return finish(streams, report, f.options.DryRun, f.strict, f.termination, f.output)
}

// parsePolicies reads --policy-for. A plugin that the bundle does not carry is no error: bundles change, and what a chart says
// of one may be of the last.
func parsePolicies(given map[string]string) (map[string]stage.Policy, error) {
	policyFor := make(map[string]stage.Policy)
	for name, policy := range given {
		if err := plugin.CheckName(name); err != nil {
			return nil, cli.UsageError("--policy-for %q: %s", name+"="+policy, err)
		}
		if !slices.Contains(policies, policy) {
			return nil, cli.UsageError("--policy-for %q: want %s", name+"="+policy, strings.Join(policies, ", "))
		}
		policyFor[name] = stage.Policy(policy)
	}
	return policyFor, nil
}

// finish says what a run found and did, wherever it is to be said, and decides the exit code.
func finish(streams cli.Streams, report *stage.Report, dryRun, strict bool, termination, output string) error {
	// The termination log first: what was done is done, whoever reads the result or has gone away.
	if !dryRun {
		writeTermination(streams, termination, report.TextWithin(stage.TextLimit))
	}
	lost := writeReport(streams.Out, report, output)
	if report.Outcome == stage.Skipped || !report.Complete() || len(report.Warnings)+len(report.Hints) > 0 {
		fmt.Fprint(streams.Err, report.Text())
	}
	if lost != nil {
		fmt.Fprintln(streams.Err, "chandler: the result could not be written:", lost)
	}
	var binDir *stage.BinDirError
	var unknown *stage.UnknownNamesError
	// What follows a run that a signal came before, in a script, must not take it for done.
	interrupted := errors.Is(report.Err, context.Canceled)
	if lost != nil || interrupted || errors.As(report.Err, &binDir) || errors.As(report.Err, &unknown) || strict && !report.Complete() {
		return failed()
	}
	return nil
}

// stageRun is what tests make panic.
var stageRun = stage.Run

func stageBundle(ctx context.Context, f stageFlags) *stage.Report {
	b, err := bundle.Open(f.bundle)
	shown := f.options.ShownAs
	if shown == "" {
		shown = f.options.BinDir
	}
	switch {
	case errors.Is(err, bundle.ErrAbsent):
		return stage.Skip(shown, "no bundle at "+f.bundle)
	case errors.Is(err, bundle.ErrEmpty):
		return stage.Skip(shown, "empty bundle at "+f.bundle)
	case err != nil:
		return stage.Staging.RefuseFor(shown, err)
	}
	defer b.Close()
	return stageRun(ctx, b, f.options)
}

// writeReport writes the result: a line a plugin and the last line of the report's text, or the whole as JSON.
func writeReport(w io.Writer, r *stage.Report, output string) error {
	if output == "json" {
		return writeJSON(w, r)
	}
	switch r.Outcome {
	case stage.Skipped, stage.Refused, stage.Broken:
		return nil // said on stderr: there is no result
	}
	tw := newTable(w)
	for _, p := range r.Plugins {
		tableRow(tw, p.Name, string(p.Action), describe(r, p))
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintln(w, r.LastLine())
	return err
}

// describe says what is worth knowing of a plugin beside what was done.
func describe(r *stage.Report, p stage.Result) string {
	switch p.Action {
	case stage.Kept, stage.Failed, stage.Left:
		return p.Cause
	case stage.Replaced:
		switch {
		case p.Own:
			return fmt.Sprintf("%s, staged earlier", p.Found)
		case p.Dropped:
			return fmt.Sprintf("%s, not kept", p.Found)
		case p.Original != "":
			return fmt.Sprintf("%s, kept as %s", p.Found, path.Join(r.BinDir, p.Original))
		}
		return p.Found.String() // in a plan; or a warning says where it lies
	case stage.PutBack:
		return "from " + path.Join(r.BinDir, p.Original)
	}
	if r.Outcome == stage.Planned {
		return p.Found.String()
	}
	return ""
}

func newTable(w io.Writer) *tabwriter.Writer { return tabwriter.NewWriter(w, 0, 0, 2, ' ', 0) }

// tableRow writes a row whose last cell may be empty, without trailing spaces.
func tableRow(tw *tabwriter.Writer, cells ...string) {
	if n := len(cells) - 1; cells[n] == "" {
		cells = cells[:n]
	}
	for i := range cells {
		cells[i] = stage.Printable(cells[i])
	}
	fmt.Fprintln(tw, strings.Join(cells, "\t"))
}

func writeJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}
