# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""`make audit-deps`: known vulnerabilities of everything installed beside this Python, by `pip-audit --strict`.

What could not be audited is said, and is no pass: a package that the service does not know, a service out of reach.
A build with a version of its own, such as torch 2.13.0+cpu, is asked for by its public version, and that is said.
"""

import subprocess
import sys
import tempfile
from importlib.metadata import distributions

from packaging.utils import canonicalize_name
from packaging.version import Version


OURS = canonicalize_name("diffusers_dp")


def main() -> int:
    """Returns 0 if every package was audited and none has a known vulnerability, else 1."""
    dists = reversed(list(distributions()))  # of two that have one name, Python takes the first
    found = {canonicalize_name(dist.metadata["Name"]): Version(dist.version) for dist in dists}
    found.pop(OURS, None)
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.writelines(f"{name}=={version.public}\n" for name, version in sorted(found.items()))
        file.flush()
        command = ["pip_audit", "--strict", "--no-deps", "--disable-pip", "--progress-spinner", "off", "-r", file.name]
        code = subprocess.run([sys.executable, "-m", *command]).returncode
    print(f"NOT audited: {OURS} itself.")
    for name, version in sorted(found.items()):
        if version.local:
            print(f"NOT audited: the build {name} {version}; its public version {version.public} was asked for.")
    if code == 0:
        return 0
    print(
        f"NOT passed: of {len(found)} packages at least one has a known vulnerability or could not be audited (see "
        "above). Without a network nothing can be.",
        file=sys.stderr,
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
