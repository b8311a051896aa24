"""Looking at the directories of nodes from outside: what is there, and whether it is what was written.

Nothing here writes, and nothing here knows Spark: quorate/spark/audit.py runs these parts side by side and compares
what they bring.
"""
