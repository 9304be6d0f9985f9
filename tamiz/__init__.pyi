from tamiz.api import *  # noqa: F403

__version__: str
