"""A made-up world for the real code: network, disks, clocks and faults, all from one seed."""
