"""`python -m bench.first_call`: print the table."""

from bench.first_call import measure, table

print(table(list(measure())))
