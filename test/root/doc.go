// Package root is the ring of tests that needs root: it runs the shipped programs as a user would, on real file systems, with
// real plugins in real network namespaces. Its code is behind the build tag root.
//
// The ring runs itself in namespaces of its own (mounts, network, processes): what it mounts, starts or configures is gone
// with them, however it ends, and the machine is not touched. It takes the program from CHANDLER, the bundle of the fourteen
// reference plugins from BUNDLE, and the same plugins built in the other form from OTHER_BUNDLE, all absolute paths, and fails
// if anything that it needs is missing: it never skips.
package root
