"""Exports of a contract: typed packages, AsyncAPI, OpenAPI, and a Markdown page.

A Python package needs only Python: its transport is a protocol for the caller to implement.
"""

from accord.contracts.export.asyncapi_document import asyncapi, asyncapi_schema
from accord.contracts.export.layout import snake_name
from accord.contracts.export.openapi_document import openapi
from accord.contracts.export.package import package_name, render_sdk, runtime_api, sdk
from accord.contracts.export.page import render_page

__all__ = [
    "asyncapi",
    "asyncapi_schema",
    "openapi",
    "package_name",
    "render_page",
    "render_sdk",
    "runtime_api",
    "sdk",
    "snake_name",
]
