"""One catalog, bridged both ways: capabilities as a contract, services as capabilities.

`offering` and `borrowing` (pure) say what each side looks like on the other. `outward` answers on
the fabric by asking the bus, `inward` answers on the bus by asking a service; each call is subject
to the rules of the side that it goes to, and both journals know it by the same id. `bridge` runs
both.
"""
