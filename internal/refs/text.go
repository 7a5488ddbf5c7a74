package refs

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// How far around a place in a text its surroundings are looked at. Beyond, a line is data and not something written.
const (
	maxHead   = 512     // bytes of a name and tag
	maxKey    = 256     // bytes of a key before a value
	maxBefore = 4 << 10 // bytes of a line
	maxBlock  = 100     // lines of a block of siblings
)

// scanTagFile reads a file of one reference. Comments begin with #, at the start of a line or behind space.
func scanTagFile(src []byte) *scanner {
	s := newScanner(src)
	var words []span
	for start := 0; start < len(src); {
		end := len(src)
		if i := bytes.IndexByte(src[start:], '\n'); i >= 0 {
			end = start + i
		}
		line := src[start:end]
		if start == 0 {
			line = bytes.TrimPrefix(line, []byte("\ufeff"))
		}
		from := end - len(line)
		if c := commentStart(line); c >= 0 {
			line = line[:c]
		}
		if word := bytes.TrimSpace(line); len(word) > 0 {
			from += bytes.Index(line, word)
			words = append(words, span{from, from + len(word)})
		}
		start = end + 1
	}
	for _, at := range words {
		line, _ := s.at(at.start)
		word := string(src[at.start:at.end])
		r, ok := pinned(word, false)
		if ok {
			r.digest = span{at.end - len(r.Digest), at.end}
			if r.Tag != "" {
				end := r.digest.start - len("@")
				r.tag = span{end - len(r.Tag), end}
			}
		} else if r, ok = unpinned(word); ok && r.Tag != "" {
			r.tag = span{at.end - len(r.Tag), at.end}
		}
		if !ok {
			s.fail(line, fmt.Errorf("%q is not an image reference", word))
			continue
		}
		r.Shape = ShapeTagFile
		switch {
		case r.Digest != "":
			r.Line, r.Column = s.at(r.digest.start)
		case r.Tag != "":
			r.Line, r.Column = s.at(r.tag.start)
		default:
			r.Line, r.Column = s.at(at.start)
		}
		s.refs = append(s.refs, r)
	}
	switch {
	case len(words) == 0:
		s.fail(0, errNoReference)
	case len(words) > 1:
		line, _ := s.at(words[1].start)
		s.fail(line, errors.New("holds more than one reference"))
	}
	return s
}

// unpinned reads text as name[:tag], or as a version that misses its name.
func unpinned(text string) (Reference, bool) {
	name, tag := cutTag(text)
	if versionLike.MatchString(text) {
		name, tag = "", text
	} else if !isName(cutScheme(name)) {
		return Reference{}, false
	}
	r := Reference{Tag: tag}
	r.name("", name)
	return r, name == "" || !r.Incomplete
}

// commentStart is where in a line a comment begins, or -1: at a # behind nothing or space, outside quotes.
func commentStart(line []byte) int {
	var quote byte
	for i, c := range line {
		switch {
		case quote != 0:
			if c == quote {
				quote = 0
			}
		case c == '#' && (len(bytes.TrimSpace(line[:i])) == 0 || line[i-1] == ' ' || line[i-1] == '\t'):
			return i
		case (c == '"' || c == '\'') && (i == 0 || !tagByte(line[i-1])): // not the one of don't
			quote = c
		}
	}
	return -1
}

// line is the line around an offset, as far as it is looked at, and where in src it begins.
func (s *scanner) line(at int) (line []byte, start int) {
	n, _ := slices.BinarySearch(s.nl, at)
	return s.lineNumber(n)
}

func (s *scanner) lineNumber(n int) (line []byte, start int) {
	end := len(s.src)
	if n > 0 {
		start = s.nl[n-1] + 1
	}
	if n < len(s.nl) {
		end = s.nl[n]
	}
	return s.src[start:end], start
}

// before is what stands on the line before an offset.
func (s *scanner) before(at int) []byte {
	_, start := s.line(at)
	return s.src[max(start, at-maxKey):at]
}

// commented reports whether an offset is in a comment.
func (s *scanner) commented(at int) bool {
	_, start := s.line(at)
	return at-start <= maxBefore && commentStart(s.src[start:at]) >= 0
}

// head is where the run of name:tag that ends at end begins.
func (s *scanner) head(end int) int {
	start := end
	for start > 0 && end-start < maxHead && nameByte(s.src[start-1]) {
		start--
	}
	return start
}

