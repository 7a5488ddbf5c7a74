package chart

import "testing"

func TestQuick(t *testing.T) {
	for _, v := range []string{"", "bundles: {system: {variant: isp-full-generic}, disabledPackages: [cozystack.reloader]}", "bundles: {system: {enabled: no}}", "bundles: {system: {variant: isp-hosted}}", "networking: {stageCniPlugins: maybe}"} {
		text, err := release{chart: load(t, "platform", nil)}.render(t, v)
		t.Log(v, text, err)
	}
}
