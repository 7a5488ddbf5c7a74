//go:build root

package root

func attachedPlugins() []string { return nil }
