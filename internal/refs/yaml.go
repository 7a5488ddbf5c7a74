package refs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// scanner collects the references of one file's bytes.
type scanner struct {
	src  []byte
	nl   []int // where src's line feeds are
	refs []Reference
	bare []Reference // names in a reference's place that no digest pins
	errs []*FileError
}

func newScanner(src []byte) *scanner {
	s := &scanner{src: src}
	for i := 0; ; i++ {
		n := bytes.IndexByte(src[i:], '\n')
		if n < 0 {
			return s
		}
		i += n
		s.nl = append(s.nl, i)
	}
}

// at is the line and column of an offset, from 1.
func (s *scanner) at(offset int) (line, column int) {
	line, _ = slices.BinarySearch(s.nl, offset)
	start := 0
	if line > 0 {
		start = s.nl[line-1] + 1
	}
	return line + 1, offset - start + 1
}

func (s *scanner) fail(line int, err error) {
	s.errs = append(s.errs, &FileError{Line: line, Err: err})
}

// values walks the YAML documents of a values.yaml.
//
// Each document's mappings and scalars are gathered first, every one once: what is shared through an alias is visited where
// its anchor is, and nothing is ever expanded. Then each shape takes, from all mappings, what it knows. A scalar that a
// mapping's shape has taken is not a reference by itself.
type values struct {
	*scanner
	lines    *yamlLines
	mappings []*yaml.Node
	scalars  []scalar // that hold a digest
	fields   map[*yaml.Node]map[string]*yaml.Node
	address  map[*yaml.Node]*yaml.Node // global.registry.address of an image below global.images
	taken    map[*yaml.Node]bool       // scalars and mappings that made up a reference
	seen     map[[4]*yaml.Node]bool    // what made up one, together
}

type scalar struct {
	node *yaml.Node
	key  string // of the mapping that it is a value of
}

// A valuesShape adds the references of one sub-shape in a document.
type valuesShape struct {
	name Shape
	find func(*values)
}

// valuesShapes in the order they are asked: global says where the images below it come from, and scalar takes what is left.
var valuesShapes = []valuesShape{
	{ShapeGlobal, (*values).findGlobal},
	{ShapeDigest, (*values).findDigests},
	{ShapeTag, (*values).findTags},
	{ShapeOCI, (*values).findOCI},
	{ShapeScalar, (*values).findScalars},
}

const (
	keyRepository = "repository"
	keyImage      = "image"
	keyRegistry   = "registry"
	keyTag        = "tag"
	keyDigest     = "digest"
	keyGlobal     = "global"
	keyImages     = "images"
	keyAddress    = "address"
	keySourceURL  = "platformSourceUrl"
	keySourceRef  = "platformSourceRef"
)

var knownKeys = []string{keyRepository, keyImage, keyRegistry, keyTag, keyDigest, keyGlobal, keyImages, keyAddress,
	keySourceURL, keySourceRef}

func scanValues(src []byte, shapes []valuesShape) *scanner {
	s := newScanner(src)
	if bytes.HasPrefix(src, []byte("\xff\xfe")) || bytes.HasPrefix(src, []byte("\xfe\xff")) {
		s.fail(0, errors.New("is UTF-16: write it in UTF-8"))
		return s
	}
	lines := newYAMLLines(src)
	decoder := yaml.NewDecoder(bytes.NewReader(src))
	for {
		var doc yaml.Node
		err := decode(decoder, &doc)
		if err == io.EOF {
			return s
		}
		if err != nil {
			line, err := parseError(err)
			s.fail(line, err)
			return s
		}
		v := &values{scanner: s, lines: lines,
			fields:  make(map[*yaml.Node]map[string]*yaml.Node),
			address: make(map[*yaml.Node]*yaml.Node),
			taken:   make(map[*yaml.Node]bool),
			seen:    make(map[[4]*yaml.Node]bool),
		}
		v.gather(&doc, "")
		for _, shape := range shapes {
			shape.find(v)
		}
		v.findBare()
	}
}

// decode makes a panic of the parser one file's error.
func decode(d *yaml.Decoder, doc *yaml.Node) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("parser failed: %v", p)
		}
	}()
	return d.Decode(doc)
}

