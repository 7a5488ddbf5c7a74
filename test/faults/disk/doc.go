// Package disk is the part of the ring of faults that is about what lies under the bin dir and around the program: a disk whose
// power is cut at any instant, a slow one, one that others write to, and want of memory, files, rights and room. Its code is
// behind the build tag faults.
//
// The disk is a file of a FUSE file system that keeps every write and every flush in order, below a loop device with a real
// file system. It lives in a process of its own: whoever used a file system and served it at once could never be ended. How
// the ring runs, and what it needs, is said in the package test/rig. FAULTS_FULL=1 examines every cut and takes minutes, FAULTS_SEED
// repeats what was drawn by lot.
package disk
