"""What tests of Python clients need: brokers, networks, and ears.

The tests of the published client use it, too.
"""
