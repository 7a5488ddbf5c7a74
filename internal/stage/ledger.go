package stage

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"time"

	"github.com/chandler-cni/chandler/internal/hostdir"
	"github.com/chandler-cni/chandler/internal/plugin"
)

// ledgerFormat is the newest version of ledger.json that this package reads, and the one it writes.
const ledgerFormat = 1

const maxLedger = 1 << 20 // bytes

// ledger is the record of what staging did to a bin dir. It serves reports, and speaks for marks that are lost; what must not be lost is in
// the names of the folder's files.
type ledger struct {
	FormatVersion int                    `json:"formatVersion"`
	Plugins       map[string]ledgerEntry `json:"plugins"`
}

type ledgerEntry struct {
	SHA256  string    `json:"sha256"`  // what was published
	Version string    `json:"version"` // of the bundle it came from
	Bundle  string    `json:"bundle"`  // sha256:<hex> of its bundle.json
	Staged  time.Time `json:"staged"`
	Inode   uint64    `json:"inode"`   // of the file that was put there
	ModTime time.Time `json:"modTime"` // of the same
	Before  State     `json:"before"`  // what stood there before staging came; the last, if others have put something there since

	// Contended counts the runs in a row that had to replace another program's file where staging had put its own before.
	Contended *Contention `json:"contended,omitempty"`
}

// isOf says whether a file, if its bytes are right, is the very one that the entry speaks of, as staging left it.
func (e ledgerEntry) isOf(there hostdir.Entry) bool {
	return exact(there) && there.Ino == e.Inode && there.ModTime.Equal(e.ModTime)
}

// contendedRuns is in how many runs in a row a name must have been replaced to be called contended.
const contendedRuns = 3

// newerLedgerError says that a later chandler wrote the ledger.
type newerLedgerError struct{ version int }

func (e *newerLedgerError) Error() string {
	return fmt.Sprintf("format %d is newer than this chandler writes (%d)", e.version, ledgerFormat)
}

func parseLedger(data []byte) (*ledger, error) {
	var head struct {
		FormatVersion int `json:"formatVersion"`
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return nil, fmt.Errorf("parse: %w", err)
	}
	if head.FormatVersion > ledgerFormat {
		return nil, &newerLedgerError{head.FormatVersion}
	}
	if head.FormatVersion != ledgerFormat {
		return nil, fmt.Errorf("format %d is unknown", head.FormatVersion)
	}
	l := new(ledger)
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(l); err != nil {
		return nil, fmt.Errorf("parse: %w", err)
	}
	return l, nil
}

// readLedger returns an empty ledger if there is none. Errors are *newerLedgerError, and what makes it unreadable.
func (s *store) readLedger() (*ledger, error) {
	l := &ledger{FormatVersion: ledgerFormat}
	data, err := s.dir.ReadFile(ledgerName, maxLedger)
	if err == nil {
		l, err = parseLedger(data)
	} else if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err == nil && l.Plugins == nil {
		l.Plugins = make(map[string]ledgerEntry)
	}
	return l, err
}

// stagedFrom returns the version of the bundle that staging last put under name, if that has this digest; empty if it is not known.
func (s *store) stagedFrom(name, digest string) string {
	if s.dir == nil {
		return ""
	}
	if e := s.entry(name); e.SHA256 == digest {
		return e.Version
	}
	return ""
}

// stands says whether a file with this digest stands under name, and is as it is asked to be.
func (s *store) stands(ctx context.Context, name, digest string, is func(hostdir.Entry) bool) bool {
	e, err := s.bin.Stat(name)
	if err != nil || !is(e) {
		return false
	}
	there, err := digestOf(ctx, s.bin, name, e)
	return err == nil && there == digest
}

func isFile(e hostdir.Entry) bool { return e.Kind == hostdir.File }

// entry is what the ledger has of name. It is empty if that is nothing, or cannot be read.
func (s *store) entry(name string) ledgerEntry {
	l, err := s.readLedger()
	if err != nil {
		return ledgerEntry{}
	}
	return l.Plugins[name]
}

// recorded says whether the ledger has it that staging put the very bytes that stand under name there.
func (s *store) recorded(ctx context.Context, name string) bool {
	return s.stands(ctx, name, s.entry(name).SHA256, isFile)
}

