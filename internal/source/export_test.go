package source

import (
	"testing"
	"time"
)

// SetPatience is for one test.
func SetPatience(t *testing.T, d time.Duration) {
	old := patience
	patience = d
	t.Cleanup(func() { patience = old })
}