var yamlErrorLine = regexp.MustCompile(`^yaml: line ([0-9]+): `)

// parseError takes the line out of a parser's error.
func parseError(err error) (int, error) {
	text := err.Error()
	if m := yamlErrorLine.FindStringSubmatch(text); m != nil {
		line, _ := strconv.Atoi(m[1])
		return line, fmt.Errorf("parse YAML: %s", text[len(m[0]):])
	}
	return 0, fmt.Errorf("parse YAML: %s", strings.TrimPrefix(text, "yaml: "))
}

// yamlLines finds places that the YAML parser names. It knows more line ends than \n, and counts characters.
type yamlLines struct {
	src    []byte
	starts []int
	marked int   // the line that marks belong to
	marks  []int // the offset of every markStep-th character of that line
}

const markStep = 256

func newYAMLLines(src []byte) *yamlLines {
	l := &yamlLines{src: src, marked: -1}
	first := 0
	if bytes.HasPrefix(src, []byte("\ufeff")) {
		first = len("\ufeff")
	}
	l.starts = append(l.starts, first)
	for i := 0; i < len(src); i++ {
		switch c := src[i]; {
		case c == '\r' && i+1 < len(src) && src[i+1] == '\n':
			continue
		case c == '\n', c == '\r':
		case c == 0x85 && i > 0 && src[i-1] == 0xc2: // next line
		case (c == 0xa8 || c == 0xa9) && i > 1 && src[i-1] == 0x80 && src[i-2] == 0xe2: // line and paragraph separator
		default:
			continue
		}
		l.starts = append(l.starts, i+1)
	}
	return l
}

// offset is where a line and column are, both from 1, or -1.
func (l *yamlLines) offset(line, column int) int {
	if line < 1 || line > len(l.starts) || column < 1 {
		return -1
	}
	at, skip := l.starts[line-1], column-1
	if skip >= markStep { // a long line may hold many nodes
		if l.marked != line {
			l.mark(line)
		}
		i := min(skip/markStep, len(l.marks)-1)
		at, skip = l.marks[i], skip-i*markStep
	}
	for range skip {
		if at = l.next(at); at >= len(l.src) {
			return -1
		}
	}
	return at
}

func (l *yamlLines) mark(line int) {
	end := len(l.src)
	if line < len(l.starts) {
		end = l.starts[line]
	}
	l.marked, l.marks = line, l.marks[:0]
	for at, n := l.starts[line-1], 0; at < end; at, n = l.next(at), n+1 {
		if n%markStep == 0 {
			l.marks = append(l.marks, at)
		}
	}
}

func (l *yamlLines) next(at int) int {
	for at++; at < len(l.src) && l.src[at]&0xc0 == 0x80; at++ {
	}
	return at
}

func (v *values) gather(n *yaml.Node, key string) {
	switch n.Kind {
	case yaml.MappingNode:
		v.mappings = append(v.mappings, n)
		for i := 0; i+1 < len(n.Content); i += 2 {
			k, value := n.Content[i], n.Content[i+1]
			if real := follow(k); real.Kind != yaml.ScalarNode {
				line, _ := v.at(max(v.start(k), 0))
				v.fail(line, errors.New("parse YAML: a key is a mapping or a list, as an unquoted {{ is"))
			}
			v.gather(k, "")
			v.gather(value, follow(k).Value)
		}
	case yaml.ScalarNode:
		if at, _ := digestMark(n.Value, 0); at >= 0 {
			v.scalars = append(v.scalars, scalar{n, key})
		}
	default: // an alias has no content
		for _, c := range n.Content {
			v.gather(c, key)
		}
	}
}

// follow returns what an alias stands for.
func follow(n *yaml.Node) *yaml.Node {
	for n != nil && n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n
}

// field returns the value of one of the known keys, looked for in merged mappings too, or nil.
func (v *values) field(m *yaml.Node, key string) *yaml.Node {
	if m = follow(m); m == nil || m.Kind != yaml.MappingNode {
		return nil
	}
	return v.merged(m)[key]
}

