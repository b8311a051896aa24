"""Worlds of transactions: coordinators and partitions over replicated logs that are made up.

How copies of a log agree is simulated elsewhere, with every protocol and disk. Here it is taken for granted that
what is settled stays, that what is not may be lost with its leader, and that a leader may not know for a while that
it is none. Above that, the code is the one that nodes run: the machines of homes and partitions, the desk that
judges producers, who vouches for whom, and the chasing of markers.
"""
