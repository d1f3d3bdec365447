"""Energy of processor packages and DRAM from the kernel's powercap counters (RAPL).

Standard library only. Linux shows the RAPL counters under /sys/class/powercap, on Intel and (since 5.11) on AMD:

    intel-rapl:0      package-0      counted
    intel-rapl:0:0    core           left out: part of the package
    intel-rapl:0:1    uncore         left out: part of the package
    intel-rapl:0:2    dram           counted: the package does not contain it; AMD has none
    intel-rapl:1      psys           left out: the whole board, contains the packages
    intel-rapl-mmio:0 package-0      left out: the same counter by another path

Older AMD machines may have the `amd_energy` driver under /sys/class/hwmon instead; its sockets are read when powercap
has none.

A counter starts over at `max_energy_range_uj`. One restart between two readings is seen and added; two are not, so the
reader must be asked at least every `wrap_seconds`, which is computed for a package of 500 W.
"""

from __future__ import annotations

import errno
import re
from dataclasses import dataclass
from pathlib import Path

from memfit.measure.counters.energy import EnergyMark, Unavailable

POWERCAP_ROOT = "/sys/class/powercap"
HWMON_ROOT = "/sys/class/hwmon"
ASSUMED_HIGH_WATTS = 500.0
SMALLEST_WINDOW_SECONDS = 0.010
"""The counters are refreshed about every millisecond: below ten refreshes the error passes 10 %."""

_PACKAGE = re.compile(r"package-\d+(?:-die-\d+)?")
_ZONE = re.compile(r"intel-rapl:\d+")
_SUBZONE = re.compile(r"intel-rapl:\d+:\d+")
NO_DRAM = "this processor has no counter for its memory modules, and the package figure does not contain them"


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergyDomain:
    """One counter on disk."""

    name: str
    path: Path
    range_microjoules: int | None
    """Where the counter starts over; None when the driver widens it to 64 bits."""
    method: str


def microjoules_between(start: int, end: int, range_microjoules: int | None) -> int | None:
    """What a counter has gained between two raw readings, at most one restart in between; None when it cannot be said.

    The kernel gives the highest value as the range, so a restart is counted one unit (15 to 61 microjoules) too low.
    """
    if end >= start:
        return end - start
    if range_microjoules is None or start > range_microjoules:
        return None
    return end - start + range_microjoules


def joules_between(start: int, end: int, range_microjoules: int | None) -> float | None:
    """`microjoules_between` in joules."""
    gained = microjoules_between(start, end, range_microjoules)
    return None if gained is None else gained / 1e6


class PowercapReader:
    """Running totals of the readable domains since the reader was opened, restarts included."""

    def __init__(self, domains: list[EnergyDomain]) -> None:
        self.domains = tuple(domains)
        self.problems: dict[str, str] = {}
        """Why a domain cannot be read, by its name."""
        self._raw: dict[str, int] = {}
        self._total: dict[str, int] = {}
        self.read()

    @property
    def wrap_seconds(self) -> float | None:
        """After how long the fastest counter could have started over, at 500 W."""
        ranges = [domain.range_microjoules for domain in self.domains if domain.range_microjoules]
        return min(ranges) / 1e6 / ASSUMED_HIGH_WATTS if ranges else None

    @property
    def read_every_seconds(self) -> float | None:
        """Half of `wrap_seconds`: one late reading must not lose a restart."""
        return self.wrap_seconds / 2 if self.wrap_seconds else None

    def read(self) -> dict[str, int]:
        """Microjoules of every readable domain since opening; the others are named in `problems`."""
        return {domain.name: total for domain in self.domains if (total := self._advance(domain)) is not None}

    def marks(self, time_seconds: float) -> list[EnergyMark]:
        """The running total, or the reason why there is none, of every domain."""
        totals = self.read()
        marks = [
            _mark(domain.name, domain.method, time_seconds, totals.get(domain.name), self.problems.get(domain.name, ""))
            for domain in self.domains
        ]
        if not any(domain.name.startswith("dram") for domain in self.domains):
            marks.append(_mark("dram", "", time_seconds, None, NO_DRAM))
        return marks

    def close(self) -> None:
        """Nothing is held open between two readings."""

    def _advance(self, domain: EnergyDomain) -> int | None:
        if domain.name in self.problems:
            # a gap in the readings may hide a restart: what was lost once stays lost
            return None
        try:
            raw = _read_number(domain.path)
        except (OSError, ValueError) as error:
            self.problems[domain.name] = _why_unreadable(domain.path, error)
            return None
        gained = microjoules_between(self._raw.get(domain.name, raw), raw, domain.range_microjoules)
        if gained is None:
            self.problems[domain.name] = "the counter fell and its range is not known, so what it had gained is lost"
            return None
        self._raw[domain.name] = raw
        self._total[domain.name] = self._total.get(domain.name, 0) + gained
        return self._total[domain.name]


