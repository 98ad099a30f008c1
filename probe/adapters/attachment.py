"""``attach("verl")``: a framework is observed from now on, imported or not yet; ``detach()`` ends it. Standard library.

Nothing is recorded because of it where nobody records: a session begins at the first thing that is observed, and only
where the environment says where to (:data:`probe.adapters.automatic.VARIABLE`), or the user has started one.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Final, NamedTuple, cast

from probe.adapters import automatic
from probe.adapters.imports import forget, when_imported
from probe.adapters.seams import Patches, Seam
from probe.errors import UnknownNameError
from probe.frameworks import ATTACHED, LOCK
from probe.guard import on_error
from probe.hooks import is_off


class Adapter(NamedTuple):
    """Where a framework's seams are.

    Attributes:
        table: ``module:attribute`` of a sequence of :class:`~probe.adapters.seams.Seam`; imported with the framework.
        package: The framework's top-level package, whose import brings the table.
        distribution: Its name on the package index, whose version is told.
        also: Frameworks that it stands on, which are attached with it.
    """

    table: str
    package: str
    distribution: str
    also: tuple[str, ...] = ()


#: The frameworks that can be attached to.
ADAPTERS: Final[dict[str, Adapter]] = {
    "lightning": Adapter("probe.adapters.lightning:SEAMS", "lightning", "lightning", also=("pytorch_lightning",)),
    "nemo_rl": Adapter("probe.adapters.nemo_rl:SEAMS", "nemo_rl", "nemo-rl"),
    "openrlhf": Adapter("probe.adapters.openrlhf:SEAMS", "openrlhf", "openrlhf"),
    "pytorch_lightning": Adapter(
        "probe.adapters.lightning:PYTORCH_LIGHTNING", "pytorch_lightning", "pytorch-lightning"
    ),
    "ray": Adapter("probe.adapters.ray:SEAMS", "ray", "ray"),
    "sglang": Adapter("probe.adapters.sglang:SEAMS", "sglang", "sglang"),
    "torchtitan": Adapter("probe.adapters.torchtitan:SEAMS", "torchtitan", "torchtitan"),
    "transformers": Adapter("probe.adapters.transformers:SEAMS", "transformers", "transformers"),
    "trl": Adapter("probe.adapters.trl:SEAMS", "trl", "trl", also=("transformers",)),
    "verl": Adapter("probe.adapters.verl:SEAMS", "verl", "verl"),
    "vllm": Adapter("probe.adapters.vllm:SEAMS", "vllm", "vllm"),
}


class Attachment:
    """A framework under observation.

    Args:
        framework: Its name in :data:`ADAPTERS`.

    Attributes:
        framework: Its name in :data:`ADAPTERS`.
        found: Names of the functions that are observed, ``module.name``, in the order of the table.
        revision: Grows whenever something more was found or found missing.
    """

    def __init__(self, framework: str) -> None:
        self.framework = framework
        self.found: list[str] = []
        self.revision = 0
        self._adapter = ADAPTERS[framework]
        self._seams: list[Seam] = []
        self._looked: set[str] = set()
        self._on: set[Seam] = set()
        self._patches = Patches(automatic.is_recording)
        self._error = ""
        self._begin()

    def __repr__(self) -> str:
        return f"Attachment({self.summary()!r})"

    @property
    def imported(self) -> bool:
        """Whether the framework is there."""
        return bool(self._seams or self._error)

    @property
    def missing(self) -> list[str]:
        """Points none of whose functions is there: not in its module, or the installed version has no such module.

        Those whose modules are there and nobody has imported yet are :attr:`waiting`.
        """
        points = dict.fromkeys(seam.point for seam in self._seams)
        return [one for one in points if self._is_missing(one)]

    @property
    def waiting(self) -> list[str]:
        """Points whose modules nobody has imported yet."""
        missing = self.missing
        found = {seam.point for seam in tuple(self._on)}
        points = dict.fromkeys(seam.point for seam in self._seams)
        return [one for one in points if one not in found and one not in missing]

    def summary(self) -> str:
        """In a sentence: the framework's version, how many of its points are observed, and which are missing.

        It looks at files: who asks again and again asks :attr:`revision` first. Any thread may.
        """
        if self._error:
            return f"{self.framework}: not observed: {self._error}"
        if not self._seams:
            return f"{self.framework}: not imported"
        points = {seam.point for seam in self._seams}
        found = {seam.point for seam in tuple(self._on)}
        said = f"{self.framework} {_version(self._adapter)}".rstrip()
        said += f": {len(found)} of {len(points)} points are observed"
        if self.missing:
            said += f"; not found: {', '.join(self.missing)}"
        return said

    def detach(self) -> list[str]:
        """Put back the framework's own functions, the identical objects.

        Returns:
            Names of those that somebody else has replaced meanwhile: they stay, and tell nothing more.
        """
        with LOCK:
            forget(self._arm)
            forget(self._look)
            kept = self._patches.take_off()
            self.found.clear()
            self._on.clear()
            if ATTACHED.get(self.framework) is self:
                del ATTACHED[self.framework]
            return kept

    def _begin(self) -> None:
        """A framework that is being imported at this moment loads us as its plugin: we see the modules that follow."""
        if self._adapter.package in sys.modules:
            self._arm()
        else:
            when_imported(self._adapter.package, self._arm)

    def _arm(self, package: ModuleType | None = None) -> None:
        """The framework is here: look at its modules, those that are imported and those that will be."""
        del package
        with LOCK:
            if self._seams:
                return
            table, _, attribute = self._adapter.table.partition(":")
            with on_error(self._not_armed):
                self._seams = list(getattr(importlib.import_module(table), attribute))
            for name in dict.fromkeys(seam.module for seam in self._seams):
                when_imported(name, self._look)
            self.revision += 1

    def _not_armed(self, error: BaseException) -> None:
        self._error = repr(error)
        self.revision += 1

    def _look(self, module: ModuleType) -> None:
        with LOCK:
            if module.__name__ in self._looked:
                return
            self._looked.add(module.__name__)
            for seam in self._seams:
                if seam.module == module.__name__ and self._patches.put(seam, module):
                    self._on.add(seam)
                    self.found.append(f"{seam.module}.{seam.name}")
            self.revision += 1

    def _is_missing(self, point: str) -> bool:
        seams = [seam for seam in self._seams if seam.point == point]
        return not any(seam in self._on or self._may_come(seam.module) for seam in seams)

    def _may_come(self, module: str) -> bool:
        """Whether nobody has imported ``module`` yet, and somebody could."""
        if module in self._looked:
            return False
        package, _, inner = module.partition(".")
        places = list(getattr(sys.modules.get(package), "__path__", ()))
        if package != self._adapter.package or not places:  # of a package that it uses: not known without asking it
            return True
        files = [Path(place, *inner.split(".")) for place in places]
        return any(file.is_dir() or file.with_name(f"{file.name}.py").is_file() for file in files)


def attach(*frameworks: str) -> list[Attachment]:
    """Observe frameworks from now on, before or after they are imported; all that are known without a name.

    Args:
        *frameworks: Names in :data:`ADAPTERS`. One that is attached already stays as it is. With TRL comes
            Transformers, whose trainer it extends, and with Lightning the package of its older name.

    Returns:
        An :class:`Attachment` for each, those that come with one behind it. None at all where the environment says
        ``PROBE=off``.

    Raises:
        UnknownNameError: There is no adapter of that name. Nothing has been attached then.
        InputError: The environment's ``PROBE`` is neither on nor off.
    """
    for name in frameworks:
        if name not in ADAPTERS:
            raise UnknownNameError.of("framework", name, ADAPTERS)
    if is_off():
        return []
    with LOCK:
        asked = frameworks or tuple(ADAPTERS)
        names = dict.fromkeys(one for name in asked for one in (name, *ADAPTERS[name].also))
        return [cast("Attachment | None", ATTACHED.get(name)) or _attach(name) for name in names]


def _attach(name: str) -> Attachment:
    made = ATTACHED[name] = Attachment(name)
    return made


def _version(adapter: Adapter) -> str:
    from importlib import metadata

    try:
        return metadata.version(adapter.distribution)
    except metadata.PackageNotFoundError:
        return ""
