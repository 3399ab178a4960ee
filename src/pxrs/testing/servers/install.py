"""Makes sure that the servers which no Python package carries are here: ``python -m pxrs.testing.servers.install``.

That is MariaDB. Where it is missing it comes from Debian's packages: installed by root (no service is started), and
by anybody else unpacked into this Python environment. Quick when there is nothing to do.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

PACKAGE = "mariadb-server-core"
_NEEDED_BY_IT = ("libaio1", "liburing2", "libpmem1", "libndctl6", "libdaxctl6")
UNPACKED = Path(sys.prefix) / "share" / "pxrs-servers"
_SYSTEM = ("/usr/local/sbin", "/usr/sbin", "/usr/local/bin", "/usr/bin")
_INSTALL_SECONDS = 300


def find_mariadb(name: str = "mariadbd") -> Path | None:
    """The path of a program of MariaDB: installed, or unpacked by us."""
    unpacked = [str(UNPACKED / "usr" / "sbin"), str(UNPACKED / "usr" / "bin")]
    places = [os.environ.get("PATH", ""), *_SYSTEM, *unpacked]
    found = shutil.which(name, path=os.pathsep.join(places))
    return Path(found) if found else None


def libraries() -> dict[str, str]:
    """The environment in which unpacked programs find their libraries."""
    found = [str(path) for path in (UNPACKED / "usr" / "lib").glob("*-linux-gnu*")]
    found += [str(path) for path in (UNPACKED / "lib").glob("*-linux-gnu*")]
    if not found:
        return {}
    return {"LD_LIBRARY_PATH": os.pathsep.join([*found, os.environ.get("LD_LIBRARY_PATH", "")]).rstrip(os.pathsep)}


def ensure_mariadb() -> Path:
    """MariaDB's server, installed first where it is missing. RuntimeError says what failed."""
    found = find_mariadb()
    if found is not None:
        return found
    if shutil.which("apt-get") is None:
        raise RuntimeError(f"MariaDB is missing and there is no apt-get: install {PACKAGE} (mariadbd) by hand")
    if os.geteuid() == 0:
        _install()
    else:
        _unpack()
    found = find_mariadb()
    if found is None:
        raise RuntimeError(f"{PACKAGE} was installed, but there is no program mariadbd")
    return found


def _install() -> None:
    command = ["apt-get", "install", "-y", "--no-install-recommends", PACKAGE]
    if _run(command, check=False):
        return
    _run(["apt-get", "update"])  # the list of packages is missing or out of date
    _run(command)


def _unpack() -> None:
    """Without root: fetch the packages and unpack them into this environment, whole or not at all."""
    UNPACKED.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=UNPACKED.parent) as directory:
        place = Path(directory) / "unpacked"
        _run(["apt-get", "download", PACKAGE, *_known(_NEEDED_BY_IT)], directory)
        for package in Path(directory).glob("*.deb"):
            _run(["dpkg-deb", "-x", str(package), str(place)])
        shutil.rmtree(UNPACKED, ignore_errors=True)
        place.rename(UNPACKED)


def _known(packages: Sequence[str]) -> list[str]:
    """Those that this release of the system has; their names change from one to the next."""
    return [one for one in packages if _run(["apt-cache", "show", one], check=False)]


def _run(command: Sequence[str], directory: str | None = None, check: bool = True) -> bool:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=_INSTALL_SECONDS
    )
    if check and done.returncode:
        raise RuntimeError(f"`{' '.join(command)}` failed ({done.returncode}):\n{(done.stdout + done.stderr)[-2_000:]}")
    return done.returncode == 0


def main() -> None:
    try:
        print(f"MariaDB: {ensure_mariadb()}")
    except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
        raise SystemExit(f"MariaDB cannot be made available: {error}") from None


if __name__ == "__main__":
    main()
