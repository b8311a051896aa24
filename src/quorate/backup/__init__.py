"""Topics and groups of tables, kept outside of a cluster and put back.

A *place* is a directory or a bucket of an object store. What was saved of one topic there is a *backup*: data
files that are never changed, and a manifest that names them all with their sizes and SHA-256, written last.
`saving` makes one or adds to it, `checking` reads every byte, `returning` puts a topic back, and `snapshot` saves
and puts back tables. docs/BACKUP.md is for people.
"""
