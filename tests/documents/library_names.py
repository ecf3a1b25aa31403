"""Print the public names of modules as JSON: ``library_names.py MODULE...``, with another library's interpreter.

Left out are modules, names of Python's own library, and types of annotations.
"""

import json
import sys
import types
from importlib import import_module


def is_own(value, package):
    """Whether a value belongs to a package: it is no module, and not imported from elsewhere."""
    home = getattr(value, "__module__", None) or package
    is_other = home.split(".")[0] in ("builtins", "collections", "datetime", "typing")
    return not isinstance(value, bool | types.ModuleType) and not is_other


def names(module):
    found = import_module(module)
    listed = getattr(found, "__all__", None) or [name for name in dir(found) if name[0] != "_"]
    package = module.split(".")[0]
    return sorted({name for name in listed if is_own(getattr(found, name), package)})


if __name__ == "__main__":
    json.dump({module: names(module) for module in sys.argv[1:]}, sys.stdout)