// merged returns the known keys of a mapping: its own, where the last of equal ones counts, then those of the mappings it
// merges, where the first counts. Each mapping is looked at once, however often it is merged.
func (v *values) merged(m *yaml.Node) map[string]*yaml.Node {
	if fields, ok := v.fields[m]; ok {
		return fields
	}
	v.fields[m] = nil // a mapping that merges itself adds nothing
	var fields map[string]*yaml.Node
	set := func(key string, value *yaml.Node) {
		if fields == nil {
			fields = make(map[string]*yaml.Node)
		}
		fields[key] = value
	}
	merges := func(n *yaml.Node) {
		if n = follow(n); n.Kind == yaml.MappingNode {
			for key, value := range v.merged(n) {
				if _, ok := fields[key]; !ok {
					set(key, value)
				}
			}
		}
	}
	for i := 0; i+1 < len(m.Content); i += 2 {
		if key := follow(m.Content[i]); key.Kind == yaml.ScalarNode && slices.Contains(knownKeys, key.Value) {
			set(key.Value, follow(m.Content[i+1]))
		}
	}
	for i := 0; i+1 < len(m.Content); i += 2 {
		if m.Content[i].Tag != "!!merge" {
			continue
		}
		n := follow(m.Content[i+1])
		if n.Kind == yaml.SequenceNode {
			for _, c := range n.Content {
				merges(c)
			}
		} else {
			merges(n)
		}
	}
	v.fields[m] = fields
	return fields
}

// text is what a scalar says without the space around it. Null, and what is no scalar, says nothing.
func text(n *yaml.Node) string {
	if n == nil || n.Kind != yaml.ScalarNode || n.ShortTag() == "!!null" {
		return ""
	}
	return strings.TrimSpace(n.Value)
}

// nameOf returns the node that names a mapping's image.
func (v *values) nameOf(m *yaml.Node) *yaml.Node {
	if n := v.field(m, keyRepository); text(n) != "" {
		return n
	}
	return v.field(m, keyImage)
}

func (v *values) registryOf(m *yaml.Node) *yaml.Node {
	if n := v.field(m, keyRegistry); text(n) != "" {
		return n
	}
	return v.address[m]
}

// findGlobal notes the registry of the images below global, and takes those that are pinned.
func (v *values) findGlobal() {
	var images []*yaml.Node
	for _, m := range v.mappings {
		global := v.field(m, keyGlobal)
		address := v.field(v.field(global, keyRegistry), keyAddress)
		list := v.field(global, keyImages)
		if text(address) == "" || list == nil || list.Kind != yaml.MappingNode {
			continue
		}
		for i := 1; i < len(list.Content); i += 2 {
			if image := follow(list.Content[i]); image.Kind == yaml.MappingNode && v.address[image] == nil {
				v.address[image] = address
				images = append(images, image)
			}
		}
	}
	for _, m := range images {
		v.takeTag(m, ShapeGlobal)
		v.takeDigest(m, ShapeGlobal)
	}
}

func (v *values) findTags() {
	for _, m := range v.mappings {
		v.takeTag(m, ShapeTag)
	}
}

func (v *values) findDigests() {
	for _, m := range v.mappings {
		v.takeDigest(m, ShapeDigest)
	}
}

// takeTag takes a mapping's name and tag, if the tag carries the digest.
func (v *values) takeTag(m *yaml.Node, shape Shape) {
	name, tag := v.nameOf(m), v.field(m, keyTag)
	if !bareName(name) {
		return
	}
	pin, ok := pinned(text(tag), true)
	if !ok || pin.Repository != "" {
		return
	}
	v.taken[m] = true
	if !v.first(name, tag, nil, v.registryOf(m)) {
		return
	}
	r := Reference{Shape: shape, Tag: pin.Tag, Digest: pin.Digest}
	r.name(text(v.registryOf(m)), text(name))
	v.placePinned(&r, tag)
	if d := v.field(m, keyDigest); text(d) == r.Digest {
		if at, ok := v.placed(d, r.Digest); ok {
			r.also = append(r.also, at)
		}
	}
	v.refs = append(v.refs, r)
}

