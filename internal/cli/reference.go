package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// Reference is the command reference of root and all below it, in Markdown. docs/reference holds it, and a test of each
// program holds the two equal.
func Reference(root *cobra.Command) string {
	var b strings.Builder
	b.WriteString("<!-- Written by `make docs`. -->\n")
	reference(&b, root)
	return b.String()
}

func reference(b *strings.Builder, cmd *cobra.Command) {
	text := cmd.Long
	if text == "" {
		text = cmd.Short
	}
	fmt.Fprintf(b, "\n## %s\n\n```\n%s\n```\n", cmd.CommandPath(), strings.TrimSpace(text))
	if cmd.Runnable() && !cmd.HasSubCommands() {
		fmt.Fprintf(b, "\n```\n%s\n```\n", cmd.UseLine())
	}
	if cmd.Example != "" {
		fmt.Fprintf(b, "\n```\n%s\n```\n", strings.TrimRight(cmd.Example, "\n"))
	}
	if cmd.HasAvailableLocalFlags() {
		fmt.Fprintf(b, "\n```\n%s```\n", cmd.LocalFlags().FlagUsages())
	}
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() && sub.Name() != "help" && sub.Name() != "completion" {
			reference(b, sub)
		}
	}
}
