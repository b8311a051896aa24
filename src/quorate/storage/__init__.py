"""Bytes: journal and segments, frames, marks, snapshots and recovery, on whatever `Disk` is given."""
