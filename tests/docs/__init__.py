"""The code that the documentation shows is run, and what it is said to print is compared."""
