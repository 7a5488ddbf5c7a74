// Package root is the ring of tests that needs root: it runs the shipped programs as a user would, on real file systems, with
// real plugins in real network namespaces. Its code is behind the build tag root.
//
// It has a network of its own too. How it runs, and what it needs, is said in the package test/rig.
package root
