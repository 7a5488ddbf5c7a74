package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/spf13/cobra"
)

func TestCode(t *testing.T) {
	cause := errors.New("cause")
	for _, test := range []struct {
		err  error
		want int
	}{
		{nil, OK},
		{cause, Failed},
		{UsageError("no: %w", cause), Usage},
		{fmt.Errorf("around: %w", UsageError("no")), Usage},
		{&ExitError{Code: 7}, 7},
		{errors.Join(cause, &ExitError{Code: 7, Err: cause}), 7},
	} {
		if got := Code(test.err); got != test.want {
			t.Errorf("Code(%v) = %d, want %d", test.err, got, test.want)
		}
	}
	if err := UsageError("no: %w", cause); !errors.Is(err, cause) || err.Error() != "no: cause" {
		t.Errorf("%v", err)
	}
}

// Every kind of wrong usage is one, at every depth, and a group by itself shows its help.
func TestUsage(t *testing.T) {
	for _, test := range []struct {
		args []string
		want int
	}{
		{nil, OK},
		{[]string{"group"}, OK},
		{[]string{"group", "do", "x"}, OK},
		{[]string{"group", "do", "x", "--way", "up"}, OK},
		{[]string{"group", "do", "x", "--way", "left"}, Usage},
		{[]string{"group", "do", "x", "--way"}, Usage},
		{[]string{"group", "do", "x", "--other"}, Usage},
		{[]string{"group", "do"}, Usage},
		{[]string{"group", "undo"}, Usage},
		{[]string{"undo"}, Usage},
		{[]string{"--other"}, Usage},
	} {
		var out, errs bytes.Buffer
		var way string
		root := Group(&cobra.Command{Use: "root", SilenceErrors: true, SilenceUsage: true})
		Prepare(root, Streams{In: &bytes.Buffer{}, Out: &out, Err: &errs})
		group := Group(&cobra.Command{Use: "group"})
		do := &cobra.Command{Use: "do", Args: Args(cobra.ExactArgs(1)), RunE: func(*cobra.Command, []string) error {
			_, err := io.WriteString(&out, way)
			return err
		}}
		Choice(do, &way, "way", "down", "which way", "down", "up")
		group.AddCommand(do)
		root.AddCommand(group)
		root.SetArgs(test.args)
		err := root.Execute()
		if got := Code(err); got != test.want {
			t.Errorf("%q: exit code %d (%v), want %d", test.args, got, err, test.want)
		}
		if (err == nil) != (out.Len() > 0) || errs.Len() > 0 {
			t.Errorf("%q: stdout %q, stderr %q", test.args, &out, &errs)
		}
	}
}
