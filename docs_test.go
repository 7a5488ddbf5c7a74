package chandler_test

import (
	"bytes"
	"os"
	"os/exec"
	"regexp"
	"testing"
)

// The guarantees name the tests that hold them; each of those has to be there.
func TestGuaranteesNameTheirTests(t *testing.T) {
	page, err := os.ReadFile("docs/guarantees.md")
	if err != nil {
		t.Fatal(err)
	}
	var tests bytes.Buffer
	cmd := exec.Command("grep", "-rhoE", "^func Test[A-Za-z0-9]+", "internal/stage", "test/root", "test/faults")
	cmd.Stdout = &tests
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile("`(Test[A-Za-z0-9]+)`").FindAllSubmatch(page, -1)
	if len(named) < 40 {
		t.Errorf("the page names only %d tests", len(named))
	}
	for _, name := range named {
		if !bytes.Contains(tests.Bytes(), []byte("func "+string(name[1])+"\n")) {
			t.Errorf("docs/guarantees.md names %s, which is not there", name[1])
		}
	}
}
