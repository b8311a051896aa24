"""Pure protocols: facts in, orders out. No sockets, files, clocks, threads or global chance in here."""