// takeDigest takes a mapping's name and digest.
func (v *values) takeDigest(m *yaml.Node, shape Shape) {
	name, tag, digest := v.nameOf(m), v.field(m, keyTag), v.field(m, keyDigest)
	if !bareName(name) || !digestText(text(digest)) {
		return
	}
	pin, tagPinned := pinned(text(tag), true)
	if tagPinned && pin.Digest == text(digest) {
		return // takeTag's
	}
	v.taken[m] = true
	if !v.first(name, tag, digest, v.registryOf(m)) {
		return
	}
	r := Reference{Shape: shape, Digest: text(digest)}
	if tagPinned { // by another digest: both are listed
		r.name(text(v.registryOf(m)), text(name))
		r.Tag = pin.Tag
		if at, ok := v.placed(tag, pin.Tag+"@"+pin.Digest); ok {
			r.tag = span{at.start, at.start + len(pin.Tag)}
		}
	} else {
		v.nameAndTag(&r, m, name, tag)
	}
	r.digest, _ = v.placed(digest, r.Digest)
	v.point(&r, digest)
	v.refs = append(v.refs, r)
}

// nameAndTag fills in what a mapping says beside the digest: the tag may be part of the name.
func (v *values) nameAndTag(r *Reference, m, name, tag *yaml.Node) {
	base, tagInName := cutTag(cutScheme(text(name)))
	r.name(text(v.registryOf(m)), base)
	switch {
	case text(tag) != "":
		r.Tag = text(tag)
		r.tag, _ = v.placed(tag, r.Tag)
		r.plain = tag.Style == 0
	case tagInName != "":
		r.Tag = tagInName
		if at, ok := v.placed(name, text(name)); ok {
			r.tag = span{at.end - len(tagInName), at.end}
		}
	}
}

// findOCI takes the pairs of an artifact's address and its digest.
func (v *values) findOCI() {
	for _, m := range v.mappings {
		url, ref := v.field(m, keySourceURL), v.field(m, keySourceRef)
		digest, ok := strings.CutPrefix(text(ref), "digest=")
		if !ok {
			continue
		}
		v.taken[m] = true
		if !v.first(url, ref) {
			continue
		}
		r := Reference{Shape: ShapeOCI, Digest: digest}
		v.nameAndTag(&r, m, url, nil)
		if at, ok := v.placed(ref, text(ref)); ok {
			r.digest = span{at.end - len(digest), at.end}
		}
		v.point(&r, ref)
		v.refs = append(v.refs, r)
	}
}

// findScalars takes the scalars that are a reference by themselves, and tags that miss their repository.
func (v *values) findScalars() {
	for _, s := range v.scalars {
		if v.taken[s.node] {
			continue
		}
		r, ok := pinned(strings.TrimSpace(s.node.Value), tagKey(s.key))
		if !ok {
			continue
		}
		r.Shape = ShapeScalar
		if r.Incomplete && tagKey(s.key) {
			r.Shape = ShapeTag
		}
		v.placePinned(&r, s.node)
		v.refs = append(v.refs, r)
	}
}

// findBare notes the images that are named and not pinned.
func (v *values) findBare() {
	for _, m := range v.mappings {
		name, tag := v.nameOf(m), v.field(m, keyTag)
		if url := v.field(m, keySourceURL); text(url) != "" {
			name, tag = url, v.field(m, keySourceRef)
		}
		if !bareName(name) || v.taken[m] || v.taken[name] && (text(tag) == "" || v.taken[tag]) {
			continue
		}
		r := Reference{}
		v.nameAndTag(&r, m, name, tag)
		if rest, ok := strings.CutPrefix(r.Tag, "tag="); ok && !r.tag.none() {
			r.Tag, r.tag.start, r.plain = rest, r.tag.start+len("tag="), false
		}
		if !r.Incomplete || r.Tag != "" {
			v.point(&r, name)
			v.bare = append(v.bare, r)
		}
	}
}

// bareName reports whether a node names an image and nothing more pins it.
func bareName(n *yaml.Node) bool {
	s := text(n)
	at, _ := digestMark(s, 0)
	return s != "" && at < 0 && (templated(s) || isName(cutScheme(s)))
}

// digestText reports whether a value of digest: is meant to be one.
func digestText(s string) bool {
	at, end := digestMark("@"+s, 0)
	return at == 0 && end-1+digestRun(s[end-1:]) == len(s) || len(s) >= 32 && isHex(s)
}

