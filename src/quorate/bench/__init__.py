"""The figures that Quorate promises, measured as ratios within one run.

Each module measures one thing and returns a `Report`; the command line prints it as a table or as one JSON
object. What is compared is measured in turns (A B, B A, …), so that a noisy machine disturbs both alike.
"""
