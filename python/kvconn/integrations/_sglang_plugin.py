"""SGLang finds these two functions as plugins, in each of its processes. They act only if SGLANG_PLUGINS names them."""

import os


def _named(name: str) -> bool:
    return name in [each.strip() for each in os.environ.get("SGLANG_PLUGINS", "").split(",")]


def kvconn() -> None:
    """SGLANG_PLUGINS=kvconn: the control messages go through kvconn."""
    if _named("kvconn"):
        from .sglang import install

        install()


def kvconn_health_watch() -> None:
    """SGLANG_PLUGINS=kvconn_health_watch: with the health watch as well."""
    if _named("kvconn_health_watch"):
        from .sglang import install

        install(health_watch=True)