func isHex(s string) bool {
	return strings.Trim(s, "0123456789abcdefABCDEF") == ""
}

// tagKey reports whether the value of that key is a tag.
func tagKey(key string) bool {
	key = strings.ToLower(key)
	return strings.HasSuffix(key, "tag") || strings.HasSuffix(key, "version")
}

// first reports whether these nodes have not made up a reference yet, and takes them. Two mappings that share all of
// them, through aliases and merges, are one reference.
func (v *values) first(nodes ...*yaml.Node) bool {
	var key [4]*yaml.Node
	copy(key[:], nodes)
	if v.seen[key] {
		return false
	}
	v.seen[key] = true
	for _, n := range nodes {
		if n != nil {
			v.taken[n] = true
		}
	}
	return true
}

// placePinned finds where the tag and the digest of a scalar that ends in both are written.
func (v *values) placePinned(r *Reference, n *yaml.Node) {
	if at, ok := v.placed(n, r.Tag+"@"+r.Digest); ok {
		r.digest = span{at.end - len(r.Digest), at.end}
		if r.Tag != "" {
			r.tag = span{at.start, at.start + len(r.Tag)}
		}
	} else {
		r.digest, _ = v.placed(n, r.Digest)
	}
	v.point(r, n)
}

// point sets the line and column of r, which are those of n where its digest is not there as it is.
func (v *values) point(r *Reference, n *yaml.Node) {
	at := r.digest.start
	if r.digest.none() && !r.tag.none() && r.Digest == "" {
		at = r.tag.start
	} else if r.digest.none() {
		at = max(v.start(n), 0)
	}
	r.Line, r.Column = v.at(at)
}

// placed returns where the last part of a scalar's text is written: nowhere, if it is written with escapes or over
// several lines.
func (v *values) placed(n *yaml.Node, part string) (span, bool) {
	at := v.content(n)
	if at < 0 || part == "" {
		return span{}, false
	}
	whole := text(n)
	if n.Style&yaml.DoubleQuotedStyle == 0 || bytes.HasPrefix(v.src[at:], []byte(whole)) {
		if !bytes.HasPrefix(v.src[at:], []byte(whole)) || !strings.HasSuffix(whole, part) {
			return span{}, false
		}
		end := at + len(whole)
		return span{end - len(part), end}, true
	}
	end := at
	for end < len(v.src) && v.src[end] != '"' {
		if v.src[end] == '\\' {
			end++
		}
		end++
	}
	end = min(end, len(v.src))
	raw := bytes.TrimRight(v.src[at:end], " \t\r\n")
	if !bytes.HasSuffix(raw, []byte(part)) {
		return span{}, false
	}
	return span{at + len(raw) - len(part), at + len(raw)}, true
}

// start is the offset of a node, its anchor and tag included, or -1.
func (v *values) start(n *yaml.Node) int {
	if n == nil {
		return -1
	}
	return v.lines.offset(n.Line, n.Column)
}

// content is the offset of a scalar's first byte that is not space, behind its anchor, its tag, comments and the quote or
// the block's header, or -1.
func (v *values) content(n *yaml.Node) int {
	at := v.start(n)
	if at < 0 {
		return -1
	}
	rest := v.src[at:]
	toLineEnd := func() {
		if i := bytes.IndexAny(rest, "\r\n"); i >= 0 {
			rest = rest[i:]
		} else {
			rest = nil
		}
	}
	const space = " \t\r\n"
	for {
		rest = bytes.TrimLeft(rest, space)
		if len(rest) == 0 {
			return -1
		}
		switch c := rest[0]; {
		case c == '&' || c == '!':
			i := bytes.IndexAny(rest, space)
			if i < 0 {
				return -1
			}
			rest = rest[i:]
			continue
		case c == '#':
			toLineEnd()
			continue
		}
		break
	}
	switch {
	case n.Style&(yaml.DoubleQuotedStyle|yaml.SingleQuotedStyle) != 0:
		rest = rest[1:]
	case n.Style&(yaml.LiteralStyle|yaml.FoldedStyle) != 0:
		toLineEnd()
	}
	rest = bytes.TrimLeft(rest, space)
	return len(v.src) - len(rest)
}
