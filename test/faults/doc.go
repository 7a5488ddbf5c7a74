// Package faults is the ring of tests that makes the machine fail under the shipped program: each of its system calls in turn,
// a kill at any of them, other programs that write where it writes. Its code is behind the build tag faults.
//
// Nothing in the product knows of it. A tracer (the package tracer) stops the unmodified program at its system calls, and says
// what they return. How the ring runs, and what it needs, is said in the package test/rig.
package faults
