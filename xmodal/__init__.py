"""xmodal: cross-modal corpora, features and models. See README.md; nothing happens on import."""

from xmodal.outputs import Output, find
from xmodal.trouble import Trouble

__all__ = ["Output", "Trouble", "find"]
__version__ = "0.1.0"
