package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// Choice adds a flag to cmd that takes one of the given values. Another value is wrong usage, and the shell completes them.
func Choice(cmd *cobra.Command, p *string, name, value, usage string, choices ...string) {
	addChoice(cmd, p, name, "", value, usage, choices)
}

func addChoice(cmd *cobra.Command, p *string, name, short, value, usage string, choices []string) {
	*p = value
	cmd.Flags().VarP(&choice{p, choices}, name, short, usage)
	// The one error is a flag that was not defined.
	_ = cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(choices, cobra.ShellCompDirectiveNoFileComp))
}

// Output adds the flag that says how a command prints its result.
func Output(cmd *cobra.Command, p *string) {
	addChoice(cmd, p, "output", "o", "text", "how to print the result: text or json", []string{"text", "json"})
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
