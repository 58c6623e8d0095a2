"""The bridge: capabilities as a contract on the fabric, services as capabilities on the bus.

`outward` answers on the fabric by calling the bus, `inward` answers on the bus by calling services.
"""
