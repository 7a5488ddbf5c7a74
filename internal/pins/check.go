package pins

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"
)

// Shipped is a release of another product that somebody ships along with the plugins.
type Shipped struct {
	Product string
	Release string // without a leading v and without a digest
}

// ParseShipped reads PRODUCT=RELEASE, or PRODUCT=@FILE#/PATH, where PATH is a JSON pointer to the release in a YAML or JSON
// file; without #/PATH the file holds the release and nothing else. A release may have a leading v, a digest after @, and
// the repository of an image before its colon.
func ParseShipped(arg string) (Shipped, error) {
	product, release, ok := strings.Cut(arg, "=")
	if !ok || product == "" || release == "" {
		return Shipped{}, fmt.Errorf("%q: want PRODUCT=RELEASE or PRODUCT=@FILE#/PATH", arg)
	}
	from := release
	if file, isFile := strings.CutPrefix(release, "@"); isFile {
		var err error
		if release, err = releaseIn(file); err != nil {
			return Shipped{}, fmt.Errorf("read release of %s: %w", product, err)
		}
	}
	s := Shipped{product, normalise(release)}
	if s.Release == "" || strings.ContainsAny(s.Release, "/: \t\n") {
		return Shipped{}, fmt.Errorf("%s: %q (%s) is not a release", product, release, from)
	}
	return s, nil
}

func normalise(release string) string {
	release, _, _ = strings.Cut(strings.TrimSpace(release), "@")
	// After the last slash a colon is before a tag; in front of it, before the registry's port.
	name := release[strings.LastIndex(release, "/")+1:]
	if _, tag, ok := strings.Cut(name, ":"); ok {
		release = tag
	}
	return strings.TrimPrefix(release, "v")
}

// releaseIn returns the text at FILE#/PATH.
func releaseIn(arg string) (string, error) {
	file, pointer, _ := strings.Cut(arg, "#")
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return "", err
	}
	if len(data) > maxFile {
		return "", fmt.Errorf("%s: more than %d bytes", file, maxFile)
	}
	if pointer == "" {
		text := strings.TrimSpace(string(data))
		if strings.Contains(text, "\n") {
			return "", fmt.Errorf("%s: holds more than a release; say where in it with #/PATH", file)
		}
		return text, nil
	}
	var at any
	if err := yaml.Unmarshal(data, &at); err != nil {
		return "", fmt.Errorf("%s: %w", file, err)
	}
	steps, ok := strings.CutPrefix(pointer, "/")
	if !ok {
		return "", fmt.Errorf("%s: %q is no JSON pointer, which begins with a slash", file, pointer)
	}
	so := ""
	for step := range strings.SplitSeq(steps, "/") {
		so += "/" + step
		step = strings.NewReplacer("~1", "/", "~0", "~").Replace(step)
		found := false
		switch in := at.(type) {
		case map[string]any:
			at, found = in[step]
		case []any:
			i, err := strconv.Atoi(step)
			if found = err == nil && i >= 0 && i < len(in); found {
				at = in[i]
			}
		}
		if !found {
			return "", fmt.Errorf("%s: nothing at %s", file, so)
		}
	}
	text, ok := at.(string)
	if !ok {
		return "", fmt.Errorf("%s: at %s is no text: %v; a version that is a number has to be quoted there", file, so, at)
	}
	return text, nil
}

// NotComparedError says that a release is shipped that the staged plugins were not compared with. Its text is for the
// person who moves that release: what to look up, what to decide, where to write it.
type NotComparedError struct {
	Shipped Shipped
	Plugins *Plugins
	Known   []Compared // the releases of the product that they were compared with, newest last
}

// where says in which place a product names the version of the plugins that it carries.
var where = map[string]string{
	"talos":    "the cni package of the siderolabs/pkgs commit that its Makefile names; the names are in its Dockerfile",
	"kube-ovn": "the Dockerfile of its base image; the names are in its dist/images/install-cni.sh",
}

func (e *NotComparedError) Error() string {
	var b strings.Builder
	s, version := e.Shipped, e.Plugins.Version
	if len(e.Known) == 0 {
		fmt.Fprintf(&b, "%s %s is shipped, and the staged plugins were never compared with any %s", s.Product, s.Release, s.Product)
	} else {
		var releases []string
		for _, c := range e.Known {
			releases = append(releases, c.Release)
		}
		fmt.Fprintf(&b, "%s %s is shipped, and the staged plugins were compared with %s", s.Product, s.Release, strings.Join(releases, ", "))
	}
	fmt.Fprintf(&b, "\n  look up: the version of containernetworking/plugins in %s %s, and which names it writes to the nodes", s.Product, s.Release)
	if place, ok := where[strings.ToLower(s.Product)]; ok {
		fmt.Fprintf(&b, " (%s)", place)
	}
	overlap := "those that are staged too"
	if len(e.Known) > 0 {
		overlap = strings.Join(e.Plugins.overlap(e.Known[len(e.Known)-1]), ", ")
	}
	fmt.Fprintf(&b, "\n  decide: staging replaces its %s by %s. If it carries another version, either move plugins.version to it, or state that nodes get %s over it", overlap, version, version)
	fmt.Fprintf(&b, "\n  write: release, carries and writes of %s, under plugins.comparedWith in upstream/pins.yaml", s.Product)
	return b.String()
}

// overlap is what other writes and staging does too.
func (p *Plugins) overlap(other Compared) []string {
	var both []string
	for _, name := range other.Writes {
		if slices.ContainsFunc(p.Staged, func(s Staged) bool { return s.Name == name }) {
			both = append(both, name)
		}
	}
	return both
}

// Check holds the plugins to the releases that are shipped. What it returns says of each in order what was found; the error
// joins a *NotComparedError for each release that the plugins were not compared with.
func (p *Plugins) Check(shipped []Shipped) ([]string, error) {
	var said []string
	var errs []error
	for _, s := range shipped {
		var known []Compared
		for _, c := range p.ComparedWith {
			if strings.EqualFold(c.Product, s.Product) {
				known = append(known, c)
			}
		}
		i := slices.IndexFunc(known, func(c Compared) bool { return normalise(c.Release) == s.Release })
		if i < 0 {
			errs = append(errs, &NotComparedError{s, p, known})
			continue
		}
		c := known[i]
		both := strings.Join(p.overlap(c), ", ")
		switch {
		case both == "":
			said = append(said, fmt.Sprintf("%s %s: writes none of the staged names", c.Product, c.Release))
		case c.Carries == p.Version:
			said = append(said, fmt.Sprintf("%s %s: carries %s, as staged (%s)", c.Product, c.Release, c.Carries, both))
		default:
			said = append(said, fmt.Sprintf("%s %s: carries %s, and staging replaces %s by %s", c.Product, c.Release, c.Carries, both, p.Version))
		}
	}
	return said, errors.Join(errs...)
}