// scanText finds references in any text: name:tag@sha256:digest, and tag: <tag>@sha256:digest or digest: sha256:digest
// with a repository beside it. Comments are passed over, and so is what is known already, unless the text knows more.
func (s *scanner) scanText() {
	known := make(map[int]int) // the start of a digest: the reference that holds it
	for i, r := range s.refs {
		if !r.digest.none() {
			known[r.digest.start] = i
		}
		for _, at := range r.also {
			known[at.start] = i
		}
	}
	for from := 0; ; {
		at := bytes.Index(s.src[from:], []byte("sha"))
		if at < 0 {
			return
		}
		at += from
		from = at + 1
		r, ok := s.textAt(at)
		if !ok || s.commented(at) {
			continue
		}
		from = r.digest.end
		r.Shape = ShapeText
		r.Line, r.Column = s.at(at)
		if i, ok := known[at]; !ok {
			s.refs = append(s.refs, r)
		} else if s.refs[i].Incomplete && !r.Incomplete {
			s.refs[i] = r
		}
	}
}

// keyBefore is the key whose value begins where before ends, behind a quote, an anchor and a type. parted says that a colon
// or an equals sign is between them, and not space alone.
func keyBefore(before []byte) (key []byte, parted bool) {
	before = trimQuote(before)
	for {
		rest := bytes.TrimRight(before, " \t")
		word := rest[1+bytes.LastIndexAny(rest, " \t"):]
		if len(rest) == len(before) || len(word) == 0 || word[0] != '&' && word[0] != '!' {
			break
		}
		before = rest[:len(rest)-len(word)]
	}
	rest := bytes.TrimRight(before, " \t")
	if n := len(rest); n > 0 && (rest[n-1] == ':' || rest[n-1] == '=') {
		parted = true
		rest = trimQuote(bytes.TrimRight(bytes.TrimSuffix(rest[:n-1], []byte(":")), " \t"))
	} else if n == len(before) {
		return nil, false
	}
	start := len(rest)
	for start > 0 && tagByte(rest[start-1]) {
		start--
	}
	return rest[start:], parted
}

func trimQuote(b []byte) []byte {
	if n := len(b); n > 0 && (b[n-1] == '"' || b[n-1] == '\'') {
		return b[:n-1]
	}
	return b
}

// textAt reads the reference whose digest begins at an offset.
func (s *scanner) textAt(at int) (Reference, bool) {
	end := at + len("sha")
	for end < len(s.src) && '0' <= s.src[end] && s.src[end] <= '9' {
		end++
	}
	if end == at+len("sha") || end == len(s.src) || s.src[end] != ':' {
		return Reference{}, false
	}
	end++
	n := digestRun(s.src[end:])
	digest := span{at, end + n}
	if at == 0 || s.src[at-1] != '@' {
		return s.textDigest(digest)
	}
	start := s.head(at - 1)
	if n == 0 && (start == at-1 || end < len(s.src) && bytes.IndexByte([]byte("{<$%"), s.src[end]) >= 0) {
		return Reference{}, false // the digest is filled in later, or is not meant
	}
	head := string(s.src[start : at-1])
	before := s.before(start)
	r := Reference{Digest: string(s.src[digest.start:digest.end]), digest: digest}
	if bytes.HasSuffix(before, []byte("}")) { // the front of the name, or of the tag, is filled in later
		if i := strings.LastIndexByte(head, ':'); i >= 0 {
			r.Tag, r.tag = head[i+1:], span{start + i + 1, at - 1}
		}
		r.name("", "{{…}}"+strings.TrimSuffix(head, ":"+r.Tag))
		return r, true
	}
	key, parted := keyBefore(before)
	pin, ok := pinned(head+"@"+r.Digest, parted && tagKey(string(key)))
	if !ok {
		return Reference{}, false
	}
	r.Registry, r.Repository, r.Tag, r.Incomplete = pin.Registry, pin.Repository, pin.Tag, pin.Incomplete
	if r.Tag != "" {
		r.tag = span{at - 1 - len(r.Tag), at - 1}
	}
	if r.Incomplete && r.Repository == "" {
		s.besideTag(&r, start)
	}
	return r, true
}

// besideTag puts the name into r that stands beside the tag at an offset. One that has a tag itself is another image's.
func (s *scanner) besideTag(r *Reference, at int) {
	beside := s.siblings(at)
	if name, tag := cutTag(cutScheme(beside.name)); name != "" && tag == "" {
		r.name(beside.registry, name)
	}
}

