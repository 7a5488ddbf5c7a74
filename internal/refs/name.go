package refs

import (
	"regexp"
	"strings"

	"github.com/distribution/reference"
)

// parseName reads the name of an image without tag and digest by the grammar that container runtimes share.
func parseName(name string) (registry, repository string, ok bool) {
	named, err := reference.ParseNormalizedNamed(name)
	if err != nil || !reference.IsNameOnly(named) || reference.Domain(named) == "" { // a_b.io is no registry
		return "", "", false
	}
	return reference.Domain(named), reference.Path(named), true
}

var (
	tagGrammar    = regexp.MustCompile(`^` + reference.TagRegexp.String() + `$`)
	digestGrammar = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

	// versionLike tells v1.2.3@sha256:… in a key that says nothing from an image of that name.
	versionLike = regexp.MustCompile(`^v?[0-9]+([-+._][-+._0-9A-Za-z]*)?$`)
)

// digestMark finds the first @sha256: of s at or after from, and any other @sha<digits>:. It returns where the @ is and
// where the colon ends, or -1.
func digestMark[T string | []byte](s T, from int) (at, end int) {
	for i := from; i < len(s); i++ {
		if s[i] != '@' || len(s)-i < len("@sha1:") || string(s[i:i+4]) != "@sha" {
			continue
		}
		j := i + 4
		for j < len(s) && '0' <= s[j] && s[j] <= '9' {
			j++
		}
		if j > i+4 && j < len(s) && s[j] == ':' {
			return i, j + 1
		}
	}
	return -1, -1
}

// cutTag divides name[:tag].
func cutTag(head string) (name, tag string) {
	if i := strings.LastIndexByte(head, ':'); i > strings.LastIndexByte(head, '/') {
		return head[:i], head[i+1:]
	}
	return head, ""
}

// cutScheme drops what says that a name is an image's.
func cutScheme(name string) string {
	for _, scheme := range []string{"oci://", "docker://"} {
		if rest, ok := strings.CutPrefix(name, scheme); ok {
			return rest
		}
	}
	return name
}

// name puts the image's name into r. Without a name that the grammar takes, r is incomplete.
func (r *Reference) name(registry, name string) {
	full := cutScheme(name)
	if registry != "" && full != "" {
		full = strings.TrimRight(cutScheme(registry), "/") + "/" + full
	}
	var ok bool
	if r.Registry, r.Repository, ok = parseName(full); !ok {
		r.Repository = full
	}
	r.Incomplete = !ok
}

// pinned reads text as [name[:tag]]@digest. inTag says that it stands where a tag does, so that what is before the digest
// is one. It returns false if there is no digest, or text is more than a reference.
func pinned(text string, inTag bool) (Reference, bool) {
	at, end := digestMark(text, 0)
	if at < 0 || len(text) > end+digestRun(text[end:]) {
		return Reference{}, false
	}
	r := Reference{Digest: text[at+1:]}
	head := text[:at]
	name, tag := cutTag(head)
	switch {
	case inTag && (templated(head) || !strings.ContainsAny(head, "/: \t\r\n")), versionLike.MatchString(head):
		name, tag = "", head
	}
	r.Tag = tag
	if name != "" && !templated(name) && !isName(cutScheme(name)) {
		return Reference{}, false
	}
	r.name("", name)
	return r, true
}

// digestRun is how many bytes of a digest s begins with. They may be too few, or the wrong ones.
func digestRun[T string | []byte](s T) int {
	n := 0
	for n < len(s) && tagByte(s[n]) && s[n] != '.' && s[n] != '-' && s[n] != '_' {
		n++
	}
	return n
}

// templated reports whether a part of name is filled in later.
func templated(name string) bool { return strings.Contains(name, "{{") || strings.Contains(name, "${") }

// isName reports whether s is written with the letters of names alone, upper case too.
func isName(s string) bool {
	for i := range len(s) {
		if !nameByte(s[i]) {
			return false
		}
	}
	return s != ""
}

// nameByte reports whether c can be part of name:tag.
func nameByte(c byte) bool { return tagByte(c) || c == '/' || c == ':' }

// tagByte reports whether c can be part of a tag.
func tagByte(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '_' || c == '.' || c == '-'
}

// owned reports whether the image of that name is below one of the prefixes.
func owned(name string, prefixes []string) bool {
	for _, p := range prefixes {
		if rest, ok := strings.CutPrefix(name, strings.TrimRight(p, "/")); ok && (rest == "" || rest[0] == '/') {
			return true
		}
	}
	return false
}

// Owned returns the complete references whose images are below one of the prefixes.
func Owned(list []Reference, prefixes []string) []Reference {
	mine := []Reference{}
	for _, r := range list {
		if !r.Incomplete && owned(r.Name(), prefixes) {
			mine = append(mine, r)
		}
	}
	return mine
}
