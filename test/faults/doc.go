// Package faults is the ring of tests that makes the machine fail under the shipped program: each of its system calls in turn,
// a kill at any of them, other programs that write where it writes. Its code is behind the build tag faults.
//
// Nothing in the product knows of it. A tracer (the package tracer) stops the unmodified program at its system calls, and says
// what they return. The ring runs itself in namespaces of its own and keeps everything in a tmpfs there. It takes the program
// from CHANDLER, a bundle of the fourteen reference plugins in which one file has all names from BUNDLE, and one in which each
// is a file of its own from OTHER_BUNDLE, all absolute paths, and fails if anything that it needs is missing: it never skips.
package faults