// textDigest reads the reference of a digest: beside a repository:.
func (s *scanner) textDigest(digest span) (Reference, bool) {
	if key, parted := keyBefore(s.before(digest.start)); !parted || !strings.EqualFold(string(key), keyDigest) {
		return Reference{}, false
	}
	beside := s.siblings(digest.start)
	if beside.name == "" {
		return Reference{}, false
	}
	r := Reference{Digest: string(s.src[digest.start:digest.end]), digest: digest}
	name, tag := cutTag(cutScheme(beside.name))
	r.name(beside.registry, name)
	switch {
	case !beside.tag.none():
		r.tag, r.plain = beside.tag, beside.plain
		r.Tag = string(s.src[r.tag.start:r.tag.end])
		if at, _ := digestMark(r.Tag, 0); at >= 0 { // the tag carries a digest, too
			r.Tag, r.tag.end, r.plain = r.Tag[:at], r.tag.start+at, false
		}
	case tag != "":
		r.Tag = tag
		r.tag = span{beside.nameEnd - len(tag), beside.nameEnd}
	}
	return r, true
}

// beside is what the keys around a place say.
type beside struct {
	name, registry string // name is empty where there is none, or several
	nameEnd        int
	tag            span
	plain          bool // the tag is not quoted
}

var (
	pair = regexp.MustCompile(`["']?\b(repository|image|registry|tag)["']?[ \t]*:[ \t]*(?:[&!][^ \t]+[ \t]+)*(?:"([^"]*)"|'([^']*)'|([^"',{}\[\]#\s][^,{}\[\]\s]*))`)
	item = regexp.MustCompile(`^[ ]*(?:- +)*`)
)

// siblings reads the pairs around an offset: those between the same braces, or else those of lines that are indented like
// its own and not parted from it by one that is indented less.
func (s *scanner) siblings(at int) beside {
	found := make(map[string][]span)
	add := func(m []int, start int) {
		key := string(s.src[start+m[2] : start+m[3]])
		for _, group := range [][2]int{{m[4], m[5]}, {m[6], m[7]}, {m[8], m[9]}} {
			if group[0] >= 0 {
				found[key] = append(found[key], span{start + group[0], start + group[1]})
			}
		}
	}
	addLine := func(line []byte, start int) {
		indent := len(item.Find(line))
		if m := pair.FindSubmatchIndex(line[:min(len(line), maxBefore)]); m != nil && m[0] == indent { // the line's own key
			add(m, start)
		}
	}
	number, _ := slices.BinarySearch(s.nl, at)
	line, start := s.lineNumber(number)
	if inside, from, ok := braces(line, at-start); ok {
		for _, m := range pair.FindAllSubmatchIndex(inside, -1) {
			add(m, start+from)
		}
	} else {
		indent := len(item.Find(line))
		addLine(line, start)
		for _, step := range []int{-1, 1} {
			began := step < 0 && bytes.ContainsRune(item.Find(line), '-')
			for n, left := number+step, maxBlock; n >= 0 && n <= len(s.nl) && left > 0 && !began; n, left = n+step, left-1 {
				other, start := s.lineNumber(n)
				if len(other) > maxBefore {
					break
				}
				rest := bytes.TrimSpace(other)
				if len(rest) == 0 || rest[0] == '#' || bytes.HasPrefix(rest, []byte("{{")) {
					continue
				}
				prefix := item.Find(other)
				dash := bytes.ContainsRune(prefix, '-')
				if len(prefix) < indent || dash && step > 0 && len(prefix) <= indent {
					break
				}
				if len(prefix) == indent {
					addLine(other, start)
					began = dash
				}
			}
		}
	}
	one := func(key string) (string, span) {
		var value string
		var where span
		for i, at := range found[key] {
			v := string(s.src[at.start:at.end])
			if i > 0 && v != value {
				return "", span{}
			}
			value, where = v, at
		}
		return value, where
	}
	var b beside
	key := keyRepository
	if len(found[key]) == 0 {
		key = keyImage
	}
	name, where := one(key)
	if at, _ := digestMark(name, 0); at < 0 {
		b.name, b.nameEnd = name, where.end
	}
	b.registry, _ = one(keyRegistry)
	_, b.tag = one(keyTag)
	b.plain = !b.tag.none() && bytes.IndexByte([]byte(`"'`), s.src[b.tag.start-1]) < 0
	return b
}

// braces finds the innermost { } around an offset of a line. Those of templates are none.
func braces(line []byte, at int) (inside []byte, from int, ok bool) {
	depth := 0
	open := -1
	for i := at - 1; i >= max(0, at-maxBefore); i-- {
		switch line[i] {
		case '}':
			depth++
		case '{':
			if depth--; depth < 0 {
				open = i
			}
		}
		if open >= 0 {
			break
		}
	}
	if open < 0 || open > 0 && line[open-1] == '{' {
		return nil, 0, false
	}
	end := min(len(line), at+maxBefore)
	depth = 0
	for i := at; i < end; i++ {
		switch line[i] {
		case '{':
			depth++
		case '}':
			if depth--; depth < 0 {
				return line[open+1 : i], open + 1, true
			}
		}
	}
	return line[open+1 : end], open + 1, true
}
