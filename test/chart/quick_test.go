package chart
import "testing"
func TestQuick(t *testing.T) {
	text, err := release{}.render(t, "stageCniPlugins: true\nmultusMasterCNI: 05-cilium.conflist\n")
	if err != nil { t.Fatal(err) }
	t.Log(text)
}
