package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// Choice adds a flag to cmd that takes one of the given values. Another value is wrong usage, and the shell completes them.
func Choice(cmd *cobra.Command, p *string, name, value, usage string, choices ...string) {
	*p = value
	cmd.Flags().Var(&choice{p, choices}, name, usage)
	// The one error is a flag that was not defined.
	_ = cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(choices, cobra.ShellCompDirectiveNoFileComp))
}

// Output adds the flag that says how a command prints its result.
func Output(cmd *cobra.Command, p *string) {
	Choice(cmd, p, "output", "text", "how to print the result: text or json", "text", "json")
}

type choice struct {
	value   *string
	choices []string
}

func (c *choice) String() string { return *c.value }
func (c *choice) Type() string   { return "string" }

func (c *choice) Set(value string) error {
	if !slices.Contains(c.choices, value) {
		return fmt.Errorf("want one of %s", strings.Join(c.choices, ", "))
	}
	*c.value = value
	return nil
}
