package distribution

import (
	"fmt"
	"strings"
)

// Markdown is docs/distributions.md.
func Markdown() ([]byte, error) {
	supported, err := Supported()
	if err != nil {
		return nil, err
	}
	known, err := Unsupported()
	if err != nil {
		return nil, err
	}
	var b strings.Builder
	b.WriteString(`<!-- Made by chandlerctl chart docs from charts/multus/files/distributions.yaml and
     internal/distribution/unsupported.yaml; change those. -->

# Node distributions

A Kubernetes node has one directory in which Multus looks for plugins, and one in which the container runtime looks for
CNI configurations. Where they are, what is in them already, and who else writes there depends on the distribution.

## Supported

The chart's value ` + "`distribution`" + ` takes these names, and each sets the values below where they are unset.

| distribution | binDir | confDir | capabilities | SELinux type | stageCniPlugins | stagePolicy |
|---|---|---|---|---|---|---|
`)
	for _, d := range supported {
		row(&b, code(d.Name), code(d.BinDir), code(d.ConfDir), or(codes(d.Capabilities), "none"), or(code(d.SELinuxType), "none said"), onOff(d.Staging), code(d.Policy))
	}
	for _, d := range supported {
		fmt.Fprintf(&b, "\n### %s\n\n%s.\n\n", d.Name, d.Title)
		fmt.Fprintf(&b, "- Ships: %s (%s).\n", or(codes(d.Ships), "nothing"), d.Form)
		fmt.Fprintf(&b, "- Beware: %s\n", d.Caveat)
		fmt.Fprintf(&b, "- Read in: %s.\n", strings.Join(d.Sources, "; "))
	}
	b.WriteString(`
## Known and not supported yet

Nobody has tried these here. With ` + "`distribution`" + ` unset and ` + "`binDir`, `confDir` and `stageCniPlugins`" + ` given they may
work; read the caveat first, and what the [guide](guide.md) says of what staging writes.

| distribution | binDir | confDir | ships | beware | read in |
|---|---|---|---|---|---|
`)
	for _, d := range known {
		row(&b, d.Title, place(d.BinDir), place(d.ConfDir), d.Form, d.Caveat, strings.Join(d.Sources, "; "))
	}
	return []byte(b.String()), nil
}

func row(b *strings.Builder, cells ...string) {
	fmt.Fprintf(b, "| %s |\n", strings.ReplaceAll(strings.Join(cells, " | "), "\n", " "))
}

// place is a directory, or a word on where it is.
func place(s string) string {
	if strings.HasPrefix(s, "/") {
		return code(s)
	}
	return s
}

func code(s string) string {
	if s == "" {
		return ""
	}
	return "`" + s + "`"
}

func codes(list []string) string {
	quoted := make([]string, len(list))
	for i, s := range list {
		quoted[i] = code(s)
	}
	return strings.Join(quoted, ", ")
}

func or(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

func onOff(b bool) string {
	if b {
		return "on"
	}
	return "off"
}
