package plugin

import (
	"regexp"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/mod/semver"
)

// parsedVersion is what of a version has a place in upstream's order.
type parsedVersion struct {
	semantic string // in canonical form, with a pre-release but without build metadata
	commits  int    // that it is ahead of that release, as git describe counts
}

// compiled compiles an expression when it is first used: staging, which counts every page, uses none of these.
func compiled(expr string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })
}

var (
	versionParts = compiled(strings.ReplaceAll(`^v?(?:(N\.N\.N)([.+~-][\w.+~:-]+)?|(N\.N)([+~-][\w.+~:-]+)?)$`, "N", `(?:0|[1-9][0-9]{0,8})`))
	// What upstreams call what comes before a release. Anything else behind a release is a distribution's.
	preRelease    = compiled(`^[-~.]?(alpha|beta|pre|preview|rc|dev|snapshot|nightly)(?:[.-]?([0-9]{1,9}))?(?:[^A-Za-z0-9].*)?$`)
	pseudoVersion = compiled(`^-(?:(?:(alpha|beta|pre|preview|rc|dev)[.-]?([0-9]{1,9})?\.)?0\.)?([0-9]{14}-[0-9a-f]{12})(?:\+.*)?$`)
	gitDescribe   = compiled(`^-([0-9]{1,9})-g[0-9a-f]{7,40}(?:[^0-9A-Za-z].*)?$`)
)

// splitVersion returns the numbers of a version, and what follows them.
func splitVersion(s string) (numbers, rest string, ok bool) {
	m := versionParts().FindStringSubmatch(s)
	if m == nil {
		return "", "", false
	}
	return m[1] + m[3], m[2] + m[4], true
}

func parseVersion(s string) (parsedVersion, bool) {
	numbers, rest, ok := splitVersion(s)
	if !ok {
		return parsedVersion{}, false
	}
	v := parsedVersion{semantic: semver.Canonical("v" + numbers)}
	if m := pseudoVersion().FindStringSubmatch(rest); m != nil {
		// One without a number in front of it is of a time before the first release, and says v0.0.0.
		v.semantic += "-"
		if m[1] != "" {
			v.semantic += m[1] + "." + number(m[2]) + "."
		}
		v.semantic += "0." + m[3]
	} else if m := preRelease().FindStringSubmatch(rest); m != nil {
		v.semantic += "-" + m[1] + "." + number(m[2])
	} else if m := gitDescribe().FindStringSubmatch(rest); m != nil {
		v.commits, _ = strconv.Atoi(m[1])
	}
	return v, true
}

// number is a number without leading zeros, 0 where there is none.
func number(digits string) string {
	if digits = strings.TrimLeft(digits, "0"); digits == "" {
		return "0"
	}
	return digits
}

// Compare orders two versions of one module by what upstream released: -1 if a is the older, 1 if it is the newer, 0 if
// neither is. It is false if either is no version.
//
// What a distribution appends (v1.9.1+k3s1, 1.1.1+ds1-3+b5, v1.9.1-rancher1) is a build or a change of that release, and makes it
// neither older nor newer. Pre-releases and the pseudo-versions of commits before it come before a release; what git
// describes as commits after it (v1.9.1-3-g1a2b3c4) comes after it.
func Compare(a, b string) (int, bool) {
	va, okA := parseVersion(a)
	vb, okB := parseVersion(b)
	if !okA || !okB {
		return 0, false
	}
	if c := semver.Compare(va.semantic, vb.semantic); c != 0 {
		return c, true
	}
	switch {
	case va.commits < vb.commits:
		return -1, true
	case va.commits > vb.commits:
		return 1, true
	}
	return 0, true
}

// released says whether a version is one that somebody gave, and not one that the Go command made up for a commit or for
// a changed working tree.
func released(version string) bool {
	_, rest, ok := splitVersion(version)
	return ok && !pseudoVersion().MatchString(rest) && !strings.HasSuffix(rest, "+dirty")
}
