package chart

import (
	"os"
	"strings"
	"testing"
)

const checkout = "../.."

func readFile(t testing.TB, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// The vendored manifest has all that the chart relies on. That each missing thing is found, and found alike by the
// templates, is tested where Helm is: test/chart.
func TestVendoredManifestIsFit(t *testing.T) {
	list, err := ParseReliedOn(readFile(t, checkout+"/"+reliedOnFile))
	if err != nil {
		t.Fatal(err)
	}
	m, err := ParseManifest(readFile(t, checkout+"/"+manifestFile))
	if err != nil {
		t.Fatal(err)
	}
	if found := m.Check(list); found != nil {
		t.Error(found)
	}
	seen := make(map[string]bool)
	for _, entry := range list {
		if entry.What == "" || entry.Object == "" || entry.For == "" {
			t.Errorf("incomplete: %+v", entry)
		}
		if seen[entry.What] {
			t.Errorf("two entries are called %q", entry.What)
		}
		seen[entry.What] = true
	}
}

func TestCheckFindsEverything(t *testing.T) {
	m, err := ParseManifest([]byte("# c\n---\nkind: A\nmetadata: {name: a}\nlist: [{name: x}, {name: z}]\ntext: '{\"k\": 1}'\nargs: [-d, /x]\nnull:\n--- # comment\nkind: B\nmetadata: {name: b}\n---\n"))
	if err != nil {
		t.Fatal(err)
	}
	if len(m.Objects) != 2 {
		t.Fatalf("%d objects", len(m.Objects))
	}
	list, err := ParseReliedOn([]byte(`
- {what: ok1, object: A/a, path: [list, {name: x}], for: x}
- {what: ok2, object: A/a, path: [text, "@json", k], for: x}
- {what: ok3, object: A/a, path: [args, {"@item": -d}], for: x}
- {what: ok4, object: B/b, path: [], for: x}
- {what: ok5, object: A/a, path: [nothing], absent: true, for: x}
- {what: bad1, object: A/a, path: [list, {name: y}], for: x}
- {what: bad2, object: A/a, path: [text, "@json", l], for: x}
- {what: bad3, object: A/a, path: [args, {"@item": -t}], for: x}
- {what: bad4, object: C/c, path: [], for: x}
- {what: bad5, object: A/a, path: [text], absent: true, for: x}
- {what: bad6, object: A/a, path: [list], only: [x], for: x}
- {what: bad7, object: A/a, path: [kind, "@json"], for: x}
- {what: bad8, object: A/a, path: [args, {name: x}], for: x}
- {what: bad9, object: A/a, path: [text, deeper], for: x}
`))
	if err != nil {
		t.Fatal(err)
	}
	found := m.Check(list)
	if len(found) != 9 {
		t.Fatalf("%d findings: %v", len(found), found)
	}
	for i, err := range found {
		if want := "bad" + string(rune('1'+i)); !strings.HasPrefix(err.Error(), want) {
			t.Errorf("finding %d is %v", i, err)
		}
	}
	if !strings.Contains(found[5].Error(), "bad6 z is new") {
		t.Errorf("the newcomer is not named: %v", found[5])
	}
}

func TestParseReliedOnIsStrict(t *testing.T) {
	for _, text := range []string{"", "[]", "- {what: x, objects: y}", "what: x"} {
		if _, err := ParseReliedOn([]byte(text)); err == nil {
			t.Errorf("%q was taken", text)
		}
	}
}

func FuzzManifest(f *testing.F) {
	f.Add(readFile(f, checkout+"/"+manifestFile))
	f.Add([]byte("kind: A\nmetadata: {name: a}\n---\n- x\n"))
	list, err := ParseReliedOn(readFile(f, checkout+"/"+reliedOnFile))
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if m, err := ParseManifest(data); err == nil {
			m.Check(list) // whatever it is, it is judged and not fallen over
		}
	})
}
