"""Where the shared log lives: one Redis or Valkey, named by a URL.

`redis://` and `valkey://` are plain, `rediss://` and `valkeys://` are TLS. The path chooses the database. With TLS, the
query may name files: `ca_file` of the authority to trust instead of the system's, `cert_file` and `key_file` of a
certificate of our own. A password in a command line can be read by everybody on the node, so it may come from a file
instead.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

_TLS_BY_SCHEME: Final = {"redis": False, "rediss": True, "valkey": False, "valkeys": True}
_DEFAULT_PORT: Final = 6379
_FORM: Final = "[user:password@]host[:port][/database]"


class StoreSettings(NamedTuple):
    """Where the store is and how to be let in. `password_file`, if given, is read for every connection."""

    host: str
    port: int = _DEFAULT_PORT
    database: int = 0
    username: str = ""
    password: str = ""
    password_file: Path | None = None
    tls: bool = False
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None

    @property
    def address(self) -> str:
        """The store as it may be logged."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'rediss' if self.tls else 'redis'}://{host}:{self.port}/{self.database}"


def parse(url: str, password_file: Path | None = None) -> StoreSettings:
    """The store that `url` names.

    Raises:
        ValueError: not the URL of a Redis or Valkey; the message does not repeat the URL, which may hold a password.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ValueError(f"an index store is named by a URL: redis://{_FORM}") from None
    tls = _TLS_BY_SCHEME.get(parts.scheme)
    if tls is None:
        raise ValueError(f"the URL of an index store starts with {', '.join(f'{name}://' for name in _TLS_BY_SCHEME)}")
    database = parts.path.strip("/") or "0"
    if not parts.hostname or port == 0 or not database.isdecimal():
        raise ValueError(f"the URL of an index store is {parts.scheme}://{_FORM}")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    files = {name: options.pop(name, None) for name in ("ca_file", "cert_file", "key_file")}
    if options or (any(files.values()) and not tls):
        raise ValueError("the options of an index store are ca_file, cert_file and key_file, with rediss:// only")
    if (files["cert_file"] is None) != (files["key_file"] is None):
        raise ValueError("the options cert_file and key_file of an index store belong together")
    return StoreSettings(
        host=parts.hostname,
        port=port or _DEFAULT_PORT,
        database=int(database),
        username=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
        password_file=password_file,
        tls=tls,
        **files,
    )
