"""Whether a request comes from a page of ours, against what other sites make browsers send."""

from urllib.parse import SplitResult, urlsplit

from starlette.datastructures import Headers

_SITE = "sec-fetch-site"


def is_own_page(
    headers: Headers, base: SplitResult, *, also_by_host: bool = False, also_typed: bool = False
) -> bool:
    """Whether neither `Sec-Fetch-Site` nor `Origin` names another site.

    `base` is our public address; where it is empty the `Host` header stands for it, and with
    `also_by_host` beside it. `also_typed` accepts what the user started, such as an address that
    was typed. Clients that are no browsers send neither header and are not refused here.
    """
    sites = ("same-origin", "none") if also_typed else ("same-origin",)
    if headers.get(_SITE, "same-origin") not in sites:
        return False
    origin = headers.get("origin")
    return origin is None or _is_ours(origin, headers.get("host", ""), base, also_by_host)


def _is_ours(origin: str, host: str, base: SplitResult, also_by_host: bool) -> bool:
    try:
        given = urlsplit(origin)
    except ValueError:
        return False
    if given.scheme not in ("http", "https") or not given.netloc:
        return False
    if base.netloc and (given.scheme, given.netloc) == (base.scheme, base.netloc):
        return True
    return (also_by_host or not base.netloc) and given.netloc.lower() == host.lower()
