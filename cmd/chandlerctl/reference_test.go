package main

import (
	"flag"
	"os"
	"testing"

	"github.com/chandler-cni/chandler/internal/cli"
)

var update = flag.Bool("update", false, "write the reference anew")

func TestReference(t *testing.T) {
	const path = "../../docs/reference/chandlerctl.md"
	want := "# chandlerctl\n" + cli.Reference(newRoot(cli.Streams{}))
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("%s is not what the program says of itself: make docs", path)
	}
}
