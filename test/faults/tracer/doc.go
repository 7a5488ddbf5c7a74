// Package tracer runs a program and stops it at each of its file system calls, which it can make fail, cut short or be the
// last. The program is the file as it was built, run by its own command line: what it meets is what a kernel could do to it.
//
// All threads of the program, and what it starts up to the moment when that executes something else, share one counter, so
// that the n-th call is the n-th of the program and not of one of its threads. Only Linux on amd64 is known.
package tracer