def _mark(name: str, method: str, time_seconds: float, microjoules: int | None, reason: str) -> EnergyMark:
    return EnergyMark(
        domain=name,
        scope="socket",
        method=method,
        time_seconds=time_seconds,
        microjoules=microjoules,
        smallest_window_seconds=SMALLEST_WINDOW_SECONDS,
        reason=reason,
    )


def open_powercap(
    root: str | Path = POWERCAP_ROOT, hwmon_root: str | Path = HWMON_ROOT
) -> PowercapReader | Unavailable:
    """Find the energy counters of the processor packages and their memory, and read them once."""
    domains = list(_powercap_domains(Path(root))) or list(_amd_energy_domains(Path(hwmon_root)))
    if not domains:
        return _nothing_found(Path(root))
    reader = PowercapReader(domains)
    if len(reader.problems) < len(domains):
        return reader
    reason = f"the energy counters are there but cannot be read: {next(iter(reader.problems.values()))}"
    return Unavailable(reason=reason, hint=how_to_enable(domains), domain="package", exists=True)


def how_to_enable(domains: list[EnergyDomain] | tuple[EnergyDomain, ...]) -> str:
    """The commands that let this user read the counters."""
    folders = sorted({str(domain.path.parent.parent) for domain in domains})
    pattern = f"{folders[0]}/intel-rapl:*/energy_uj" if "intel-rapl" in str(domains[0].path) else str(domains[0].path)
    return f"sudo chmod a+r {pattern} (until the next start; docs/energy.md has a udev rule that lasts)"


def _nothing_found(root: Path) -> Unavailable:
    if root.is_dir():
        reason = f"{root} has no processor package"
        hint = "load the driver with `sudo modprobe intel_rapl_msr`; virtual machines usually have no energy counter"
    else:
        reason = f"this machine shows no energy counter ({root} does not exist)"
        hint = "run on real hardware (virtual machines usually have none), or give your own figure with --assume-watts"
    return Unavailable(reason=reason, hint=hint, domain="package")


def _powercap_domains(root: Path):
    """Packages and their memory; zones lie flat under the root, inside of their parent, or both."""
    for zone in _children(root, _ZONE):
        package = _read_text(zone / "name")
        if not _PACKAGE.fullmatch(package):
            continue
        yield _powercap_domain(package, zone)
        number = package.removeprefix("package-")
        inside = {path.name: path for path in (*_children(root, _SUBZONE), *_children(zone, _SUBZONE))}
        own = [path for name, path in sorted(inside.items()) if name.startswith(f"{zone.name}:")]
        yield from (_powercap_domain(f"dram-{number}", path) for path in own if _read_text(path / "name") == "dram")


def _children(folder: Path, pattern: re.Pattern[str]) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if pattern.fullmatch(path.name))
    except OSError:
        return []


def _powercap_domain(name: str, zone: Path) -> EnergyDomain:
    try:
        range_microjoules = _read_number(zone / "max_energy_range_uj") or None
    except (OSError, ValueError):
        range_microjoules = None
    path = zone / "energy_uj"
    return EnergyDomain(name=name, path=path, range_microjoules=range_microjoules, method="RAPL counter by powercap")


def _amd_energy_domains(root: Path):
    """Sockets of the amd_energy driver, which widens its counters to 64 bits itself."""
    for chip in _children(root, re.compile(r"hwmon\d+")):
        if _read_text(chip / "name") != "amd_energy":
            continue
        for label in _children(chip, re.compile(r"energy\d+_label")):
            socket = re.fullmatch(r"Esocket(\d+)", _read_text(label))
            if socket:
                path = label.with_name(label.name.replace("_label", "_input"))
                method = "RAPL counter by amd_energy"
                yield EnergyDomain(name=f"package-{socket[1]}", path=path, range_microjoules=None, method=method)


def _read_text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _read_number(path: Path) -> int:
    return int(path.read_text())


def _why_unreadable(path: Path, error: OSError | ValueError) -> str:
    if isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EPERM):
        return f"{path} may be read by root alone"
    detail = error.strerror if isinstance(error, OSError) else f"it does not hold a number ({error})"
    return f"{path} cannot be read: {detail}"
