"""Contracts from other descriptions of services: OpenAPI 3.1, AsyncAPI 3, protobuf descriptors.

What has no counterpart in a contract is never dropped silently: each import lists it.
"""

from accord.contracts.imports.asyncapi import read_asyncapi
from accord.contracts.imports.document import Imported, Loss
from accord.contracts.imports.files import read_document
from accord.contracts.imports.openapi import read_openapi
from accord.contracts.imports.protobuf import read_protobuf

__all__ = ["Imported", "Loss", "read_asyncapi", "read_document", "read_openapi", "read_protobuf"]
