package scenario

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

func TestScenario10(t *testing.T) {
	scenario(t, 10, "the API server accepts every object of both charts, field by field", func(t *testing.T) {
		ring.staging(t, true)
		data, err := os.ReadFile(filepath.Join(ring.charts, "multus/files/distributions.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		var distributions map[string]any
		if err := yaml.Unmarshal(data, &distributions); err != nil {
			t.Fatal(err)
		}
		if len(distributions) < 5 {
			t.Fatalf("%d distributions", len(distributions))
		}
		renders := map[string][]string{
			"multus, nothing set": {"multus"},
			// Every value that becomes a field of its own.
			"multus, everything set": {"multus", "--set", "stageCniPlugins=true,stagePolicy=newer,stagePolicyFor.bridge=never,stageUnknown=keep,multusMasterCNI=10-a.conf,name=own,namespace.create=true,image.pullPolicy=Always," +
				"imagePullSecrets={pull},stageCapabilities={DAC_OVERRIDE},priorityClassName=system-node-critical,nodeSelector.a=b,podLabels.c=d,podAnnotations.e=f,labels.g=h,annotations.i=j," +
				"updateStrategy.type=OnDelete,daemonConfig.logLevel=debug,tolerations[0].operator=Exists"},
		}
		for name := range distributions {
			renders["multus, "+name+", restoreCniPlugins"] = []string{"multus", "--set", "distribution=" + name + ",stageCniPlugins=false,restoreCniPlugins=true"}
			for _, stage := range []string{"null", "true", "false"} {
				renders["multus, "+name+", stageCniPlugins="+stage] = []string{"multus", "--set", "distribution=" + name + ",stageCniPlugins=" + stage}
			}
		}
		for _, variant := range []string{"isp-full", "isp-full-generic", "isp-hosted"} {
			renders["platform, "+variant+", restoreCniPlugins"] = []string{"platform", "--set", "bundles.system.variant=" + variant +
				",networking.stageCniPlugins=false,networking.restoreCniPlugins=true"}
			for _, stage := range []string{"null", "true", "false"} {
				renders["platform, "+variant+", stagePolicy, stageCniPlugins="+stage] = []string{"platform", "--set", "bundles.system.variant=" + variant +
					",networking.stageCniPlugins=" + stage + ",networking.stagePolicy=newer,networking.stagePolicyFor.bridge=never,networking.stageUnknown=keep"}
				renders["platform, "+variant+", stageCniPlugins="+stage] = []string{"platform", "--set", "bundles.system.variant=" + variant + ",networking.stageCniPlugins=" + stage}
			}
		}
		for name, args := range renders {
			text := ring.render(t, args...)
			if strings.TrimSpace(text) == "" && strings.Contains(name, "isp-hosted") {
				continue // it has nothing of its own
			}
			if err := ring.accepts(t, text); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}

		// What is held above is held for real: a field that is not there is refused.
		text := ring.render(t, "multus")
		bad := strings.Replace(text, "hostNetwork: true", "hostNetwrk: true", 1)
		if err := ring.accepts(t, bad); bad == text || err == nil || !strings.Contains(err.Error(), "hostNetwrk") {
			t.Errorf("a field that does not exist: %v", err)
		}
	})
}

func (c *cluster) render(t *testing.T, args ...string) string {
	t.Helper()
	out, err := c.helm(append([]string{"template", "multus", filepath.Join(c.charts, args[0]), "--namespace=" + namespace}, args[1:]...)...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// accepts sends objects to the API server, which judges them as it would before storing them, and stores nothing.
func (c *cluster) accepts(t *testing.T, objects string) error {
	t.Helper()
	file := filepath.Join(c.work, "render.yaml")
	if err := os.WriteFile(file, []byte(objects), 0o644); err != nil {
		t.Fatal(err)
	}
	_, err := c.kubectl("-n", namespace, "apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict", "-f", file)
	return err
}