// recordedNames lists the names that the ledger has.
func (s *store) recordedNames() []string {
	if s.dir == nil {
		return nil
	}
	l, err := s.readLedger()
	if err != nil {
		return nil
	}
	return slices.Sorted(maps.Keys(l.Plugins))
}

// unmarked lists the names that only the ledger knows, under which stands what staging put there: their marks were lost.
func (s *store) unmarked(ctx context.Context, known []string) (names []string) {
	if s.dir == nil {
		return nil
	}
	l, err := s.readLedger()
	if err != nil {
		return nil
	}
	for name, e := range l.Plugins {
		if plugin.CheckName(name) == nil && !slices.Contains(known, name) && s.stands(ctx, name, e.SHA256, isFile) {
			names = append(names, name)
		}
	}
	return names
}

// record adds to the ledger what this run published, and returns what it then says of it. The names that it found unchanged, or
// kept, are contended no more. A ledger that cannot be read is
// begun anew; one that a later chandler wrote is left as it is.
func (s *store) record(entries map[string]ledgerEntry, unchanged []string) (map[string]ledgerEntry, error) {
	if s.dir == nil {
		return nil, nil
	}
	l, damaged := s.readLedger()
	var newer *newerLedgerError
	switch {
	case damaged != nil && len(entries) == 0:
		return nil, nil // nothing to record
	case errors.As(damaged, &newer):
		return nil, fmt.Errorf("this run is not recorded: the ledger's %w", damaged)
	case damaged != nil:
		l = &ledger{FormatVersion: ledgerFormat, Plugins: make(map[string]ledgerEntry)}
	}
	write := len(entries) > 0
	for _, name := range unchanged {
		if e := l.Plugins[name]; e.Contended != nil {
			e.Contended = nil
			l.Plugins[name], write = e, true
		}
	}
	if !write {
		return nil, nil
	}
	recorded := make(map[string]ledgerEntry)
	for name, e := range entries {
		before, ok := l.Plugins[name]
		if ok && e.Contended == nil {
			e.Before = before.Before
		} else if absent, _ := s.markedAbsent(name); absent { // the ledger was lost, and the mark knows
			e.Before = Absent
		}
		switch {
		case e.Contended != nil && before.Contended != nil:
			e.Contended = &Contention{before.Contended.Runs + 1, e.Contended.SHA256}
		case e.Contended != nil && ok:
			e.Contended = &Contention{1, e.Contended.SHA256}
		default:
			e.Contended = nil // what stood there when staging first came is not in anybody's way
		}
		l.Plugins[name], recorded[name] = e, e
	}
	if err := s.writeLedger(l); err != nil {
		return recorded, fmt.Errorf("this run is not recorded: %w", err)
	}
	if damaged != nil {
		return recorded, fmt.Errorf("the ledger could not be read and was begun anew: %w", damaged)
	}
	return recorded, nil
}

// forget takes names out of the ledger.
func (s *store) forget(names []string) error {
	if len(names) == 0 {
		return nil
	}
	l, err := s.readLedger()
	if err != nil {
		return fmt.Errorf("the ledger is left as it is: %w", err)
	}
	n := len(l.Plugins)
	for _, name := range names {
		delete(l.Plugins, name)
	}
	if len(l.Plugins) == n {
		return nil
	}
	if err := s.writeLedger(l); err != nil {
		return fmt.Errorf("the ledger still names what was restored: %w", err)
	}
	return nil
}

func (s *store) writeLedger(l *ledger) (err error) {
	data, err := json.MarshalIndent(l, "", "  ")
	if err != nil {
		return err
	}
	run, err := s.runDir()
	if err != nil {
		return err
	}
	const tmp = "." + ledgerName // no plugin's name
	f, err := run.Create(tmp)
	if err != nil {
		return err
	}
	if _, err = f.Write(append(data, '\n')); err == nil {
		err = syncFile(f)
	}
	if err = errors.Join(err, closeFile(f)); err != nil {
		return err
	}
	if err := s.dir.Replace(run, tmp, ledgerName); err != nil {
		return err
	}
	return syncDir(s.dir)
}
