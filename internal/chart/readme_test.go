package chart

import (
	"slices"
	"strings"
	"testing"
)

func TestDescribe(t *testing.T) {
	got, err := describe([]byte(`# The first,
# in two lines.
a: null

# About all of b.
b:
  # One.
  c: 1Gi
  # Two.
  d: [x, 'y']
# A map that
# is empty.
e: {}
`))
	want := []Value{
		{"a", "null", "The first, in two lines."},
		{"b.c", `"1Gi"`, "About all of b. One."},
		{"b.d", `["x","y"]`, "Two."},
		{"e", "{}", "A map that is empty."},
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	for text, says := range map[string]string{
		"a: 1\n":            "a has no comment",
		"# x\na:\n  b: 1\n": "a.b has no comment",
		"- a\n":             "not a map",
		"":                  "not a map",
		"# x\na: [\n":       "did not find",
	} {
		if _, err := describe([]byte(text)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v", text, err)
		}
	}
}
